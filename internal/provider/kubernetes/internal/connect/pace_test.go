package connect

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: first connections are spread over time, and a single one starts immediately.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p pace
		began := time.Now()
		for i := range 1000 {
			if got, want := p.reserve(), began.Add(time.Duration(i)*connectInterval); !got.Equal(want) {
				t.Fatalf("connection %d: got %v after the first, want %v", i, got.Sub(began), want.Sub(began))
			}
		}
		if err := waitUntil(t.Context(), began.Add(time.Second)); err != nil || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want none after 1s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := waitUntil(ctx, began.Add(time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want context.DeadlineExceeded", err)
		}
		time.Sleep(time.Hour)
		if got := p.reserve(); !got.Equal(time.Now()) {
			t.Errorf("got a connection in %v, want one immediately", time.Until(got))
		}
	})
}
