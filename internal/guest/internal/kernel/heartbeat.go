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
	// A kernel that misses beatMisses heartbeats while a cell runs counts as hung. Its
	// heartbeat thread is independent of Python, so the process must be stopped or starved.
	// Beats are counted instead of time, because the machine may have been suspended.
	beatEvery  = 5 * time.Second
	beatMisses = 6
)

// heartbeat counts the heartbeats sent to a kernel and their echoes.
type heartbeat struct {
	socket *socket

	mu   sync.Mutex
	sent uint64
	seen uint64
	echo chan struct{} // closed and replaced by each echo
}

func newHeartbeat(s *socket) *heartbeat { return &heartbeat{socket: s, echo: make(chan struct{})} }

// beat sends a heartbeat.
func (h *heartbeat) beat() (uint64, error) {
	h.mu.Lock()
	h.sent++
	n := h.sent
	h.mu.Unlock()
	// A REQ socket sends an empty frame before its message.
	return n, h.socket.send(nil, binary.BigEndian.AppendUint64(nil, n))
}

// check returns the number of misses: one more if the last heartbeat has no echo, else 0
// after sending another heartbeat.
func (h *heartbeat) check(misses int) int {
	h.mu.Lock()
	behind := h.seen < h.sent
	h.mu.Unlock()
	if behind {
		return misses + 1
	}
	// A failure ends the kernel; the reader reports it.
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
		close(h.echo)
		h.echo = make(chan struct{})
		h.mu.Unlock()
	}
}

// Ping sends a heartbeat and waits for its echo. A kernel responds even while a cell runs,
// but not while its process is stopped.
func (k *Kernel) Ping(ctx context.Context) error {
	n, err := k.heart.beat()
	if err != nil {
		<-k.dead // a connection that breaks ends the kernel
		return k.err
	}
	for {
		k.heart.mu.Lock()
		seen, echo := k.heart.seen, k.heart.echo
		k.heart.mu.Unlock()
		if seen >= n {
			return nil
		}
		select {
		case <-echo:
		case <-k.dead:
			return k.err
		case <-ctx.Done():
			return fmt.Errorf("wait for a heartbeat: %w", context.Cause(ctx))
		}
	}
}
