// Package bandwidth limits the bytes per second of connections.
package bandwidth

import (
	"sync"
	"time"
)

// Limit bounds the bytes per second of all connections that share it. A connection transfers
// bytes first and then waits until the rate permits more, so that nothing is buffered here.
type Limit struct {
	Rate int64 // bytes per second; 0: no bound
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

// Cut shortens b to a single transfer, so that connections take turns.
func (l *Limit) Cut(b []byte) []byte {
	if l.Rate == 0 {
		return b
	}
	return b[:min(int64(len(b)), max(minPiece, l.Rate*int64(piece)/int64(time.Second)))]
}

// Wait returns when the rate permits n more bytes. It returns false if done is closed before.
func (l *Limit) Wait(done <-chan struct{}, n int) bool {
	delay := l.take(time.Now(), n)
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
func (l *Limit) take(now time.Time, n int) time.Duration {
	if l.Rate == 0 || n <= 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if earliest := now.Add(-burst); l.free.Before(earliest) {
		l.free = earliest
	}
	l.free = l.free.Add(time.Duration(float64(n) / float64(l.Rate) * float64(time.Second)))
	return l.free.Sub(now)
}
