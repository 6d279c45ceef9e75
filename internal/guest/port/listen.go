package port

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Limits of connections to callers.
const (
	maxListeners = 32
	maxWaiting   = 64   // connections of one listener that wait for the caller; further ones wait in the kernel
	maxAccepted  = 2048 // connected
	acceptWait   = 30 * time.Second
)

// ListenIn is the input of Listen.
type ListenIn struct {
	Port int `path:"port" minimum:"1" maximum:"65535" doc:"TCP port in the sandbox, on its loopback address"`
}

// announcement is a message to the caller of Listen.
type announcement struct {
	Port int    `json:"port,omitempty"`
	ID   string `json:"id,omitempty"`
}

// arrival is a connection of a program in the sandbox that waits for a caller.
type arrival struct {
	conn *net.TCPConn
	port int
	of   *listener
	end  *time.Timer
}

// arrivals are the waiting connections by ID. Only the caller that listens knows the IDs, so no program in the sandbox can take
// the connection of another.
type arrivals struct {
	mu        sync.Mutex
	waiting   map[string]*arrival
	listeners int
	accepted  int
}

// take removes and returns a connection that waits at a port; nil if there is none.
func (a *arrivals) take(id string, port int) *net.TCPConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.waiting[id]
	if w == nil || w.port != port {
		return nil
	}
	delete(a.waiting, id)
	w.end.Stop()
	<-w.of.room
	return w.conn
}

// count adds to a counter, unless that would exceed a limit.
func (a *arrivals) count(counter *int, limit int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if *counter >= limit {
		return false
	}
	*counter++
	return true
}

func (a *arrivals) discount(counter *int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*counter--
}

// listener is a port that a caller listens on.
type listener struct {
	*arrivals
	port int
	room chan struct{} // holds an element for each waiting connection

	mu sync.Mutex // held while a message is sent
	c  op.Conn
}

// Listen listens on a port for the caller until the WebSocket is closed.
func (s *Service) Listen(ctx context.Context, in ListenIn, c op.Conn) error {
	if s.cfg.Hidden(in.Port) {
		return op.Errorf(op.Denied, "port %d is reserved for the sandbox", in.Port)
	}
	a := &s.arrivals
	if !a.count(&a.listeners, maxListeners) {
		return op.Errorf(op.Exhausted, "limit of %d ports for callers reached; close some", maxListeners)
	}
	defer a.discount(&a.listeners)
	ports, err := listenLocal(in.Port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(s.life, cancel)()
	l := &listener{arrivals: a, port: in.Port, room: make(chan struct{}, maxWaiting), c: c}
	var work sync.WaitGroup
	defer func() {
		cancel()
		work.Wait()
		l.refuseAll()
	}()
	if err := l.announce(ctx, announcement{Port: in.Port}); err != nil {
		closeAll(ports)
		return err
	}
	work.Go(func() {
		<-ctx.Done()
		closeAll(ports)
	})
	for _, p := range ports {
		work.Go(func() {
			defer cancel()
			l.accept(ctx, p)
		})
	}
	err = l.receive(ctx)
	if s.life.Err() != nil {
		return nil
	}
	return err
}

// listenLocal listens on the loopback addresses. A program may use the other one of IPv6.
func listenLocal(port int) ([]net.Listener, error) {
	number := strconv.Itoa(port)
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", number))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, op.Errorf(op.Conflict, "port %d is in use in the sandbox; choose another port", port)
	case errors.Is(err, syscall.EACCES):
		return nil, op.Errorf(op.Denied, "port %d requires root in the sandbox; choose a port above 1023", port)
	case err != nil:
		return nil, err
	}
	ports := []net.Listener{l}
	if l, err := net.Listen("tcp6", net.JoinHostPort("::1", number)); err == nil {
		ports = append(ports, l)
	}
	return ports, nil
}

func closeAll(ports []net.Listener) {
	for _, p := range ports {
		p.Close()
	}
}

// accept announces the connections at a port.
func (l *listener) accept(ctx context.Context, p net.Listener) {
	for {
		select {
		case l.room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := p.Accept()
		if err != nil {
			<-l.room
			return
		}
		id := rand.Text()
		l.add(id, conn.(*net.TCPConn))
		if l.announce(ctx, announcement{ID: id}) != nil {
			return
		}
	}
}

// add registers a connection, which is refused if the caller does not take it.
func (l *listener) add(id string, conn *net.TCPConn) {
	l.arrivals.mu.Lock()
	defer l.arrivals.mu.Unlock()
	l.waiting[id] = &arrival{conn: conn, port: l.port, of: l, end: time.AfterFunc(acceptWait, func() { l.refuse(id) })}
}

// refuse resets a connection that no listener accepts.
func (l *listener) refuse(id string) {
	if conn := l.take(id, l.port); conn != nil {
		_ = conn.SetLinger(0)
		conn.Close()
	}
}

func (l *listener) refuseAll() {
	var left []string
	l.arrivals.mu.Lock()
	for id, w := range l.waiting {
		if w.of == l {
			left = append(left, id)
		}
	}
	l.arrivals.mu.Unlock()
	for _, id := range left {
		l.refuse(id)
	}
}

func (l *listener) announce(ctx context.Context, a announcement) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c.Write(ctx, b, true)
}

// receive refuses the connections that the caller refuses, until it disconnects.
func (l *listener) receive(ctx context.Context) error {
	for {
		id, _, err := l.c.Read(ctx)
		if err != nil {
			return err
		}
		l.refuse(string(id))
	}
}

// AcceptIn is the input of Accept.
type AcceptIn struct {
	Port int    `path:"port" minimum:"1" maximum:"65535" doc:"TCP port of listen"`
	ID   string `query:"id" doc:"The announced id"`
}

// Accept connects the caller with a program whose connection was announced.
func (s *Service) Accept(ctx context.Context, in AcceptIn, c op.Conn) error {
	a := &s.arrivals
	if !a.count(&a.accepted, maxAccepted) {
		return op.Errorf(op.Exhausted, "limit of %d connections to callers reached; close some", maxAccepted)
	}
	defer a.discount(&a.accepted)
	conn := a.take(in.ID, in.Port)
	if conn == nil {
		return op.Errorf(op.NotFound, "no connection with this id waits at port %d; it may have ended", in.Port)
	}
	return s.join(ctx, c, conn)
}
