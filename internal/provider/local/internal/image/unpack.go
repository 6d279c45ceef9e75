package image

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Overlays that are mounted with userxattr, like those of sandboxes, use these.
const (
	attrPrefix   = "user.overlay."
	attrOpaque   = attrPrefix + "opaque"
	attrWhiteout = attrPrefix + "whiteout"

	attrCapability = "security.capability"
)

// Names by which a layer hides entries of the layers below.
const (
	markPrefix = ".wh."
	markOpaque = ".wh..wh..opq"
	markOther  = ".wh..wh." // of AUFS, which is obsolete
)

// The depth is bounded, so that a tree can be walked with one open folder per level.
const (
	maxDepth = 256
	maxName  = 4095
	lastID   = 65535 // what a sandbox has
	nobody   = 65534
)

// limits bounds a layer.
type limits struct {
	size, files int64
	owners      bool                    // set owners, which requires root
	privileges  bool                    // keep setuid, setgid and file capabilities
	noDevices   bool                    // mark whiteouts with attributes, as if devices could not be created
	take        func(bytes int64) error // called before anything is stored; an error ends the unpacking; nil: it is not counted
	check       func() error            // called now and then; an error ends the unpacking
	memory      int64                   // for names of folders and whiteouts; 256 MiB if 0
}

// unpacker writes a layer below a folder. The kernel resolves every name below the
// folder's descriptor, so no planted link leads out of it.
type unpacker struct {
	limits
	root   int
	prefix string // the root's path, as the kernel reports it
	layerInfo
	at     folder          // the last folder used: entries of a folder follow each other
	dirs   map[string]attr // set at the end, because writing to folders changes them
	white  map[string]bool // whiteouts that were created
	opaque map[string]bool // folders that were made opaque
	buf    []byte
	since  int64 // bytes since the last check
	noted  int64 // bytes of names in memory
	sought int64 // names searched for folders that were replaced
}

// folder is an open folder: its name in the tar, and its real path.
type folder struct {
	fd         int
	name, real string
}

type attr struct {
	mode uint32
	time time.Time
}

// unpack writes the entries of a tar below dir, an empty folder.
func unpack(r io.Reader, dir string, l limits) (layerInfo, error) {
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return layerInfo{}, err
	}
	defer unix.Close(root)
	u := &unpacker{limits: l, root: root, dirs: map[string]attr{".": {mode: 0o755}}, white: map[string]bool{},
		opaque: map[string]bool{}, buf: make([]byte, 64<<10)}
	if u.prefix, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", root)); err != nil {
		return layerInfo{}, err
	}
	u.at.fd = -1
	defer u.forget()
	if u.owners {
		if err := unix.Fchown(root, 0, 0); err != nil {
			return layerInfo{}, err
		}
	}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return layerInfo{}, markInvalid(err)
		}
		if err := u.entry(h, tr); err != nil {
			return layerInfo{}, fmt.Errorf("unpack %q: %w", clip(h.Name), err)
		}
	}
	return u.layerInfo, u.finish()
}

// markInvalid marks errors of the tar itself, for which a retry is no use.
func markInvalid(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return err
}

// clip shortens a name for an error.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

// relative returns a name relative to the root. It rejects all names with .., because valid tools do not write them.
func relative(name string) (string, error) {
	if len(name) > maxName || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: bad name", ErrInvalid)
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "..":
			return "", fmt.Errorf("%w: the name leads out of the layer", ErrInvalid)
		case "", ".":
		default:
			depth++
		}
	}
	if depth > maxDepth {
		return "", fmt.Errorf("%w: folders are nested deeper than %d levels", ErrInvalid, maxDepth)
	}
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		name = "."
	}
	return name, nil
}

// entry unpacks one entry.
func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if err := u.count(1, 0); err != nil {
		return err
	}
	name, err := relative(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			return u.setFolder(folder{fd: u.root, real: "."}, h)
		}
		return fmt.Errorf("%w: the root is not a folder", ErrInvalid)
	}
	base := path.Base(name)
	in, err := u.folder(path.Dir(name))
	if err != nil {
		return err
	}
	if strings.HasPrefix(base, markPrefix) {
		return u.whiteout(in, base)
	}
	if h.Typeflag == tar.TypeDir {
		return u.dir(in, base, h)
	}
	if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
		return nil // a sandbox has its own devices
	}
	if h.Typeflag == tar.TypeLink {
		return u.link(in, base, h.Linkname)
	}
	if _, err := u.clear(in, base); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return u.file(in, base, h, r)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxName || strings.ContainsRune(h.Linkname, 0) {
			return fmt.Errorf("%w: bad link", ErrInvalid)
		}
		if err := unix.Symlinkat(h.Linkname, in.fd, base); err != nil {
			return err
		}
		return u.setOwnerAndTime(in, base, h)
	case tar.TypeFifo:
		if err := unix.Mknodat(in.fd, base, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
		if err := u.setOwnerAndTime(in, base, h); err != nil {
			return err
		}
		return unix.Fchmodat(in.fd, base, u.mode(h), 0)
	}
	return fmt.Errorf("%w: unknown type of entry %q", ErrInvalid, h.Typeflag)
}

