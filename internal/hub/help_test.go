package hub

import (
	"context"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/testenv"
)

func poll(t testing.TB, what string, ok func() bool) { t.Helper(); testenv.Poll(t, what, ok) }

// contextUntil ends when something is true.
func contextUntil(t testing.TB, ok func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil && !ok() {
			<-tick.C
		}
		cancel()
	}()
	return ctx, cancel
}
