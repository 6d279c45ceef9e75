package layer

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

// Quotas: btrfs counts what was allocated for a subvolume and refuses more. That
// includes files that are deleted but open, and names and attributes.
//
// We use simple quotas (Linux 6.7), which charge an extent to the subvolume that it was
// allocated for until it is freed. A full quota follows every reference instead, which
// is slow, and needs a rescan at times; it is used on older kernels. With either, data
// that only a snapshot still refers to counts for the layer that wrote it, or for none.

// The ioctls of quotas, from linux/btrfs.h.
const (
	btrfsQuotaCtl      = 0xc0109428
	btrfsQgroupLimit   = 0x8030942b
	btrfsQgroupAssign  = 0x40189429
	btrfsQgroupCreate  = 0x4010942a
	btrfsInoLookup     = 0xd0009412
	quotaEnable        = 1
	quotaEnableSimple  = 4
	limitReferenced    = 1 << 0
	firstFree          = 256 // the object ID of a subvolume's root folder
	noLimit            = ^uint64(0)
	quotaSlack         = 1 << 20 // for names and attributes of an almost empty disk
	qgroups            = "qgroups"
	referencedFile     = "referenced"
	reservedFile       = "rsv_data"
	dropThresholdFile  = "drop_subtree_threshold"
	neverGiveUpOnDrops = "8"
)

type quotaCtlArgs struct{ cmd, status uint64 }

type qgroupLimitArgs struct {
	id                                     uint64 // 0: that of the subvolume
	flags, maxRefer, maxExcl, rsv1, rsvEx2 uint64
}

type inoLookupArgs struct {
	tree, object uint64
	name         [4080]byte
}

// enableQuota makes the filesystem keep quotas, or says why it does not. On one that is
// not ours that is its administrator's decision.
func (s *Store) enableQuota() error {
	if s.sysfs == "" {
		return errors.New("its usage is not in /sys/fs/btrfs")
	}
	groups := filepath.Join(filepath.Dir(s.sysfs), qgroups)
	if !tree.Exists(groups) {
		if s.image == "" {
			return errors.New("quotas are off on the filesystem of the state folder; enable them (btrfs quota " +
				"enable --simple) or use another filesystem")
		}
		if err := s.turnOnQuota(); err != nil {
			return fmt.Errorf("enable quotas: %w", err)
		}
	}
	// A full quota would else give up when a large folder is deleted. Simple ones do not
	// have the file.
	if drop := filepath.Join(groups, dropThresholdFile); tree.Exists(drop) {
		os.WriteFile(drop, []byte(neverGiveUpOnDrops), 0)
	}
	s.groups = groups
	return nil
}

func (s *Store) turnOnQuota() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	for _, cmd := range []uint64{quotaEnableSimple, quotaEnable} {
		a := quotaCtlArgs{cmd: cmd}
		if err = btrfs(d, btrfsQuotaCtl, unsafe.Pointer(&a)); err == nil || errors.Is(err, unix.EEXIST) {
			return nil
		}
	}
	return err
}

// HasQuota reports whether the filesystem enforces limits, and if not, why.
func (s *Store) HasQuota() (bool, error) { return s.groups != "", errors.Join(s.noQuota, s.why) }

// SetLimit bounds what may be allocated for a layer of an owner from now on; 0 is no
// limit. It does nothing without quotas.
func (s *Store) SetLimit(layer, owner string, bytes int64) error {
	return s.SetLimitOf(s.Path(layer), owner, bytes)
}

// SetLimitOf is SetLimit for any subvolume. Together, those of one owner can never fill
// the filesystem.
func (s *Store) SetLimitOf(path, owner string, bytes int64) error {
	if s.groups == "" {
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	id, err := subvolID(d)
	if err == nil {
		err = s.joinOwner(d, id, owner)
	}
	if err == nil {
		err = limitGroup(d, id, bytes)
	}
	if err != nil {
		return fmt.Errorf("set disk limit: %w", err)
	}
	return nil
}

func limitGroup(d *os.File, id uint64, bytes int64) error {
	a := qgroupLimitArgs{id: id, flags: limitReferenced, maxRefer: noLimit}
	if bytes > 0 {
		a.maxRefer = uint64(bytes + quotaSlack)
	}
	return btrfs(d, btrfsQgroupLimit, unsafe.Pointer(&a))
}

// ownerGroup is the ID of the quota group of all that an owner has.
func ownerGroup(owner string) uint64 {
	sum := sha256.Sum256([]byte(owner))
	return 1<<48 | uint64(binary.BigEndian.Uint32(sum[:])) + 1
}

// ownerPart is the part of the filesystem, in tenths, that all of one owner may fill.
const ownerPart = 9

// joinOwner makes a subvolume count for its owner, too.
func (s *Store) joinOwner(d *os.File, id uint64, owner string) error {
	group := ownerGroup(owner)
	s.mu.Lock()
	known := s.owners[group]
	s.mu.Unlock()
	if !known {
		create := struct{ create, id uint64 }{1, group}
		if err := btrfs(d, btrfsQgroupCreate, unsafe.Pointer(&create)); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		var st unix.Statfs_t
		if err := unix.Statfs(s.dir, &st); err != nil {
			return err
		}
		if err := limitGroup(d, group, int64(st.Blocks)*st.Bsize/10*ownerPart); err != nil {
			return err
		}
		s.mu.Lock()
		s.owners[group] = true
		s.mu.Unlock()
	}
	assign := struct{ assign, from, to uint64 }{1, id, group}
	if err := btrfs(d, btrfsQgroupAssign, unsafe.Pointer(&assign)); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// subvolID returns the ID of a subvolume, which is that of its quota group.
func subvolID(d *os.File) (uint64, error) {
	look := inoLookupArgs{object: firstFree}
	err := btrfs(d, btrfsInoLookup, unsafe.Pointer(&look))
	return look.tree, err
}

// Used is what is allocated for a layer; ok is false without quotas.
func (s *Store) Used(layer string) (bytes int64, ok bool) { return s.UsedBy(s.Path(layer)) }

// UsedBy is Used for any subvolume.
func (s *Store) UsedBy(path string) (bytes int64, ok bool) {
	if s.groups == "" {
		return 0, false
	}
	d, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer d.Close()
	id, err := subvolID(d)
	if err != nil {
		return 0, false
	}
	group := filepath.Join(s.groups, fmt.Sprintf("0_%d", id))
	for _, name := range []string{referencedFile, reservedFile} {
		text, err := os.ReadFile(filepath.Join(group, name))
		if err != nil {
			return 0, false
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, false
		}
		bytes += n
	}
	return bytes, true
}

// MakeSubvolume creates a folder that can have a limit, and ok is true, if the
// filesystem supports that.
func (s *Store) MakeSubvolume(path string) (ok bool, err error) {
	if !s.subvol {
		return false, nil
	}
	return true, btrfsNamed(filepath.Dir(path), btrfsSubvolCreate, filepath.Base(path))
}