// count adds to the size of the layer and returns ErrTooLarge beyond the limits.
func (u *unpacker) count(files, bytes int64) error {
	if bytes > u.limits.size-u.Size {
		return fmt.Errorf("%w: it is larger than %d MiB", ErrTooLarge, u.limits.size>>20)
	}
	u.Files += files
	u.Size += bytes
	if u.Files > u.limits.files {
		return fmt.Errorf("%w: it has more than %d files", ErrTooLarge, u.limits.files)
	}
	if err := u.reserve(bytes + entrySize*files); err != nil {
		return err
	}
	u.since += bytes + entrySize*files
	if u.check != nil && u.since >= 64<<20 {
		u.since = 0
		return u.check()
	}
	return nil
}

// reserve reserves space of the owner.
func (u *unpacker) reserve(bytes int64) error {
	if u.take == nil {
		return nil
	}
	return u.take(bytes)
}

// note counts the memory of a name. With nested folders, names are much longer than their headers.
func (u *unpacker) note(name string) error {
	u.noted += int64(len(name)) + 64
	if u.noted > cmp.Or(u.memory, 256<<20) {
		return fmt.Errorf("%w: the names of its folders are too long in total", ErrTooLarge)
	}
	return nil
}

// file writes a regular file, with holes instead of zeros.
func (u *unpacker) file(in folder, base string, h *tar.Header, r io.Reader) (err error) {
	if h.Size < 0 {
		return fmt.Errorf("%w: bad size", ErrInvalid)
	}
	if err := u.count(0, h.Size); err != nil {
		return err
	}
	fd, err := unix.Openat(in.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	if err := u.content(f, h.Size, r); err != nil {
		return err
	}
	if u.owners {
		if err := unix.Fchown(fd, owner(h.Uid), owner(h.Gid)); err != nil {
			return err
		}
	}
	if err := u.attributes(fd, h); err != nil {
		return err
	}
	// A change of owner clears setuid, so the mode is set afterwards.
	if err := unix.Fchmod(fd, u.mode(h)); err != nil {
		return err
	}
	return unix.UtimesNanoAt(in.fd, base, times(h.ModTime), unix.AT_SYMLINK_NOFOLLOW)
}

func (u *unpacker) content(f *os.File, size int64, r io.Reader) error {
	var at int64
	for at < size {
		n, err := io.ReadFull(r, u.buf[:min(int64(len(u.buf)), size-at)])
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return markInvalid(err)
		}
		if !zero(u.buf[:n]) {
			if _, err := f.WriteAt(u.buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return f.Truncate(size)
}

func zero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// link adds a hard link to an earlier file of this layer.
func (u *unpacker) link(in folder, base, target string) error {
	target, err := relative(target)
	if err != nil {
		return err
	}
	if target == "." {
		return fmt.Errorf("%w: a link to a folder", ErrInvalid)
	}
	// A second descriptor: looking up the target may close the kept one.
	fd, err := unix.FcntlInt(uintptr(in.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	in.fd = fd
	from, err := u.folder(path.Dir(target))
	if err != nil {
		return err
	}
	var st, own unix.Stat_t
	err = unix.Fstatat(from.fd, path.Base(target), &st, unix.AT_SYMLINK_NOFOLLOW)
	if kind := st.Mode & unix.S_IFMT; err != nil || kind != unix.S_IFREG && kind != unix.S_IFLNK &&
		kind != unix.S_IFIFO || u.white[path.Join(from.real, path.Base(target))] {
		return fmt.Errorf("%w: a link to %q, which is not a file of this layer", ErrInvalid, clip(target))
	}
	if err := unix.Fstatat(in.fd, base, &own, unix.AT_SYMLINK_NOFOLLOW); err == nil && own.Ino == st.Ino && own.Dev == st.Dev {
		return nil
	}
	dup, err := unix.FcntlInt(uintptr(from.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dup)
	if _, err := u.clear(in, base); err != nil {
		return err
	}
	return unix.Linkat(dup, path.Base(target), in.fd, base, 0)
}

// dir creates a folder, or sets the attributes of one that exists.
func (u *unpacker) dir(in folder, base string, h *tar.Header) error {
	real := path.Join(in.real, base)
	var st unix.Stat_t
	err := unix.Fstatat(in.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := u.mkdir(in, base); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(in.fd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return u.setFolder(folder{fd: fd, real: real}, h)
}

// mkdir creates a folder, and replaces any other entry.
func (u *unpacker) mkdir(in folder, base string) error {
	was, err := u.clear(in, base)
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(in.fd, base, 0o700); err != nil {
		return err
	}
	if u.owners {
		if err := unix.Fchownat(in.fd, base, 0, 0, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	real := path.Join(in.real, base)
	if err := u.note(real); err != nil {
		return err
	}
	u.dirs[real] = attr{mode: 0o755}
	if was {
		// It replaces the entry below, and is not merged with it.
		return u.setOpaque(in, base, real)
	}
	return nil
}

// setFolder sets the owner of a folder, and records the attributes for finish.
func (u *unpacker) setFolder(f folder, h *tar.Header) error {
	if u.owners {
		if err := unix.Fchown(f.fd, owner(h.Uid), owner(h.Gid)); err != nil {
			return err
		}
	}
	u.dirs[f.real] = attr{u.mode(h), h.ModTime}
	return u.attributes(f.fd, h)
}
