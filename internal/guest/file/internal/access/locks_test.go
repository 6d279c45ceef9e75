package access

import (
	"context"
	"errors"
	"testing"
)

// A canceled call stops waiting for a lock, and leaves nothing behind.
func TestLockIsCanceled(t *testing.T) {
	t.Parallel()
	f := New(Config{})
	ctx, cancel := context.WithCancel(t.Context())
	release, err := f.Lock(ctx, "/a")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := f.Lock(ctx, "/a"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	release()
	if len(f.locks.held) != 0 {
		t.Errorf("got %v, want no locks", f.locks.held)
	}
}
