// Package watch reports changes of files: by watchers over trees, whose events are polled or
// streamed, and by waiting for one path.
//
// It owns the watchers with their bounded logs. An event is not a notification of the kernel, but
// the difference between the known and the current state after a path has been quiet. No events
// are lost silently: a full log, a full kernel queue and an exceeded limit are events, too.
package watch

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

// Config of the service. A limit of 0 means the default.
type Config struct {
	Home      string
	Workspace string
	Log       *slog.Logger

	MaxWatchers int           // concurrent watchers
	MaxWaits    int           // concurrent waits
	MaxEvents   int           // events kept by a watcher
	MaxPending  int           // changed paths that a watcher has yet to report
	MaxNames    int           // names known to a watcher; beyond, a replaced file is reported as new
	Idle        time.Duration // after which an unused watcher may be evicted
}

// Service implements the file watch operations.
type Service struct {
	cfg  Config
	base pathname.Base

	mu       sync.Mutex
	watchers map[string]*watcher
	waits    int
	life     context.Context
	end      context.CancelFunc
	live     sync.WaitGroup
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.MaxWatchers = cmp.Or(c.MaxWatchers, 64)
	c.MaxWaits = cmp.Or(c.MaxWaits, 64)
	c.MaxEvents = cmp.Or(c.MaxEvents, 10_000)
	c.MaxPending = cmp.Or(c.MaxPending, 10_000)
	c.MaxNames = cmp.Or(c.MaxNames, 200_000)
	c.Idle = cmp.Or(c.Idle, time.Hour)
	s := &Service{cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace}, watchers: map[string]*watcher{}}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Ops lists the operations of the service.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "watch_create", Route: "POST /v1/file/watch", Tag: "file-watch", SDK: "file.watch_create", Style: op.Resource,
			Doc: "Watch a folder or file for changes, including folders created later. Poll or stream the events " +
				"with the returned watcher_id. Changes that match a glob of exclude are ignored; a glob without a slash " +
				"matches names at any depth."}, s.Create),
		op.New(op.Spec{Name: "watch_list", Access: op.AccessRead, Route: "GET /v1/file/watch", Tag: "file-watch",
			SDK: "file.watch_list", Style: op.Resource, ReadOnly: true,
			Doc: "List the watchers."}, s.List),
		op.Stream[EventsIn, Event](op.Spec{Name: "watch_events", Route: "GET /v1/file/watch/{watcher_id}/events",
			Tag: "file-watch", SDK: "file.watch_events", Style: op.Resource, ReadOnly: true, NoTool: true,
			Doc: "Stream the events of a watcher, starting with the first. A reconnect with Last-Event-ID resumes the stream."}, s.Events),
		op.New(op.Spec{Name: "watch_poll", Route: "POST /v1/file/watch/{watcher_id}/poll", Tag: "file-watch",
			SDK: "file.watch_poll", Style: op.Resource, ReadOnly: true,
			Doc: "Return the events after a cursor, the sequence number of the last event seen. A timeout waits for the first event."}, s.Poll),
		op.New(op.Spec{Name: "watch_wait", Route: "POST /v1/file/watch/wait", Tag: "file-watch",
			SDK: "file.watch_wait", Style: op.Resource, ReadOnly: true,
			Doc: "Wait for an event of one path, which may not exist yet. Waiting only for create returns immediately if " +
				"the path exists; waiting only for remove, if it does not."}, s.Wait),
		op.New(op.Spec{Name: "watch_stop", Route: "DELETE /v1/file/watch/{watcher_id}", Tag: "file-watch",
			SDK: "file.watch_stop", Style: op.Resource,
			Doc: "Stop a watcher and discard its events."}, s.Stop),
	}
}

// Close stops all watchers and waits. It is idempotent.
func (s *Service) Close() error {
	s.end()
	s.mu.Lock()
	all := s.watchers
	s.watchers = map[string]*watcher{}
	s.mu.Unlock()
	for _, w := range all {
		w.stop()
	}
	s.live.Wait()
	return nil
}

// CreateIn names what to watch.
type CreateIn struct {
	Path      string `json:"path" doc:"Path of a folder or file"`
	Recursive bool   `json:"recursive" default:"true" doc:"Include subfolders"`

	Exclude []string `json:"exclude" default:".git,node_modules,__pycache__,.venv,*.pyc,*.pyo,.DS_Store,*.swp,*.swo" doc:"Globs to exclude"`

	Debounce int      `json:"debounce" default:"300" minimum:"50" maximum:"5000" doc:"Milliseconds without changes before a report"`
	Include  []string `json:"include_patterns" default:"[]" doc:"Globs of paths to report; empty means all"`
}

// Info describes a watcher.
type Info struct {
	WatcherID string   `json:"watcher_id"`
	Path      string   `json:"path" doc:"Absolute path"`
	Recursive bool     `json:"recursive"`
	Exclude   []string `json:"exclude"`
	Include   []string `json:"include_patterns"`
	Debounce  int      `json:"debounce"`
	Status    string   `json:"status" doc:"active, or gone if the watched path was removed"`
	CreatedAt string   `json:"created_at"`
	Cursor    int64    `json:"cursor" doc:"Sequence number of the last event"`
	Kept      int      `json:"events_kept" doc:"Number of events that can still be read"`
	Folders   int      `json:"folders" doc:"Number of watched folders"`
	Unwatched int      `json:"unwatched" doc:"Number of folders that cannot be watched for lack of permissions or inotify watches"`
}

