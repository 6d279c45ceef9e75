package referee

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/network/outbound"
	"github.com/cove-sandbox/cove/internal/network/socks"
)

// outward connects programs to the egress proxy of the hub, and answers their DNS queries. It uses nothing until a program
// connects to the outside or opens a socket for datagrams.
type outward struct {
	hub      *outbound.Hub
	names    outbound.Names
	resolver *outbound.Resolver
	network  func() uint64 // the cookie of init's network
	wake     func()
	attempts attempts
	sockets  *sockets // nil without a route

	mu      sync.Mutex
	packets net.PacketConn
	streams net.Listener
}

// resolverAddress is the address in /etc/resolv.conf.
var resolverAddress = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 53}), dnsPort)

const (
	dnsPort = 53
	// patience is how long a program waits while the hub restarts.
	patience = 5 * time.Second
	// admissionTime is how long a non-blocking connect waits for the rules, so that it fails at once if they deny it.
	admissionTime = 50 * time.Millisecond
	// attemptTime bounds an attempt. The limits of the hub, also for an approval, are shorter.
	attemptTime = 2 * time.Minute
	// checkInterval is the time between checks whether a caller still waits.
	checkInterval = 250 * time.Millisecond
)

func newOutward(hub outbound.Hub) *outward {
	o := &outward{hub: &hub}
	o.attempts.slots = make(chan struct{}, maxServed)
	o.resolver = &outbound.Resolver{Names: &o.names, Lookup: o.hub.Lookup}
	o.network = sync.OnceValue(func() uint64 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0
		}
		defer unix.Close(fd)
		cookie, _ := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return cookie
	})
	o.wake = sync.OnceFunc(func() {
		// Init starts without garbage collection, which would delay the start of a sandbox.
		debug.SetGCPercent(100)
		debug.SetMemoryLimit(math.MaxInt64)
	})
	return o
}

// openResolver makes the resolver listen. If another program uses its address, the next call tries again.
func (o *outward) openResolver() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.packets == nil {
		if c, err := net.ListenPacket("udp4", resolverAddress.String()); err == nil {
			o.packets = c
			go o.resolver.ServePackets(context.Background(), c)
			o.wake()
		}
	}
	if o.streams == nil {
		if l, err := net.Listen("tcp4", resolverAddress.String()); err == nil {
			o.streams = l
			go o.resolver.ServeStreams(context.Background(), l)
		}
	}
}

// connect decides on a connect. It continues if the destination is inside, or if it fails in the kernel in any case.
func (o *outward) connect(c *call) {
	to := c.destination()
	ip := to.Addr().Unmap()
	switch {
	case to == resolverAddress:
		o.openResolver()
		o.enter(c)
		return
	case !ip.IsValid():
		o.sockets.disconnect(c)
		c.proceed()
		return
	case ip.IsLoopback() || ip.IsUnspecified():
		o.enter(c)
		return
	case o.sockets.own(ip):
		o.connectOwn(c, to)
		return
	}
	s, err := c.socket()
	if err != nil {
		o.leave(c) // it is not a socket, for example
		return
	}
	release := sync.OnceFunc(s.close)
	defer release()
	fits := s.domain == unix.AF_INET && to.Addr().Is4() || s.domain == unix.AF_INET6 && to.Addr().Is6()
	switch {
	case !fits || !s.inNetwork(o.network()):
		o.leave(c)
	case s.kind == unix.SOCK_DGRAM && s.protocol == unix.IPPROTO_UDP && to.Port() == dnsPort:
		o.openResolver()
		result := errno(unix.Connect(s.fd, sockaddr(resolverAddress, s.domain)))
		release()
		o.sockets.drop(s.inode)
		c.fail(result)
	case s.kind != unix.SOCK_STREAM || s.protocol != unix.IPPROTO_TCP:
		o.leave(c)
	case !s.closed:
		o.repeat(c, s)
	default:
		o.wake()
		release() // before the hub replies
		o.attempt(c, s, to)
	}
}

// enter lets a call for an address inside continue.
func (o *outward) enter(c *call) {
	o.sockets.release(c)
	c.proceed()
}

// leave decides on a call for an address outside that init cannot execute: the kernel reports the error.
func (o *outward) leave(c *call) {
	cookie, connected := o.sockets.findConnected(c)
	switch {
	case connected && o.attempts.take(cookie):
		o.succeed(c, cookie)
	case o.sockets != nil && !connected: // the kernel would wait for a reply
		c.fail(unix.ENETUNREACH)
	default:
		c.proceed()
	}
}

