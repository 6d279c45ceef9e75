package image

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// whiteout hides an entry of the layers below.
func (u *unpacker) whiteout(in folder, mark string) error {
	if mark == markOpaque {
		if in.real == "." {
			u.layerInfo.Opaque = true
			return nil
		}
		return u.setOpaque(in, ".", in.real)
	}
	if strings.HasPrefix(mark, markOther) {
		return nil
	}
	base := strings.TrimPrefix(mark, markPrefix)
	if base == "" || base == "." || base == ".." {
		return fmt.Errorf("%w: bad whiteout", ErrInvalid)
	}
	real := path.Join(in.real, base)
	if u.white[real] {
		return nil
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(in.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		// The folder of this layer is kept, and hides those below.
		return u.setOpaque(in, base, real)
	default:
		return nil // the file of this layer hides those below anyway
	}
	if err := u.note(real); err != nil {
		return err
	}
	u.white[real] = true
	err := error(unix.EPERM)
	if !u.noDevices {
		err = unix.Mknodat(in.fd, base, unix.S_IFCHR, 0)
	}
	if errors.Is(err, unix.EPERM) {
		return u.whiteoutAttr(in, base)
	}
	return err
}

// whiteoutAttr creates a whiteout without a device node, for filesystems that forbid it. Linux supports it since 6.7, in
// marked folders.
func (u *unpacker) whiteoutAttr(in folder, base string) error {
	fd, err := unix.Openat(in.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Fsetxattr(fd, attrWhiteout, []byte("y"), 0)
	if err == nil && !u.opaque[in.real] {
		err = unix.Fsetxattr(in.fd, attrOpaque, []byte("x"), 0)
	}
	return unsupported(err)
}

func unsupported(err error) error {
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("create whiteout: %w; keep the image store on a filesystem with user xattrs, such as ext4, xfs or btrfs", err)
	}
	return err
}

func (u *unpacker) setOpaque(in folder, base, real string) error {
	fd, err := unix.Openat(in.fd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	u.opaque[real] = true
	return unsupported(unix.Fsetxattr(fd, attrOpaque, []byte("y"), 0))
}
