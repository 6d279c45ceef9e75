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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/network/relay"
	"github.com/cove-sandbox/cove/internal/network/socks"
)

// dialer connects to hosts: to services on this machine, and to other hosts directly, through the upstream proxy or through
// the egress proxy.
type dialer struct {
	cfg   *Config
	rules *atomic.Pointer[rules]
}

// refusedError is a refusal by a rule of this proxy.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return e.why }

// replyError is an error response of another proxy, which is returned to the client.
type replyError struct {
	status int
	text   string
}

func (e *replyError) Error() string { return e.text }

// explain returns the status and text of an error for the client.
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

// routeOf returns the route to an unmapped host, and the rule that selected it.
func (d *dialer) routeOf(host string) (route, rule string) {
	r := d.rules.Load()
	if r.upstream == nil {
		return "direct", ""
	}
	if why := r.bypass(host); why != "" {
		return "bypass", why
	}
	return "upstream", r.upstream.address()
}

// tunnel connects to an unmapped host.
func (d *dialer) tunnel(ctx context.Context, host string, port int, rec *record) (net.Conn, error) {
	limit := dialTimeout
	if d.cfg.Egress != nil {
		limit = egressTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	route, rule := d.routeOf(host)
	rec.route(route, rule)
	if route != "upstream" {
		return d.dialBase(ctx, host, port)
	}
	return d.throughUpstream(ctx, d.rules.Load().upstream, host, port)
}

// dialBase connects without the upstream proxy: directly, or through the egress proxy.
func (d *dialer) dialBase(ctx context.Context, host string, port int) (net.Conn, error) {
	if d.cfg.Egress == nil {
		return d.dialDirect(ctx, host, port)
	}
	c, err := d.cfg.Egress(ctx)
	if err != nil {
		return nil, &replyError{http.StatusServiceUnavailable, relay.Unavailable}
	}
	return connectThrough(ctx, c, host, port, "")
}

// dialDirect connects to a host. It checks the resolved address right before it connects, so that no host name can resolve to
// the sandbox's own listeners.
func (d *dialer) dialDirect(ctx context.Context, host string, port int) (net.Conn, error) {
	nd := net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if d.cfg.Deny(int(to.Port())) && isOwn(to.Addr()) {
			return &refusedError{fmt.Sprintf("port %d of this machine is reserved for the sandbox", to.Port())}
		}
		return nil
	}}
	c, err := nd.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
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

// throughUpstream connects through the upstream proxy. If the proxy rejects the credentials, it runs the command for the
// credentials again and retries once.
func (d *dialer) throughUpstream(ctx context.Context, u *upstream, host string, port int) (net.Conn, error) {
	for retry := false; ; retry = true {
		c, err := d.tryUpstream(ctx, u, host, port)
		if e, ok := errors.AsType[*replyError](err); ok && e.status == http.StatusProxyAuthRequired {
			if !retry && u.expire() {
				continue
			}
			return nil, &replyError{http.StatusBadGateway, "the upstream proxy rejected the credentials; set them with PUT /v1/proxy/upstream"}
		}
		return c, err
	}
}

func (d *dialer) tryUpstream(ctx context.Context, u *upstream, host string, port int) (net.Conn, error) {
	user, password, err := u.credentials(ctx, d.cfg.Runner)
	if err != nil {
		return nil, err
	}
	c, err := d.dialUpstream(ctx, u)
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
func (d *dialer) dialUpstream(ctx context.Context, u *upstream) (net.Conn, error) {
	port, err := parsePort(u.port)
	if err != nil {
		return nil, err
	}
	c, err := d.dialBase(ctx, u.host, port)
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

// maxReply is the maximum length of another proxy's error text.
const maxReply = 4 << 10

// connectThrough opens a tunnel through an HTTP proxy with CONNECT. It closes the connection on failure.
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
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxReply))
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

// egressURL is the placeholder for the egress proxy in the transport of plain requests.
var egressURL = &url.URL{Scheme: "http", Host: "egress.invalid:80"}

// plainProxy returns the proxy for a plain HTTP request, for which most proxies refuse CONNECT.
func (d *dialer) plainProxy(r *http.Request) (*url.URL, error) {
	host := r.URL.Hostname()
	route, _ := d.routeOf(host)
	if u := d.rules.Load().upstream; route == "upstream" {
		if u.scheme == "socks5" {
			return nil, nil
		}
		user, password, err := u.credentials(r.Context(), d.cfg.Runner)
		if err != nil {
			return nil, err
		}
		via := &url.URL{Scheme: "http", Host: u.address()} // dialPlain uses TLS if necessary
		if user != "" || password != "" {
			via.User = url.UserPassword(user, password)
		}
		return via, nil
	}
	if d.cfg.Egress != nil {
		return egressURL, nil
	}
	return nil, nil
}

// dialPlain connects for a plain HTTP request: to the proxy that plainProxy returned, or to the host.
func (d *dialer) dialPlain(ctx context.Context, _, addr string) (net.Conn, error) {
	if addr == egressURL.Host {
		c, err := d.cfg.Egress(ctx)
		if err != nil {
			return nil, &replyError{http.StatusServiceUnavailable, relay.Unavailable}
		}
		return c, nil
	}
	if u := d.rules.Load().upstream; u != nil && u.scheme != "socks5" && addr == u.address() {
		return d.dialUpstream(ctx, u)
	}
	return d.dialUnmapped(ctx, "", addr)
}

// dialUnmapped connects for an unmapped request of a decrypted connection.
func (d *dialer) dialUnmapped(ctx context.Context, _, addr string) (net.Conn, error) {
	host, port, err := splitTarget(addr, "")
	if err != nil {
		return nil, err
	}
	return d.tunnel(ctx, host, port, nil)
}

// dialMapped connects to the local service of a mapping.
func (d *dialer) dialMapped(ctx context.Context, _, addr string) (net.Conn, error) {
	host, port, err := splitTarget(addr, "")
	if err != nil {
		return nil, err
	}
	if d.cfg.Deny(port) {
		return nil, &refusedError{fmt.Sprintf("port %d is reserved for the sandbox", port)}
	}
	c, err := d.dialDirect(ctx, host, port)
	if err != nil && host == "127.0.0.1" {
		if c, err6 := d.dialDirect(ctx, "::1", port); err6 == nil {
			return c, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("nothing answers on port %d in the sandbox: %w", port, errors.New(strings.TrimPrefix(err.Error(), "connect to ")))
	}
	return c, nil
}
