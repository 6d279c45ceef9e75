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
	// handoverNotice is the time in which clients are asked to open new connections, because
	// requests that arrive while a connection is closed are lost. If no connection is idle,
	// minNotice is sufficient.
	handoverNotice = 10 * time.Second
	minNotice      = time.Second
	// handoverCalls is the timeout of in-flight requests. New connections wait in the queue of
	// the listening socket.
	handoverCalls = 30 * time.Second
	// handoverFirst is the timeout of the first request of an accepted connection.
	handoverFirst = 3 * time.Second
)

// ErrHandover means that a server has stopped for its successor, which inherits the listening
// socket.
var ErrHandover = errors.New("handed over")

// handover prepares the connections of a server for its successor.
type handover struct {
	begun   atomic.Bool
	conns   sync.Map        // net.Conn to http.ConnState, without closed and hijacked connections
	streams context.Context // ends when streams must end
	cut     context.CancelFunc
}

func newHandover(base context.Context) *handover {
	h := &handover{}
	h.streams, h.cut = context.WithCancel(base)
	return h
}

// wrap closes connections after the response during a handover, and ends streams when streams ends.
// Clients resume streams at the successor.
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

// note tracks the states of connections.
func (h *handover) note(c net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		h.conns.Delete(c)
	} else {
		h.conns.Store(c, state)
	}
}

// has reports whether a connection is in one of the states.
func (h *handover) has(states ...http.ConnState) (found bool) {
	h.conns.Range(func(_, state any) bool {
		found = slices.Contains(states, state.(http.ConnState))
		return !found
	})
	return found
}

// announce asks clients to open new connections.
func (h *handover) announce(ctx context.Context) {
	h.begun.Store(true)
	poll(ctx, handoverNotice, func(past time.Duration) bool { return past >= minNotice && !h.has(http.StateIdle) })
}

// drain waits for the requests of all accepted connections after the listener is closed. Shutdown
// would drop requests that the server has not read yet.
func (h *handover) drain(ctx context.Context) {
	defer time.AfterFunc(stopStreams, h.cut).Stop()
	poll(ctx, handoverCalls, func(past time.Duration) bool {
		return !h.has(http.StateActive) && (past >= handoverFirst || !h.has(http.StateNew))
	})
}

// poll calls done with the elapsed time until it returns true or the limit is reached.
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

// KeepListener returns another file descriptor of a listening socket. The socket continues to queue
// connections after the listener is closed. Children do not inherit it.
func KeepListener(l net.Listener) (fd int, err error) {
	c, ok := l.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("a listener on %s does not support handover", l.Addr().Network())
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("cannot keep the listening socket: %w", err)
	}
	var dup error
	err = raw.Control(func(own uintptr) { fd, dup = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 3) })
	if err = errors.Join(err, dup); err != nil {
		return 0, fmt.Errorf("cannot keep the listening socket: %w", err)
	}
	return fd, nil
}

// PassOn makes a file descriptor inheritable for the program that replaces this one.
func PassOn(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	return err
}
