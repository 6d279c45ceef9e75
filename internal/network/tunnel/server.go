package tunnel

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// ServerConfig configures the sandbox's end. All fields are required, except Save, Fill and Suspend.
type ServerConfig struct {
	Cert, Key []byte // identity of the sandbox, in PEM
	Hub       string // the pin of the hub's key
	// Dial connects to a port inside; 0 is the server.
	Dial func(ctx context.Context, port int) (net.Conn, error)
	// Stats returns the resource usage of the sandbox.
	Stats func() []byte
	// Save writes a copy of the disk; Fill reads one.
	Save func(io.Writer) error
	Fill func(io.Reader) error
	// Suspend suspends all programs, with their data synced to the disk, until resume, which may be called more than once.
	Suspend func() (resume func(), err error)
}

// Server is the sandbox's end.
type Server struct {
	cfg ServerConfig
	tls *tls.Config

	mu      sync.Mutex
	closed  bool
	parked  []*parked      // connections of the hub that wait for verbAccept, newest last
	waiting []chan *parked // outgoing connections that wait for a connection of the hub, oldest first
	slots   chan struct{}  // of outgoing connections
}

// parked is a connection of the hub that waits to become an outgoing one.
type parked struct {
	*tls.Conn
	done  chan struct{} // closed when the connection has been used or dropped
	close func() error  // of an open outgoing connection
}

// Close ends an open outgoing connection.
func (p *parked) Close() error { return p.close() }

// The limits of concurrent connections.
const (
	maxHandshakes = 256 // of unauthenticated clients
	maxOutgoing   = 16 << 10
	maxIncoming   = 2048 // requests of the hub
	maxConns      = maxOutgoing + maxIncoming
	maxParked     = 64
	// outgoingTimeout bounds the time that an outgoing connection waits for the hub, which may be
	// restarting.
	outgoingTimeout = 15 * time.Second
)

// NewServer returns the sandbox's end.
func NewServer(cfg ServerConfig) (*Server, error) {
	settings, err := Configure(cfg.Cert, cfg.Key, cfg.Hub)
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, tls: settings, slots: make(chan struct{}, maxOutgoing)}, nil
}

// Serve serves the hub until the listener is closed.
func (s *Server) Serve(l net.Listener) {
	handshakes, conns := Lobby{Max: maxHandshakes}, make(chan struct{}, maxConns)
	each(l, func(c net.Conn) {
		handshakes.Enter(c)
		go func() {
			secure, verb, port, err := s.receive(c)
			handshakes.Leave(c)
			if err != nil {
				c.Close()
				return
			}
			select {
			case conns <- struct{}{}:
				defer func() { <-conns }()
				s.answer(secure, verb, port)
			default:
				refuse(secure, "too many connections to this sandbox")
				secure.Close()
			}
		}()
	})
}

// each calls f with every connection until the listener is closed.
func each(l net.Listener, f func(net.Conn)) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(10 * time.Millisecond) // most likely out of descriptors: retry when others are closed
		default:
			f(c)
		}
	}
}

// receive authenticates the hub and reads its request.
func (s *Server) receive(c net.Conn) (secure *tls.Conn, verb byte, port int, err error) {
	secure = tls.Server(c, s.tls)
	c.SetDeadline(time.Now().Add(handshakeTime))
	if verb, port, err = readRequest(secure); err != nil {
		return nil, 0, 0, err
	}
	c.SetDeadline(time.Time{})
	return secure, verb, port, nil
}

func readRequest(c net.Conn) (verb byte, port int, err error) {
	var request [3]byte
	_, err = io.ReadFull(c, request[:])
	return request[0], int(binary.BigEndian.Uint16(request[1:])), err
}

func (s *Server) answer(c *tls.Conn, verb byte, port int) {
	defer c.Close()
	switch verb {
	case verbDial:
		ctx, cancel := context.WithTimeout(context.Background(), handshakeTime)
		inside, err := s.cfg.Dial(ctx, port)
		cancel()
		if err != nil {
			refuse(c, err.Error())
			return
		}
		if _, err := c.Write([]byte{granted}); err != nil {
			inside.Close()
			return
		}
		Relay(c, inside)
	case verbAccept:
		p := &parked{Conn: c, done: make(chan struct{})}
		s.park(p)
		<-p.done
	case verbStats:
		c.SetDeadline(time.Now().Add(handshakeTime))
		_, _ = c.Write(append([]byte{granted}, s.cfg.Stats()...))
	case verbSave:
		s.save(c)
	case verbFill:
		s.fill(c)
	case verbHold:
		s.hold(c)
	case verbWait:
		if _, err := c.Write([]byte{granted}); err != nil {
			return
		}
		// It waits without a timeout; the end of the hub ends it.
		if verb, port, err := readRequest(c); err == nil && verb != verbWait {
			s.answer(c, verb, port)
		}
	default:
		refuse(c, "unknown request: this sandbox is of another version than the hub")
	}
}

