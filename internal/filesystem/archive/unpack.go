package archive

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Options of Unpack.
type Options struct {
	Dest  string // an existing folder
	Spool string // folder for a zip while it is read; empty: Dest
	Limits
	Overwrite bool // replace existing files
	Strip     int  // number of leading folders to strip from each name
	// Untrusted prevents writes through links, including existing links of Dest. Symbolic links are
	// created last, and only if they stay inside Dest for programs that follow them. Names that leave
	// Dest before leading folders are stripped are refused.
	Untrusted bool
	// AnyLinks keeps all symbolic links of an Untrusted archive. Nothing is written through them.
	AnyLinks bool
	// Exact sets the permissions of the archive regardless of the umask and, for root, the owners of a tar archive.
	Exact bool
}

// Skipped is an entry that was not unpacked.
type Skipped struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Report describes the unpacked entries.
type Report struct {
	Format  string
	Files   int
	Folders int
	Links   int
	Bytes   int64
	Skipped []Skipped // the first hundred
}

// maxSkipped limits the report.
const maxSkipped = 100

// Unpack unpacks an archive of any supported format. After an error, the report describes the
// entries unpacked before.
func Unpack(ctx context.Context, r io.Reader, o Options) (Report, error) {
	root, err := os.OpenRoot(o.Dest)
	if err != nil {
		return Report{}, err
	}
	defer root.Close()
	packed := o.Packed
	src := bufio.NewReaderSize(boundedReader{ctx, r, &packed}, 64<<10)
	head, err := src.Peek(300)
	if err != nil && !errors.Is(err, io.EOF) {
		return Report{}, err
	}
	u := &unpacker{ctx: ctx, root: root, o: o, left: o.Bytes}
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		u.report.Format = "zip"
		err = u.zip(src)
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		u.report.Format = "tar.gz"
		var gz *gzip.Reader
		if gz, err = gzip.NewReader(src); err == nil {
			err = u.tar(gz)
		}
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		u.report.Format = "tar.zst"
		err = u.zstd(src)
	case bytes.HasPrefix(head, []byte("BZh")):
		u.report.Format = "tar.bz2"
		err = u.tar(bzip2.NewReader(src))
	case len(head) > 262 && string(head[257:262]) == "ustar":
		u.report.Format = "tar"
		err = u.tar(src)
	default:
		err = fmt.Errorf("%w: send tar, tar.gz, tar.bz2, tar.zst or zip", ErrMalformed)
	}
	if err == nil {
		err = u.linkLast()
	}
	if err == nil {
		err = u.setModes()
	}
	return u.report, explain(err)
}

// explain classifies the errors of the decoders.
func explain(err error) error {
	var corrupt bzip2.StructuralError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, tar.ErrHeader), errors.Is(err, zip.ErrFormat), errors.Is(err, zip.ErrChecksum), errors.Is(err, zip.ErrAlgorithm),
		errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, zstd.ErrMagicMismatch),
		errors.As(err, &corrupt):
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	case escapes(err):
		return fmt.Errorf("%w: %w", ErrEscape, err)
	}
	return err
}

// escapes reports whether os.Root has refused a path. os.Root has no error value for that, but such
// an error does not come from the kernel.
func escapes(err error) bool {
	_, inPath := errors.AsType[*fs.PathError](err)
	_, inLink := errors.AsType[*os.LinkError](err)
	_, kernel := errors.AsType[syscall.Errno](err)
	return (inPath || inLink) && !kernel && !errors.Is(err, fs.ErrExist)
}

type unpacker struct {
	ctx     context.Context
	root    *os.Root
	o       Options
	left    int64 // bytes that may still be written
	entries int
	buf     []byte
	later   []link // with Untrusted
	made    []made // with Exact
	report  Report
}

func (u *unpacker) zstd(src io.Reader) error {
	zr, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(128<<20))
	if err != nil {
		return err
	}
	defer zr.Close()
	return u.tar(zr)
}

func (u *unpacker) tar(src io.Reader) error {
	tr := tar.NewReader(src)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return err
		}
		e := entry{name: h.Name, mode: h.FileInfo().Mode(), modified: h.ModTime, link: h.Linkname, body: tr, uid: h.Uid, gid: h.Gid}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink:
		case tar.TypeLink:
			e.hard = true
		case tar.TypeXGlobalHeader:
			continue
		default:
			e.mode = fs.ModeIrregular
		}
		if err := u.add(e); err != nil {
			return err
		}
	}
}

// zip spools the archive to an unlinked file, since its directory is at the end.
func (u *unpacker) zip(src io.Reader) error {
	dir := u.o.Spool
	if dir == "" {
		dir = u.o.Dest
	}
	f, err := os.CreateTemp(dir, ".unpack-*")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return err
	}
	size, err := io.Copy(f, src)
	if err != nil {
		return err
	}
	zr, err := zip.NewReader(f, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return err
	}
	for _, zf := range zr.File {
		if err := u.addZip(zf); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) addZip(zf *zip.File) error {
	e := entry{name: zf.Name, mode: zf.Mode(), modified: zf.Modified}
	if strings.HasSuffix(zf.Name, "/") {
		e.mode |= fs.ModeDir
	}
	if e.mode.IsDir() || e.mode.Type()&^fs.ModeSymlink != 0 {
		return u.add(e)
	}
	body, err := zf.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	e.body = body
	if e.mode&fs.ModeSymlink != 0 {
		link, err := io.ReadAll(io.LimitReader(body, 4096))
		if err != nil {
			return err
		}
		e.link = string(link)
	}
	return u.add(e)
}

