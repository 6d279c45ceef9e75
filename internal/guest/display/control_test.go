package display

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// TestTakeOver: a person who takes over has mouse and keyboard alone, agents are refused
// meanwhile, and everything is as before when the person's connection ends.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		defer s.Close()
		var mu sync.Mutex
		var told Control // the last event
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- s.WatchControl(ctx, op.None{}, func(e op.Event) error {
				mu.Lock()
				defer mu.Unlock()
				told = e.Data.(Control)
				return nil
			})
		}()
		ran := 0
		act := s.Gate(op.New(op.Spec{Name: "act", Route: "POST /act", Tag: "t", Doc: "Act."},
			func(context.Context, op.None) (op.None, error) { ran++; return op.None{}, nil }))
		look := s.Gate(op.New(op.Spec{Name: "look", Route: "POST /look", Tag: "t", Doc: "Look.", ReadOnly: true},
			func(context.Context, op.None) (op.None, error) { ran++; return op.None{}, nil }))
		expect := func(holder string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got, _ := s.Control(t.Context(), op.None{}); got.Holder != holder || told.Holder != holder {
				t.Fatalf("got %+v and by the stream %+v, want holder %q", got, told, holder)
			}
		}
		expect(Nobody)
		if _, err := act.Call(t.Context(), &op.None{}); err != nil {
			t.Fatalf("act: %v, want no error", err)
		}
		expect(Agent)

		ended := map[string]int{}
		join := func(name string, in ViewIn) *viewer { return s.control.join(in, func() { ended[name]++ }) }
		legacy, watcher := join("legacy", ViewIn{}), join("watcher", ViewIn{ViewOnly: true})
		person := join("person", ViewIn{TakeOver: "p"})
		expect(Person)
		if ended["legacy"] != 1 || ended["watcher"] != 0 || legacy.watches || person.watches {
			t.Errorf("ended %v, want the one other viewer with input", ended)
		}
		s.control.leave(legacy)
		if legacy = join("back", ViewIn{}); !legacy.watches {
			t.Error("a viewer that comes while a person has taken over has input, want that it watches")
		}
		_, err := act.Call(t.Context(), &op.None{})
		if e, ok := op.AsError(err); !ok || e.Code != op.Conflict || ran != 1 {
			t.Errorf("got %v after %d runs, want a conflict and no run", err, ran)
		}
		if _, err := look.Call(t.Context(), &op.None{}); err != nil {
			t.Errorf("look: %v, want that reading goes on", err)
		}
		second := join("second", ViewIn{TakeOver: "q"})
		s.control.leave(person) // it was told to go
		expect(Person)
		if ended["person"] != 1 {
			t.Errorf("ended %v, want that the first person was told", ended)
		}
		s.control.leave(second)
		if ended["back"] != 1 {
			t.Errorf("ended %v, want that the viewer that had to watch comes back with input", ended)
		}
		expect(Agent) // which acted a moment ago
		<-time.After(agentTime)
		expect(Nobody)
		s.control.leave(watcher)
		s.control.leave(legacy)
		stop()
		if err := <-done; err != nil {
			t.Errorf("the stream ended with %v, want nil", err)
		}
	})
}
