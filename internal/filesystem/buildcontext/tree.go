package buildcontext

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Tree is the folder of a build. It reads nothing outside of the folder, not even through links.
type Tree struct {
	root   *os.Root
	ignore *Patterns
	limits Limits
}

// Open opens a folder. Ignored files are not part of builds.
func Open(dir string, ignore *Patterns, l Limits) (*Tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Tree{root, ignore, l}, nil
}

// Close closes the folder.
func (t *Tree) Close() error { return t.root.Close() }

// Selection is what a copy needs.
type Selection struct {
	Sources []string // patterns; "/" is everything
	Exclude []string // patterns below the sources
	Inline  []Inline
}

// Inline is a file that is not in the folder.
type Inline struct{ Name, Text string }

// Files are selected files.
type Files struct {
	Digest  string   // as Digest computes it of the archive
	Sources []string // patterns that match files, and names of inline files
	Size    int64    // unpacked
	entries []entry
	tree    *Tree
}

// entry is a selected file, folder or link.
type entry struct {
	record
	size     int64
	modified time.Time
	from     string // path of the file; empty: inline
	text     string
}

// ErrNoMatch means that a source does not exist.
var ErrNoMatch = errors.New("no such file in the build context, or .dockerignore excludes it")

// Select finds files and computes their digest.
func (t *Tree) Select(ctx context.Context, s Selection) (*Files, error) {
	exclude, err := NewPatterns(s.Exclude)
	if err != nil {
		return nil, err
	}
	c := &collector{ctx: ctx, tree: t, exclude: exclude, seen: map[string]bool{}, files: &Files{tree: t}}
	for _, in := range s.Inline {
		sum := sha256.Sum256([]byte(in.Text))
		err := c.add(entry{record: record{Name: "/" + in.Name, Kind: tar.TypeReg, Mode: 0o644, Sum: hex.EncodeToString(sum[:])},
			size: int64(len(in.Text)), text: in.Text})
		if err != nil {
			return nil, err
		}
		c.files.Sources = append(c.files.Sources, in.Name)
	}
	for _, pattern := range s.Sources {
		if err := c.source(pattern); err != nil {
			return nil, fmt.Errorf("%.200s: %w", pattern, err)
		}
	}
	if len(c.files.Sources) == 0 {
		return nil, ErrNoMatch
	}
	f := c.files
	slices.SortStableFunc(f.entries, func(a, b entry) int { return cmp.Compare(a.Name, b.Name) })
	list := make([]record, 0, len(f.entries))
	for _, e := range f.entries {
		list = append(list, e.record)
		f.Size += e.size
	}
	f.Digest, err = sumOf(list)
	return f, err
}

