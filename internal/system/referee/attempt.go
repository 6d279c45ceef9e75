package referee

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/network/outbound"
)

// attempt is a connection that the hub opens for a socket. A signal that interrupts the caller does not end it, as the kernel
// continues to connect: most calls are repeated then, and some programs poll the socket.
type attempt struct {
	cookie      uint64 // of the socket
	host        string
	port        int
	start       sync.Once
	blocking    bool          // the first call waits for the connection
	admitted    chan struct{} // closed when the rules have allowed it
	over        chan struct{} // closed when errno is set: the socket is connected, or has failed
	errno       syscall.Errno
	unconfirmed atomic.Bool // the program has not received that its socket is connecting

	once sync.Once
	held chan struct{} // closed when the fields below are set
	err  error         // the socket is not connecting
	call *call
	end  *end // init's end
	from netip.AddrPort
}

// attempts are those of a sandbox.
type attempts struct {
	mu  sync.Mutex
	all map[uint64]*attempt // by cookie
	// unreturned are sockets that are connected, but whose call a signal interrupted before it returned.
	unreturned map[uint64]bool
	// slots bounds the attempts that the hub serves at once; others wait.
	slots chan struct{}
}

const (
	// maxServed bounds the attempts that the hub serves at once, and maxAttempts those that exist. Connections that are open
	// do not count.
	maxServed, maxAttempts = 512, 16 << 10
	// repeatTime is how long an open connection waits for a call that was interrupted.
	repeatTime = 10 * time.Second
)

// begin returns the attempt of a socket, or a new one.
func (l *attempts) begin(cookie uint64, host string, port int) (*attempt, syscall.Errno) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.all[cookie]; a != nil {
		if a.host != host || a.port != port {
			return nil, unix.EALREADY
		}
		return a, 0
	}
	if len(l.all) >= maxAttempts {
		return nil, unix.EAGAIN
	}
	if l.all == nil {
		l.all = map[uint64]*attempt{}
	}
	a := &attempt{cookie: cookie, host: host, port: port,
		admitted: make(chan struct{}), over: make(chan struct{}), held: make(chan struct{})}
	l.all[cookie] = a
	return a, 0
}

// find returns the attempt of a socket; nil if there is none.
func (l *attempts) find(cookie uint64) *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[cookie]
}

// end removes an attempt.
func (l *attempts) end(a *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, a.cookie)
}

// enter waits until the hub may serve another attempt. Leave must follow.
func (l *attempts) enter(ctx context.Context) error {
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *attempts) leave() { <-l.slots }

// keep remembers that the next connect of a socket succeeds.
func (l *attempts) keep(cookie uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreturned == nil || len(l.unreturned) >= maxServed { // most of those were never repeated
		l.unreturned = map[uint64]bool{}
	}
	l.unreturned[cookie] = true
}

// take reports whether the next connect of a socket succeeds, once.
func (l *attempts) take(cookie uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ok := l.unreturned[cookie]
	delete(l.unreturned, cookie)
	return ok
}

// hold makes the socket of a call connecting, once.
func (a *attempt) hold(c *call, to netip.Addr) error {
	a.once.Do(func() {
		defer close(a.held)
		var s *socket
		if s, a.err = c.sameSocket(a.cookie); a.err != nil {
			return
		}
		defer s.close()
		a.call = c
		a.end, a.from, a.err = s.hold(to)
	})
	return a.err
}

// finish connects the socket with the hub or, if the hub has failed, makes it fail. It returns the result.
func (a *attempt) finish(hub *outbound.Connection, errno syscall.Errno) syscall.Errno {
	if errno != 0 {
		a.cancel(errno)
		if a.err == nil {
			a.end.close()
			a.fail()
		}
		return errno
	}
	limit := time.NewTimer(repeatTime)
	defer limit.Stop()
	select {
	case <-a.held:
	case <-limit.C:
		a.cancel(unix.ECONNABORTED)
	}
	if a.err != nil {
		return unix.ECONNABORTED
	}
	fd, err := a.end.meet(a.from)
	a.end.close()
	if err == nil {
		err = hub.Give(fd)
	}
	if err != nil {
		a.fail()
		return unix.ECONNREFUSED
	}
	return 0
}

// cancel prevents the socket from connecting, unless it is already connecting.
func (a *attempt) cancel(errno syscall.Errno) {
	a.once.Do(func() { a.err = errno; close(a.held) })
}

// fail makes a socket that is connecting fail.
func (a *attempt) fail() {
	s, err := a.call.sameSocket(a.cookie)
	if err != nil {
		return // the program has closed it
	}
	defer s.close()
	if !s.closed {
		s.abort(a.end)
	}
}
