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

	Entry *entry `json:",omitempty"` // described by a helper, because this process may not
}

// Watches reports changes of files.
type Watches interface {
	// Open starts a watch of a folder.
	Open(ctx context.Context, path string, recursive bool) (id string, err error)
	watchSource
}

// watchSource reports the changes of open watches.
type watchSource interface {
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

// openWatch starts a watch as the user of a call, or as root if the user may not read the folder.
func (s *Service) openWatch(ctx context.Context, c connect.Caller, in watchIn) (*watcher, error) {
	u, path, err := s.at(c, in.Path)
	if err != nil {
		return nil, err
	}
	var info entryOut
	if err := s.asUser(ctx, u, "stat", helpIn{Path: path}, &info); err != nil {
		return nil, err
	}
	if info.Entry.Type != kindFolder {
		return nil, connect.Errorf(connect.InvalidArgument, "path %q is not a folder", path)
	}
	if info.Entry.Target != nil {
		path = *info.Entry.Target
	}
	w := &watcher{entries: in.entries(), source: s.Watches, changed: make(chan struct{})}
	what := helpIn{Path: path, Recursive: in.Recursive}
	asOther := func(u account, what helpIn) (err error) {
		w.source = &s.otherWatches
		w.id, err = s.otherWatches.open(ctx, s, u, what)
		return err
	}
	if u.own {
		w.id, err = s.Watches.Open(ctx, path, in.Recursive)
	} else {
		err = asOther(u, what)
	}
	err = s.users.orRoot(u, what, err, func(what helpIn) error { return asOther(root, what) })
	if err != nil {
		return nil, err
	}
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	s.watchers.open[w] = true
	return w, nil
}

// close ends a watch.
func (w *watchers) close(x *watcher) {
	w.drop(x)
	x.source.Close(x.id)
}

// flushLimit limits the delay of a response by watchers.
const flushLimit = time.Second

// flushAll makes all watchers report what has happened, so that clients get the events of an operation with its response.
func (w *watchers) flushAll(ctx context.Context) {
	w.mu.Lock()
	open := slices.Collect(maps.Keys(w.open))
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	for _, x := range open {
		x.flush(ctx)
	}
}

// flush makes the source report what has happened. If a stream sends the events, flush returns when it has sent them.
func (w *watcher) flush(ctx context.Context) {
	w.source.Flush(ctx, w.id)
	if !w.isStream() {
		return
	}
	last := w.sent()
	for {
		changes, err := w.source.Next(ctx, w.id, last, 0)
		if err != nil || len(changes) == 0 {
			break
		}
		last = changes[len(changes)-1].Seq
	}
	for {
		w.mu.Lock()
		reached, changed := w.ended || w.after >= last, w.changed
		w.mu.Unlock()
		if reached {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (w *watcher) isStream() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.streams
}

func (w *watcher) sent() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.after
}

// update changes the state of a stream and notifies flush.
func (w *watcher) update(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	close(w.changed)
	w.changed = make(chan struct{})
}

// events translates a change. Clients expect the events of the kernel: a new file is created and then written, a rename removes
// one name and creates another.
func events(c Change, withEntry bool) []fileEvent {
	one := func(name, kind string) fileEvent {
		e := fileEvent{Name: name, Type: eventPrefix + kind}
		switch {
		case !withEntry:
		case c.Entry != nil:
			e.Entry = c.Entry
		case kind == "CREATE" || kind == "WRITE" || kind == "CHMOD":
			if info, err := describe(c.Path); err == nil {
				e.Entry = &info
			}
		}
		return e
	}
	switch c.Kind {
	case "create":
		list := []fileEvent{one(c.Name, "CREATE")}
		if c.Size > 0 && c.isFile() {
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

func (c Change) isFile() bool {
	if c.Entry != nil {
		return c.Entry.Type == kindFile
	}
	info, err := describe(c.Path)
	return err == nil && info.Type == kindFile
}

func (s *Service) watchDir(ctx context.Context, c connect.Caller, in watchIn, out *connect.Stream) error {
	w, err := s.openWatch(ctx, c, in)
	if err != nil {
		return err
	}
	w.update(func() { w.streams = true })
	defer s.watchers.close(w)
	defer w.update(func() { w.ended = true })
	if err := out.Send(watchOut{Start: &none{}}); err != nil {
		return err
	}
	for {
		changes, err := w.source.Next(ctx, w.id, w.sent(), keepAlive(c))
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
			for _, e := range events(change, in.entries()) {
				if err := out.Send(watchOut{Filesystem: &e}); err != nil {
					return err
				}
			}
			w.update(func() { w.after = change.Seq })
		}
	}
}

// watcher is an open watch. Clients poll its events, or a stream sends them.
type watcher struct {
	id      string
	source  watchSource
	entries bool

	polling sync.Mutex
	mu      sync.Mutex
	streams bool
	ended   bool          // the stream
	after   int64         // sequence number of the last event that a client has
	changed chan struct{} // closed and replaced at every change of a stream
}

// watchers are the watchers that clients have created.
type watchers struct {
	mu   sync.Mutex
	open map[*watcher]bool   // all, also of streams
	byID map[string]*watcher // those that clients poll
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
	w, err := s.openWatch(ctx, c, in)
	if err != nil {
		return watcherOut{}, err
	}
	s.watchers.mu.Lock()
	defer s.watchers.mu.Unlock()
	s.watchers.byID[w.id] = w
	return watcherOut{w.id}, nil
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
	w.polling.Lock()
	defer w.polling.Unlock()
	short, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	w.flush(short)
	changes, err := w.source.Next(ctx, w.id, w.after, 0)
	if err != nil {
		s.watchers.drop(w)
		return out, err
	}
	for _, change := range changes {
		w.after = change.Seq
		out.Events = append(out.Events, events(change, w.entries)...)
	}
	return out, nil
}

func (w *watchers) drop(x *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byID, x.id)
	delete(w.open, x)
}

func (s *Service) removeWatcher(_ context.Context, _ connect.Caller, in watcherIn) (none, error) {
	w, err := s.watchers.find(in.id())
	if err != nil {
		return none{}, err
	}
	s.watchers.close(w)
	return none{}, nil
}
