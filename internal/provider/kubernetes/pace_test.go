package kubernetes

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: first connections begin one after the other, and one that comes alone begins at once.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p pace
		began := time.Now()
		for i := range 1000 {
			if got, want := p.turn(), began.Add(time.Duration(i)*connectEvery); !got.Equal(want) {
				t.Fatalf("turn %d: got %v after the first, want %v", i, got.Sub(began), want.Sub(began))
			}
		}
		if err := waitUntil(t.Context(), began.Add(time.Second)); err != nil || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want the turn", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := waitUntil(ctx, began.Add(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of the context", err)
		}
		time.Sleep(time.Hour)
		if got := p.turn(); !got.Equal(time.Now()) {
			t.Errorf("got a turn in %v, want now", time.Until(got))
		}
	})
}
