package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/network/relay"
	"github.com/cove-sandbox/cove/internal/network/socks"
)

// ServeConn serves one client and returns when the connection has ended. The caller has checked that the client may use the
// proxy: see relay.Config.
func (s *Service) ServeConn(c net.Conn) {
	if s.life.Err() != nil {
		c.Close()
		return
	}
	s.start.Do(s.startServers)
	c.SetReadDeadline(time.Now().Add(helloTimeout))
	client := &client{Conn: c, done: make(chan struct{})}
	defer client.Close()
	first, err := client.peek()
	if err != nil {
		return
	}
	if first == socks.Version {
		client.first = nil
		s.serveSOCKS(client)
		return
	}
	c.SetReadDeadline(time.Time{})
	if s.funnel.serve(client) {
		<-client.done
	}
}

// client is the connection of a client.
type client struct {
	net.Conn
	first []byte // read ahead
	once  sync.Once
	done  chan struct{}
}

func (c *client) peek() (byte, error) {
	b := make([]byte, 1)
	if _, err := io.ReadFull(c.Conn, b); err != nil {
		return 0, err
	}
	c.first = b
	return b[0], nil
}

func (c *client) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

func (c *client) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

func (s *Service) startServers() {
	newServer := func() *http.Server {
		return &http.Server{
			BaseContext: func(net.Listener) context.Context { return s.life }, ReadHeaderTimeout: helloTimeout,
			IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader,
			ErrorLog: newLogger(s.cfg.Log),
		}
	}
	server, inner := newServer(), newServer()
	server.Handler, inner.Handler = http.HandlerFunc(s.serveHTTP), http.HandlerFunc(s.serveDecrypted)
	server.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			c.(*client).finish()
		}
	}
	inner.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, tunnelKey{}, c) }
	s.funnel, s.tunnel = newFunnel(s.life), newFunnel(s.life)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil { // Close does not wait for goroutines that start later
		return
	}
	s.server, s.inner = server, inner
	s.work.Go(func() { server.Serve(s.funnel) })
	s.work.Go(func() { inner.Serve(s.tunnel) })
}

// finish ends ServeConn. The server calls it when it closes a connection, and the handler of CONNECT for a connection that it
// has hijacked.
func (c *client) finish() {
	c.once.Do(func() { close(c.done) })
}

// serveSOCKS serves a SOCKS client.
func (s *Service) serveSOCKS(c *client) {
	target, port, err := socks.Accept(c.Conn)
	if err != nil {
		return
	}
	rec := s.log.begin("socks5", target, port)
	host, err := cleanHost(target)
	if err != nil {
		rec.end(err)
		_ = socks.Answer(c.Conn, socks.Denied)
		return
	}
	if s.rules.Load().covered(host, port) {
		rec.drop()
		if socks.Answer(c.Conn, socks.OK) == nil {
			c.SetDeadline(time.Time{})
			s.intercept(c, bufio.NewReader(c), host, port)
		}
		return
	}
	remote, err := s.dial.tunnel(s.life, host, port, rec)
	rec.end(err)
	if err != nil {
		_ = socks.Answer(c.Conn, socksReply(err))
		return
	}
	c.SetDeadline(time.Time{})
	if socks.Answer(c.Conn, socks.OK) != nil {
		remote.Close()
		return
	}
	s.relay(c, remote, host, port)
}

func socksReply(err error) socks.Reply {
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		return socks.Denied
	case strings.Contains(err.Error(), "refused"):
		return socks.Refused
	}
	return socks.HostUnreachable
}

// link is a connection that the proxy forwards unchanged.
type link struct {
	net.Conn
	host string
	port int
}

// relay forwards both directions until both have ended.
func (s *Service) relay(client, remote net.Conn, host string, port int) {
	l := &link{remote, host, port}
	s.mu.Lock()
	s.links[l] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.links, l)
		s.mu.Unlock()
	}()
	if s.life.Err() != nil {
		remote.Close()
	}
	relay.Forward(client, remote)
}

// serveHTTP serves HTTP clients: CONNECT, and requests with an absolute URL.
func (s *Service) serveHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		s.serveConnect(w, r)
		return
	}
	if (r.URL.Scheme != "http" && r.URL.Scheme != "https") || r.URL.Host == "" {
		fail(w, http.StatusBadRequest, "this is a proxy; send requests with an absolute URL, or CONNECT")
		return
	}
	host, port, err := splitTarget(r.URL.Host, map[string]string{"http": "80", "https": "443"}[r.URL.Scheme])
	rec := s.log.begin(r.Method, host, port)
	if err != nil {
		rec.end(err)
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	r.Host = r.URL.Host
	s.forward(w, r, r.URL.Scheme, host, port, rec)
}

