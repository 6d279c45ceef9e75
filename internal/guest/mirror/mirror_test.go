package mirror

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

var errDisconnected = errors.New("the watcher has disconnected")

// TestFollowSendsChanges: a watcher gets the screen, the terminal and the steps once, and again when they change.
// All watchers share the pictures, and their number is limited.
func TestFollowSendsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		picture, text, taken := []byte("first"), "$ ls", 0
		s := New(Config{
			Screen: func(context.Context, int) ([]byte, error) { taken++; return picture, nil },
			Text:   func() string { return text },
			Steps: func(ctx context.Context, send func(Step) error) error {
				if call := op.CallOf(ctx); call.Reader {
					t.Error("the record is read with the access of the watcher")
				}
				if err := send(Step{ID: 1, Op: "bash_exec", Text: "ls"}); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			},
		})
		defer s.Close()
		until := time.Now().Add(time.Hour)
		ctx, cancel := context.WithCancel(op.WithCall(t.Context(), &op.Call{Reader: true, TargetName: "a", Until: &until}))
		defer cancel()
		counts := map[string]int{}
		var last Event
		send := func(e op.Event) error {
			counts[e.Name]++
			last = e.Data.(Event)
			if e.Name == "hello" && (last.Name != "a" || last.Until != &until) {
				t.Errorf("got %+v, want the name and the end of the link", last)
			}
			return nil
		}
		for range 2 {
			go s.Follow(ctx, op.None{}, send)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if counts["hello"] != 2 || counts["screen"] != 2 || counts["terminal"] != 2 || counts["step"] != 2 {
			t.Errorf("got %v, want each event once for each watcher", counts)
		}
		if taken > 25 {
			t.Errorf("%d pictures were taken in 10 s for two watchers", taken)
		}
		picture = nil
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if counts["screen"] != 4 || last.Picture != nil {
			t.Errorf("got %v %+v, want the end of the display", counts, last)
		}
		for range maxWatchers - 2 {
			go s.Follow(ctx, op.None{}, func(op.Event) error { return nil })
		}
		synctest.Wait()
		err := s.Follow(ctx, op.None{}, send)
		if e, ok := op.AsError(err); !ok || e.Code != op.Exhausted {
			t.Errorf("got %v, want a limit of watchers", err)
		}
		cancel()
		synctest.Wait()
		// A failed send ends the stream, and so does the end of the service.
		if err := s.Follow(t.Context(), op.None{}, func(op.Event) error { return errDisconnected }); !errors.Is(err, errDisconnected) {
			t.Errorf("got %v, want %v", err, errDisconnected)
		}
		done := make(chan error)
		go func() { done <- s.Follow(t.Context(), op.None{}, func(op.Event) error { return nil }) }()
		synctest.Wait()
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
