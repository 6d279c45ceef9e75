package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/network/relay"
	"github.com/cove-sandbox/cove/internal/network/socks"
)

// refusedError is a refusal by a rule of this proxy.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return e.why }

// replyError is the refusal of another proxy, which is passed on.
type replyError struct {
	status int
	text   string
}

func (e *replyError) Error() string { return e.text }

// explain turns a failure into a status and a text for the client.
func explain(err error) (int, string) {
	if e, ok := errors.AsType[*refusedError](err); ok {
		return http.StatusForbidden, e.why
	}
	if e, ok := errors.AsType[*replyError](err); ok {
		return e.status, e.text
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return http.StatusGatewayTimeout, err.Error()
	}
	return http.StatusBadGateway, err.Error()
}

// routeOf tells how an unmapped host is reached.
func (s *Service) routeOf(host string) (route, rule string) {
	r := s.rules.Load()
	if r.upstream == nil {
		return "direct", ""
	}
	if why := r.bypass(host); why != "" {
		return "bypass", why
	}
	return "upstream", r.upstream.address()
}

// tunnel connects to a host that is not mapped.
func (s *Service) tunnel(ctx context.Context, host string, port int, rec *record) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	route, rule := s.routeOf(host)
	rec.route(route, rule)
	if route != "upstream" {
		return s.dialBase(ctx, host, port)
	}
	return s.throughUpstream(ctx, s.rules.Load().upstream, host, port)
}

// dialBase connects without the upstream proxy: directly, or through the hub.
func (s *Service) dialBase(ctx context.Context, host string, port int) (net.Conn, error) {
	if s.cfg.Hub == nil {
		return s.dialDirect(ctx, host, port)
	}
	c, err := s.cfg.Hub(ctx)
	if err != nil {
		return nil, &replyError{http.StatusServiceUnavailable, relay.Unavailable}
	}
	return connectThrough(ctx, c, host, port, "")
}

// dialDirect connects to a host. The address is checked right before the connection, so that
// a name cannot lead to the sandbox's own listeners.
func (s *Service) dialDirect(ctx context.Context, host string, port int) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if s.cfg.Deny(int(to.Port())) && isOwn(to.Addr()) {
			return &refusedError{fmt.Sprintf("port %d of this machine is reserved for the sandbox", to.Port())}
		}
		return nil
	}}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		if e, ok := errors.AsType[*refusedError](err); ok {
			return nil, e
		}
		if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
			return nil, fmt.Errorf("look up %q: no such host", host)
		}
		return nil, fmt.Errorf("connect to %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), err)
	}
	return c, nil
}

// isOwn reports whether an address belongs to this machine.
func isOwn(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(n.IP); ok && own.Unmap() == ip {
				return true
			}
		}
	}
	return false
}

// throughUpstream connects through the upstream proxy. If that rejects the credentials, their
// command runs once more.
func (s *Service) throughUpstream(ctx context.Context, u *upstream, host string, port int) (net.Conn, error) {
	for again := false; ; again = true {
		c, err := s.tryUpstream(ctx, u, host, port)
		if e, ok := errors.AsType[*replyError](err); ok && e.status == http.StatusProxyAuthRequired {
			if !again && u.expire() {
				continue
			}
			return nil, &replyError{http.StatusBadGateway, "the upstream proxy rejected the credentials; set them with PUT /v1/proxy/upstream"}
		}
		return c, err
	}
}

func (s *Service) tryUpstream(ctx context.Context, u *upstream, host string, port int) (net.Conn, error) {
	user, password, err := u.credentials(ctx, s.cfg.Runner)
	if err != nil {
		return nil, err
	}
	c, err := s.dialUpstream(ctx, u)
	if err != nil {
		return nil, err
	}
	if u.scheme != "socks5" {
		return connectThrough(ctx, c, host, port, basicAuth(user, password))
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	if err = socks.Connect(c, host, port, user, password); !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("upstream proxy: %w", err)
	}
	return c, nil
}

