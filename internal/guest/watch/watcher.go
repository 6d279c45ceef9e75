package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/inotify"
	"github.com/cove-sandbox/cove/internal/pathname"
)

// watcher is one watch with its log. run owns the tree and the pending changes.
type watcher struct {
	id       string
	path     string
	in       CreateIn
	created  time.Time
	debounce time.Duration
	log      *log
	tree     *tree

	pending map[string]*change // by path below the root
	moves   map[uint32]*move   // renames whose second half is due

	mu        sync.Mutex
	used      time.Time
	streams   int
	gone      bool
	folders   int
	unwatched int
	once      sync.Once
	done      chan struct{} // closed when stopped
}

// change is what happened to a path since it was last told.
type change struct {
	rel         string
	dir         bool
	content     bool // more than its mode or times
	created     bool // for when it cannot be known whether it was there
	wasFolder   bool // a folder that was told is gone, whatever is there now
	first, last time.Time
}

const (
	// pairing is how long the second half of a rename may take. Both are written
	// at once; only reading may cut them apart.
	pairing = 100 * time.Millisecond
	// patience is how many quiet times a path that never rests may take.
	patience = 5
)

func (w *watcher) stop() {
	w.once.Do(func() {
		close(w.done)
		w.tree.in.Close()
	})
}

// wait waits for changed; false when the caller or the watcher has ended.
func (w *watcher) wait(ctx context.Context, changed <-chan struct{}) bool {
	select {
	case <-changed:
		return true
	case <-ctx.Done():
	case <-w.done:
	}
	return false
}

func (w *watcher) touch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used = time.Now()
}

// attach notes that a stream is open; the result ends that.
func (w *watcher) attach() func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.streams--
		w.used = time.Now()
	}
}

func (w *watcher) idle() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams > 0 {
		return 0
	}
	return time.Since(w.used)
}

func (w *watcher) status() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return "gone"
	}
	return "active"
}

func (w *watcher) info() Info {
	status := w.status()
	w.mu.Lock()
	defer w.mu.Unlock()
	return Info{WatcherID: w.id, Path: pathname.Show(w.path), Recursive: w.in.Recursive, Exclude: w.in.Exclude, Include: w.in.Include, Debounce: w.in.Debounce,
		Status: status, CreatedAt: w.created.UTC().Format(time.RFC3339Nano), Cursor: w.log.last(), Kept: w.log.kept(),
		Folders: w.folders, Unwatched: w.unwatched}
}

// run reads what the kernel reports until the watcher is stopped.
func (w *watcher) run(l *slog.Logger) {
	w.pending, w.moves = map[string]*change{}, map[uint32]*move{}
	for {
		events, err := w.tree.in.Read(w.due())
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			if !errors.Is(err, os.ErrClosed) {
				l.Error("watch failed", "watcher", w.id, "path", w.path, "error", err)
			}
			return
		}
		now := time.Now()
		for _, e := range events {
			w.take(e, now)
		}
		// With nothing left to read, the other half of a rename will not come.
		if len(events) == 0 {
			w.giveUp(now)
		}
		w.settle(now)
		w.verify(now)
		w.count()
	}
}

// count notes for others what the tree holds.
func (w *watcher) count() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.folders, w.unwatched = len(w.tree.byWD), w.tree.unwatched
}

// due is when something must be told at the latest; zero: never.
func (w *watcher) due() time.Time {
	var due time.Time
	earlier := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	for _, c := range w.pending {
		earlier(w.ripe(c))
	}
	for _, m := range w.moves {
		earlier(m.due)
	}
	return due
}

// ripe is when a change is told: after a quiet time, but not much later.
func (w *watcher) ripe(c *change) time.Time {
	quiet, latest := c.last.Add(w.debounce), c.first.Add(patience*w.debounce)
	if latest.Before(quiet) {
		return latest
	}
	return quiet
}

