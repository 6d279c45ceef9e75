package egress

import (
	"sync"
	"time"
)

// throttle bounds the bytes per second of all connections that share it. A connection transfers
// bytes first and then waits until the rate permits more, so that nothing is buffered here.
type throttle struct {
	rate int64 // bytes per second; 0: no bound
	mu   sync.Mutex
	free time.Time // when the rate permits the next byte
}

const (
	// burst is the amount that can be transferred at once after a pause, as a time at the rate.
	burst = 250 * time.Millisecond
	// piece bounds the time of a single transfer at the rate.
	piece    = 50 * time.Millisecond
	minPiece = 1 << 10
)

// cut shortens b to a single transfer, so that connections take turns.
func (t *throttle) cut(b []byte) []byte {
	if t.rate == 0 {
		return b
	}
	return b[:min(int64(len(b)), max(minPiece, t.rate*int64(piece)/int64(time.Second)))]
}

// wait returns when the rate permits n more bytes. It returns false if done is closed before.
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

// take records n bytes and returns how long to wait for them.
func (t *throttle) take(now time.Time, n int) time.Duration {
	if t.rate == 0 || n <= 0 {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if earliest := now.Add(-burst); t.free.Before(earliest) {
		t.free = earliest
	}
	t.free = t.free.Add(time.Duration(float64(n) / float64(t.rate) * float64(time.Second)))
	return t.free.Sub(now)
}
