package watch

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/inotify"
)

// mask is what is asked of the kernel for a folder.
const mask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// folder is one watched folder. Renaming one moves its node, so that everything
// below has its new path at once.
type folder struct {
	wd     int    // -1: not watched
	name   string // below its parent
	parent *folder
	kids   map[string]*folder
	files  map[string]struct{} // what else is in it and was told; nil when too much is known already
	told   bool                // followers of the events know of it
}

// tree is the watched folders and what is known to be in them. Only the
// goroutine of its watcher uses it, after it was made.
type tree struct {
	in        *inotify.Watcher
	path      string
	only      string // the one name that is watched in it; "" for all
	recursive bool
	rules     rules
	root      *folder
	byWD      map[int]*folder
	names     int // known in all folders
	maxNames  int
	unwatched int
	limited   bool      // the watches ran out
	fresh     []*folder // found while things moved, to be verified when they rest
}

func newTree(ctx context.Context, path string, recursive bool, r rules, maxNames int) (*tree, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	t := &tree{path: path, recursive: recursive, rules: r, byWD: map[int]*folder{}, maxNames: maxNames}
	if !info.IsDir() {
		t.path, t.only, t.recursive = filepath.Dir(path), filepath.Base(path), false
	}
	if t.in, err = inotify.New(); err != nil {
		return nil, err
	}
	t.root = &folder{told: true}
	err = t.watch(t.root)
	if err == nil {
		err = t.scan(ctx, t.root, nil)
	}
	if err == nil && t.limited {
		err = syscall.ENOSPC
	}
	if err != nil {
		t.in.Close()
		return nil, err
	}
	return t, nil
}

// rel is a folder's path below the root, "" for the root itself.
func (f *folder) rel() string {
	if f.parent == nil {
		return ""
	}
	return filepath.Join(f.parent.rel(), f.name)
}

func (t *tree) abs(f *folder) string { return filepath.Join(t.path, f.rel()) }

func (t *tree) watch(f *folder) error {
	wd, err := t.in.Add(t.abs(f), mask)
	if err != nil {
		return err
	}
	f.wd, f.kids = -1, map[string]*folder{}
	if t.names < t.maxNames {
		f.files = map[string]struct{}{}
	}
	// A folder that is watched already has come here by a rename of which the
	// kernel's word is still on its way.
	if t.byWD[wd] == nil {
		f.wd, t.byWD[wd] = wd, f
	}
	return nil
}

// rewatch makes sure that the watch of a folder is that of what is at its path
// now. Watches are made by path, which may lead elsewhere by then.
func (t *tree) rewatch(f *folder) error {
	wd, err := t.in.Add(t.abs(f), mask)
	if err != nil {
		return err
	}
	if wd == f.wd {
		return nil
	}
	if t.byWD[f.wd] == f {
		delete(t.byWD, f.wd)
		t.in.Remove(f.wd)
	}
	if other := t.byWD[wd]; other != nil {
		other.wd = -1
	}
	f.wd, t.byWD[wd] = wd, f
	return nil
}

// scan reads a folder that has just been watched, and those below it. found is
// called for everything that is there; nil at the start, when nothing is news.
func (t *tree) scan(ctx context.Context, top *folder, found func(rel string, dir bool)) error {
	pending := []*folder{top}
	for len(pending) > 0 {
		f := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if err := ctx.Err(); err != nil {
			return err
		}
		err := t.readNames(f, func(name string, dir bool) {
			rel := filepath.Join(f.rel(), name)
			if t.only != "" && rel != t.only || t.rules.hides(rel) {
				return
			}
			if found != nil {
				found(rel, dir)
			}
			if !dir || !t.recursive {
				if found == nil {
					t.learn(f, name)
				}
				return
			}
			if kid := t.adopt(f, name); kid != nil {
				if kid.told = found == nil; !kid.told {
					t.fresh = append(t.fresh, kid)
				}
				pending = append(pending, kid)
			}
		})
		if err != nil && f == t.root {
			return err
		}
	}
	return nil
}

// adopt watches a folder below another; nil when that cannot be.
func (t *tree) adopt(f *folder, name string) *folder {
	if kid := f.kids[name]; kid != nil {
		return nil
	}
	kid := &folder{name: name, parent: f}
	switch err := t.watch(kid); {
	case err == nil:
		f.kids[name] = kid
		return kid
	case errors.Is(err, syscall.ENOSPC):
		t.limited = true
		t.unwatched++
	case errors.Is(err, syscall.EACCES):
		t.unwatched++
	}
	return nil // gone or replaced meanwhile, which will be told
}

func (t *tree) readNames(f *folder, visit func(name string, dir bool)) error {
	d, err := os.Open(t.abs(f))
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		entries, err := d.ReadDir(1024)
		for _, e := range entries {
			visit(e.Name(), e.IsDir())
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// learn notes that a name is there, as far as there is room for it.
func (t *tree) learn(f *folder, name string) {
	if _, ok := f.files[name]; !ok && f.files != nil && t.names < t.maxNames {
		f.files[name] = struct{}{}
		t.names++
	}
}

func (t *tree) unlearn(f *folder, name string) {
	if _, ok := f.files[name]; ok {
		delete(f.files, name)
		t.names--
	}
}

// introduced notes that a folder is told. A file of its name, which it replaced,
// is then no longer known; if the folder goes untold, the file still has to be
// told gone.
func (t *tree) introduced(f *folder) {
	f.told = true
	t.unlearn(f.parent, f.name)
}

// knows tells whether a name was there and told; sure is false when it cannot
// be known.
func (t *tree) knows(f *folder, name string) (known, sure bool) {
	if kid := f.kids[name]; kid != nil {
		return kid.told, true
	}
	_, known = f.files[name]
	return known, known || f.files != nil && t.names < t.maxNames
}

// drop ends the watches of a folder and of those below it.
func (t *tree) drop(f *folder) {
	for _, kid := range f.kids {
		t.drop(kid)
	}
	t.names -= len(f.files)
	if t.byWD[f.wd] == f {
		delete(t.byWD, f.wd)
		t.in.Remove(f.wd)
	}
	if f.parent != nil && f.parent.kids[f.name] == f {
		delete(f.parent.kids, f.name)
	}
	f.kids, f.files = nil, nil
}

// at finds the folder of a path below the root, and the last name of the path.
func (t *tree) at(rel string) (*folder, string) {
	dir, name := filepath.Split(rel)
	f := t.root
	for part := range splitParts(dir) {
		if f = f.kids[part]; f == nil {
			return nil, name
		}
	}
	return f, name
}

func splitParts(dir string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for len(dir) > 0 {
			i := 0
			for i < len(dir) && dir[i] != '/' {
				i++
			}
			if i > 0 && !yield(dir[:i]) {
				return
			}
			dir = dir[min(i+1, len(dir)):]
		}
	}
}
