package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attributes sets the extended attributes that have a meaning in a sandbox. Only the
// unpacker sets those of overlays.
func (u *unpacker) attributes(fd int, h *tar.Header) error {
	counted := false
	for record, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(record, "SCHILY.xattr.")
		capable := name == attrCapability && u.privileges
		if !ok || !capable && (!strings.HasPrefix(name, "user.") || strings.HasPrefix(name, attrPrefix)) {
			continue
		}
		size := int64(len(name) + len(value))
		if !counted { // some filesystems store the attributes of a file in a separate block
			counted, size = true, size+entrySize
		}
		if err := u.reserve(size); err != nil {
			return err
		}
		u.Attrs += size
		switch err := unix.Fsetxattr(fd, name, []byte(value), 0); {
		case err == nil, errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG),
			errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPERM):
			// What the filesystem cannot store is omitted.
		case errors.Is(err, unix.ENOSPC):
			// This can also mean that a file has too many attributes.
		default:
			return fmt.Errorf("set attribute %q: %w", clip(name), err)
		}
	}
	return nil
}

// setOwnerAndTime sets the owner and time of an entry that cannot be opened.
func (u *unpacker) setOwnerAndTime(in folder, base string, h *tar.Header) error {
	if u.owners {
		if err := unix.Fchownat(in.fd, base, owner(h.Uid), owner(h.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(in.fd, base, times(h.ModTime), unix.AT_SYMLINK_NOFOLLOW)
}

// mode returns the mode of an entry. Where all files have one owner, it must be able
// to read what root in the image could.
func (u *unpacker) mode(h *tar.Header) uint32 {
	keep := uint32(0o1777)
	if u.privileges {
		keep = 0o7777
	}
	m := uint32(h.Mode) & keep
	switch {
	case u.owners:
	case h.Typeflag == tar.TypeDir:
		m |= 0o700
	default:
		m |= 0o400
	}
	return m
}

// owner bounds an ID to those of a sandbox.
func owner(id int) int {
	if id < 0 || id > lastID {
		return nobody
	}
	return id
}

// times bounds a time to what every filesystem can store.
func times(t time.Time) []unix.Timespec {
	s := min(max(t.Unix(), 0), 1<<33)
	ts := unix.Timespec{Sec: s, Nsec: int64(t.Nanosecond())}
	return []unix.Timespec{ts, ts}
}
