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

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/inotify"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

// WaitIn names a path and its events.
type WaitIn struct {
	Path       string   `json:"path" doc:"Path; it and its folder may not exist yet"`
	Timeout    int      `json:"timeout" default:"30" minimum:"1" maximum:"300" doc:"Timeout in seconds"`
	EventTypes []string `json:"event_types" enum:"create,write,remove,rename,chmod" default:"create,write,remove,rename,chmod" doc:"Events"`
}

// WaitOut is the result of a wait.
type WaitOut struct {
	Path      string `json:"path" doc:"Absolute path"`
	Triggered bool   `json:"triggered" doc:"Whether one of the events occurred"`
	TimedOut  bool   `json:"timed_out"`
	EventType string `json:"event_type" doc:"The event that occurred; empty after a timeout"`
	Event     *Event `json:"event"`
	Exists    bool   `json:"exists" doc:"Whether the path now exists"`
}

// Wait waits for an event of one path.
func (s *Service) Wait(ctx context.Context, in WaitIn) (WaitOut, error) {
	path, err := s.base.Resolve(in.Path)
	if err != nil {
		return WaitOut{}, op.Errorf(op.Invalid, "wait for %s: %w", in.Path, err)
	}
	was := stat(path) // changes after this are detected
	if err := s.acquireWait(); err != nil {
		return WaitOut{}, err
	}
	defer s.releaseWait()
	n, err := inotify.New()
	if err != nil {
		return WaitOut{}, explain(path, err)
	}
	defer n.Close()
	defer context.AfterFunc(ctx, func() { n.Close() })()
	defer context.AfterFunc(s.life, func() { n.Close() })()
	w := &waiter{in: n, path: path, wanted: in.EventTypes, was: was, deadline: time.Now().Add(time.Duration(in.Timeout) * time.Second)}
	kind, err := w.run()
	out := WaitOut{Path: pathname.Show(path), EventType: kind, Triggered: kind != "", Exists: stat(path).exists}
	switch {
	case kind != "":
		out.Event = new(newEvent(kind, filepath.Dir(path), path, stat(path).dir, time.Now()))
	case errors.Is(err, os.ErrDeadlineExceeded):
		out.TimedOut = true
	case errors.Is(err, os.ErrClosed):
		return WaitOut{}, op.Errorf(op.Canceled, "wait for %s: canceled", path)
	case err != nil:
		return WaitOut{}, explain(path, err)
	}
	return out, nil
}

func (s *Service) acquireWait() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits >= s.cfg.MaxWaits {
		return op.Errorf(op.Exhausted, "wait limit reached (%d); retry when one has ended, or use a watcher", s.cfg.MaxWaits)
	}
	s.waits++
	return nil
}

func (s *Service) releaseWait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits--
}

// state is the state of a path at one time.
type state struct {
	exists bool
	dir    bool
	stat   syscall.Stat_t
}

func stat(path string) state {
	info, err := os.Lstat(path)
	if err != nil {
		return state{}
	}
	s := state{exists: true, dir: info.IsDir()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.stat = *st
	}
	return s
}

// changed returns the events between two states.
func (s state) changed(now state) []string {
	switch {
	case !s.exists && now.exists:
		return []string{Create, Rename}
	case s.exists && !now.exists:
		return []string{Remove, Rename}
	case !s.exists:
		return nil
	case s.stat.Ino != now.stat.Ino || s.stat.Size != now.stat.Size || s.stat.Mtim != now.stat.Mtim:
		return []string{Write}
	case s.stat.Ctim != now.stat.Ctim:
		return []string{Chmod}
	}
	return nil
}

// waiter follows one path: it watches its folder, or the nearest parent that exists.
type waiter struct {
	in       *inotify.Watcher
	path     string
	wanted   []string
	was      state
	deadline time.Time
}

func (w *waiter) run() (string, error) {
	if only := w.wanted; len(only) == 1 && (only[0] == Create && w.was.exists || only[0] == Remove && !w.was.exists) {
		return only[0], nil
	}
	for {
		dir := nearest(filepath.Dir(w.path))
		wd, err := w.in.Add(dir, mask)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue // it was removed in the meantime
		}
		if err != nil {
			return "", err
		}
		// A comparison finds changes before the watch.
		now := stat(w.path)
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

// nearest returns the folder, or the nearest parent that exists.
func nearest(dir string) string {
	for dir != "/" {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// pick returns the first of the requested kinds.
func (w *waiter) pick(kinds []string) string {
	for _, k := range kinds {
		if slices.Contains(w.wanted, k) {
			return k
		}
	}
	return ""
}

// follow reads the events of a folder until a requested one, or until another folder must be
// watched.
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
			case e.WD != wd: // an event of a previously watched folder
			case e.Name == "":
				return "", nil // the folder itself was removed
			case e.Name != next:
			case below:
				return "", nil // the next folder may exist now
			default:
				kinds := w.kinds(e.Mask)
				w.was = stat(w.path)
				if kind := w.pick(kinds); kind != "" {
					return kind, nil
				}
			}
		}
	}
}

// kinds returns the events of a notification about the path itself.
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
	case m&unix.IN_MOVED_TO != 0 && w.was.exists:
		return []string{Write, Rename}
	case m&unix.IN_MOVED_TO != 0:
		return []string{Create, Rename}
	case m&unix.IN_ATTRIB != 0:
		return []string{Chmod}
	}
	return nil
}
