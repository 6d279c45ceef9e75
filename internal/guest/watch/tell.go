package watch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/pathname"
)

// tell logs the difference between what was known of a path and what is there.
func (w *watcher) tell(c *change) {
	delete(w.pending, c.rel)
	info, err := os.Lstat(filepath.Join(w.tree.path, c.rel))
	there := err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)
	dir := c.dir
	if err == nil {
		dir = info.IsDir()
	}
	if c.wasFolder {
		w.add(Remove, c.rel, "", true)
	}
	// A folder whose name had changed before it could be watched is found here.
	if f, name := w.tree.at(c.rel); f != nil && dir && there && f.kids[name] == nil {
		w.enter(f, name, true, time.Now())
	}
	known := w.update(c, there)
	switch {
	case there && !known:
		w.add(Create, c.rel, "", dir)
	case !there && known:
		w.add(Remove, c.rel, "", dir)
	case there && c.content && !dir:
		w.add(Write, c.rel, "", dir)
	case there && !c.content:
		w.add(Chmod, c.rel, "", dir)
	}
}

// update notes that a path is told, and returns whether it was before.
func (w *watcher) update(c *change, there bool) (known bool) {
	f, name := w.tree.at(c.rel)
	sure := false
	if f != nil {
		if there {
			w.introduce(f)
		}
		known, sure = w.tree.knows(f, name)
		switch kid := f.kids[name]; {
		case kid != nil && there:
			w.tree.introduced(kid)
		case kid != nil: // the kernel's word of its end is still to come
			kid.told = false
		case there:
			w.tree.learn(f, name)
		default:
			w.tree.unlearn(f, name)
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
	if !w.tree.rules.tells(rel) && (from == "" || !w.tree.rules.tells(from)) {
		return
	}
	e := Event{Type: kind, Path: pathname.Show(filepath.Join(w.tree.path, rel)), IsDirectory: dir, Timestamp: stamp(time.Now())}
	if from != "" {
		e.OldPath = new(pathname.Show(filepath.Join(w.tree.path, from)))
	}
	w.log.add(e)
}

// verify looks once more at folders that were found while things moved. By the
// time the kernel's word of a new folder is read, its path may lead to another
// one, so that the wrong one is watched and what is in it was read too early.
func (w *watcher) verify(now time.Time) {
	if len(w.pending)+len(w.moves) > 0 {
		return
	}
	fresh := w.tree.fresh
	w.tree.fresh = nil
	for _, f := range fresh {
		if f.kids == nil {
			continue // dropped since
		}
		if err := w.tree.rewatch(f); err != nil {
			w.forget(f, now)
			continue
		}
		w.compare(f, now)
	}
}

// resync compares everything known with what is there, after events were lost.
func (w *watcher) resync(now time.Time) {
	pending := []*folder{w.tree.root}
	for len(pending) > 0 {
		f := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		w.compare(f, now)
		for _, kid := range f.kids {
			w.tree.fresh = append(w.tree.fresh, kid)
			pending = append(pending, kid)
		}
	}
}

// compare notes the difference between a folder and what is known of it.
func (w *watcher) compare(f *folder, now time.Time) {
	rel := f.rel()
	seen := map[string]bool{}
	err := w.tree.readNames(f, func(name string, dir bool) {
		child := filepath.Join(rel, name)
		if w.tree.only != "" && child != w.tree.only || w.tree.rules.hides(child) {
			return
		}
		seen[name] = true
		if known, sure := w.tree.knows(f, name); !known && sure {
			w.dirty(child, dir, true, now).created = true
			w.enter(f, name, dir, now)
		}
	})
	if err != nil {
		return // its parent tells that it is gone
	}
	for name := range f.files {
		if !seen[name] {
			w.dirty(filepath.Join(rel, name), false, true, now)
		}
	}
	for name, kid := range f.kids {
		if !seen[name] {
			w.dirty(filepath.Join(rel, name), true, true, now)
			w.forget(kid, now)
		}
	}
}
