package audit

import (
	"testing"
	"time"
)

// TestRejectedRequestsCannotFillTheLog: rejected requests of unauthenticated clients are recorded up to a rate limit.
func TestRejectedRequestsCannotFillTheLog(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	limit := refusals{now: func() time.Time { return now }}
	for range 2 {
		n := 0
		for range 1000 {
			if limit.take() {
				n++
			}
		}
		if n != maxRefusals {
			t.Errorf("got %d recorded in a second, want %d", n, maxRefusals)
		}
		now = now.Add(time.Second)
	}
}
