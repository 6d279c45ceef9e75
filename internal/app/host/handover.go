//go:build linux

package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a handover.
const (
	// handoverNotice is how long clients are told to open new connections before the old ones
	// are closed: what they send at that moment would be lost. Where no connection waits for
	// another request any more, leastNotice suffices.
	handoverNotice = 10 * time.Second
	leastNotice    = time.Second
	// handoverCalls is how long requests under way may take. New connections wait meanwhile,
	// in the queue of the listening socket.
	handoverCalls = 30 * time.Second
	// handoverFirst is how long the first request of an accepted connection may take to come.
	handoverFirst = 3 * time.Second
)

// ErrHandover means that a server has stopped for its successor, which inherits the
// listening socket.
var ErrHandover = errors.New("handed over")

// handover tells requests of a server that it makes room for its successor.
type handover struct {
	begun   atomic.Bool
	conns   sync.Map        // net.Conn to http.ConnState, but for closed and hijacked connections
	streams context.Context // ends when streams have to end
	cut     context.CancelFunc
}

func newHandover(base context.Context) *handover {
	h := &handover{}
	h.streams, h.cut = context.WithCancel(base)
	return h
}

// wrap closes connections after the reply once a handover has begun, and ends streams when it
// is time. Their clients resume them at the successor.
func (h *handover) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.begun.Load() {
			w.Header().Set("Connection", "close")
		}
		if isStream(r) {
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(h.streams, cancel)()
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r)
	})
}

func isStream(r *http.Request) bool {
	return r.Header.Get("Upgrade") != "" || strings.Contains(r.Header.Get("Accept"), "text/event-stream") &&
		r.Method == http.MethodGet || strings.Contains(r.URL.RawQuery, "stream=true")
}

// note learns what connections do.
func (h *handover) note(c net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		h.conns.Delete(c)
	} else {
		h.conns.Store(c, state)
	}
}

// has tells whether a connection is in one of the states.
func (h *handover) has(states ...http.ConnState) (found bool) {
	h.conns.Range(func(_, state any) bool {
		found = slices.Contains(states, state.(http.ConnState))
		return !found
	})
	return found
}

// announce lets clients move to new connections.
func (h *handover) announce(ctx context.Context) {
	h.begun.Store(true)
	poll(ctx, handoverNotice, func(past time.Duration) bool { return past >= leastNotice && !h.has(http.StateIdle) })
}

// drain waits for the requests of all accepted connections, once nothing accepts more: a server
// that shuts down would drop those that it has not yet read.
func (h *handover) drain(ctx context.Context) {
	defer time.AfterFunc(stopStreams, h.cut).Stop()
	poll(ctx, handoverCalls, func(past time.Duration) bool {
		return !h.has(http.StateActive) && (past >= handoverFirst || !h.has(http.StateNew))
	})
}

// poll calls done, which gets the time since the begin, until it returns true or the limit is reached.
func poll(ctx context.Context, limit time.Duration, done func(past time.Duration) bool) {
	begun := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for past := time.Duration(0); past < limit && !done(past); past = time.Since(begun) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// KeepListener returns another file descriptor of a listening socket. The socket goes on
// queueing connections after the listener is closed. Children do not inherit it.
func KeepListener(l net.Listener) (fd int, err error) {
	c, ok := l.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("a listener on %s cannot be handed over", l.Addr().Network())
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("keep the listening socket: %w", err)
	}
	var dup error
	err = raw.Control(func(own uintptr) { fd, dup = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 3) })
	if err = errors.Join(err, dup); err != nil {
		return 0, fmt.Errorf("keep the listening socket: %w", err)
	}
	return fd, nil
}

// PassOn lets the program that replaces this one inherit a file descriptor.
func PassOn(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	return err
}