// succeed makes a call succeed whose socket is connected.
func (o *outward) succeed(c *call, cookie uint64) {
	if !c.fail(0) {
		o.attempts.keep(cookie)
	}
}

// repeat replies to a connect of a socket that is connected or connecting: the program polls, or a signal interrupted it.
func (o *outward) repeat(c *call, s *socket) {
	a := o.attempts.find(s.cookie)
	switch {
	case a == nil && !s.nonblocking && o.attempts.take(s.cookie):
		o.succeed(c, s.cookie)
	case a == nil || s.nonblocking && !a.unconfirmed.Load():
		c.proceed()
	case s.nonblocking:
		a.unconfirmed.Store(!c.fail(unix.EINPROGRESS))
	default:
		o.await(c, a)
	}
}

// attempt connects a socket to the outside.
func (o *outward) attempt(c *call, s *socket, to netip.AddrPort) {
	host := to.Addr().Unmap().String()
	if outbound.Synthetic(to.Addr()) {
		name, ok := o.names.Name(to.Addr())
		if !ok { // it was not looked up, or long ago
			c.fail(unix.ECONNREFUSED)
			return
		}
		host = name
	}
	a, err := o.attempts.begin(s.cookie, host, int(to.Port()))
	if err != 0 {
		c.fail(err)
		return
	}
	a.start.Do(func() {
		a.blocking = !s.nonblocking
		go o.run(a, s.inode, c.program())
	})
	if s.nonblocking {
		limit := time.NewTimer(admissionTime)
		defer limit.Stop()
		select {
		case <-a.admitted:
		case <-limit.C:
		case <-a.over: // it was denied
			c.fail(a.errno)
			return
		}
	}
	if !c.waits() {
		return // a signal interrupted it; if it is repeated, it finds the attempt
	}
	a.unconfirmed.Store(s.nonblocking)
	if err := a.hold(c, to.Addr()); err != nil {
		c.fail(errno(err))
	} else if s.nonblocking {
		a.unconfirmed.Store(!c.fail(unix.EINPROGRESS))
	} else {
		o.await(c, a)
	}
}

// await lets the caller of a socket that blocks wait until its socket is connected.
func (o *outward) await(c *call, a *attempt) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if c.waits() {
				continue
			}
			return // a signal interrupted it; the socket remains connecting
		case <-a.over:
		}
		break
	}
	s, err := c.sameSocket(a.cookie)
	switch {
	case err == nil:
	case a.errno == 0 && o.sockets != nil: // an earlier call, which a signal interrupted, has connected it
		o.leave(c)
		return
	default:
		c.fail(errno(err))
		return
	}
	defer s.close()
	if a.errno == 0 {
		s.modes.Lock()
		defer s.modes.Unlock()
		o.sockets.finish(s.inode, a.cookie)
		if !s.confirm(c, a.end) {
			o.attempts.keep(a.cookie)
		}
		return
	}
	s.reset()
	if !c.fail(a.errno) {
		s.abort(a.end)
	}
}

// run opens the connection of an attempt.
func (o *outward) run(a *attempt, inode uint64, program string) {
	ctx, cancel := context.WithTimeout(context.Background(), attemptTime)
	defer cancel()
	var conn *outbound.Connection
	err := o.attempts.enter(ctx)
	if err == nil {
		defer o.attempts.leave()
		conn, err = o.hub.Connect(ctx, a.host, a.port, program)
	}
	if err == nil {
		defer conn.Close()
		if err = conn.Admission(ctx); err == nil {
			close(a.admitted)
			err = conn.Result(ctx)
		}
	}
	if a.errno = a.finish(conn, reason(err)); a.errno == 0 && !a.blocking {
		o.sockets.finish(inode, a.cookie)
	}
	o.attempts.end(a) // first: the program may connect the socket again
	close(a.over)
}

// reason returns the error that a program sees.
func reason(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if refused, ok := errors.AsType[*outbound.RefusedError](err); ok {
		switch refused.Code {
		case socks.NetworkUnreachable:
			return unix.ENETUNREACH
		case socks.HostUnreachable:
			return unix.EHOSTUNREACH
		case socks.TTLExpired:
			return unix.ETIMEDOUT
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return unix.ETIMEDOUT
	}
	return unix.ECONNREFUSED
}

// errno returns the error number of an error.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if n, ok := errors.AsType[syscall.Errno](err); ok {
		return n
	}
	return unix.ECONNREFUSED
}
