package image

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// folder opens a folder by its name, resolves links relative to the root, and creates missing folders. The result is open
// until the next call.
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

// forget closes the open folder.
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
		return u.locate(fd, name)
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
		return folder{}, fmt.Errorf("%w: %q is neither a folder nor a link to one", ErrInvalid, clip(name))
	case err != nil && !errors.Is(err, unix.ENOENT):
		return folder{}, err
	case strings.Count(real, "/") >= maxDepth:
		return folder{}, fmt.Errorf("%w: folders are nested deeper than %d levels", ErrInvalid, maxDepth)
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

// locate returns the real path of a folder that was reached through links. Otherwise links could nest folders endlessly.
func (u *unpacker) locate(fd int, name string) (folder, error) {
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil {
		switch rest, ok := strings.CutPrefix(real, u.prefix); {
		case ok && rest == "":
			return folder{fd, name, "."}, nil
		case ok && rest[0] == '/' && strings.Count(rest, "/") <= maxDepth:
			return folder{fd, name, rest[1:]}, nil
		}
		err = fmt.Errorf("%w: folders are nested deeper than %d levels", ErrInvalid, maxDepth)
	}
	unix.Close(fd)
	return folder{}, err
}

// clear removes the entry that another one replaces. It reports whether it was a whiteout.
func (u *unpacker) clear(in folder, base string) (was bool, err error) {
	real := path.Join(in.real, base)
	if was = u.white[real]; was {
		delete(u.white, real)
		return was, unix.Unlinkat(in.fd, base, 0)
	}
	err = unix.Unlinkat(in.fd, base, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		// The open folder may be below it. The folder of the caller contains it.
		if u.at.fd != in.fd {
			u.forget()
		}
		// Layers rarely replace their own entries; hostile layers do it to slow down the search.
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
		// Some filesystems skip entries when a folder shrinks while it is read.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// finish sets the attributes of folders, deepest first, and removes whiteouts in opaque folders.
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
