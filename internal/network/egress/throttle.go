package egress

import (
	"sync"
	"time"
)

// throttle bounds the bytes per second of all that share it. Whoever has moved bytes waits
// until they are paid for, so that nothing is buffered here.
type throttle struct {
	rate int64 // bytes per second; 0: no bound
	mu   sync.Mutex
	paid time.Time // when everything so far is paid for
}

const (
	// burst is how much can be moved at once after a pause, as a time at the rate.
	burst = 250 * time.Millisecond
	// piece is the longest that a single piece takes at the rate.
	piece    = 50 * time.Millisecond
	minPiece = 1 << 10
)

// cut shortens b to what is moved at once, so that connections take turns.
func (t *throttle) cut(b []byte) []byte {
	if t.rate == 0 {
		return b
	}
	return b[:min(int64(len(b)), max(minPiece, t.rate*int64(piece)/int64(time.Second)))]
}

// wait returns when n bytes are paid for. It reports false if done is closed before.
func (t *throttle) wait(done <-chan struct{}, n int) bool {
	delay := t.take(time.Now(), n)
	if delay <= 0 {
		return true
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	}
}

// take books n bytes and returns how long to wait for them.
func (t *throttle) take(now time.Time, n int) time.Duration {
	if t.rate == 0 || n <= 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if least := now.Add(-burst); t.paid.Before(least) {
		t.paid = least
	}
	t.paid = t.paid.Add(time.Duration(float64(n) / float64(t.rate) * float64(time.Second)))
	return t.paid.Sub(now)
}
