package local

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// maxDiff bounds a Diff, whatever the caller asks for.
const maxDiff = 100_000

// Diff implements sandbox.Differ. What changed is what is in the sandbox's own
// layer; the folders below it tell whether it is new. All are walked in step, by
// descriptor and never through a link: the names in there are the sandbox's.
func (p *Provider) Diff(ctx context.Context, id string, limit int) (sandbox.Diff, error) {
	ctx, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.Diff{}, err
	}
	defer done()
	row, err := p.table.AcquireIdle(ctx, id)
	if err != nil {
		return sandbox.Diff{}, err
	}
	defer row.Release()
	d := &differ{ctx: ctx, limit: min(max(limit, 0), maxDiff), skip: p.ours(row.Data)}
	for _, o := range p.overlays(row.Data) {
		if err := d.tree(o); err != nil && !errors.Is(err, errEnough) {
			return sandbox.Diff{}, err
		}
	}
	out := sandbox.Diff{Changes: d.changes, Truncated: d.more}
	slices.SortStableFunc(out.Changes, func(a, b sandbox.Change) int { return cmp.Compare(a.Path, b.Path) })
	return out, nil
}

// ours lists what the hub itself wrote to the disk or mounts over it.
func (p *Provider) ours(b *box) map[string]bool {
	skip := map[string]bool{"/etc/hostname": true, "/etc/hosts": true, "/dev": true, "/proc": true, "/sys": true, "/run": true}
	for _, m := range p.cfg.Binds {
		skip[m.Target] = true
	}
	for _, v := range b.rec.Sandbox.Spec.Volumes {
		skip[v.Target] = true
	}
	// The folders that lead to other overlays.
	targets, _ := p.trees(b)
	for _, t := range targets[1:] {
		skip[t] = true
	}
	return skip
}

type differ struct {
	ctx     context.Context
	limit   int
	changes []sandbox.Change
	more    bool
	skip    map[string]bool
}

func (d *differ) add(c sandbox.Change) error {
	if len(d.changes) == d.limit {
		d.more = true
		return errEnough
	}
	d.changes = append(d.changes, c)
	return nil
}

// tree compares one overlay's own folder with those below it.
func (d *differ) tree(o isolate.Overlay) error {
	upper, err := os.Open(filepath.Join(o.Upper.Path, o.Data))
	if err != nil {
		return err
	}
	defer upper.Close()
	var below []*os.File
	defer func() { closeAll(below) }()
	for _, l := range o.Lower {
		f, err := os.Open(l.Path)
		if err != nil {
			return err
		}
		below = append(below, f)
	}
	return d.folder(upper, below, o.Target, 0)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// folder compares one folder. Below are those that it covers, topmost first.
func (d *differ) folder(upper *os.File, below []*os.File, at string, depth int) error {
	if depth > maxDepth {
		d.more = true
		return nil
	}
	if err := d.ctx.Err(); err != nil {
		return context.Cause(d.ctx)
	}
	names := []string{}
	if err := each(upper, func(e os.DirEntry) error { names = append(names, e.Name()); return nil }); err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		path := filepath.Join(at, name)
		if d.skip[path] {
			continue
		}
		if err := d.entry(upper, below, name, path, depth); err != nil {
			return err
		}
	}
	if !opaque(upper) {
		return nil
	}
	// It was deleted and made anew: all that was there and is not now is gone.
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

func (d *differ) entry(upper *os.File, below []*os.File, name, path string, depth int) error {
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
	case whiteout(&st):
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
	return d.folder(sub, subs, path, depth+1)
}

// lookup says what the covered folders show under a name, and opens the folders
// of that name that are seen through each other.
func lookup(below []*os.File, name string) (was, dir bool, subs []*os.File) {
	for _, b := range below {
		var st unix.Stat_t
		if unix.Fstatat(int(b.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if whiteout(&st) {
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
		if opaque(sub) {
			break
		}
	}
	return was, dir, subs
}

// union lists the names in several folders, once each and sorted.
func union(dirs []*os.File) ([]string, error) {
	var names []string
	for _, d := range dirs {
		// Opened anew: the walk may need the place in the other one.
		again, err := openDir(int(d.Fd()), ".")
		if err != nil {
			return nil, err
		}
		err = each(again, func(e os.DirEntry) error { names = append(names, e.Name()); return nil })
		again.Close()
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// whiteout says whether an entry stands for a deleted one.
func whiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// opaque says whether a folder hides what is below it.
func opaque(dir *os.File) bool {
	var value [1]byte
	for _, prefix := range []string{"user.", "trusted."} {
		if n, err := unix.Fgetxattr(int(dir.Fd()), prefix+"overlay.opaque", value[:]); err == nil && n == 1 {
			return value[0] == 'y'
		}
	}
	return false
}
