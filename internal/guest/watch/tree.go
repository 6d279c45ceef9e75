package watch

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/inotify"
)

// mask is the kernel events to receive for a folder.
const mask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// folder is one watched folder. A rename moves its node, so that all its content has its new path
// immediately.
type folder struct {
	wd       int    // -1: not watched
	name     string // in its parent
	parent   *folder
	children map[string]*folder
	files    map[string]struct{} // other reported content; nil if too many names are known
	reported bool                // it was reported, or existed at the start
}

// tree is the watched folders and their known content. Only the goroutine of its watcher uses it
// after construction.
type tree struct {
	in         *inotify.Watcher
	path       string
	only       string // the only watched name; empty: all
	recursive  bool
	rules      rules
	root       *folder
	byWD       map[int]*folder
	names      int // number of names known in all folders
	maxNames   int
	unwatched  int
	limited    bool      // the limit of watches was reached
	unverified []*folder // found during renames, to be verified when those have ended
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
	t.root = &folder{reported: true}
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

// rel returns the path of a folder below the root, empty for the root itself.
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
	f.wd, f.children = -1, map[string]*folder{}
	if t.names < t.maxNames {
		f.files = map[string]struct{}{}
	}
	// A folder that is already watched was renamed, and the event follows.
	if t.byWD[wd] == nil {
		f.wd, t.byWD[wd] = wd, f
	}
	return nil
}

// rewatch ensures that the watched folder is the one at the path. Watches are created by path, which
// may have changed in the meantime.
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

// scan reads a newly watched folder and its subfolders. It calls found for each entry; found is nil
// at the start, when no entry is new.
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
			if t.only != "" && rel != t.only || t.rules.excludes(rel) {
				return
			}
			if found != nil {
				found(rel, dir)
			}
			if !dir || !t.recursive {
				if found == nil {
					t.addName(f, name)
				}
				return
			}
			if child := t.watchChild(f, name); child != nil {
				if child.reported = found == nil; !child.reported {
					t.addUnverified(child)
				}
				pending = append(pending, child)
			}
		})
		if err != nil && f == t.root {
			return err
		}
	}
	return nil
}

// addUnverified adds a folder to verify. It removes dropped folders before there are too many.
func (t *tree) addUnverified(f *folder) {
	const few = 1000
	if len(t.unverified) > few+2*len(t.byWD) {
		t.unverified = slices.DeleteFunc(t.unverified, func(f *folder) bool { return f.children == nil })
	}
	t.unverified = append(t.unverified, f)
}

// watchChild watches a folder in another one. It returns nil on failure.
func (t *tree) watchChild(f *folder, name string) *folder {
	if child := f.children[name]; child != nil {
		return nil
	}
	child := &folder{name: name, parent: f}
	switch err := t.watch(child); {
	case err == nil:
		f.children[name] = child
		return child
	case errors.Is(err, syscall.ENOSPC):
		t.limited = true
		t.unwatched++
	case errors.Is(err, syscall.EACCES):
		t.unwatched++
	}
	return nil // it was removed or replaced, and the event follows
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

// addName adds a known name, unless there are too many.
func (t *tree) addName(f *folder, name string) {
	if _, ok := f.files[name]; !ok && f.files != nil && t.names < t.maxNames {
		f.files[name] = struct{}{}
		t.names++
	}
}

func (t *tree) removeName(f *folder, name string) {
	if _, ok := f.files[name]; ok {
		delete(f.files, name)
		t.names--
	}
}

// markReported marks a folder as reported, and drops a file that it replaced. If the folder is
// removed before it is reported, the removal of the file is reported.
func (t *tree) markReported(f *folder) {
	f.reported = true
	t.removeName(f.parent, f.name)
}

// knows reports whether a name exists and was reported; sure is false if that is unknown.
func (t *tree) knows(f *folder, name string) (known, sure bool) {
	if child := f.children[name]; child != nil {
		return child.reported, true
	}
	_, known = f.files[name]
	return known, known || f.files != nil && t.names < t.maxNames
}

// drop ends the watches of a folder and those below it.
func (t *tree) drop(f *folder) {
	for _, child := range f.children {
		t.drop(child)
	}
	t.names -= len(f.files)
	if t.byWD[f.wd] == f {
		delete(t.byWD, f.wd)
		t.in.Remove(f.wd)
	}
	if f.parent != nil && f.parent.children[f.name] == f {
		delete(f.parent.children, f.name)
	}
	f.children, f.files = nil, nil
}

// at finds the folder of a path below the root, and the last element of the path.
func (t *tree) at(rel string) (*folder, string) {
	dir, name := filepath.Split(rel)
	f := t.root
	for part := range splitParts(dir) {
		if f = f.children[part]; f == nil {
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
