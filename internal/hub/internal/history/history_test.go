package history

import (
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestHistoryIsBounded: a reader that is too slow is notified that it missed events.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	l := New()
	for range Size + 10 {
		l.Add("changed", time.Now(), sandbox.Sandbox{ID: "x"}, "")
	}
	if len(l.kept) != Size {
		t.Errorf("got %d events kept, want %d", len(l.kept), Size)
	}
	s := l.After(20)
	if s.Lost || len(s.Events) != Size-10 || s.Events[0].Seq != 21 || s.Events[len(s.Events)-1].Seq != s.Last {
		t.Errorf("after 20: got %d events, lost %v; want %d from number 21 on", len(s.Events), s.Lost, Size-10)
	}
	if s := l.After(5); !s.Lost {
		t.Errorf("after 5: got %d events, want them lost", len(s.Events))
	}
	if seq, ok := l.Find(l.ID(7)); seq != 7 || !ok {
		t.Errorf("got %d, %v; want 7, true", seq, ok)
	}
	if _, ok := l.Find("elsewhere-5"); ok {
		t.Error("an ID of another hub was accepted")
	}
}
