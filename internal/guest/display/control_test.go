package display

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// TestTakeOver: while a person has taken over, only that person has mouse and keyboard and actions of agents fail. It ends with
// the person's connection.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		defer s.Close()
		var mu sync.Mutex
		var event Control // the last event
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- s.WatchControl(ctx, op.None{}, func(e op.Event) error {
				mu.Lock()
				defer mu.Unlock()
				event = e.Data.(Control)
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
			if got, _ := s.Control(t.Context(), op.None{}); got.Holder != holder || event.Holder != holder {
				t.Fatalf("got %+v and from the stream %+v, want holder %q", got, event, holder)
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
			t.Errorf("disconnected %v, want the other viewer with input", ended)
		}
		s.control.leave(legacy)
		if legacy = join("back", ViewIn{}); !legacy.watches {
			t.Error("input of a new viewer is accepted while a person has taken over, want it ignored")
		}
		_, err := act.Call(t.Context(), &op.None{})
		if e, ok := op.AsError(err); !ok || e.Code != op.Conflict || ran != 1 {
			t.Errorf("got %v after %d runs, want a conflict and no run", err, ran)
		}
		if _, err := look.Call(t.Context(), &op.None{}); err != nil {
			t.Errorf("read-only operation: %v, want no error", err)
		}
		second := join("second", ViewIn{TakeOver: "q"})
		s.control.leave(person) // it was disconnected
		expect(Person)
		if ended["person"] != 1 {
			t.Errorf("disconnected %v, want the first person", ended)
		}
		s.control.leave(second)
		if ended["back"] != 1 {
			t.Errorf("disconnected %v, want the viewer without input, so that it reconnects", ended)
		}
		expect(Agent) // it acted a moment ago
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

// TestHandover: a request of an agent ends when a person has taken over and released the display, or after its timeout.
func TestHandover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		defer s.Close()
		ask := func() chan HandoverOut {
			done := make(chan HandoverOut, 1)
			go func() {
				out, err := s.Handover(t.Context(), HandoverIn{Message: "Sign in", Timeout: 60})
				if err != nil {
					t.Error(err)
				}
				done <- out
			}()
			synctest.Wait()
			return done
		}
		done := ask()
		s.control.leave(s.control.join(ViewIn{}, func() {})) // a person who watches
		person := s.control.join(ViewIn{TakeOver: "p"}, func() {})
		synctest.Wait()
		select {
		case out := <-done:
			t.Fatalf("got %+v before the person released the display", out)
		default:
		}
		s.control.leave(person)
		if out := <-done; !out.Done {
			t.Error("got done false, want true after the person released the display")
		}
		if out := <-ask(); out.Done {
			t.Error("got done true, want false after the timeout")
		}
	})
}
