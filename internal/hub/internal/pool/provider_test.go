package pool_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/hub/internal/trash"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestWrap: the wrapping provider hides the pool.
func TestWrap(t *testing.T) {
	r := newRig(t, 2)
	testenv.Poll(t, "the pool is full", func() bool { return r.pool.Ready()["e"] == 2 })
	w := pool.Wrap(r.p, r.pool, trash.New(trash.Config{Provider: r.p}))
	ctx := t.Context()
	events, err := w.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	members, err := r.p.List(ctx, sandbox.Filter{})
	if err != nil || len(members) != 2 {
		t.Fatalf("got %v %v, want 2 members", members, err)
	}
	if list, err := w.List(ctx, sandbox.Filter{}); err != nil || len(list) != 0 {
		t.Errorf("members in the list: got %v %v, want no entries", list, err)
	}
	if _, err := w.Get(ctx, members[0].ID); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("a member is found: got %v, want sandbox.ErrNotFound", err)
	}

	began := time.Now()
	s := spec()
	s.Name, s.Owner = "a", "ann"
	warm, err := w.Create(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if warm.ID != members[0].ID && warm.ID != members[1].ID {
		t.Error("it was created cold")
	}
	odd := spec()
	odd.Name, odd.Owner, odd.Args = "b", "ann", []string{"--other"}
	cold, err := w.Create(ctx, odd)
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range []sandbox.Sandbox{warm, cold} {
		got, err := w.Get(ctx, sb.ID)
		if err != nil || got.Created.Before(began) || got.Changed.Before(began) || got.Spec.Name != sb.Spec.Name || got.Spec.Owner != "ann" {
			t.Errorf("%+v %v", got, err)
		}
	}
	list, err := w.List(ctx, sandbox.Filter{Owner: "ann"})
	if err != nil || len(list) != 2 || list[0].ID != warm.ID || list[1].ID != cold.ID {
		t.Errorf("the list is not in order: got %v %v, want 2 entries, first ID %q and second ID %q", list, err, warm.ID, cold.ID)
	}
	created := map[string]bool{}
	for len(created) < 2 {
		select {
		case e := <-events:
			if pool.Hidden(e.Sandbox) {
				t.Errorf("got an event of a member: %+v, want none", e)
			}
			if e.Kind == sandbox.Created {
				created[e.Sandbox.ID] = true
			}
		case <-time.After(time.Minute):
			t.Fatalf("events of creates: %v", created)
		}
	}
	s.Owner = "bob"
	if _, err := w.Create(ctx, s); err != nil {
		t.Errorf("another owner's sandbox of that name: %v", err)
	}
	if _, err := w.Create(ctx, s); !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("the same name twice: got %v, want sandbox.ErrConflict", err)
	}
}

// crowd is a provider with many sandboxes.
type crowd struct {
	sandbox.Provider
	size int
}

func (c crowd) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	events := make(chan sandbox.Event, c.size)
	for range c.size {
		events <- sandbox.Event{Kind: sandbox.Existing, Sandbox: sandbox.Sandbox{ID: sandbox.NewID()}}
	}
	context.AfterFunc(ctx, func() { close(events) })
	return events, nil
}

// TestWatchOfMany: a reader that is slow at first still gets every existing sandbox.
func TestWatchOfMany(t *testing.T) {
	c := crowd{size: 5000}
	p := pool.New(pool.Config{Provider: c, Size: func() map[string]pool.Want { return nil }})
	t.Cleanup(func() { p.Close() })
	events, err := pool.Wrap(c, p, nil).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the reader is far behind", func() bool { return len(events) > 1000 })
	for got := range c.size {
		if _, ok := <-events; !ok {
			t.Fatalf("the watch ended after %d of %d", got, c.size)
		}
	}
}