// forward sends a request to the service of its mapping, or to its host.
func (s *Service) forward(w http.ResponseWriter, r *http.Request, scheme, host string, port int, rec *record) {
	h := w.Header()
	h["Date"] = nil // the response has the headers of the service only
	h["Content-Type"] = nil
	http.NewResponseController(w).EnableFullDuplex()
	m := s.rules.Load().match(scheme, host, port, r.URL.Path)
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: newLogger(s.cfg.Log),
		ModifyResponse: func(res *http.Response) error { rec.status(res.StatusCode); return nil },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			rec.end(err)
			status, text := explain(err)
			fail(w, status, text)
		},
	}
	if m != nil {
		rec.route("mapping", m.source)
		proxy.Transport = s.mapped
		proxy.Rewrite = func(p *httputil.ProxyRequest) { m.rewrite(p, scheme) }
	} else {
		rec.route(s.dial.routeOf(host))
		proxy.Transport = s.plain
		if scheme == "https" || r.Context().Value(tunnelKey{}) != nil {
			proxy.Transport = s.direct
		}
		proxy.Rewrite = func(p *httputil.ProxyRequest) {
			p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"] // ReverseProxy removes it
			p.Out.URL.Scheme, p.Out.URL.Host = scheme, net.JoinHostPort(host, strconv.Itoa(port))
			if port == map[string]int{"http": 80, "https": 443}[scheme] {
				p.Out.URL.Host = p.In.Host
			}
		}
	}
	proxy.ServeHTTP(w, r)
	rec.end(nil)
}

// rewrite changes the target of a request to the service of a mapping. The service gets the host of the client's request. As
// with nginx, a target with a path replaces the path of the source.
func (m *mapping) rewrite(p *httputil.ProxyRequest, scheme string) {
	out := p.Out
	out.URL.Scheme, out.URL.Host = "http", net.JoinHostPort(m.toHost, strconv.Itoa(m.toPort))
	if m.toPath != "" {
		rest := strings.TrimPrefix(out.URL.EscapedPath(), strings.TrimSuffix(m.path, "/"))
		raw := strings.TrimSuffix(m.toPath, "/") + "/" + strings.TrimPrefix(rest, "/")
		if rest == "" {
			raw = m.toPath
		}
		out.URL.Path, out.URL.RawPath = "", ""
		out.URL.Opaque = raw
	}
	out.Host = p.In.Host
	out.Header.Set("X-Forwarded-Host", p.In.Host)
	out.Header.Set("X-Forwarded-Proto", scheme)
	out.Header.Set("X-Forwarded-For", "127.0.0.1")
}

// serveConnect opens a tunnel, and intercepts it if its host is mapped.
func (s *Service) serveConnect(w http.ResponseWriter, r *http.Request) {
	host, port, err := splitTarget(r.Host, "443")
	rec := s.log.begin("CONNECT", host, port)
	if err != nil {
		rec.end(err)
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	var remote net.Conn
	covered := s.rules.Load().covered(host, port)
	if covered {
		rec.drop() // the requests inside are recorded
	} else {
		remote, err = s.dial.tunnel(r.Context(), host, port, rec)
		rec.end(err)
		if err != nil {
			status, text := explain(err)
			fail(w, status, text)
			return
		}
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		if remote != nil {
			remote.Close()
		}
		return
	}
	taken, _ := conn.(*client)
	defer taken.finish()
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		conn.Close()
		if remote != nil {
			remote.Close()
		}
		return
	}
	if covered {
		s.intercept(conn, buffered.Reader, host, port)
		return
	}
	if n := buffered.Reader.Buffered(); n > 0 {
		if _, err := io.CopyN(remote, buffered.Reader, int64(n)); err != nil {
			conn.Close()
			remote.Close()
			return
		}
	}
	s.relay(conn, remote, host, port)
}

// splitTarget splits a host and its port.
func splitTarget(target, standard string) (string, int, error) {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		host, port = target, standard
	}
	n, err := parsePort(port)
	if err != nil {
		return host, 0, err
	}
	host, err = cleanHost(strings.Trim(host, "[]"))
	return host, n, err
}

// cleanHost returns a name in lower case, or an address in its canonical form. It refuses other notations of addresses,
// because programs interpret them differently.
func cleanHost(text string) (string, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		if ip.Zone() != "" {
			return text, &refusedError{fmt.Sprintf("address %q contains a network interface", text)}
		}
		return ip.Unmap().String(), nil
	}
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case name == "" || len(name) > 253 ||
		strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("/\\@?#[]:%\"<>", c) }):
		return text, &refusedError{fmt.Sprintf("invalid host %.80q", text)}
	case strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x"):
		return text, &refusedError{fmt.Sprintf("host %.80q ends in a number but is not an address; write addresses in full", text)}
	}
	return name, nil
}

// fail replies with an error of the proxy.
func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, strings.TrimSuffix("cove: "+strings.TrimPrefix(strings.TrimSpace(text), "cove: "), "\n"))
}
