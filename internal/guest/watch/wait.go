package watch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/inotify"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
)

// WaitIn is what to wait for.
type WaitIn struct {
	Path       string   `json:"path" doc:"Path that need not exist yet, nor its folder"`
	Timeout    int      `json:"timeout" default:"30" minimum:"1" maximum:"300" doc:"Seconds to wait"`
	EventTypes []string `json:"event_types" enum:"create,write,remove,rename,chmod" default:"[\"create\",\"write\",\"remove\",\"rename\",\"chmod\"]" doc:"What counts. Only create is answered at once for a path that exists, only remove for one that does not"`
}

// WaitOut is how the wait ended.
type WaitOut struct {
	Path      string `json:"path" doc:"Absolute path"`
	Triggered bool   `json:"triggered" doc:"Whether it happened"`
	TimedOut  bool   `json:"timed_out"`
	EventType string `json:"event_type" doc:"What happened; empty after a timeout"`
	Event     *Event `json:"event"`
	Exists    bool   `json:"exists" doc:"Whether the path exists now"`
}

// Wait waits for something to happen to one path.
func (s *Service) Wait(ctx context.Context, in WaitIn) (WaitOut, error) {
	path, err := s.base.Resolve(in.Path)
	if err != nil {
		return WaitOut{}, op.Errorf(op.Invalid, "wait for %s: %w", in.Path, err)
	}
	was := look(path) // from here on nothing is missed
	if err := s.takeWait(); err != nil {
		return WaitOut{}, err
	}
	defer s.giveWait()
	n, err := inotify.New()
	if err != nil {
		return WaitOut{}, explain(path, err)
	}
	defer n.Close()
	defer context.AfterFunc(ctx, func() { n.Close() })()
	defer context.AfterFunc(s.life, func() { n.Close() })()
	w := &waiter{in: n, path: path, wanted: in.EventTypes, was: was, deadline: time.Now().Add(time.Duration(in.Timeout) * time.Second)}
	kind, err := w.run()
	out := WaitOut{Path: pathname.Show(path), EventType: kind, Triggered: kind != "", Exists: look(path).there}
	switch {
	case kind != "":
		out.Event = &Event{Type: kind, Path: out.Path, IsDirectory: look(path).dir, Timestamp: stamp(time.Now())}
	case errors.Is(err, os.ErrDeadlineExceeded):
		out.TimedOut = true
	case errors.Is(err, os.ErrClosed):
		return WaitOut{}, op.Errorf(op.Canceled, "wait for %s: it was called off", path)
	case err != nil:
		return WaitOut{}, explain(path, err)
	}
	return out, nil
}

func (s *Service) takeWait() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits >= s.cfg.MaxWaits {
		return op.Errorf(op.Exhausted, "there are already %d waits; try again when one has ended, or use a watcher", s.cfg.MaxWaits)
	}
	s.waits++
	return nil
}

func (s *Service) giveWait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits--
}

// state is what a path was when it was looked at.
type state struct {
	there bool
	dir   bool
	stat  syscall.Stat_t
}

func look(path string) state {
	info, err := os.Lstat(path)
	if err != nil {
		return state{}
	}
	s := state{there: true, dir: info.IsDir()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.stat = *st
	}
	return s
}

// changed names the difference between two looks, if there is one.
func (s state) changed(now state) []string {
	switch {
	case !s.there && now.there:
		return []string{Create, Rename}
	case s.there && !now.there:
		return []string{Remove, Rename}
	case !s.there:
		return nil
	case s.stat.Ino != now.stat.Ino || s.stat.Size != now.stat.Size || s.stat.Mtim != now.stat.Mtim:
		return []string{Write}
	case s.stat.Ctim != now.stat.Ctim:
		return []string{Chmod}
	}
	return nil
}

// waiter follows one path: it watches its folder or, as long as that is not
// there, the nearest one above that is.
type waiter struct {
	in       *inotify.Watcher
	path     string
	wanted   []string
	was      state
	deadline time.Time
}

func (w *waiter) run() (string, error) {
	if only := w.wanted; len(only) == 1 && (only[0] == Create && w.was.there || only[0] == Remove && !w.was.there) {
		return only[0], nil
	}
	for {
		dir := nearest(filepath.Dir(w.path))
		wd, err := w.in.Add(dir, mask)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue // it went away in between
		}
		if err != nil {
			return "", err
		}
		// What happened before the watch was in place is seen by looking.
		now := look(w.path)
		if kind := w.pick(w.was.changed(now)); kind != "" {
			return kind, nil
		}
		w.was = now
		if nearest(filepath.Dir(w.path)) == dir {
			kind, err := w.follow(wd, dir)
			if kind != "" || err != nil {
				return kind, err
			}
		}
		w.in.Remove(wd)
	}
}

// nearest is the folder itself, or the first above it that exists.
func nearest(dir string) string {
	for dir != "/" {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// pick is the first of the kinds that is wanted.
func (w *waiter) pick(kinds []string) string {
	for _, k := range kinds {
		if slices.Contains(w.wanted, k) {
			return k
		}
	}
	return ""
}

// follow reads events of a folder until one is wanted, or until another folder
// must be watched.
func (w *waiter) follow(wd int, dir string) (string, error) {
	rel, err := filepath.Rel(dir, w.path)
	if err != nil {
		return "", err
	}
	next, _, below := strings.Cut(rel, "/")
	for {
		events, err := w.in.Read(w.deadline)
		if err != nil {
			return "", err
		}
		for _, e := range events {
			switch {
			case e.Mask&unix.IN_Q_OVERFLOW != 0:
				return "", nil
			case e.WD != wd: // of a folder watched before
			case e.Name == "":
				return "", nil // the folder itself is gone
			case e.Name != next:
			case below:
				return "", nil // one step nearer
			default:
				kinds := w.kinds(e.Mask)
				w.was = look(w.path)
				if kind := w.pick(kinds); kind != "" {
					return kind, nil
				}
			}
		}
	}
}

// kinds are what a notification about the path itself means.
func (w *waiter) kinds(m uint32) []string {
	switch {
	case m&unix.IN_CREATE != 0:
		return []string{Create}
	case m&unix.IN_MODIFY != 0:
		return []string{Write}
	case m&unix.IN_DELETE != 0:
		return []string{Remove}
	case m&unix.IN_MOVED_FROM != 0:
		return []string{Rename, Remove}
	case m&unix.IN_MOVED_TO != 0 && w.was.there:
		return []string{Write, Rename}
	case m&unix.IN_MOVED_TO != 0:
		return []string{Create, Rename}
	case m&unix.IN_ATTRIB != 0:
		return []string{Chmod}
	}
	return nil
}
