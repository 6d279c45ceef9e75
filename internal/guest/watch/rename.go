package watch

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/inotify"
)

// move is the first half of a rename.
type move struct {
	parent *folder
	name   string
	node   *folder // of a watched folder
	known  bool    // it was reported
	dir    bool
	due    time.Time
}

func (w *watcher) movedFrom(f *folder, e inotify.Event, rel string, dir bool, now time.Time) {
	known, _ := w.tree.knows(f, e.Name)
	m := &move{parent: f, name: e.Name, node: f.children[e.Name], known: known && !w.tree.rules.excludes(rel), dir: dir, due: now.Add(pairing)}
	delete(f.children, e.Name)
	w.moves[e.Cookie] = m
}

// movedTo reports a rename immediately, so that renames of folders and of their content are
// reported in order.
func (w *watcher) movedTo(f *folder, e inotify.Event, rel string, dir bool, now time.Time) {
	m := w.moves[e.Cookie]
	delete(w.moves, e.Cookie)
	switch {
	case w.tree.rules.excludes(rel):
		if m != nil {
			w.removeMoved(m, now)
		}
		return
	case m == nil: // from outside
		w.markChanged(rel, dir, true, now).created = true
		w.watchNew(f, e.Name, dir, now)
		return
	}
	from := filepath.Join(m.parent.rel(), m.name)
	if m.known {
		w.reportFolder(f)
	}
	w.dropReplaced(f, e.Name, rel, now)
	if m.node != nil {
		m.node.parent, m.node.name = f, e.Name
		f.children[e.Name] = m.node
		w.movePending(from, rel)
	}
	if !m.known {
		w.markChanged(rel, dir, true, now).created = true
	} else {
		w.renamed(m, f, e.Name, from, rel, now)
	}
	if m.node == nil {
		w.watchNew(f, e.Name, dir, now)
	}
}

func (w *watcher) renamed(m *move, f *folder, name, from, rel string, now time.Time) {
	w.tree.removeName(m.parent, m.name)
	if m.node == nil {
		w.tree.addName(f, name)
	}
	w.add(Rename, rel, from, m.dir)
	if before := w.pending[from]; before != nil {
		delete(w.pending, from)
		if before.content && !m.dir {
			w.markChanged(rel, false, true, now)
		}
	}
}

// dropReplaced drops what a rename replaces.
func (w *watcher) dropReplaced(f *folder, name, rel string, now time.Time) {
	if replaced := f.children[name]; replaced != nil {
		w.dropFolder(replaced, now)
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

// reportFolder reports a folder and its parents, if they are new, before their content is reported.
func (w *watcher) reportFolder(f *folder) {
	if f.reported {
		return
	}
	w.reportFolder(f.parent)
	rel := f.rel()
	if c := w.pending[rel]; c != nil && c.wasFolder {
		c.wasFolder = false
		w.add(Remove, rel, "", true)
	}
	w.tree.markReported(f)
	w.add(Create, rel, "", true)
}

// removeMoved turns the first half of a rename without a second into a removal.
func (w *watcher) removeMoved(m *move, now time.Time) {
	if m.node != nil {
		w.dropFolder(m.node, now)
	}
	if m.known {
		w.markChanged(filepath.Join(m.parent.rel(), m.name), m.dir, true, now)
	}
}

// movePending moves the pending changes below a renamed folder.
func (w *watcher) movePending(from, to string) {
	for key, c := range w.pending {
		if rest, ok := strings.CutPrefix(key, from+"/"); ok {
			delete(w.pending, key)
			c.rel = filepath.Join(to, rest)
			w.pending[c.rel] = c
		}
	}
}
