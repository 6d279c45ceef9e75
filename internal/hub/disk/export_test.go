package disk

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// TestFewExports: an export compresses a whole disk, so the number of concurrent exports is limited,
// in total and per owner.
func TestFewExports(t *testing.T) {
	t.Parallel()
	var e exports
	want := func(owner string, code op.Code) func() {
		t.Helper()
		done, err := e.begin(owner)
		if got, _ := op.AsError(err); code == "" && err != nil || code != "" && (got == nil || got.Code != code || got.RetryAfter == 0) {
			t.Errorf("%s: got %v, want %q with a retry delay", owner, err, code)
		}
		return done
	}
	a1, _ := want("ann", ""), want("ann", "")
	want("ann", op.Exhausted)
	b1 := want("bob", "")
	want("bob", "")
	want("cay", op.Unavailable)
	a1()
	want("cay", "")
	b1()
	want("ann", "")
	want("ann", op.Exhausted)
}

// TestStalledExportEnds: an export whose client stops reading is canceled.
func TestStalledExportEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		u := newUnread([]byte("first"), r)
		go func() {
			b := make([]byte, 8)
			u.Read(b)
			u.Read(b)
		}()
		if _, err := w.Write([]byte("more")); err != nil {
			t.Errorf("got %v, want the reader to receive data", err)
		}
		began := time.Now()
		if _, err := w.Write([]byte("even more")); err == nil || time.Since(began) != maxStall {
			t.Errorf("got %v after %v, want an error after %v", err, time.Since(began), maxStall)
		}
	})
}
