package kernel

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// beatEvery and beatMisses say when a kernel in a cell counts as hung: its
	// heart beats in a thread that needs nothing of Python, so only a stopped or
	// thrashing process misses so many. Beats are counted, not time: after the
	// whole machine slept there is one miss, not a thousand.
	beatEvery  = 5 * time.Second
	beatMisses = 6
)

// heartbeat counts the beats sent to a kernel and those that came back.
type heartbeat struct {
	socket *socket

	mu    sync.Mutex
	sent  uint64
	seen  uint64
	heard chan struct{} // closed and replaced with each echo
}

func newHeartbeat(s *socket) *heartbeat { return &heartbeat{socket: s, heard: make(chan struct{})} }

// beat sends one.
func (h *heartbeat) beat() (uint64, error) {
	h.mu.Lock()
	h.sent++
	n := h.sent
	h.mu.Unlock()
	// The empty frame is what a REQ socket puts before its message.
	return n, h.socket.send(nil, binary.BigEndian.AppendUint64(nil, n))
}

// check counts one more miss if the last beat did not come back, else it sends
// another and begins anew.
func (h *heartbeat) check(misses int) int {
	h.mu.Lock()
	behind := h.seen < h.sent
	h.mu.Unlock()
	if behind {
		return misses + 1
	}
	// A failure ends the kernel, which its reader notices.
	_, _ = h.beat()
	return 0
}

// listen reads echoes until the socket ends.
func (h *heartbeat) listen() error {
	for {
		var last []byte
		for more := true; more; {
			f, err := h.socket.next()
			if err != nil {
				return err
			}
			last = make([]byte, min(f.size, 8))
			if _, err := io.ReadFull(f.body, last); err != nil {
				return unexpected(err)
			}
			if _, err := io.Copy(io.Discard, f.body); err != nil {
				return err
			}
			more = f.more
		}
		if len(last) != 8 {
			continue
		}
		h.mu.Lock()
		h.seen = min(h.sent, max(h.seen, binary.BigEndian.Uint64(last)))
		close(h.heard)
		h.heard = make(chan struct{})
		h.mu.Unlock()
	}
}

// Ping sends a heartbeat and waits for its echo. A kernel that is busy with a
// cell answers too; one whose process is stopped does not.
func (k *Kernel) Ping(ctx context.Context) error {
	n, err := k.heart.beat()
	if err != nil {
		<-k.dead // a connection that breaks ends the kernel
		return k.err
	}
	for {
		k.heart.mu.Lock()
		seen, heard := k.heart.seen, k.heart.heard
		k.heart.mu.Unlock()
		if seen >= n {
			return nil
		}
		select {
		case <-heard:
		case <-k.dead:
			return k.err
		case <-ctx.Done():
			return fmt.Errorf("wait for a heartbeat: %w", context.Cause(ctx))
		}
	}
}