// Created is a new watcher, twice: public clients read either.
type Created struct {
	Info
	Data Info `json:"data" doc:"Same as the other fields"`
}

// Create starts a watcher.
func (s *Service) Create(ctx context.Context, in CreateIn) (Created, error) {
	info, err := s.create(ctx, in)
	return Created{info, info}, err
}

func (s *Service) create(ctx context.Context, in CreateIn) (Info, error) {
	path, err := s.base.Resolve(in.Path)
	if err != nil {
		return Info{}, op.Errorf(op.Invalid, "watch %s: %w", in.Path, err)
	}
	rules, err := newRules(in.Include, in.Exclude)
	if err != nil {
		return Info{}, err
	}
	if err := s.makeRoom(); err != nil {
		return Info{}, err
	}
	w := &watcher{
		id: strings.ToLower(rand.Text()[:12]), path: path, in: in, created: time.Now(),
		log: newLog(s.cfg.MaxEvents), maxPending: s.cfg.MaxPending, done: make(chan struct{}),
		debounce: time.Duration(in.Debounce) * time.Millisecond,
	}
	w.tree, err = newTree(ctx, path, in.Recursive, rules, s.cfg.MaxNames)
	if err != nil {
		return Info{}, explain(path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil || len(s.watchers) >= s.cfg.MaxWatchers {
		w.stop()
		return Info{}, op.Errorf(op.Exhausted, "watcher limit reached; stop a watcher first")
	}
	s.watchers[w.id] = w
	w.touch()
	w.count()
	s.live.Go(func() { w.run(s.cfg.Log) })
	return w.info(), nil
}

// makeRoom ensures that one more watcher fits. If necessary, it evicts the watcher that has been idle
// longest.
func (s *Service) makeRoom() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watchers) < s.cfg.MaxWatchers {
		return nil
	}
	var idle *watcher
	for _, w := range s.watchers {
		if w.idle() > s.cfg.Idle && (idle == nil || w.idle() > idle.idle()) {
			idle = w
		}
	}
	if idle == nil {
		return op.Errorf(op.Exhausted, "watcher limit reached (%d); stop one with DELETE /v1/file/watch/{watcher_id}", s.cfg.MaxWatchers)
	}
	s.cfg.Log.Info("watcher evicted", "watcher", idle.id, "path", idle.path)
	delete(s.watchers, idle.id)
	idle.stop()
	return nil
}

// explain returns the error of a failure to watch, with advice.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return op.Errorf(op.Exhausted,
			"watch %s: inotify instance limit reached (fs.inotify.max_user_instances is %s); stop a watcher or "+
				"raise the limit: %w", path, limit("max_user_instances"), err)
	case errors.Is(err, syscall.ENOSPC):
		return op.Errorf(op.Exhausted,
			"watch %s: inotify watch limit reached (fs.inotify.max_user_watches is %s); exclude large folders, "+
				"watch a deeper one, or raise the limit: %w", path, limit("max_user_watches"), err)
	case errors.Is(err, fs.ErrNotExist):
		return op.Errorf(op.NotFound, "watch %s: no such file or folder; create it first, or use wait", path)
	case errors.Is(err, fs.ErrPermission):
		return op.Errorf(op.Denied, "watch %s: permission denied for the sandbox user", path)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return op.Errorf(op.Canceled, "watch %s: %w", path, err)
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return op.Errorf(op.Invalid, "watch %s: %v", path, errno)
	}
	return err
}

func limit(name string) string {
	b, err := os.ReadFile("/proc/sys/fs/inotify/" + name)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

// ListOut is all watchers.
type ListOut struct {
	Watchers []Info `json:"watchers"`
	Count    int    `json:"count"`
	Max      int    `json:"max"`
}

// List lists the watchers, oldest first.
func (s *Service) List(context.Context, op.None) (ListOut, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := ListOut{Count: len(s.watchers), Max: s.cfg.MaxWatchers}
	for _, w := range s.watchers {
		out.Watchers = append(out.Watchers, w.info())
	}
	slices.SortFunc(out.Watchers, func(a, b Info) int { return strings.Compare(a.CreatedAt+a.WatcherID, b.CreatedAt+b.WatcherID) })
	return out, nil
}

func (s *Service) find(id string) (*watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watchers[id]
	if w == nil {
		return nil, op.Errorf(op.NotFound, "no such watcher: %q; list them with GET /v1/file/watch", id)
	}
	w.touch()
	return w, nil
}

// StopIn names a watcher.
type StopIn struct {
	WatcherID string `path:"watcher_id" doc:"ID of the watcher"`
}

// StopOut reports the stopped watcher.
type StopOut struct {
	WatcherID string `json:"watcher_id"`
	Status    string `json:"status"`
	Stopped   bool   `json:"stopped"`
}

// Stop stops a watcher.
func (s *Service) Stop(_ context.Context, in StopIn) (StopOut, error) {
	w, err := s.find(in.WatcherID)
	if err != nil {
		return StopOut{}, err
	}
	s.mu.Lock()
	delete(s.watchers, w.id)
	s.mu.Unlock()
	w.stop()
	return StopOut{WatcherID: w.id, Status: "stopped", Stopped: true}, nil
}

// PollIn names a watcher and a cursor.
type PollIn struct {
	WatcherID string `path:"watcher_id" doc:"ID of the watcher"`
	Cursor    int64  `json:"cursor" default:"0" minimum:"0" alias:"since" doc:"Sequence number of the last event seen; 0 returns all"`
	Limit     int    `json:"limit" default:"100" minimum:"1" maximum:"1000" doc:"Maximum number of events"`
	Timeout   int    `json:"timeout" default:"0" minimum:"0" maximum:"60" doc:"Number of seconds to wait for the first event"`
}

// PollOut is the events after a cursor.
type PollOut struct {
	WatcherID string  `json:"watcher_id"`
	Events    []Event `json:"events"`
	Cursor    int64   `json:"cursor" doc:"Cursor for the next poll"`
	HasMore   bool    `json:"has_more"`
	Overflow  bool    `json:"overflow" doc:"Whether events after the cursor were lost; if so, check the files"`
	Dropped   int64   `json:"dropped" doc:"Number of lost events"`
	Status    string  `json:"status"`
}

// Poll returns the events after the cursor.
func (s *Service) Poll(ctx context.Context, in PollIn) (PollOut, error) {
	w, err := s.find(in.WatcherID)
	if err != nil {
		return PollOut{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(in.Timeout)*time.Second)
	defer cancel()
	for {
		events, dropped, more, changed, status := w.after(in.Cursor, in.Limit)
		if len(events) > 0 || dropped > 0 || in.Timeout == 0 || !w.wait(ctx, changed) {
			out := PollOut{WatcherID: w.id, Events: events, Cursor: min(in.Cursor, w.log.last()), HasMore: more, Dropped: dropped, Status: status}
			if len(events) > 0 {
				out.Cursor = events[len(events)-1].Seq
			}
			out.Overflow = dropped > 0 || slices.ContainsFunc(events, func(e Event) bool { return e.Type == Overflow })
			return out, nil
		}
	}
}

// Flush reports all changes that happened before the call, without the debounce time.
func (s *Service) Flush(ctx context.Context, id string) error {
	w, err := s.find(id)
	if err == nil {
		w.flush(ctx)
	}
	return err
}

// EventsIn names a watcher and a cursor.
type EventsIn struct {
	WatcherID string `path:"watcher_id" doc:"ID of the watcher"`
	Cursor    *int64 `query:"cursor" doc:"Sequence number to continue after; -1 streams new events only"`
}

// Started is the first message of a stream.
type Started struct {
	WatcherID string `json:"watcher_id"`
	Path      string `json:"path"`
	Cursor    int64  `json:"cursor" doc:"Sequence number that the stream continues after"`
}

// Lost is the message for events that are no longer kept.
type Lost struct {
	WatcherID string `json:"watcher_id"`
	Reason    string `json:"reason"`
	Dropped   int64  `json:"dropped"`
}

// Events streams events until the caller disconnects or the watcher ends.
func (s *Service) Events(ctx context.Context, in EventsIn, send func(op.Event) error) error {
	w, err := s.find(in.WatcherID)
	if err != nil {
		return err
	}
	defer w.attach()()
	cursor := w.start(in.Cursor, op.CallOf(ctx).LastEventID)
	id := func(seq int64) string { return w.id + ":" + strconv.FormatInt(seq, 10) }
	if err := send(op.Event{ID: id(cursor), Name: "watch_started", Data: Started{w.id, pathname.Show(w.path), cursor}}); err != nil {
		return err
	}
	for {
		events, dropped, _, changed := w.log.after(cursor, 100)
		if dropped > 0 {
			cursor += dropped
			if err := send(op.Event{ID: id(cursor), Name: Overflow, Data: Lost{w.id, "the event log was full", dropped}}); err != nil {
				return err
			}
		}
		for _, e := range events {
			name := "file_change"
			if e.Type == Overflow {
				name = Overflow
			}
			if err := send(op.Event{ID: id(e.Seq), Name: name, Data: e}); err != nil {
				return err
			}
			cursor = e.Seq
		}
		if len(events) == 0 && !w.wait(ctx, changed) {
			return nil
		}
	}
}

// start returns the cursor of a new stream: the last event that the caller has seen, or the start of
// the watcher, so that no event since create is lost.
func (w *watcher) start(cursor *int64, lastEventID string) int64 {
	last := w.log.last()
	if id, seq, ok := strings.Cut(lastEventID, ":"); ok && id == w.id {
		if n, err := strconv.ParseInt(seq, 10, 64); err == nil && n >= 0 {
			return min(n, last)
		}
	}
	switch {
	case cursor == nil:
		return 0
	case *cursor < 0:
		return last
	}
	return min(*cursor, last)
}
