package tombstone

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func deleted(owner, name string) sandbox.Sandbox {
	return sandbox.Sandbox{ID: "sb-" + name, Spec: sandbox.Spec{Owner: owner, Name: name}}
}

// TestRestart: entries outlive the hub, and a damaged file does not prevent its start.
func TestRestart(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), "deleted.json"), time.Now()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Add(deleted("ann", "a"), now, "why", []history.Moment{{Time: now.UTC(), Type: "failed", Message: "no memory", Bad: true}})
	if err := l.Save(); err != nil {
		t.Fatal(err)
	}
	if l, err = Open(path); err != nil {
		t.Fatal(err)
	}
	if e, ok := l.Find("ann", "a", now); !ok || e.Why != "why" || !e.At.Equal(now) || len(e.Past) != 1 || e.Past[0].Message != "no memory" {
		t.Errorf("got %+v, %v; want the entry of the earlier hub", e, ok)
	}
	if _, ok := l.Find("ann", "sb-a", now); !ok {
		t.Error("not found by ID")
	}
	if _, ok := l.Find("bob", "a", now); ok {
		t.Error("found by another owner")
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err != nil {
		t.Error(err)
	}
}

// TestLimits: an owner that deletes many sandboxes displaces only its own entries.
func TestLimits(t *testing.T) {
	l, now := &Log{}, time.Now()
	many := []history.Moment{{Type: "failed", Message: strings.Repeat("ä", maxMessage), Bad: true}}
	for range 2 * maxPast {
		many = append([]history.Moment{{Type: "changed"}}, many...)
	}
	if got := clip(many); len(got) != maxPast || !got[maxPast-1].Bad || len(got[maxPast-1].Message) > maxMessage+3 {
		t.Errorf("got %d events, the last is %+v; want %d with the problem, clipped", len(got), got[len(got)-1], maxPast)
	}
	l.Add(deleted("ann", "a"), now, "", nil)
	for i := range 2 * maxOfOwner {
		l.Add(deleted("bob", fmt.Sprint(i)), now, "", many)
	}
	if _, ok := l.Find("ann", "a", now); !ok || len(l.entries) != maxOfOwner+1 {
		t.Errorf("got %d entries, that of ann: %v; want %d with that of ann", len(l.entries), ok, maxOfOwner+1)
	}
	told := 0
	for _, e := range l.entries {
		if e.Past != nil {
			told++
		}
	}
	if told != maxTold {
		t.Errorf("got %d entries with events, want the latest %d", told, maxTold)
	}
	l.Add(deleted("ann", "b"), now.Add(keep), "", nil)
	if len(l.entries) != 1 {
		t.Errorf("got %d entries after a day, want 1", len(l.entries))
	}
}
