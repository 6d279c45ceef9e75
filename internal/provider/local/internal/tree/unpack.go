package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrRefused reports that an archive contains entries that Pack never writes.
var ErrRefused = errors.New("not a valid backup")

// Unpacker unpacks the entries of Pack into a folder. It never writes outside of the folder or through links, and never
// replaces existing files.
type Unpacker struct {
	Root *os.File
	// Plain allows only files and folders, and makes them accessible only to the current user.
	Plain bool
	// Make creates a folder, for example as a subvolume, and reports whether it did.
	Make func(root *os.File, name string) (bool, error)

	file *os.File // that is being written; nil if none
	last *tar.Header
	size int64
}

// HasHoles reports whether an entry describes a sparse file.
func HasHoles(h *tar.Header) bool {
	return h.PAXRecords[sizeKey] != "" || h.PAXRecords[offsetKey] != ""
}

// Add unpacks an entry. Name and target are those of the header, relative to the folder.
func (u *Unpacker) Add(h *tar.Header, name, target string, r io.Reader) error {
	if at, ok := h.PAXRecords[offsetKey]; ok {
		return u.addPart(h, name, at, r)
	}
	if err := u.Finish(); err != nil {
		return err
	}
	dir, err := u.openParent(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := u.addEntry(dir, h, name, target, r); err != nil {
		return fmt.Errorf("unpack %q: %w", clip(name), err)
	}
	return nil
}

// openParent opens the folder of an entry without following links.
func (u *Unpacker) openParent(name string) (*os.File, error) {
	if !filepath.IsLocal(name) || path.Clean(name) != name || strings.Count(name, "/") > MaxDepth+8 {
		return nil, fmt.Errorf("%w: entry %q leaves its folder", ErrRefused, clip(name))
	}
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(int(u.Root.Fd()), path.Dir(name), &how)
	if errors.Is(err, unix.ENOENT) && path.Dir(name) != "." {
		// Pack writes folders before their entries; single files may have no folder entry.
		above, err := u.openParent(path.Dir(name))
		if err != nil {
			return nil, err
		}
		err = unix.Mkdirat(int(above.Fd()), path.Base(path.Dir(name)), 0o700)
		above.Close()
		if err != nil {
			return nil, err
		}
		fd, err = unix.Openat2(int(u.Root.Fd()), path.Dir(name), &how)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the folder of entry %q is a link or is missing: %w", ErrRefused, clip(name), err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (u *Unpacker) addEntry(dir *os.File, h *tar.Header, name, target string, r io.Reader) error {
	base, at := path.Base(name), int(dir.Fd())
	if u.Plain && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeReg {
		return fmt.Errorf("%w: it is neither a file nor a folder", ErrRefused)
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		return u.addFolder(dir, h, name)
	case tar.TypeReg:
		return u.addFile(at, base, h, r)
	case tar.TypeLink:
		to, err := u.openParent(target)
		if err != nil {
			return err
		}
		defer to.Close()
		return unix.Linkat(int(to.Fd()), path.Base(target), at, base, 0)
	case tar.TypeSymlink:
		err = unix.Symlinkat(h.Linkname, at, base)
	case tar.TypeFifo:
		err = unix.Mknodat(at, base, unix.S_IFIFO|0o600, 0)
	case tar.TypeChar:
		if h.Devmajor != 0 || h.Devminor != 0 {
			return fmt.Errorf("%w: it is a device", ErrRefused)
		}
		err = unix.Mknodat(at, base, unix.S_IFCHR|0o600, 0)
	default:
		return fmt.Errorf("%w: it is of the unknown kind %q", ErrRefused, h.Typeflag)
	}
	if err != nil {
		return err
	}
	st := stat(h)
	if h.Typeflag == tar.TypeSymlink {
		st.Mode = unix.S_IFLNK
	}
	return copyStat(at, base, st)
}

// stat returns the attributes of an entry, without its kind.
func stat(h *tar.Header) *unix.Stat_t {
	t := unix.NsecToTimespec(h.ModTime.UnixNano())
	return &unix.Stat_t{Mode: uint32(h.Mode) & 0o7777, Uid: uint32(h.Uid), Gid: uint32(h.Gid), Atim: t, Mtim: t}
}

// addFolder creates a folder, or sets its attributes: they come last, because writing to the folder changes them.
func (u *Unpacker) addFolder(dir *os.File, h *tar.Header, name string) error {
	if _, end := h.PAXRecords[endKey]; !end {
		if u.Make != nil {
			if made, err := u.Make(u.Root, name); made || err != nil {
				return err
			}
		}
		return unix.Mkdirat(int(dir.Fd()), path.Base(name), 0o700)
	}
	d, err := openDir(int(dir.Fd()), path.Base(name))
	if err != nil {
		return err
	}
	defer d.Close()
	return u.setMeta(d, h)
}

func (u *Unpacker) addFile(dir int, base string, h *tar.Header, r io.Reader) error {
	size := h.Size
	if text, ok := h.PAXRecords[sizeKey]; ok {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || h.Size != 0 {
			return fmt.Errorf("%w: invalid size %q", ErrRefused, clip(text))
		}
		size = n
	}
	fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	u.file, u.last, u.size = os.NewFile(uintptr(fd), base), h, size
	if err := u.file.Truncate(size); err != nil {
		return err
	}
	_, err = io.Copy(u.file, r)
	return err
}

// addPart writes data of the previous file, which has holes.
func (u *Unpacker) addPart(h *tar.Header, name, offset string, r io.Reader) error {
	at, err := strconv.ParseInt(offset, 10, 64)
	if err != nil || at < 0 || u.file == nil || h.Name != u.last.Name || at > u.size-h.Size {
		return fmt.Errorf("%w: entry %q is misplaced", ErrRefused, clip(name))
	}
	_, err = io.Copy(io.NewOffsetWriter(u.file, at), r)
	return err
}

// Finish completes the last file.
func (u *Unpacker) Finish() error {
	if u.file == nil {
		return nil
	}
	f := u.file
	u.file = nil
	return errors.Join(u.setMeta(f, u.last), f.Close())
}

// setMeta sets the owner, attributes, mode and time of a header.
func (u *Unpacker) setMeta(f *os.File, h *tar.Header) error {
	st, fd := stat(h), int(f.Fd())
	if u.Plain {
		if err := unix.Fchmod(fd, st.Mode&0o700); err != nil {
			return err
		}
		return unix.UtimesNanoAt(fd, "", []unix.Timespec{st.Atim, st.Mtim}, unix.AT_EMPTY_PATH)
	}
	if os.Geteuid() == 0 {
		if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, attributeKey)
		if !ok {
			continue
		}
		name, err := url.QueryUnescape(name)
		if err != nil || !isKept(name) {
			return fmt.Errorf("%w: unexpected attribute %q", ErrRefused, clip(name))
		}
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil {
			return fmt.Errorf("attribute %q: %w", clip(name), err)
		}
	}
	if err := unix.Fchmod(fd, st.Mode); err != nil {
		return err
	}
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{st.Atim, st.Mtim}, unix.AT_EMPTY_PATH)
}

// clip shortens a name for an error.
func clip(name string) string {
	const limit = 200
	if len(name) > limit {
		return name[:limit] + "…"
	}
	return name
}
