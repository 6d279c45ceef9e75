package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Copy copies a folder with all data of overlays: owners, modes, times, extended attributes, hard links, and the devices
// that mark deleted files. The copy shares content if the filesystem supports it; otherwise, holes are preserved. The
// direct entry called skip is skipped.
func Copy(ctx context.Context, from, to, skip string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	dst, err := os.Open(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	c := &copier{ctx: ctx, top: dst, skip: skip, links: map[inode]string{}}
	if err := c.copyFolder(src, dst, "", 0); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return err
	}
	return copyMeta(int(src.Fd()), int(dst.Fd()), &st)
}

type inode struct{ dev, ino uint64 }

type copier struct {
	ctx   context.Context
	top   *os.File
	skip  string
	links map[inode]string // first names of files with several names
}

// copyFolder copies the content of a folder. The caller sets its attributes afterwards, because writing changes them.
func (c *copier) copyFolder(src, dst *os.File, at string, depth int) error {
	if depth > MaxDepth {
		return fmt.Errorf("%w: folders are nested deeper than %d levels", sandbox.ErrExhausted, MaxDepth)
	}
	return Each(src, func(e os.DirEntry) error {
		if depth == 0 && e.Name() == c.skip {
			return nil
		}
		if err := c.ctx.Err(); err != nil {
			return context.Cause(c.ctx)
		}
		if err := c.copyEntry(src, dst, e.Name(), filepath.Join(at, e.Name()), depth); err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		return nil
	})
}

func (c *copier) copyEntry(src, dst *os.File, name, at string, depth int) error {
	var st unix.Stat_t
	from, to := int(src.Fd()), int(dst.Fd())
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFDIR && st.Nlink > 1 {
		key := inode{st.Dev, st.Ino}
		if first, ok := c.links[key]; ok {
			return unix.Linkat(int(c.top.Fd()), first, to, name, 0)
		}
		c.links[key] = at
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.copySub(src, dst, name, at, depth, &st)
	case unix.S_IFREG:
		return c.copyFile(from, to, name, &st)
	case unix.S_IFLNK:
		target, err := readlinkat(from, name)
		if err == nil {
			err = unix.Symlinkat(target, to, name)
		}
		if err != nil {
			return err
		}
	default:
		if err := unix.Mknodat(to, name, st.Mode, int(st.Rdev)); err != nil {
			return err
		}
	}
	return copyStat(to, name, &st)
}

func (c *copier) copySub(src, dst *os.File, name, at string, depth int, st *unix.Stat_t) error {
	in, closed, err := openForced(int(src.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closed()
	if err := unix.Mkdirat(int(dst.Fd()), name, 0o700); err != nil {
		return err
	}
	out, err := openDir(int(dst.Fd()), name)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := c.copyFolder(in, out, at, depth+1); err != nil {
		return err
	}
	return copyMeta(int(in.Fd()), int(out.Fd()), st)
}

func (c *copier) copyFile(from, to int, name string, st *unix.Stat_t) error {
	in, closed, err := openForced(from, name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer closed()
	fd, err := unix.Openat(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), name)
	defer out.Close()
	if unix.IoctlFileClone(fd, int(in.Fd())) != nil {
		if err := copyData(c.ctx, in, out, st.Size); err != nil {
			return err
		}
	}
	return copyMeta(int(in.Fd()), fd, st)
}

// copyData copies a file except for its holes.
func copyData(ctx context.Context, in, out *os.File, size int64) error {
	for at := int64(0); at < size; {
		data, err := in.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return err
		}
		hole, err := in.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for at = data; at < hole; {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if _, err := in.Seek(at, io.SeekStart); err != nil {
				return err
			}
			if _, err := out.Seek(at, io.SeekStart); err != nil {
				return err
			}
			n, err := io.CopyN(out, in, min(hole-at, 64<<20))
			at += n
			if err != nil {
				return err
			}
		}
	}
	return out.Truncate(size)
}

// copyMeta copies owner, attributes, mode and times. The mode is set after the owner, because a change of the owner
// clears bits of the mode.
func copyMeta(from, to int, st *unix.Stat_t) error {
	if os.Geteuid() == 0 {
		if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := copyAttributes(from, to); err != nil {
		return err
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(to, "", []unix.Timespec{st.Atim, st.Mtim}, unix.AT_EMPTY_PATH)
}

// copyAttributes copies the extended attributes, with which overlays mark folders.
func copyAttributes(from, to int) error {
	names := make([]byte, 64<<10)
	n, err := unix.Flistxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		n, err := unix.Fgetxattr(from, name, value)
		if err == nil {
			err = unix.Fsetxattr(to, name, value[:n], 0)
		}
		// Without root, the sandbox could not set privileged attributes either.
		if err != nil && !(os.Geteuid() != 0 && !strings.HasPrefix(name, "user.")) {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return nil
}

// copyStat is copyMeta for entries that cannot be opened.
func copyStat(dir int, name string, st *unix.Stat_t) error {
	if os.Geteuid() == 0 {
		if err := unix.Fchownat(dir, name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(dir, name, st.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

func readlinkat(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// openForced opens an entry even if its mode denies access to the current user. The returned function closes it and
// restores its mode.
func openForced(dir int, name string, flags int) (f *os.File, closed func(), err error) {
	flags |= unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Openat(dir, name, flags, 0)
	restore := func() {}
	if errors.Is(err, unix.EACCES) {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, nil, err
		}
		if err := unix.Fchmodat(dir, name, st.Mode&0o7777|0o700, 0); err != nil {
			return nil, nil, err
		}
		fd, err = unix.Openat(dir, name, flags, 0)
		restore = func() { unix.Fchmodat(dir, name, st.Mode&0o7777, 0) }
	}
	if err != nil {
		restore()
		return nil, nil, err
	}
	f = os.NewFile(uintptr(fd), name)
	return f, func() { f.Close(); restore() }, nil
}
