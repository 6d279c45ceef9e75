package watch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

// report logs the difference between the known and the current state of a path.
func (w *watcher) report(c *change) {
	delete(w.pending, c.rel)
	info, err := os.Lstat(filepath.Join(w.tree.path, c.rel))
	exists := err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
	dir := c.dir
	if err == nil {
		dir = info.IsDir()
	}
	if c.wasFolder {
		w.add(Remove, c.rel, "", true)
	}
	// This finds a folder that was renamed before it could be watched.
	if f, name := w.tree.at(c.rel); f != nil && dir && exists && f.children[name] == nil {
		w.watchNew(f, name, true, time.Now())
	}
	known := w.update(c, exists)
	switch {
	case exists && !known:
		w.add(Create, c.rel, "", dir)
	case !exists && known:
		w.add(Remove, c.rel, "", dir)
	case exists && c.content && !dir:
		w.add(Write, c.rel, "", dir)
	case exists && !c.content:
		w.add(Chmod, c.rel, "", dir)
	}
}

// update marks a path as reported, and returns whether it was reported before.
func (w *watcher) update(c *change, exists bool) (known bool) {
	f, name := w.tree.at(c.rel)
	sure := false
	if f != nil {
		if exists {
			w.reportFolder(f)
		}
		known, sure = w.tree.knows(f, name)
		switch child := f.children[name]; {
		case child != nil && exists:
			w.tree.markReported(child)
		case child != nil: // the kernel's event for its removal follows
			child.reported = false
		case exists:
			w.tree.addName(f, name)
		default:
			w.tree.removeName(f, name)
		}
	}
	switch {
	case c.wasFolder:
		return false
	case !known && !sure:
		return !c.created
	}
	return known
}

func (w *watcher) add(kind, rel, from string, dir bool) {
	if !w.tree.rules.includes(rel) && (from == "" || !w.tree.rules.includes(from)) {
		return
	}
	e := newEvent(kind, w.tree.path, filepath.Join(w.tree.path, rel), dir, time.Now())
	if from != "" {
		e.OldPath = new(pathname.Show(filepath.Join(w.tree.path, from)))
	}
	w.log.add(e)
}

// verify checks folders again that were found during renames. When the event of a new folder is
// read, another folder may already have its path, so that the wrong folder is watched.
func (w *watcher) verify(now time.Time) {
	if len(w.pending)+len(w.moves) > 0 {
		return
	}
	fresh := w.tree.unverified
	w.tree.unverified = nil
	for _, f := range fresh {
		if f.children == nil {
			continue // it was dropped
		}
		if err := w.tree.rewatch(f); err != nil {
			w.dropFolder(f, now)
			continue
		}
		w.compare(f, now)
	}
}

// resync compares the known with the current state of all folders, after the kernel dropped events.
func (w *watcher) resync(now time.Time) {
	pending := []*folder{w.tree.root}
	for len(pending) > 0 {
		f := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		w.compare(f, now)
		for _, child := range f.children {
			w.tree.addUnverified(child)
			pending = append(pending, child)
		}
	}
}

// compare marks the differences between the known and the current state of a folder as changes.
func (w *watcher) compare(f *folder, now time.Time) {
	rel := f.rel()
	seen := map[string]bool{}
	err := w.tree.readNames(f, func(name string, dir bool) {
		child := filepath.Join(rel, name)
		if w.tree.only != "" && child != w.tree.only || w.tree.rules.excludes(child) {
			return
		}
		seen[name] = true
		if known, sure := w.tree.knows(f, name); !known && sure {
			w.markChanged(child, dir, true, now).created = true
			w.watchNew(f, name, dir, now)
		}
	})
	if err != nil {
		return // its parent reports the removal
	}
	for name := range f.files {
		if !seen[name] {
			w.markChanged(filepath.Join(rel, name), false, true, now)
		}
	}
	for name, child := range f.children {
		if !seen[name] {
			w.markChanged(filepath.Join(rel, name), true, true, now)
			w.dropFolder(child, now)
		}
	}
}
