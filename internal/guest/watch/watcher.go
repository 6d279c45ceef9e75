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

	"github.com/cove-sandbox/cove/internal/filesystem/inotify"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

// watcher is one watcher with its log. run owns the tree and the pending changes.
type watcher struct {
	id       string
	path     string
	in       CreateIn
	created  time.Time
	debounce time.Duration
	log      *log
	tree     *tree

	pending    map[string]*change // by path below the root
	moves      map[uint32]*move   // renames that wait for their second half
	maxPending int                // of both
	flooded    bool               // too many changes at once; all folders are compared when it is quiet

	mu        sync.Mutex
	flushes   []chan struct{} // closed when what has happened before is reported
	used      time.Time
	streams   int
	gone      bool
	folders   int
	unwatched int
	once      sync.Once
	done      chan struct{} // closed when stopped
}

// change is the change of a path since it was last reported.
type change struct {
	rel         string
	dir         bool
	content     bool // not only its mode or times
	created     bool // used if it is unknown whether it existed
	wasFolder   bool // a reported folder was removed, regardless of the current entry
	first, last time.Time
}

const (
	// pairing limits the wait for the second half of a rename. The kernel writes both at once; only a
	// read may separate them.
	pairing = 100 * time.Millisecond
	// maxDelay limits the delay of a path that changes continuously, in multiples of the debounce time.
	maxDelay = 5
)

func (w *watcher) stop() {
	w.once.Do(func() {
		close(w.done)
		w.tree.in.Close()
	})
}

// wait waits for changed. It returns false if the caller or the watcher has ended.
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

// attach counts an open stream. The returned function ends it.
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
	return w.statusLocked()
}

// after returns the events after a cursor with the matching status: a client that gets the last
// event of a watcher also gets status gone.
func (w *watcher) after(cursor int64, limit int) (events []Event, dropped int64, more bool, changed <-chan struct{}, status string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	events, dropped, more, changed = w.log.after(cursor, limit)
	return events, dropped, more, changed, w.statusLocked()
}

func (w *watcher) statusLocked() string {
	if w.gone {
		return "gone"
	}
	return "active"
}

func (w *watcher) info() Info {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Info{WatcherID: w.id, Path: pathname.Show(w.path), Recursive: w.in.Recursive, Exclude: w.in.Exclude,
		Include: w.in.Include, Debounce: w.in.Debounce,
		Status: w.statusLocked(), CreatedAt: w.created.UTC().Format(time.RFC3339Nano), Cursor: w.log.last(), Kept: w.log.kept(),
		Folders: w.folders, Unwatched: w.unwatched}
}

// run handles the kernel's events until the watcher is stopped.
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
		w.step(events, time.Now())
		w.flushRequested()
		w.count()
	}
}

// flush reports all changes that happened before the call, even if they are not quiet.
func (w *watcher) flush(ctx context.Context) {
	done := make(chan struct{})
	w.mu.Lock()
	w.flushes = append(w.flushes, done)
	w.mu.Unlock()
	w.tree.in.Wake()
	w.wait(ctx, done)
}

// flushRequested serves the callers of flush.
func (w *watcher) flushRequested() {
	w.mu.Lock()
	waiting := w.flushes
	w.flushes = nil
	w.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	// One queue is enough: a program that writes faster than we read must not delay the callers.
	for n := 0; n < w.maxPending && w.tree.in.Pending(); {
		events, err := w.tree.in.Read(time.Time{})
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			break // run returns the error
		}
		w.step(events, time.Now())
		n += len(events) + 1
	}
	now := time.Now()
	w.expireMoves(now.Add(pairing))
	w.reportQuiet(now.Add(maxDelay * w.debounce))
	w.verify(now)
	for _, done := range waiting {
		close(done)
	}
}

// step handles events, and reports changes that are quiet.
func (w *watcher) step(events []inotify.Event, now time.Time) {
	for _, e := range events {
		w.handle(e, now)
	}
	// If there is nothing to read, the other half of a rename will not arrive. A program that writes
	// faster than we read must not fill the memory.
	if len(events) == 0 || len(w.moves) > w.maxPending {
		w.expireMoves(now)
	}
	w.reportQuiet(now)
	if w.flooded && len(w.pending)+len(w.moves) == 0 {
		w.flooded = false
		w.resync(now)
	}
	w.verify(now)
}

// count publishes the size of the tree.
func (w *watcher) count() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.folders, w.unwatched = len(w.tree.byWD), w.tree.unwatched
}

// due returns the time of the next report; zero: never.
func (w *watcher) due() time.Time {
	var due time.Time
	earlier := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	for _, c := range w.pending {
		earlier(w.reportTime(c))
	}
	for _, m := range w.moves {
		earlier(m.due)
	}
	return due
}

