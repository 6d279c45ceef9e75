package envd

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
)

// Change is a change of a file that a watch reports.
type Change struct {
	Seq  int64
	Kind string // create, write, remove, rename or chmod; other kinds are ignored
	Path string // absolute
	Old  string // previous path of a renamed file, relative to the watched folder
	Name string // relative to the watched folder
	Size int64
}

// Watches reports changes of files.
type Watches interface {
	// Open starts a watch of a folder.
	Open(ctx context.Context, path string, recursive bool) (id string, err error)
	// Next returns the changes after a sequence number. It waits for the first one, at most for the given time.
	Next(ctx context.Context, id string, after int64, wait time.Duration) ([]Change, error)
	// Flush makes Next return all changes that happened before.
	Flush(ctx context.Context, id string)
	// Close ends a watch.
	Close(id string)
}

// fileEvent is a change.
type fileEvent struct {
	Name  string `json:"name,omitempty"`
	Type  string `json:"type,omitempty"`
	Entry *entry `json:"entry,omitempty"`
}

const eventPrefix = "EVENT_TYPE_"

// watchIn is the input of watchDir and createWatcher.
type watchIn struct {
	Path          string `json:"path"`
	Recursive     bool   `json:"recursive"`
	IncludeEntry  bool   `json:"includeEntry"`
	IncludeEntry2 bool   `json:"include_entry"`
}

func (in watchIn) entries() bool { return in.IncludeEntry || in.IncludeEntry2 }

// watchOut is a message of a watch. One field is set.
type watchOut struct {
	Start      *none      `json:"start,omitempty"`
	Filesystem *fileEvent `json:"filesystem,omitempty"`
	KeepAlive  *none      `json:"keepalive,omitempty"`
}

func (s *Service) openWatch(ctx context.Context, c connect.Caller, in watchIn) (string, error) {
	_, path, err := s.at(c, in.Path)
	if err != nil {
		return "", err
	}
	info, err := describe(path)
	switch {
	case err != nil:
		return "", fileError(path, err)
	case info.Type != kindFolder:
		return "", connect.Errorf(connect.InvalidArgument, "path %q is not a folder", path)
	}
	if info.Target != nil {
		path = *info.Target
	}
	id, err := s.Watches.Open(ctx, path, in.Recursive)
	if err != nil {
		return "", err
	}
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	s.watchers.open[id] = true
	return id, nil
}

// close ends a watch.
func (w *watchers) close(id string) {
	w.drop(id)
	w.source.Close(id)
}

// flushLimit limits the delay of a response by watchers.
const flushLimit = time.Second

// flushAll makes all watchers report what has happened, so that clients get the events of an operation with its response.
func (w *watchers) flushAll(ctx context.Context) {
	w.mu.Lock()
	open := slices.Collect(maps.Keys(w.open))
	w.mu.Unlock()
	w.flush(ctx, open...)
}

func (w *watchers) flush(ctx context.Context, ids ...string) {
	ctx, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	for _, id := range ids {
		w.source.Flush(ctx, id)
	}
}

// events translates a change. Clients expect the events of the kernel: a new file is created and then written, a rename removes
// one name and creates another.
func events(c Change, withEntry bool) []fileEvent {
	one := func(name, kind string) fileEvent {
		e := fileEvent{Name: name, Type: eventPrefix + kind}
		if withEntry && (kind == "CREATE" || kind == "WRITE" || kind == "CHMOD") {
			if info, err := describe(c.Path); err == nil {
				e.Entry = &info
			}
		}
		return e
	}
	switch c.Kind {
	case "create":
		list := []fileEvent{one(c.Name, "CREATE")}
		if c.Size > 0 && list[0].isFile(c.Path) {
			list = append(list, one(c.Name, "WRITE"))
		}
		return list
	case "write":
		return []fileEvent{one(c.Name, "WRITE")}
	case "chmod":
		return []fileEvent{one(c.Name, "CHMOD")}
	case "remove":
		return []fileEvent{one(c.Name, "REMOVE")}
	case "rename":
		return []fileEvent{one(c.Old, "RENAME"), one(c.Name, "CREATE")}
	}
	return nil
}

func (e fileEvent) isFile(path string) bool {
	if e.Entry != nil {
		return e.Entry.Type == kindFile
	}
	info, err := describe(path)
	return err == nil && info.Type == kindFile
}

func (s *Service) watchDir(ctx context.Context, c connect.Caller, in watchIn, out *connect.Stream) error {
	id, err := s.openWatch(ctx, c, in)
	if err != nil {
		return err
	}
	defer s.watchers.close(id)
	if err := out.Send(watchOut{Start: &none{}}); err != nil {
		return err
	}
	for after := int64(0); ; {
		changes, err := s.Watches.Next(ctx, id, after, keepAlive(c))
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if len(changes) == 0 {
			if err := out.Send(watchOut{KeepAlive: &none{}}); err != nil {
				return err
			}
		}
		for _, change := range changes {
			after = change.Seq
			for _, e := range events(change, in.entries()) {
				if err := out.Send(watchOut{Filesystem: &e}); err != nil {
					return err
				}
			}
		}
	}
}

// watcher is a watch whose events clients poll.
type watcher struct {
	mu      sync.Mutex
	after   int64
	entries bool
}

// watchers are the watchers that clients have created.
type watchers struct {
	source Watches
	mu     sync.Mutex
	open   map[string]bool     // all IDs, also of streams
	byID   map[string]*watcher // those that clients poll
}

// watcherOut identifies a watcher.
type watcherOut struct {
	ID string `json:"watcherId"`
}

// watcherIn identifies a watcher.
type watcherIn struct {
	ID  string `json:"watcherId"`
	ID2 string `json:"watcher_id"`
}

func (in watcherIn) id() string {
	if in.ID != "" {
		return in.ID
	}
	return in.ID2
}

func (s *Service) createWatcher(ctx context.Context, c connect.Caller, in watchIn) (watcherOut, error) {
	id, err := s.openWatch(ctx, c, in)
	if err != nil {
		return watcherOut{}, err
	}
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	s.watchers.byID[id] = &watcher{entries: in.entries()}
	return watcherOut{id}, nil
}

func (w *watchers) find(id string) (*watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if found := w.byID[id]; found != nil {
		return found, nil
	}
	return nil, connect.Errorf(connect.NotFound, "watcher with id %.60q not found", id)
}

// eventsOut are the events since the last call.
type eventsOut struct {
	Events []fileEvent `json:"events,omitempty"`
}

func (s *Service) watcherEvents(ctx context.Context, _ connect.Caller, in watcherIn) (out eventsOut, err error) {
	w, err := s.watchers.find(in.id())
	if err != nil {
		return out, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.watchers.flush(ctx, in.id())
	changes, err := s.Watches.Next(ctx, in.id(), w.after, 0)
	if err != nil {
		s.watchers.drop(in.id())
		return out, err
	}
	for _, change := range changes {
		w.after = change.Seq
		out.Events = append(out.Events, events(change, w.entries)...)
	}
	return out, nil
}

func (w *watchers) drop(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byID, id)
	delete(w.open, id)
}

func (s *Service) removeWatcher(_ context.Context, _ connect.Caller, in watcherIn) (none, error) {
	if _, err := s.watchers.find(in.id()); err != nil {
		return none{}, err
	}
	s.watchers.close(in.id())
	return none{}, nil
}
