package layer

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	_ "embed" // for the seed
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

// ioctls of btrfs, from linux/btrfs.h.
const (
	btrfsResize       = 0x50009403
	btrfsSubvolCreate = 0x5000940e
	btrfsSnapDestroy  = 0x5000940f
	btrfsSnapCreateV2 = 0x50009417
	btrfsInfo         = 0x8400941f
	btrfsReadOnly     = 1 << 1
)

type volArgs struct {
	fd   int64
	name [4088]byte
}

type volArgsV2 struct {
	fd      int64
	transid uint64
	flags   uint64
	_       [4]uint64
	name    [4040]byte
}

func btrfs(dir *os.File, call uintptr, args unsafe.Pointer) error {
	raw, err := dir.SyscallConn()
	if err != nil {
		return err
	}
	var errno unix.Errno
	if err := raw.Control(func(fd uintptr) { _, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, call, uintptr(args)) }); err != nil {
		return err
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// btrfsNamed calls an ioctl that takes a name in a folder, or a size.
func btrfsNamed(dir string, call uintptr, name string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	var a volArgs
	copy(a.name[:len(a.name)-1], name)
	return btrfs(d, call, unsafe.Pointer(&a))
}

// snapshotSubvol creates a read-only copy of the current content of a subvolume. Both share unchanged data.
func snapshotSubvol(from, dir, name string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	a := volArgsV2{fd: int64(src.Fd()), flags: btrfsReadOnly}
	copy(a.name[:len(a.name)-1], name)
	return btrfs(d, btrfsSnapCreateV2, unsafe.Pointer(&a))
}

// seed is an empty btrfs of 128 MiB, as created by "mkfs.btrfs -m single -d single": its non-zero 4 KiB blocks, each
// preceded by its number. With it, mkfs.btrfs does not have to be installed. The filesystem is grown after mounting.
//
//go:embed btrfs.seed.gz
var seed []byte

// Offsets in a btrfs superblock.
const (
	superAt       = 64 << 10
	superSize     = 4096
	superFSID     = 0x20
	superMagic    = 0x40
	superIncompat = 0xbc
	superMetadata = 0x23b
	metadataUUID  = 1 << 10
)

// writeSeed writes an empty btrfs to f. It gets a new UUID, because the kernel identifies filesystems by UUID.
func writeSeed(f *os.File) error {
	z, err := gzip.NewReader(bytes.NewReader(seed))
	if err != nil {
		return err
	}
	var block [4 + 4096]byte
	for {
		if _, err := io.ReadFull(z, block[:]); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		at := int64(binary.BigEndian.Uint32(block[:])) * 4096
		if at == superAt {
			if err := setUUID(block[4:]); err != nil {
				return err
			}
		}
		if _, err := f.WriteAt(block[4:], at); err != nil {
			return err
		}
	}
	return f.Sync()
}

// setUUID changes the UUID in a superblock. The metadata blocks keep the old UUID, which the superblock references.
func setUUID(super []byte) error {
	if len(super) != superSize || string(super[superMagic:superMagic+8]) != "_BHRfS_M" {
		return errors.New("the btrfs seed has no superblock")
	}
	copy(super[superMetadata:superMetadata+16], super[superFSID:])
	rand.Read(super[superFSID : superFSID+16])
	flags := binary.LittleEndian.Uint64(super[superIncompat:])
	binary.LittleEndian.PutUint64(super[superIncompat:], flags|metadataUUID)
	binary.LittleEndian.PutUint32(super, crc32.Checksum(super[0x20:], crc32.MakeTable(crc32.Castagnoli)))
	return nil
}

// btrfsUsage returns the used space of a mounted btrfs: data, and metadata, which includes small files. Statfs reports
// both only after writeback.
func (s *Store) btrfsUsage() (data, meta int64, ok bool) {
	if s.sysfs == "" {
		return 0, 0, false
	}
	for _, f := range []struct {
		to   *int64
		name string
	}{
		{&data, "data/bytes_used"}, {&data, "data/bytes_reserved"}, {&data, "data/bytes_may_use"},
		{&meta, "metadata/bytes_used"}, {&meta, "metadata/bytes_reserved"},
	} {
		text, err := os.ReadFile(filepath.Join(s.sysfs, f.name))
		if err != nil {
			return 0, 0, false
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, 0, false
		}
		*f.to += n
	}
	return data, meta, true
}

// findUsage finds the folder that btrfsUsage reads.
func findUsage(dir string) string {
	d, err := os.Open(dir)
	if err != nil {
		return ""
	}
	defer d.Close()
	var info [1024]byte // the UUID follows two numbers
	if btrfs(d, btrfsInfo, unsafe.Pointer(&info)) != nil {
		return ""
	}
	id := info[16:32]
	path := fmt.Sprintf("/sys/fs/btrfs/%x-%x-%x-%x-%x/allocation", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	if !tree.Exists(path) {
		return ""
	}
	return path
}