// reportTime returns the time to report a change: when it is quiet, but not much later.
func (w *watcher) reportTime(c *change) time.Time {
	quiet, latest := c.last.Add(w.debounce), c.first.Add(maxDelay*w.debounce)
	if latest.Before(quiet) {
		return latest
	}
	return quiet
}

// handle handles one event of the kernel.
func (w *watcher) handle(e inotify.Event, now time.Time) {
	if w.status() == "gone" {
		return // its path may belong to another folder
	}
	if e.Mask&unix.IN_Q_OVERFLOW != 0 {
		w.overflow("the inotify queue was full", now)
		w.resync(now)
		return
	}
	f := w.tree.byWD[e.WD]
	if f == nil {
		return // its folder was dropped
	}
	if e.Name == "" {
		w.handleSelf(f, e, now)
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
	case w.tree.rules.excludes(rel):
	case e.Mask&unix.IN_CREATE != 0:
		w.markChanged(rel, dir, true, now).created = true
		w.watchNew(f, e.Name, dir, now)
	case e.Mask&unix.IN_DELETE != 0:
		w.markChanged(rel, dir, true, now)
		if child := f.children[e.Name]; child != nil && dir {
			w.dropFolder(child, now)
		}
	case e.Mask&unix.IN_MODIFY != 0:
		w.markChanged(rel, dir, true, now)
	case e.Mask&unix.IN_ATTRIB != 0:
		w.markChanged(rel, dir, false, now)
	}
}

// handleSelf handles an event of a watched folder itself. Folders below the root are reported
// by their parents.
func (w *watcher) handleSelf(f *folder, e inotify.Event, now time.Time) {
	if e.Mask&unix.IN_IGNORED != 0 && f != w.tree.root {
		w.dropFolder(f, now)
	}
	if f != w.tree.root || e.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) == 0 {
		return
	}
	w.expireMoves(now.Add(time.Hour)) // no more events will arrive
	w.reportQuiet(now.Add(time.Hour))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log.add(newEvent(Remove, w.path, w.path, w.tree.only == "", now))
	w.gone = true
}

// dropFolder drops a removed folder.
func (w *watcher) dropFolder(f *folder, now time.Time) {
	if f.reported {
		w.markChanged(f.rel(), true, true, now).wasFolder = true
	}
	w.tree.drop(f)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// markChanged records a change of a path. If there are too many at once, a later comparison finds
// the rest.
func (w *watcher) markChanged(rel string, dir, content bool, now time.Time) *change {
	c := w.pending[rel]
	if c == nil && len(w.pending) >= w.maxPending {
		if !w.flooded {
			w.flooded = true
			w.overflow(fmt.Sprintf("more than %d paths changed at once", w.maxPending), now)
		}
		return &change{}
	}
	if c == nil {
		c = &change{rel: rel, first: now}
		w.pending[rel] = c
	}
	c.dir, c.content, c.last = c.dir || dir, c.content || content, now
	return c
}

// watchNew watches a new folder, and reports its content.
func (w *watcher) watchNew(f *folder, name string, dir bool, now time.Time) {
	if !dir || !w.tree.recursive || w.tree.only != "" {
		return
	}
	was := w.tree.unwatched
	child := w.tree.watchChild(f, name)
	if child != nil {
		w.tree.addUnverified(child)
		// Only a failure of the root is an error, and this is not the root.
		_ = w.tree.scan(context.Background(), child, func(rel string, dir bool) { w.markChanged(rel, dir, true, now).created = true })
	}
	if w.tree.unwatched > was && w.tree.limited {
		w.overflow(fmt.Sprintf("inotify watch limit reached (fs.inotify.max_user_watches is %s); changes in new "+
			"folders are not reported", limit("max_user_watches")), now)
	}
}

func (w *watcher) overflow(reason string, now time.Time) {
	e := newEvent(Overflow, w.path, w.path, true, now)
	e.Reason = &reason
	w.log.add(e)
}

// expireMoves ends renames whose second half did not arrive in time.
func (w *watcher) expireMoves(now time.Time) {
	for cookie, m := range w.moves {
		if !m.due.After(now) {
			delete(w.moves, cookie)
			w.removeMoved(m, now.Add(-w.debounce)) // it has already waited
		}
	}
}

// reportQuiet reports the changes that have been quiet long enough.
func (w *watcher) reportQuiet(now time.Time) {
	var quiet []*change
	for _, c := range w.pending {
		if !w.reportTime(c).After(now) {
			quiet = append(quiet, c)
		}
	}
	slices.SortFunc(quiet, func(a, b *change) int {
		if c := a.first.Compare(b.first); c != 0 {
			return c
		}
		return strings.Compare(a.rel, b.rel)
	})
	for _, c := range quiet {
		if w.pending[c.rel] == c { // another report has not included it
			w.report(c)
		}
	}
}