func refuse(c net.Conn, reason string) {
	c.SetDeadline(time.Now().Add(handshakeTime))
	_, _ = c.Write(append([]byte{refused}, reason[:min(len(reason), maxReason)]...))
}

// park assigns a connection of the hub to the oldest waiting outgoing connection, or keeps it.
func (s *Server) park(p *parked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 {
		s.waiting[0] <- p
		s.waiting = s.waiting[1:]
		return
	}
	if s.closed {
		close(p.done)
		return
	}
	s.parked = append(s.parked, p)
	if len(s.parked) > maxParked { // the oldest may belong to a previous hub
		close(s.parked[0].done)
		s.parked = s.parked[1:]
	}
}

// Close ends the connections that wait for programs inside. The caller closes the listeners.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, p := range s.parked {
		close(p.done)
	}
	s.parked = nil
}

// take returns the newest connection of the hub, because older ones may belong to a previous
// hub, and the number of others that wait for one.
func (s *Server) take(timeout <-chan struct{}) (p *parked, others int) {
	s.mu.Lock()
	if n := len(s.parked); n > 0 {
		p, s.parked = s.parked[n-1], s.parked[:n-1]
		others = len(s.waiting)
		s.mu.Unlock()
		return p, others
	}
	turn := make(chan *parked, 1)
	s.waiting = append(s.waiting, turn)
	s.mu.Unlock()
	select {
	case p = <-turn:
	case <-timeout:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range s.waiting {
		if w == turn {
			s.waiting = append(s.waiting[:i:i], s.waiting[i+1:]...)
			break
		}
	}
	if p == nil {
		select {
		case p = <-turn: // assigned meanwhile
		default:
		}
	}
	return p, len(s.waiting)
}

// ServeOutgoing forwards the connections of programs inside to the hub, until the listener is
// closed.
func (s *Server) ServeOutgoing(l net.Listener) {
	each(l, func(c net.Conn) {
		if !s.reserve() {
			c.Close()
			return
		}
		go func() {
			hub, err := s.open(context.Background())
			if err != nil {
				c.Close()
				return
			}
			Relay(hub, c)
		}()
	})
}

var (
	errFull  = errors.New("too many outgoing connections of this sandbox")
	errNoHub = errors.New("the hub is unreachable")
)

// reserve takes a slot of outgoing connections, without waiting.
func (s *Server) reserve() bool {
	select {
	case s.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// Open opens an outgoing connection to the hub.
func (s *Server) Open(ctx context.Context) (net.Conn, error) {
	if !s.reserve() {
		return nil, errFull
	}
	return s.open(ctx)
}

// open opens an outgoing connection, and releases the slot of the caller with it.
func (s *Server) open(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, outgoingTimeout, errNoHub)
	defer cancel()
	for {
		p, others := s.take(ctx.Done())
		if p == nil {
			<-s.slots
			return nil, context.Cause(ctx)
		}
		if offer(p, others) {
			p.close = sync.OnceValue(func() error {
				err := p.Conn.Close()
				close(p.done)
				<-s.slots
				return err
			})
			return p, nil
		}
		close(p.done)
	}
}

// offer checks that the hub still accepts a parked connection.
func offer(c net.Conn, others int) bool {
	c.SetDeadline(time.Now().Add(handshakeTime))
	if _, err := c.Write([]byte{granted, byte(min(others, 255))}); err != nil {
		return false
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return false
	}
	c.SetDeadline(time.Time{})
	return true
}

// Relay copies bytes in both directions until both have ended, and closes both connections.
func Relay(a, b net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { copyHalf(a, b) })
	wg.Go(func() { copyHalf(b, a) })
	wg.Wait()
	a.Close()
	b.Close()
}

// copyHalf copies one direction and ends it at the other side. A failure ends both directions.
func copyHalf(to, from net.Conn) {
	_, err := io.Copy(bare{to}, bare{from})
	half, ok := to.(interface{ CloseWrite() error })
	if ok && err == nil {
		err = half.CloseWrite()
	}
	if !ok || err != nil {
		to.Close()
		from.Close()
	}
}

// bare hides all methods of a connection except Read and Write. Otherwise io.Copy could splice
// data that must be encrypted.
type bare struct{ c net.Conn }

func (b bare) Read(p []byte) (int, error)  { return b.c.Read(p) }
func (b bare) Write(p []byte) (int, error) { return b.c.Write(p) }
