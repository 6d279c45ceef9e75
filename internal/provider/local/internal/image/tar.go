package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Owner maps the owner of a file on disk to its owner in a layer.
type Owner func(uid, gid int) (int, int)

// Tar writes the upper folder of an overlay as a layer: whiteouts and opaque folders
// become markers, and the attributes of overlays are omitted. Owner may be nil. It
// returns the number of omitted entries that a layer cannot hold: sockets, devices, and
// names that would be taken for markers.
//
// The folder may be hostile: links are not followed, and a file that changes while it
// is read is truncated or padded with zeros.
func Tar(ctx context.Context, w io.Writer, dir string, owner Owner) (left int, err error) {
	if owner == nil {
		owner = func(uid, gid int) (int, int) { return uid, gid }
	}
	root, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	p := &packer{ctx: ctx, tw: tar.NewWriter(w), owner: owner, links: map[inode]string{}, buf: make([]byte, 64<<10)}
	if err := p.opaque(root, ""); err != nil {
		return 0, err
	}
	if err := p.walk(root, "", 1); err != nil {
		return p.left, err
	}
	return p.left, p.tw.Close()
}

type packer struct {
	ctx   context.Context
	tw    *tar.Writer
	owner Owner
	links map[inode]string // files with several names
	left  int
	buf   []byte
}

type inode struct{ dev, ino uint64 }

func (p *packer) walk(dir *os.File, in string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%q: folders are nested deeper than %d levels; move them up", clip(in), maxDepth)
	}
	for {
		entries, err := dir.ReadDir(1024)
		for _, e := range entries {
			if err := errors.Join(p.ctx.Err(), p.entry(dir, e.Name(), path.Join(in, e.Name()), depth)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *packer) entry(dir *os.File, base, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return ignoreMissing(err, name)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
		return p.mark(path.Join(path.Dir(name), markPrefix+base))
	}
	if strings.HasPrefix(base, markPrefix) {
		p.left++
		return nil
	}
	h := &tar.Header{Name: name, Mode: int64(st.Mode & 0o7777), ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec),
		Format: tar.FormatPAX, PAXRecords: map[string]string{}}
	h.Uid, h.Gid = p.owner(int(st.Uid), int(st.Gid))
	if h.Uid < 0 || h.Gid < 0 {
		return fmt.Errorf("%q belongs to %d:%d, which is no user of the sandbox", clip(name), st.Uid, st.Gid)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return p.dir(dir, base, h, depth)
	case unix.S_IFREG:
		if first, ok := p.links[inode{st.Dev, st.Ino}]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return p.tw.WriteHeader(h)
		}
		if st.Nlink > 1 {
			p.links[inode{st.Dev, st.Ino}] = name
		}
		return p.file(dir, base, h, st.Size)
	case unix.S_IFLNK:
		n, err := unix.Readlinkat(int(dir.Fd()), base, p.buf)
		if err != nil {
			return ignoreMissing(err, name)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(p.buf[:n])
		return p.tw.WriteHeader(h)
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
		return p.tw.WriteHeader(h)
	}
	p.left++
	return nil
}

// ignoreMissing ignores errors about removed files.
func ignoreMissing(err error, name string) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fmt.Errorf("%q: %w", clip(name), err)
}

func (p *packer) mark(name string) error {
	return p.tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Format: tar.FormatPAX})
}

func (p *packer) dir(in *os.File, base string, h *tar.Header, depth int) error {
	fd, err := unix.Openat(int(in.Fd()), base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return ignoreMissing(err, h.Name)
	}
	d := os.NewFile(uintptr(fd), h.Name)
	defer d.Close()
	attrs, _, err := attributes(fd)
	if err != nil {
		return ignoreMissing(err, h.Name)
	}
	name := h.Name
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	p.addAttributes(h, attrs)
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	if err := p.opaque(d, name); err != nil {
		return err
	}
	return p.walk(d, name, depth+1)
}

// opaque writes the marker of a folder that hides the layers below it.
func (p *packer) opaque(d *os.File, name string) error {
	attrs, _, err := attributes(int(d.Fd()))
	if err != nil {
		return ignoreMissing(err, name)
	}
	for _, space := range []string{attrOpaque, "trusted.overlay.opaque"} {
		if attrs[space] == "y" {
			return p.mark(path.Join(name, markOpaque))
		}
	}
	return nil
}

func (p *packer) file(in *os.File, base string, h *tar.Header, size int64) error {
	// O_NONBLOCK, because the file may have been replaced with a pipe.
	fd, err := unix.Openat(int(in.Fd()), base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ignoreMissing(err, h.Name)
	}
	defer unix.Close(fd)
	attrs, white, err := attributes(fd)
	if err != nil {
		return ignoreMissing(err, h.Name)
	}
	if white && size == 0 {
		return p.mark(path.Join(path.Dir(h.Name), markPrefix+base))
	}
	h.Typeflag, h.Size = tar.TypeReg, size
	p.addAttributes(h, attrs)
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	for left := size; left > 0; {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		part := p.buf[:min(left, int64(len(p.buf)))]
		n, err := unix.Pread(fd, part, size-left)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return ignoreMissing(err, h.Name)
		}
		if n == 0 {
			clear(part)
			n = len(part)
		}
		if _, err := p.tw.Write(part[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// addAttributes adds the extended attributes that a layer can have.
func (p *packer) addAttributes(h *tar.Header, attrs map[string]string) {
	for name, value := range attrs {
		if name == attrCapability {
			value = rootCapability(value)
		}
		if name == attrCapability || strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, attrPrefix) {
			// The format cannot express these names.
			if !strings.ContainsAny(name, "=\x00") {
				h.PAXRecords["SCHILY.xattr."+name] = value
			}
		}
	}
}

// attributes reads extended attributes, and reports whether they mark a whiteout.
func attributes(fd int) (attrs map[string]string, white bool, err error) {
	n, err := unix.Flistxattr(fd, nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, false, nil
	}
	const limit = 64 << 10 // of the kernel
	buf, value := make([]byte, limit), make([]byte, limit)
	if n, err = unix.Flistxattr(fd, buf); err != nil {
		return nil, false, err
	}
	attrs = map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		n, err := unix.Fgetxattr(fd, name, value)
		if err != nil {
			continue // removed or not accessible
		}
		attrs[name] = string(value[:n])
		white = white || name == attrWhiteout || name == "trusted.overlay.whiteout"
	}
	return attrs, white, nil
}

// rootCapability removes the root ID from file capabilities: on disk it may be the ID of the sandbox's root, and in a layer
// they always belong to root.
func rootCapability(v string) string {
	const size = 24 // revision 3: as revision 2, and then an ID
	if len(v) != size || v[3] != 3 {
		return v
	}
	return v[:3] + "\x02" + v[4:size-4]
}
