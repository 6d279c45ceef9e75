package image

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// folder opens a folder by its name, through links as they would lead inside, and
// makes what is missing. It is open until the next call.
func (u *unpacker) folder(name string) (folder, error) {
	if u.at.fd >= 0 && u.at.name == name {
		return u.at, nil
	}
	f, err := u.find(name)
	if err != nil {
		return folder{}, err
	}
	u.forget()
	u.at = f
	return f, nil
}

func (u *unpacker) forget() {
	if u.at.fd >= 0 {
		unix.Close(u.at.fd)
		u.at.fd = -1
	}
}

func (u *unpacker) find(name string) (folder, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(u.root, name, &how)
	if err == nil {
		return folder{fd, name, name}, nil
	}
	how.Resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	fd, err = unix.Openat2(u.root, name, &how)
	if err == nil {
		return u.located(fd, name)
	}
	if name == "." || !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return folder{}, err
	}
	in, err := u.find(path.Dir(name))
	if err != nil {
		return folder{}, err
	}
	defer unix.Close(in.fd)
	base := path.Base(name)
	real := path.Join(in.real, base)
	var st unix.Stat_t
	err = unix.Fstatat(in.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && !u.white[real]:
		return folder{}, fmt.Errorf("%w: %q is no folder, or a link to none", ErrInvalid, clip(name))
	case err != nil && !errors.Is(err, unix.ENOENT):
		return folder{}, err
	case strings.Count(real, "/") >= maxDepth:
		return folder{}, fmt.Errorf("%w: folders are nested deeper than %d", ErrInvalid, maxDepth)
	}
	if err := u.count(1, 0); err != nil {
		return folder{}, err
	}
	if err := u.mkdir(in, base); err != nil {
		return folder{}, err
	}
	fd, err = unix.Openat(in.fd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	return folder{fd, name, real}, err
}

// located asks the kernel where a folder that was reached through links is. Links
// could otherwise nest folders without end.
func (u *unpacker) located(fd int, name string) (folder, error) {
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil {
		switch rest, ok := strings.CutPrefix(real, u.prefix); {
		case ok && rest == "":
			return folder{fd, name, "."}, nil
		case ok && rest[0] == '/' && strings.Count(rest, "/") <= maxDepth:
			return folder{fd, name, rest[1:]}, nil
		}
		err = fmt.Errorf("%w: folders are nested deeper than %d", ErrInvalid, maxDepth)
	}
	unix.Close(fd)
	return folder{}, err
}

// clear makes room for an entry. It tells whether there was a whiteout.
func (u *unpacker) clear(in folder, base string) (was bool, err error) {
	real := path.Join(in.real, base)
	if was = u.white[real]; was {
		delete(u.white, real)
		return was, unix.Unlinkat(in.fd, base, 0)
	}
	err = unix.Unlinkat(in.fd, base, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		// The kept folder may be below it. The caller's is not: it holds it.
		if u.at.fd != in.fd {
			u.forget()
		}
		// Layers replace what they hold themselves rarely, and hostile ones to keep
		// us looking.
		if u.sought += int64(len(u.dirs) + len(u.white) + len(u.opaque)); u.sought > 1<<28 {
			return false, fmt.Errorf("%w: it replaces too many of its own folders", ErrInvalid)
		}
		below := real + "/"
		forgetBelow(u.dirs, real, below)
		forgetBelow(u.white, real, below)
		forgetBelow(u.opaque, real, below)
		err = remove(in.fd, base)
	}
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return false, err
}

func forgetBelow[V any](m map[string]V, real, below string) {
	delete(m, real)
	for name := range m {
		if strings.HasPrefix(name, below) {
			delete(m, name)
		}
	}
}

// remove removes a tree.
func remove(parent int, name string) error {
	err := unix.Unlinkat(parent, name, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024)
		for _, n := range names {
			if err := remove(fd, n); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		}
		if err != nil {
			return err
		}
		// Some filesystems skip entries of a folder that shrinks while it is read.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// whiteout hides what the layers below have.
func (u *unpacker) whiteout(in folder, mark string) error {
	if mark == markOpaque {
		if in.real == "." {
			u.unit.Opaque = true
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
		// This layer's own folder stays, without what is below it.
		return u.setOpaque(in, base, real)
	default:
		return nil // this layer's own file hides what is below it anyhow
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

// whiteoutAttr is the whiteout for where not even this device may be made. Linux
// knows it since 6.7, in folders that say that they hold some.
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
		return fmt.Errorf("mark what the layer removes: %w; put the store on a filesystem with user xattrs, such as ext4, xfs or btrfs", err)
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

// attributes sets the extended ones that mean something in a sandbox. Those of
// overlays are the unpacker's alone to give.
func (u *unpacker) attributes(fd int, h *tar.Header) error {
	for record, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(record, "SCHILY.xattr.")
		capable := name == attrCapability && u.privileges
		if !ok || !capable && (!strings.HasPrefix(name, "user.") || strings.HasPrefix(name, attrPrefix)) {
			continue
		}
		switch err := unix.Fsetxattr(fd, name, []byte(value), 0); {
		case err == nil, errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ERANGE), errors.Is(err, unix.E2BIG), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPERM):
			// What the filesystem cannot keep is left out.
		case errors.Is(err, unix.ENOSPC):
			// This also says that a file's attributes are too many.
		default:
			return fmt.Errorf("set attribute %q: %w", clip(name), err)
		}
	}
	return nil
}

// dress gives what cannot be opened its owner and time.
func (u *unpacker) dress(in folder, base string, h *tar.Header) error {
	if u.owners {
		if err := unix.Fchownat(in.fd, base, owner(h.Uid), owner(h.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(in.fd, base, times(h.ModTime), unix.AT_SYMLINK_NOFOLLOW)
}

// mode is an entry's. Where there is one owner for all, what root inside the image
// could have read must stay open to that one.
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

func owner(id int) int {
	if id < 0 || id > lastID {
		return nobody
	}
	return id
}

// times bounds what an archive can claim to what every filesystem can keep.
func times(t time.Time) []unix.Timespec {
	s := min(max(t.Unix(), 0), 1<<33)
	ts := unix.Timespec{Sec: s, Nsec: int64(t.Nanosecond())}
	return []unix.Timespec{ts, ts}
}

// finish gives folders what they could not have while they were written to, the
// deepest first, and drops whiteouts where all is hidden already.
func (u *unpacker) finish() error {
	u.forget()
	if u.since > 0 && u.check != nil {
		if err := u.check(); err != nil {
			return err
		}
	}
	for real := range u.white {
		if dir := path.Dir(real); u.opaque[dir] || dir == "." && u.Opaque {
			in, err := u.find(dir)
			if err != nil {
				return err
			}
			err = unix.Unlinkat(in.fd, path.Base(real), 0)
			unix.Close(in.fd)
			if err != nil {
				return err
			}
		}
	}
	names := make([]string, 0, len(u.dirs))
	for n := range u.dirs {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, n := range names {
		f, err := u.find(n)
		if err != nil {
			return err
		}
		a := u.dirs[n]
		err = unix.Fchmod(f.fd, a.mode)
		if err == nil && !a.time.IsZero() {
			ts := times(a.time)
			err = unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.fd), ts, 0)
		}
		unix.Close(f.fd)
		if err != nil {
			return err
		}
	}
	return nil
}