// dialUpstream connects to the upstream proxy itself.
func (s *Service) dialUpstream(ctx context.Context, u *upstream) (net.Conn, error) {
	port, err := parsePort(u.port)
	if err != nil {
		return nil, err
	}
	c, err := s.dialBase(ctx, u.host, port)
	if err != nil {
		return nil, fmt.Errorf("upstream proxy: %w", err)
	}
	if u.scheme != "https" {
		return c, nil
	}
	secured := tls.Client(c, &tls.Config{ServerName: u.host, MinVersion: tls.VersionTLS12})
	if err := secured.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("upstream proxy: %w", err)
	}
	return secured, nil
}

func basicAuth(user, password string) string {
	if user == "" && password == "" {
		return ""
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// maxRefusal is how much of another proxy's refusal is passed on.
const maxRefusal = 4 << 10

// connectThrough asks an HTTP proxy for a tunnel. It closes the connection on failure.
func connectThrough(ctx context.Context, c net.Conn, host string, port int, auth string) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	defer stop()
	target := net.JoinHostPort(host, strconv.Itoa(port))
	head := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if auth != "" {
		head += "Proxy-Authorization: " + auth + "\r\n"
	}
	fail := func(err error) (net.Conn, error) { c.Close(); return nil, err }
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		return fail(err)
	}
	early := bufio.NewReader(c)
	res, err := http.ReadResponse(early, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return fail(fmt.Errorf("connect to %s: %w", target, err))
	}
	if res.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
		res.Body.Close()
		if len(text) == 0 {
			text = []byte(res.Status)
		}
		return fail(&replyError{res.StatusCode, string(text)})
	}
	if !stop() {
		return fail(ctx.Err())
	}
	c.SetDeadline(time.Time{})
	if early.Buffered() > 0 {
		return ahead{c, early}, nil
	}
	return c, nil
}

// hubURL stands for the hub's proxy in the transport of plain requests.
var hubURL = &url.URL{Scheme: "http", Host: "hub.invalid:80"}

// plainProxy returns the proxy for a plain request: most proxies refuse CONNECT for those.
func (s *Service) plainProxy(r *http.Request) (*url.URL, error) {
	host := r.URL.Hostname()
	route, _ := s.routeOf(host)
	if u := s.rules.Load().upstream; route == "upstream" {
		if u.scheme == "socks5" {
			return nil, nil
		}
		user, password, err := u.credentials(r.Context(), s.cfg.Runner)
		if err != nil {
			return nil, err
		}
		via := &url.URL{Scheme: "http", Host: u.address()} // dialPlain speaks TLS to it if need be
		if user != "" || password != "" {
			via.User = url.UserPassword(user, password)
		}
		return via, nil
	}
	if s.cfg.Hub != nil {
		return hubURL, nil
	}
	return nil, nil
}

// dialPlain connects for a plain request: to a proxy that plainProxy has named, or to the host.
func (s *Service) dialPlain(ctx context.Context, _, addr string) (net.Conn, error) {
	if addr == hubURL.Host {
		c, err := s.cfg.Hub(ctx)
		if err != nil {
			return nil, &replyError{http.StatusServiceUnavailable, relay.Unavailable}
		}
		return c, nil
	}
	if u := s.rules.Load().upstream; u != nil && u.scheme != "socks5" && addr == u.address() {
		return s.dialUpstream(ctx, u)
	}
	return s.dialReal(ctx, "", addr)
}

// dialReal connects to the host of an unmapped request.
func (s *Service) dialReal(ctx context.Context, _, addr string) (net.Conn, error) {
	host, port, err := splitTarget(addr, "")
	if err != nil {
		return nil, err
	}
	return s.tunnel(ctx, host, port, nil)
}

// dialLocal connects to the service of a mapping.
func (s *Service) dialLocal(ctx context.Context, _, addr string) (net.Conn, error) {
	host, port, err := splitTarget(addr, "")
	if err != nil {
		return nil, err
	}
	if s.cfg.Deny(port) {
		return nil, &refusedError{fmt.Sprintf("port %d is reserved for the sandbox", port)}
	}
	c, err := s.dialDirect(ctx, host, port)
	if err != nil && host == "127.0.0.1" {
		if c, err6 := s.dialDirect(ctx, "::1", port); err6 == nil {
			return c, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("nothing answers on port %d in the sandbox: %w", port, errors.New(strings.TrimPrefix(err.Error(), "connect to ")))
	}
	return c, nil
}
