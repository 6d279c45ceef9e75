package watch

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/inotify"
)

// move is the first half of a rename.
type move struct {
	parent *folder
	name   string
	node   *folder // of a folder that is watched
	known  bool    // was told before
	dir    bool
	due    time.Time
}

func (w *watcher) movedFrom(f *folder, e inotify.Event, rel string, dir bool, now time.Time) {
	known, _ := w.tree.knows(f, e.Name)
	m := &move{parent: f, name: e.Name, node: f.kids[e.Name], known: known && !w.tree.rules.hides(rel), dir: dir, due: now.Add(pairing)}
	delete(f.kids, e.Name)
	w.moves[e.Cookie] = m
}

// movedTo tells a rename at once. Only so are renames of folders and of what is in
// them told in the order in which they happened, which those who follow need.
func (w *watcher) movedTo(f *folder, e inotify.Event, rel string, dir bool, now time.Time) {
	m := w.moves[e.Cookie]
	delete(w.moves, e.Cookie)
	switch {
	case w.tree.rules.hides(rel):
		if m != nil {
			w.lost(m, now)
		}
		return
	case m == nil: // from outside
		w.dirty(rel, dir, true, now).created = true
		w.enter(f, e.Name, dir, now)
		return
	}
	from := filepath.Join(m.parent.rel(), m.name)
	if m.known {
		w.introduce(f)
	}
	w.makeWay(f, e.Name, rel, now)
	if m.node != nil {
		m.node.parent, m.node.name = f, e.Name
		f.kids[e.Name] = m.node
		w.rekey(from, rel)
	}
	if !m.known {
		w.dirty(rel, dir, true, now).created = true
	} else {
		w.renamed(m, f, e.Name, from, rel, now)
	}
	if m.node == nil {
		w.enter(f, e.Name, dir, now)
	}
}

func (w *watcher) renamed(m *move, f *folder, name, from, rel string, now time.Time) {
	w.tree.unlearn(m.parent, m.name)
	if m.node == nil {
		w.tree.learn(f, name)
	}
	w.add(Rename, rel, from, m.dir)
	if before := w.pending[from]; before != nil {
		delete(w.pending, from)
		if before.content && !m.dir {
			w.dirty(rel, false, true, now)
		}
	}
}

// makeWay forgets what a rename replaces.
func (w *watcher) makeWay(f *folder, name, rel string, now time.Time) {
	if over := f.kids[name]; over != nil {
		w.forget(over, now)
	}
	for key, c := range w.pending {
		if key == rel && c.wasFolder {
			w.add(Remove, rel, "", true)
		}
		if key == rel || strings.HasPrefix(key, rel+"/") {
			delete(w.pending, key)
		}
	}
}

// introduce tells of folders that are not known yet, before something in them is
// told.
func (w *watcher) introduce(f *folder) {
	if f.told {
		return
	}
	w.introduce(f.parent)
	rel := f.rel()
	if c := w.pending[rel]; c != nil && c.wasFolder {
		c.wasFolder = false
		w.add(Remove, rel, "", true)
	}
	w.tree.introduced(f)
	w.add(Create, rel, "", true)
}

// lost makes the first half of a rename whose second is not to be seen a removal.
func (w *watcher) lost(m *move, now time.Time) {
	if m.node != nil {
		w.forget(m.node, now)
	}
	if m.known {
		w.dirty(filepath.Join(m.parent.rel(), m.name), m.dir, true, now)
	}
}

// rekey moves what is pending below a folder that was renamed.
func (w *watcher) rekey(from, to string) {
	for key, c := range w.pending {
		if rest, ok := strings.CutPrefix(key, from+"/"); ok {
			delete(w.pending, key)
			c.rel = filepath.Join(to, rest)
			w.pending[c.rel] = c
		}
	}
}