// sumOf returns the digest of sorted entries.
func sumOf(list []record) (string, error) {
	all := sha256.New()
	enc := json.NewEncoder(all)
	for _, e := range list {
		if err := enc.Encode(e); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(all.Sum(nil)), nil
}

type collector struct {
	ctx     context.Context
	tree    *Tree
	exclude *Patterns
	seen    map[string]bool
	bytes   int64
	files   *Files
}

// source adds what a pattern matches. A pattern with wildcards need not match.
func (c *collector) source(pattern string) error {
	if pattern == "/" {
		c.files.Sources = append(c.files.Sources, pattern)
		return c.walk(c.tree.root, ".", "")
	}
	found, err := fs.Glob(c.tree.root.FS(), pattern)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(name string) bool { return c.tree.ignore.skips(name) })
	matched := false
	for _, name := range found {
		before := len(c.files.entries)
		if err := c.top(name); err != nil {
			return err
		}
		matched = matched || len(c.files.entries) > before || c.seen[name]
	}
	if matched {
		c.files.Sources = append(c.files.Sources, pattern)
		return nil
	}
	if strings.ContainsAny(pattern, `*?[\`) {
		return nil
	}
	return ErrNoMatch
}

// top adds a source. A link stands for its target.
func (c *collector) top(name string) error {
	info, err := c.tree.root.Stat(name)
	if err != nil {
		return explain(err)
	}
	if !info.IsDir() {
		if c.tree.ignore.Match(name) || c.exclude.Match(path.Base(name)) {
			return nil
		}
		return c.file(c.tree.root, name, name, info)
	}
	sub, err := c.tree.root.OpenRoot(name)
	if err != nil {
		return explain(err)
	}
	defer sub.Close()
	if err := c.add(folder("/"+name, info)); err != nil {
		return err
	}
	return c.walk(sub, ".", name)
}

// explain hides how the folder was opened.
func explain(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		if strings.Contains(p.Err.Error(), "escapes") {
			return errors.New("the link leads out of the build context")
		}
		return p.Err
	}
	return err
}

func folder(name string, info fs.FileInfo) entry {
	sum := sha256.Sum256(nil)
	return entry{record: record{Name: name, Kind: tar.TypeDir, Mode: modeOf(info), Sum: hex.EncodeToString(sum[:])},
		modified: info.ModTime()}
}

// modeOf returns the permissions of a file. Windows has none.
func modeOf(info fs.FileInfo) int64 {
	if runtime.GOOS == "windows" {
		return 0o755
	}
	return int64(info.Mode().Perm())
}

// walk adds what is below a folder of a root, as if it were below another.
func (c *collector) walk(root *os.Root, dir, as string) error {
	return fs.WalkDir(root.FS(), dir, func(p string, d fs.DirEntry, err error) error {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path.Join(as, p), explain(err))
		}
		name := path.Join(as, p)
		if p == "." {
			return nil
		}
		if d.IsDir() && (c.tree.ignore.skips(name) || c.exclude.skips(p)) {
			return fs.SkipDir
		}
		if c.tree.ignore.Match(name) || c.exclude.Match(p) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return explain(err)
		}
		switch mode := info.Mode(); {
		case mode.IsDir():
			return c.add(folder("/"+name, info))
		case mode&fs.ModeSymlink != 0:
			target, err := root.Readlink(p)
			if err != nil {
				return explain(err)
			}
			sum := sha256.Sum256(nil)
			return c.add(entry{record: record{Name: "/" + name, Kind: tar.TypeSymlink, Mode: 0o777, Link: target,
				Sum: hex.EncodeToString(sum[:])}, modified: info.ModTime()})
		case mode.IsRegular():
			return c.file(root, p, name, info)
		}
		return nil // sockets, FIFOs and devices
	})
}

// file adds a regular file with the digest of its content.
func (c *collector) file(root *os.Root, p, name string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a file, folder or link", name)
	}
	if c.bytes += info.Size(); c.bytes > c.tree.limits.Bytes {
		return fmt.Errorf("%w: more than %d bytes; exclude files with .dockerignore", ErrTooLarge, c.tree.limits.Bytes)
	}
	f, err := root.Open(p)
	if err != nil {
		return fmt.Errorf("%s: %w", name, explain(err))
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err == nil && n != info.Size() {
		err = errors.New("it changed while it was read; build again")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return c.add(entry{record: record{Name: "/" + name, Kind: tar.TypeReg, Mode: modeOf(info), Sum: hex.EncodeToString(sum.Sum(nil))},
		size: info.Size(), modified: info.ModTime(), from: name})
}

// add adds an entry once.
func (c *collector) add(e entry) error {
	if c.seen[e.Name[1:]] {
		return nil
	}
	if len(c.files.entries) >= c.tree.limits.Entries {
		return fmt.Errorf("%w: more than %d files; exclude files with .dockerignore", ErrTooLarge, c.tree.limits.Entries)
	}
	c.seen[e.Name[1:]] = true
	c.files.entries = append(c.files.entries, e)
	return nil
}

// WriteArchive writes the files as an archive, compressed with zstd.
func (f *Files) WriteArchive(ctx context.Context, w io.Writer) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	if err := f.WriteTar(ctx, z); err != nil {
		return errors.Join(err, z.Close())
	}
	return z.Close()
}

// WriteTar writes the files as an archive.
func (f *Files) WriteTar(ctx context.Context, w io.Writer) error {
	tw := tar.NewWriter(w)
	for _, e := range f.entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h := &tar.Header{Name: e.Name[1:], Typeflag: e.Kind, Mode: e.Mode, Linkname: e.Link, Size: e.size, ModTime: e.modified}
		if e.Kind == tar.TypeDir {
			h.Name += "/"
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if err := f.write(tw, e); err != nil {
			return fmt.Errorf("%s: %w", e.Name[1:], err)
		}
	}
	return tw.Close()
}

func (f *Files) write(w io.Writer, e entry) error {
	if e.from == "" {
		_, err := io.WriteString(w, e.text)
		return err
	}
	file, err := f.tree.root.Open(e.from)
	if err != nil {
		return explain(err)
	}
	defer file.Close()
	_, err = io.CopyN(w, file, e.size)
	if errors.Is(err, io.EOF) {
		err = errors.New("it changed while it was read; build again")
	}
	return err
}
