package tree

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Overlay describes the folders and the mount point of an overlay.
type Overlay struct {
	Target string
	Upper  string
	Lower  []string // topmost first
}

// Diff lists at most limit changes of overlays: the differences between the upper folders and the folders below. It skips
// the paths in skip, and folders that were created for them. It walks all folders of an overlay in parallel.
func Diff(ctx context.Context, overlays []Overlay, skip map[string]bool, limit int) (sandbox.Diff, error) {
	d := &differ{ctx: ctx, limit: limit, skip: skip}
	for _, o := range overlays {
		if err := d.compareOverlay(o); err != nil && !errors.Is(err, errEnough) {
			return sandbox.Diff{}, err
		}
	}
	slices.SortStableFunc(d.changes, func(a, b sandbox.Change) int { return cmp.Compare(a.Path, b.Path) })
	return sandbox.Diff{Changes: d.changes, Truncated: d.truncated}, nil
}

type differ struct {
	ctx       context.Context
	limit     int
	skip      map[string]bool
	changes   []sandbox.Change
	truncated bool
}

func (d *differ) add(c sandbox.Change) error {
	if len(d.changes) == d.limit {
		d.truncated = true
		return errEnough
	}
	d.changes = append(d.changes, c)
	return nil
}

// compareOverlay compares the upper folder of an overlay with those below it.
func (d *differ) compareOverlay(o Overlay) error {
	upper, err := os.Open(o.Upper)
	if err != nil {
		return err
	}
	defer upper.Close()
	var below []*os.File
	defer func() { closeAll(below) }()
	for _, l := range o.Lower {
		f, err := os.Open(l)
		if err != nil {
			return err
		}
		below = append(below, f)
	}
	return d.compareFolder(upper, below, o.Target, 0)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// compareFolder compares a folder with the folders below it, topmost first.
func (d *differ) compareFolder(upper *os.File, below []*os.File, at string, depth int) error {
	if depth > MaxDepth {
		d.truncated = true
		return nil
	}
	if err := d.ctx.Err(); err != nil {
		return context.Cause(d.ctx)
	}
	names := []string{}
	if err := Each(upper, func(e os.DirEntry) error { names = append(names, e.Name()); return nil }); err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		path := filepath.Join(at, name)
		if d.skip[path] {
			continue
		}
		if err := d.compareEntry(upper, below, name, path, depth); err != nil {
			return err
		}
	}
	if !isOpaque(upper) {
		return nil
	}
	// The folder was deleted and recreated: missing entries were removed.
	old, err := union(below)
	if err != nil {
		return err
	}
	for _, name := range old {
		if _, there := slices.BinarySearch(names, name); there {
			continue
		}
		was, dir, subs := lookup(below, name)
		closeAll(subs)
		if was {
			if err := d.add(sandbox.Change{Path: filepath.Join(at, name), Kind: sandbox.Removed, Dir: dir}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *differ) compareEntry(upper *os.File, below []*os.File, name, path string, depth int) error {
	var st unix.Stat_t
	err := unix.Fstatat(int(upper.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	was, wasDir, subs := lookup(below, name)
	defer closeAll(subs)
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case isWhiteout(&st):
		if !was {
			return nil
		}
		return d.add(sandbox.Change{Path: path, Kind: sandbox.Removed, Dir: wasDir})
	case !isDir:
		c := sandbox.Change{Path: path, Kind: sandbox.Added, Size: st.Size}
		if was {
			c.Kind = sandbox.Modified
		}
		return d.add(c)
	case !was || !wasDir:
		kind := sandbox.Added
		if was {
			kind = sandbox.Modified
		}
		if kind == sandbox.Added && d.leadsToSkipped(path) {
			break // it was created for a skipped path
		}
		if err := d.add(sandbox.Change{Path: path, Kind: kind, Dir: true}); err != nil {
			return err
		}
	}
	sub, err := openDir(int(upper.Fd()), name)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	return d.compareFolder(sub, subs, path, depth+1)
}

// leadsToSkipped reports whether a path in skip is below a folder.
func (d *differ) leadsToSkipped(folder string) bool {
	for path := range d.skip {
		if strings.HasPrefix(path, folder+"/") {
			return true
		}
	}
	return false
}

// lookup returns what the folders below show for a name, and opens the merged folders of that name.
func lookup(below []*os.File, name string) (was, dir bool, subs []*os.File) {
	for _, b := range below {
		var st unix.Stat_t
		if unix.Fstatat(int(b.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if isWhiteout(&st) {
			break
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		if !was {
			was, dir = true, isDir
		}
		if !isDir {
			break
		}
		sub, err := openDir(int(b.Fd()), name)
		if err != nil {
			break
		}
		subs = append(subs, sub)
		if isOpaque(sub) {
			break
		}
	}
	return was, dir, subs
}

// union lists the names in several folders, sorted and without duplicates.
func union(dirs []*os.File) ([]string, error) {
	var names []string
	for _, d := range dirs {
		// A new descriptor, because the walk may use the position of the other one.
		again, err := openDir(int(d.Fd()), ".")
		if err != nil {
			return nil, err
		}
		err = Each(again, func(e os.DirEntry) error { names = append(names, e.Name()); return nil })
		again.Close()
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// isWhiteout reports whether an entry marks a deleted one.
func isWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// isOpaque reports whether a folder hides the folders below it.
func isOpaque(dir *os.File) bool {
	var value [1]byte
	for _, prefix := range []string{"user.", "trusted."} {
		if n, err := unix.Fgetxattr(int(dir.Fd()), prefix+"overlay.opaque", value[:]); err == nil && n == 1 {
			return value[0] == 'y'
		}
	}
	return false
}