// entry is an entry of an archive of any format.
type entry struct {
	name     string
	mode     fs.FileMode
	modified time.Time
	link     string
	hard     bool
	body     io.Reader
	uid, gid int
}

func (u *unpacker) add(e entry) error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	if u.entries++; u.entries > u.o.Entries {
		return fmt.Errorf("%w: more than %d entries", ErrTooLarge, u.o.Entries)
	}
	if u.o.Untrusted && !filepath.IsLocal(cleanName(e.name)) {
		return fmt.Errorf("%w: %q", ErrEscape, e.name)
	}
	name, ok := u.strip(e.name)
	if !ok {
		return nil
	}
	if !filepath.IsLocal(name) || strings.IndexByte(name, 0) >= 0 {
		return fmt.Errorf("%w: %q", ErrEscape, e.name)
	}
	if name == "." {
		return nil
	}
	if u.o.Untrusted && u.belowLink(name, e.mode.IsDir()) {
		u.skip(e.name, "below a link")
		return nil
	}
	if u.o.Untrusted && e.mode&fs.ModeSymlink != 0 {
		u.later = append(u.later, link{name, e})
		return nil
	}
	if dir := path.Dir(name); dir != "." && !e.mode.IsDir() {
		if err := u.root.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	switch {
	case e.hard:
		return u.hardLink(name, e)
	case e.mode.IsDir():
		u.report.Folders++
		u.keep(name, e)
		return u.root.MkdirAll(name, e.mode.Perm()|0o700)
	case e.mode&fs.ModeSymlink != 0:
		return u.symlink(name, e)
	case e.mode.IsRegular():
		return u.file(name, e)
	}
	u.skip(e.name, "not a file, folder or link")
	return nil
}

// strip cleans a name and strips its leading folders.
func (u *unpacker) strip(name string) (string, bool) {
	if u.o.Strip == 0 {
		return cleanName(name), true
	}
	parts := strings.Split(cleanName(name), "/")
	if len(parts) <= u.o.Strip {
		return "", false
	}
	return strings.Join(parts[u.o.Strip:], "/"), true
}

// cleanName keeps a leading slash or "..", so that such names are refused.
func cleanName(name string) string { return path.Clean(name) }

func (u *unpacker) skip(name, reason string) {
	if len(u.report.Skipped) < maxSkipped {
		u.report.Skipped = append(u.report.Skipped, Skipped{name, reason})
	}
}

// clear removes an existing file at the place of an entry. It does not follow links.
func (u *unpacker) clear(name string) error {
	info, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !u.o.Overwrite || info.IsDir() {
		return &os.PathError{Op: "unpack", Path: filepath.Join(u.o.Dest, name), Err: fs.ErrExist}
	}
	return u.root.Remove(name)
}

func (u *unpacker) file(name string, e entry) error {
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, e.mode.Perm()|0o600)
	if err != nil {
		return err
	}
	if u.buf == nil {
		u.buf = make([]byte, 128<<10)
	}
	n, err := io.CopyBuffer(onlyWriter{f}, boundedReader{u.ctx, e.body, &u.left}, u.buf)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = u.root.Remove(name) // no partial files
		if errors.Is(err, ErrTooLarge) {
			err = fmt.Errorf("%w: unpacks to more than %d bytes", err, u.o.Bytes)
		}
		return err
	}
	u.keep(name, e)
	u.report.Files++
	u.report.Bytes += n
	if !e.modified.IsZero() && e.modified.Unix() > 0 {
		_ = u.root.Chtimes(name, e.modified, e.modified) // best effort
	}
	return nil
}

// onlyWriter hides ReadFrom, which would not use the buffer.
type onlyWriter struct{ io.Writer }

func (u *unpacker) symlink(name string, e entry) error {
	if u.o.AnyLinks {
		return u.anyLink(name, e)
	}
	if path.IsAbs(e.link) || !filepath.IsLocal(path.Join(path.Dir(name), e.link)) {
		u.skip(e.name, "link points outside the folder: "+e.link)
		return nil
	}
	if u.behindLink(name) {
		u.skip(e.name, "link below another link may point outside the folder: "+e.link)
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	u.report.Links++
	return u.root.Symlink(e.link, name)
}

// behindLink reports whether a parent folder is a link, so that the entry has another location than
// its name.
func (u *unpacker) behindLink(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if info, err := u.root.Lstat(dir); err != nil || info.Mode()&fs.ModeSymlink != 0 {
			return true
		}
	}
	return false
}

func (u *unpacker) hardLink(name string, e entry) error {
	target, ok := u.strip(e.link)
	if !ok || !filepath.IsLocal(target) {
		return fmt.Errorf("%w: %q links to %q", ErrEscape, e.name, e.link)
	}
	if info, err := u.root.Lstat(target); err == nil && u.o.Untrusted && (!info.Mode().IsRegular() || u.belowLink(target, false)) {
		u.skip(e.name, "hard link to something other than a file: "+e.link)
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	u.report.Links++
	return u.root.Link(target, name)
}
