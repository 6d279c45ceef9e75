package watch

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// stream collects n messages, then disconnects.
func stream(t testing.TB, s *Service, in EventsIn, lastEventID string, n int) []op.Event {
	t.Helper()
	return streamFrom(t, s, in, lastEventID, n, make(chan struct{}))
}

// streamFrom does the same and closes begun at the first message.
func streamFrom(t testing.TB, s *Service, in EventsIn, lastEventID string, n int, begun chan<- struct{}) []op.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	ctx = op.WithCall(ctx, &op.Call{LastEventID: lastEventID})
	var got []op.Event
	err := s.Events(ctx, in, func(e op.Event) error {
		if got = append(got, e); len(got) == n {
			cancel()
		}
		if len(got) == 1 {
			close(begun)
		}
		return nil
	})
	must(t, err)
	if len(got) < n {
		t.Fatalf("%d of %d messages: got %+v, want at least %d entries", len(got), n, got, n)
	}
	return got
}

func TestStreamResumes(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxEvents = 5 })
	dir := t.TempDir()
	o := observe(t, s, dir, nil)
	for _, f := range []string{"a", "b", "c"} {
		o.write(f, "")
		o.until("create " + f)
	}
	got := stream(t, s, EventsIn{WatcherID: o.id}, "", 4)
	if got[0].Name != "watch_started" || got[0].ID != o.id+":0" || got[1].Name != "file_change" || got[3].ID != o.id+":3" {
		t.Errorf(`got %+v, want first name "watch_started", first ID %q, second name "file_change" and fourth ID %q`,
			got, o.id+":0", o.id+":3")
	}
	got = stream(t, s, EventsIn{WatcherID: o.id}, o.id+":2", 2)
	if got[0].ID != o.id+":2" || got[1].ID != o.id+":3" || got[1].Data.(Event).Path != dir+"/c" {
		t.Errorf("got %+v, want first ID %q, second ID %q and second path %q", got, o.id+":2", o.id+":3", dir+"/c")
	}
	// A stream of new events only.
	var live []op.Event
	var wg sync.WaitGroup
	begun := make(chan struct{})
	wg.Go(func() { live = streamFrom(t, s, EventsIn{WatcherID: o.id, Cursor: new(int64(-1))}, "", 2, begun) })
	<-begun
	for _, f := range []string{"d", "e", "f", "g"} {
		o.write(f, "")
		o.until("create " + f)
	}
	wg.Wait()
	if len(live) < 2 || live[0].ID < o.id+":3" || live[1].Name != "file_change" {
		t.Errorf(`got %+v, want at least 2 messages, first ID at least %q and second name "file_change"`, live, o.id+":3")
	}
	// Lost events are reported.
	got = stream(t, s, EventsIn{WatcherID: o.id}, o.id+":1", 3)
	if got[1].Name != "overflow" || got[1].Data.(Lost).Dropped != 1 || got[1].ID != o.id+":2" || got[2].ID != o.id+":3" {
		t.Errorf(`got %+v, want second name "overflow", second dropped 1, second ID %q and third ID %q`, got, o.id+":2", o.id+":3")
	}
	// IDs of another watcher, or invalid ones, are ignored.
	for _, id := range []string{"other:4", o.id + ":x", o.id + ":-4", "nonsense"} {
		if got := stream(t, s, EventsIn{WatcherID: o.id}, id, 1); got[0].ID != o.id+":0" {
			t.Errorf("%s: got %+v, want first ID %q", id, got, o.id+":0")
		}
	}
	// The end of a watcher ends its streams.
	done := make(chan error)
	go func() {
		done <- s.Events(t.Context(), EventsIn{WatcherID: o.id}, func(e op.Event) error {
			if e.Name == "watch_started" {
				go func() { _, _ = s.Stop(context.Background(), StopIn{o.id}) }()
			}
			return nil
		})
	}()
	must(t, <-done)
	if err := s.Events(t.Context(), EventsIn{WatcherID: o.id}, nil); err == nil {
		t.Error("a stopped watcher was found")
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxWatchers, c.MaxWaits, c.Idle = 2, 1, time.Nanosecond })
	dir := t.TempDir()
	first, second := observe(t, s, dir, nil), observe(t, s, dir, nil)
	observe(t, s, dir, nil) // the others are idle for longer than a nanosecond
	_, err := call[PollOut](t, s, "watch_poll", m{"watcher_id": first.id})
	if e, ok := op.AsError(err); !ok || e.Code != op.NotFound {
		t.Errorf("the oldest: got %v, want an error with code not_found", err)
	}
	_, err = call[PollOut](t, s, "watch_poll", m{"watcher_id": second.id})
	must(t, err)
	s.cfg.Idle = time.Hour
	_, err = call[Created](t, s, "watch_create", m{"path": dir})
	if e, ok := op.AsError(err); !ok || e.Code != op.Exhausted {
		t.Errorf("got %v, want an error with code exhausted", err)
	}
	s.waits = 1
	_, err = call[WaitOut](t, s, "watch_wait", m{"path": dir + "/x"})
	if e, ok := op.AsError(err); !ok || e.Code != op.Exhausted {
		t.Errorf("got %v, want an error with code exhausted", err)
	}
	s.waits = 0
	must(t, s.Close())
	_, err = call[Created](t, s, "watch_create", m{"path": dir})
	if e, ok := op.AsError(err); !ok || e.Code != op.Exhausted {
		t.Errorf("after close: got %v, want an error with code exhausted", err)
	}
}
