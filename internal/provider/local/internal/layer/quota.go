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

// Quotas: btrfs limits the space that is allocated for a subvolume. That includes deleted open files, names and attributes.
//
// Simple quotas (Linux 6.7) count an extent for the subvolume that has allocated it. On older kernels, full quotas are
// used, which track every reference, are slow, and sometimes require a rescan. With both, data that only a snapshot
// references counts for the layer that wrote it, or for none.

// ioctls of quotas, from linux/btrfs.h.
const (
	btrfsQuotaCtl     = 0xc0109428
	btrfsQgroupLimit  = 0x8030942b
	btrfsQgroupAssign = 0x40189429
	btrfsQgroupCreate = 0x4010942a
	btrfsInoLookup    = 0xd0009412
	quotaEnable       = 1
	quotaEnableSimple = 4
	limitReferenced   = 1 << 0
	firstFree         = 256 // the object ID of a subvolume's root folder
	noLimit           = ^uint64(0)
	quotaSlack        = 1 << 20 // for names and attributes of an almost empty disk
	qgroups           = "qgroups"
	referencedFile    = "referenced"
	reservedFile      = "rsv_data"
	dropThresholdFile = "drop_subtree_threshold"
	maxDropThreshold  = "8"
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

// enableQuota enables quotas, or returns why there are none. On the filesystem of the host, only the administrator
// enables them.
func (s *Store) enableQuota() error {
	if s.sysfs == "" {
		return errors.New("the filesystem is not listed in /sys/fs/btrfs")
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
	// Otherwise full quotas become inconsistent when a large folder is deleted. Simple quotas do not have the file.
	if drop := filepath.Join(groups, dropThresholdFile); tree.Exists(drop) {
		_ = os.WriteFile(drop, []byte(maxDropThreshold), 0)
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

// SetLimit sets the size limit of a layer of an owner; 0 is no limit. It is a no-op without quotas.
func (s *Store) SetLimit(layer, owner string, bytes int64) error {
	return s.SetLimitOf(s.Path(layer), owner, bytes)
}

// SetLimitOf is SetLimit for any subvolume. All subvolumes of one owner together cannot fill the filesystem.
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

// ownerGroup returns the ID of the quota group of an owner.
func ownerGroup(owner string) uint64 {
	sum := sha256.Sum256([]byte(owner))
	return 1<<48 | uint64(binary.BigEndian.Uint32(sum[:])) + 1
}

// ownerPart is the part of the filesystem, in tenths, that one owner may fill.
const ownerPart = 9

// joinOwner adds a subvolume to the quota group of its owner.
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

// subvolID returns the ID of a subvolume and of its quota group.
func subvolID(d *os.File) (uint64, error) {
	look := inoLookupArgs{object: firstFree}
	err := btrfs(d, btrfsInoLookup, unsafe.Pointer(&look))
	return look.tree, err
}

// Used returns the allocated space of a layer; ok is false without quotas.
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

// MakeSubvolume creates a subvolume, which can have a limit; ok is false if the filesystem does not support it.
func (s *Store) MakeSubvolume(path string) (ok bool, err error) {
	if !s.subvol {
		return false, nil
	}
	return true, btrfsNamed(filepath.Dir(path), btrfsSubvolCreate, filepath.Base(path))
}