// take handles one notification of the kernel.
func (w *watcher) take(e inotify.Event, now time.Time) {
	if w.status() == "gone" {
		return // what still comes has paths that are no longer ours
	}
	if e.Mask&unix.IN_Q_OVERFLOW != 0 {
		w.overflow("the kernel's queue was full", now)
		w.resync(now)
		return
	}
	f := w.tree.byWD[e.WD]
	if f == nil {
		return // of a folder that was dropped meanwhile
	}
	if e.Name == "" {
		w.self(f, e, now)
		return
	}
	rel := filepath.Join(f.rel(), e.Name)
	dir := e.Mask&unix.IN_ISDIR != 0
	if w.tree.only != "" && rel != w.tree.only {
		return
	}
	switch {
	case e.Mask&unix.IN_MOVED_FROM != 0:
		w.movedFrom(f, e, rel, dir, now)
	case e.Mask&unix.IN_MOVED_TO != 0:
		w.movedTo(f, e, rel, dir, now)
	case w.tree.rules.hides(rel):
	case e.Mask&unix.IN_CREATE != 0:
		w.dirty(rel, dir, true, now).created = true
		w.enter(f, e.Name, dir, now)
	case e.Mask&unix.IN_DELETE != 0:
		w.dirty(rel, dir, true, now)
		if kid := f.kids[e.Name]; kid != nil && dir {
			w.forget(kid, now)
		}
	case e.Mask&unix.IN_MODIFY != 0:
		w.dirty(rel, dir, true, now)
	case e.Mask&unix.IN_ATTRIB != 0:
		w.dirty(rel, dir, false, now)
	}
}

// self handles what happens to a watched folder itself. Folders below the root
// are told of by their parents.
func (w *watcher) self(f *folder, e inotify.Event, now time.Time) {
	if e.Mask&unix.IN_IGNORED != 0 && f != w.tree.root {
		w.forget(f, now)
	}
	if f != w.tree.root || e.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) == 0 {
		return
	}
	w.giveUp(now.Add(time.Hour)) // nothing more will come
	w.settle(now.Add(time.Hour))
	w.log.add(Event{Type: Remove, Path: pathname.Show(w.path), IsDirectory: w.tree.only == "", Timestamp: stamp(now)})
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
}

// forget drops a folder that is gone.
func (w *watcher) forget(f *folder, now time.Time) {
	if f.told {
		w.dirty(f.rel(), true, true, now).wasFolder = true
	}
	w.tree.drop(f)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// dirty notes that something happened to a path.
func (w *watcher) dirty(rel string, dir, content bool, now time.Time) *change {
	c := w.pending[rel]
	if c == nil {
		c = &change{rel: rel, first: now}
		w.pending[rel] = c
	}
	c.dir, c.content, c.last = c.dir || dir, c.content || content, now
	return c
}

// enter watches a folder that has appeared, and tells what is already in it.
func (w *watcher) enter(f *folder, name string, dir bool, now time.Time) {
	if !dir || !w.tree.recursive || w.tree.only != "" {
		return
	}
	was := w.tree.unwatched
	kid := w.tree.adopt(f, name)
	if kid != nil {
		w.tree.fresh = append(w.tree.fresh, kid)
		// Only the root's own fault is an error, and this is not the root.
		_ = w.tree.scan(context.Background(), kid, func(rel string, dir bool) { w.dirty(rel, dir, true, now).created = true })
	}
	if w.tree.unwatched > was && w.tree.limited {
		w.overflow(fmt.Sprintf("the watches ran out (fs.inotify.max_user_watches is %s); changes in new folders are not seen", limit("max_user_watches")), now)
	}
}

func (w *watcher) overflow(reason string, now time.Time) {
	w.log.add(Event{Type: Overflow, Path: pathname.Show(w.path), IsDirectory: true, Timestamp: stamp(now), Reason: &reason})
}

// giveUp ends renames whose other half should have come.
func (w *watcher) giveUp(now time.Time) {
	for cookie, m := range w.moves {
		if !m.due.After(now) {
			delete(w.moves, cookie)
			w.lost(m, now.Add(-w.debounce)) // it has waited already
		}
	}
}

// settle tells what has been quiet long enough.
func (w *watcher) settle(now time.Time) {
	var ripe []*change
	for _, c := range w.pending {
		if !w.ripe(c).After(now) {
			ripe = append(ripe, c)
		}
	}
	slices.SortFunc(ripe, func(a, b *change) int {
		if c := a.first.Compare(b.first); c != 0 {
			return c
		}
		return strings.Compare(a.rel, b.rel)
	})
	for _, c := range ripe {
		if w.pending[c.rel] == c { // not told yet for the sake of another
			w.tell(c)
		}
	}
}
