package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// tunnelConn is a client's connection to a mapped host, which the proxy serves itself.
type tunnelConn struct {
	net.Conn // decrypted
	early    *bufio.Reader
	scheme   string
	host     string
	port     int
	once     sync.Once
	done     chan struct{}
}

func (t *tunnelConn) Read(b []byte) (int, error) {
	if t.early != nil && t.early.Buffered() > 0 {
		return t.early.Read(b)
	}
	return t.Conn.Read(b)
}

func (t *tunnelConn) Close() error {
	err := t.Conn.Close()
	t.once.Do(func() { close(t.done) })
	return err
}

type tunnelKey struct{}

// ahead is a connection with bytes that were already read.
type ahead struct {
	net.Conn
	early *bufio.Reader
}

func (a ahead) Read(b []byte) (int, error) { return a.early.Read(b) }

// intercept serves a connection to a mapped host, with a certificate of the sandbox's authority if the client uses TLS. It
// returns when the connection has ended.
func (s *Service) intercept(c net.Conn, early *bufio.Reader, host string, port int) {
	defer c.Close()
	stop := context.AfterFunc(s.life, func() { c.Close() })
	defer stop()
	c.SetReadDeadline(time.Now().Add(helloTimeout))
	first, err := early.Peek(1)
	if err != nil {
		return
	}
	t := &tunnelConn{Conn: c, early: early, scheme: "http", host: host, port: port, done: make(chan struct{})}
	const handshake = 22 // of TLS
	if first[0] == handshake {
		secured, err := s.secure(ahead{c, early}, host)
		if err != nil {
			// The most common reason: the program does not trust the authority.
			s.cfg.Log.Debug("tls handshake for mapped host failed", "host", host, "error", err)
			s.log.begin("CONNECT", host, port).end(err)
			return
		}
		t.Conn, t.early, t.scheme = secured, nil, "https"
	}
	c.SetReadDeadline(time.Time{})
	if s.tunnel.serve(t) {
		<-t.done
	}
}

func (s *Service) secure(c net.Conn, host string) (net.Conn, error) {
	ca, err := s.ca()
	if err != nil {
		return nil, err
	}
	cfg, err := ca.ServerConfig(host)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.life, helloTimeout)
	defer cancel()
	secured := tls.Server(c, cfg)
	return secured, secured.HandshakeContext(ctx)
}

// serveDecrypted serves a request in an intercepted connection.
func (s *Service) serveDecrypted(w http.ResponseWriter, r *http.Request) {
	t := r.Context().Value(tunnelKey{}).(*tunnelConn)
	rec := s.log.begin(r.Method, t.host, t.port)
	name, port, err := splitTarget(r.Host, strconv.Itoa(t.port))
	if err != nil || name != t.host || port != t.port {
		rec.end(err)
		w.Header().Set("Connection", "close")
		fail(w, http.StatusMisdirectedRequest, "the connection is for "+t.host+" but the request is for another host; open another connection")
		return
	}
	s.forward(w, r, t.scheme, t.host, t.port, rec)
}

// funnel is the listener of an http.Server for connections that were accepted elsewhere.
type funnel struct {
	conns chan net.Conn
	life  context.Context
}

func newFunnel(life context.Context) *funnel { return &funnel{make(chan net.Conn), life} }

func (f *funnel) serve(c net.Conn) bool {
	select {
	case f.conns <- c:
		return true
	case <-f.life.Done():
		return false
	}
}

// Accept implements net.Listener.
func (f *funnel) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.life.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (f *funnel) Close() error { return nil }

// Addr implements net.Listener.
func (f *funnel) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// newLogger logs messages of net/http at debug level: most are about clients that disconnect.
func newLogger(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }
