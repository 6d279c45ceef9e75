package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// flooder drives a watcher step by step, so that many changes never become quiet before their end.
func newFlooder(t *testing.T, dir string, max int) *watcher {
	t.Helper()
	tree, err := newTree(t.Context(), dir, true, rules{}, 200_000)
	must(t, err)
	t.Cleanup(func() { tree.in.Close() })
	return &watcher{path: dir, tree: tree, log: newLog(max), maxPending: max, debounce: time.Second,
		pending: map[string]*change{}, moves: map[uint32]*move{}}
}

// read lets the watcher handle all pending events of the kernel at one time.
func (w *watcher) readAll(t *testing.T, now time.Time) {
	t.Helper()
	for {
		events, err := w.tree.in.Read(time.Now())
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		must(t, err)
		w.step(events, now)
	}
}

// If a program changes more paths than a watcher keeps, the watcher reports it, its memory stays
// bounded, and it reports all paths again after the flood.
func TestFloodIsBounded(t *testing.T) {
	t.Parallel()
	const max, files = 100, 1000
	dir, outside := t.TempDir(), t.TempDir()
	w := newFlooder(t, dir, max)
	now := time.Now()
	bounded := func(what string) {
		t.Helper()
		// One read of the kernel's queue has at most 64 KiB of events.
		if len(w.pending) > max || len(w.moves) > max+64<<10/16 || len(w.tree.unverified) > 1000+2*len(w.tree.byWD)+1 {
			t.Errorf("%s: got %d changes, %d moves and %d folders to verify, want at most %d", what, len(w.pending),
				len(w.moves), len(w.tree.unverified), max)
		}
	}
	for i := range files {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%04d", i)), nil, 0o644))
	}
	w.readAll(t, now)
	bounded("new files")
	events, _, _, _ := w.log.after(0, max)
	if len(events) != 1 || events[0].Type != Overflow || events[0].Reason == nil {
		t.Errorf("got %+v, want one overflow with its reason", events)
	}
	for i := range 5000 {
		d := filepath.Join(dir, fmt.Sprintf("d%04d", i))
		must(t, os.Mkdir(d, 0o755))
		if i%50 == 0 {
			w.readAll(t, now)
		}
		must(t, os.Remove(d))
	}
	w.readAll(t, now)
	bounded("folders that come and go")
	for range 20 { // each time, as many as are kept become known
		now = now.Add(time.Minute)
		w.step(nil, now)
		w.readAll(t, now)
	}
	if known := len(w.tree.root.files); known != files || w.flooded {
		t.Errorf("when it is quiet: got %d files known, flooded %v, want %d", known, w.flooded, files)
	}
	for round := range 10 {
		for i := range files {
			name := fmt.Sprintf("f%04d", i)
			must(t, os.Rename(filepath.Join(dir, name), filepath.Join(outside, name)))
			must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
		}
		now = now.Add(time.Second / 2)
		w.readAll(t, now)
		bounded(fmt.Sprintf("renames out of the folder, round %d", round))
	}
}
