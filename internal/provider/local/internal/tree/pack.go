package tree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// PAX records that Pack writes.
const (
	attributeKey = "SCHILY.xattr." // extended attribute; other programs use it, too
	sizeKey      = "COVE.size"     // size of a file with holes; its data follows
	offsetKey    = "COVE.offset"   // data of the previous file at this offset
	endKey       = "COVE.end"      // the folder is complete
)

// Pack writes a folder to an archive below a name, with everything that Copy copies. Holes of files use no space. A file
// that changes concurrently is truncated or padded with zeros. Sockets, removed entries and folders below MaxDepth are
// skipped, so that a sandbox cannot make it fail. The direct entries in skip are skipped, too.
func Pack(ctx context.Context, w *tar.Writer, dir, name string, skip ...string) error {
	src, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer src.Close()
	p := &packer{ctx: ctx, w: w, skip: skip, links: map[inode]string{}}
	var st unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &st); err != nil {
		return err
	}
	return p.packFolder(src, name, 0, &st)
}

type packer struct {
	ctx   context.Context
	w     *tar.Writer
	skip  []string
	links map[inode]string // first names of files with several names
}

func (p *packer) packFolder(dir *os.File, name string, depth int, st *unix.Stat_t) error {
	if depth > MaxDepth {
		return nil
	}
	h := header(name+"/", tar.TypeDir, st)
	if err := addAttributes(int(dir.Fd()), h); err != nil {
		return err
	}
	if err := p.w.WriteHeader(h); err != nil {
		return err
	}
	if err := Each(dir, func(e os.DirEntry) error {
		if p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		if depth == 0 && slices.Contains(p.skip, e.Name()) {
			return nil
		}
		err := p.packEntry(int(dir.Fd()), e.Name(), path.Join(name, e.Name()), depth)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
			return nil // removed or replaced
		}
		return err
	}); err != nil {
		return err
	}
	end := *h
	end.PAXRecords = map[string]string{endKey: "1"}
	maps.Copy(end.PAXRecords, h.PAXRecords)
	return p.w.WriteHeader(&end)
}

func header(name string, kind byte, st *unix.Stat_t) *tar.Header {
	return &tar.Header{Name: name, Typeflag: kind, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec), Format: tar.FormatPAX, PAXRecords: map[string]string{}}
}

func (p *packer) packEntry(dir int, base, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && kind != unix.S_IFSOCK && st.Nlink > 1 {
		key := inode{st.Dev, st.Ino}
		if first, ok := p.links[key]; ok {
			h := header(name, tar.TypeLink, &st)
			h.Linkname = first
			return p.w.WriteHeader(h)
		}
		p.links[key] = name
	}
	switch kind {
	case unix.S_IFDIR:
		sub, closed, err := openForced(dir, base, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer closed()
		return p.packFolder(sub, name, depth+1, &st)
	case unix.S_IFREG:
		f, closed, err := openForced(dir, base, unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer closed()
		return p.packFile(f, header(name, tar.TypeReg, &st), st.Size)
	case unix.S_IFLNK:
		target, err := readlinkat(dir, base)
		if err != nil {
			return err
		}
		h := header(name, tar.TypeSymlink, &st)
		h.Linkname = target
		return p.w.WriteHeader(h)
	case unix.S_IFIFO:
		return p.w.WriteHeader(header(name, tar.TypeFifo, &st))
	case unix.S_IFCHR:
		if st.Rdev == 0 { // marks a deleted file
			return p.w.WriteHeader(header(name, tar.TypeChar, &st))
		}
	}
	return nil
}

// packFile writes a file; if it has holes, it writes each part with data.
func (p *packer) packFile(f *os.File, h *tar.Header, size int64) error {
	if err := addAttributes(int(f.Fd()), h); err != nil {
		return err
	}
	first, end, err := nextData(f, 0, size)
	if err != nil {
		return err
	}
	if first == 0 && end == size {
		h.Size = size
		return p.packData(f, h, 0)
	}
	h.PAXRecords[sizeKey] = strconv.FormatInt(size, 10)
	if err := p.w.WriteHeader(h); err != nil {
		return err
	}
	for first < size {
		part := *h
		part.Size = end - first
		part.PAXRecords = map[string]string{offsetKey: strconv.FormatInt(first, 10)}
		if err := p.packData(f, &part, first); err != nil {
			return err
		}
		if first, end, err = nextData(f, end, size); err != nil {
			return err
		}
	}
	return nil
}

// nextData returns the start and end of the next data of a file; both are size if there is none.
func nextData(f *os.File, at, size int64) (first, end int64, err error) {
	if at >= size {
		return size, size, nil
	}
	first, err = f.Seek(at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || err == nil && first >= size {
		return size, size, nil
	}
	if err == nil {
		end, err = f.Seek(first, unix.SEEK_HOLE)
	}
	return first, min(end, size), err
}

// packData writes h.Size bytes from an offset.
func (p *packer) packData(f *os.File, h *tar.Header, at int64) error {
	if err := p.w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(p.w, bounded{p.ctx, io.NewSectionReader(f, at, h.Size)})
	if err != nil {
		return err
	}
	_, err = io.Copy(p.w, io.LimitReader(zeros{}, h.Size-n)) // it was truncated
	return err
}

// bounded is a reader that ends with a context.
type bounded struct {
	ctx context.Context
	r   io.Reader
}

func (b bounded) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	return b.r.Read(p)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// addAttributes adds the extended attributes of an open file to its header.
func addAttributes(fd int, h *tar.Header) error {
	value, size := make([]byte, 64<<10), 0
	for _, name := range attributesOf(fd) {
		if !isKept(name) {
			continue
		}
		n, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) || os.Geteuid() != 0 && errors.Is(err, unix.EPERM) {
			continue
		}
		if err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
		// Readers reject larger headers.
		if size += len(name) + n; size <= maxAttributes {
			h.PAXRecords[attributeKey+url.QueryEscape(name)] = string(value[:n])
		}
	}
	return nil
}

// maxAttributes bounds the extended attributes of one file.
const maxAttributes = 256 << 10

// attributesOf lists the extended attributes of an open file, those of overlays first. A sandbox can set more attributes
// than the kernel can list; then only known names are returned.
func attributesOf(fd int) []string {
	list := []string{"security.capability"}
	for _, kind := range []string{"trusted.overlay.", "user.overlay."} {
		for _, name := range []string{"opaque", "redirect", "origin", "impure", "nlink", "metacopy", "upper"} {
			list = append(list, kind+name)
		}
	}
	names := make([]byte, 64<<10)
	if n, err := unix.Flistxattr(fd, names); err == nil {
		for name := range strings.SplitSeq(string(names[:n]), "\x00") {
			if name != "" && !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	return list
}

// isKept reports whether an attribute belongs to the content of a sandbox's disk.
func isKept(name string) bool {
	for _, kind := range []string{"user.", "trusted.overlay.", "security.capability", "system.posix_acl_"} {
		if strings.HasPrefix(name, kind) {
			return true
		}
	}
	return false
}
