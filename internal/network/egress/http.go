package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress/internal/count"
)

// handler serves HTTP clients.
func (p *Proxy) handler(forward http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.begin() {
			panic(http.ErrAbortHandler)
		}
		defer p.work.Done()
		switch {
		case r.Method == http.MethodConnect:
			p.connect(w, r)
		case r.URL.Scheme == "http" && r.URL.Host != "":
			p.forward(w, r, forward)
		case r.URL.Scheme != "" && r.URL.Host != "":
			refuse(w, http.StatusBadRequest, fmt.Sprintf("%s URLs are not supported; open a tunnel with CONNECT", r.URL.Scheme))
		case r.URL.Path == DiagnosePath && r.Header.Get(DiagnoseHeader) != "":
			p.diagnose(w, r)
		default:
			refuse(w, http.StatusBadRequest, "this is the egress proxy of a sandbox; use it as an HTTP or SOCKS5 proxy")
		}
	})
}

func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	io.WriteString(w, "cove: "+why+"\n")
}

// status returns the HTTP status of an error.
func status(err error) int {
	switch {
	case Denied(err):
		return http.StatusForbidden
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// connect opens a tunnel.
func (p *Proxy) connect(w http.ResponseWriter, r *http.Request) {
	rec := &Record{Time: time.Now(), Protocol: "connect", Host: printable(r.URL.Hostname()), Program: printable(r.UserAgent())}
	remote, err := p.open(r.Context(), r.URL.Hostname(), r.URL.Port(), rec)
	p.record(rec, err)
	if err != nil {
		refuse(w, status(err), err.Error())
		return
	}
	client, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		remote.Close()
		p.ring.end(rec, 0, 0)
		return
	}
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		client.Close()
		remote.Close()
		p.ring.end(rec, 0, 0)
		return
	}
	client.SetDeadline(time.Time{})
	p.relay(client, early.Reader, remote, rec)
}

// open checks a target and connects to it.
func (p *Proxy) open(ctx context.Context, target, port string, rec *Record) (*link, error) {
	host, n, err := split(target, port)
	if err != nil {
		return nil, err
	}
	rec.Host, rec.Port = host, n
	if to, ok := p.peers.find(ctx, host); ok {
		return p.peers.dial(ctx, to, host, n, rec)
	}
	return p.dial(ctx, host, n, rec)
}

// callKey is the context key of a forwarded request.
type callKey struct{}

// call is one request, over plain HTTP or in a brokered tunnel.
type call struct {
	rec      *Record // nil in a tunnel, which has a record
	recorded bool
	keys     keys
	tunnel   *tunnel
	private  bool // to a peer
}

// forward forwards a plain HTTP request. It checks the rules for each request,
// since connections are reused.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, next http.Handler) {
	rec := &Record{Time: time.Now(), Protocol: "http", Host: printable(r.URL.Hostname()), Program: printable(r.UserAgent())}
	port := r.URL.Port()
	if port == "" {
		port = "80"
	}
	host, n, err := split(r.URL.Hostname(), port)
	if err == nil {
		rec.Host, rec.Port = host, n
		var to Peer
		if to, rec.Private = p.peers.find(r.Context(), host); rec.Private {
			rec.Rule = to.Rule
		} else {
			rec.Rule, err = p.permit(r.Context(), host, n, rec.Program)
		}
	}
	if err != nil {
		p.record(rec, err)
		refuse(w, status(err), err.Error())
		return
	}
	if err := p.rules.Load().allowRequest(host, n, r); err != nil && !rec.Private {
		refuseRequest(p, w, r, rec.Protocol, host, n, err)
		return
	}
	call := &call{rec: rec, private: rec.Private}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), callKey{}, call))
	defer cancel()
	authority := r.URL.Host
	if !rec.Private && p.keys.Load().any(host, n) {
		f := &flow{host: host, port: n, cut: cancel}
		if call.keys = p.attach(f); len(call.keys) > 0 {
			defer p.detach(f)
			if refuseEcho(w, r) {
				return
			}
			authority, rec.Brokered = f.authority(), true
		}
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if !call.recorded {
			call.recorded = true
			if !rec.Private {
				rec.Address, _, _ = net.SplitHostPort(got.Conn.RemoteAddr().String())
			}
			p.record(rec, nil)
		}
	}})
	out := r.WithContext(ctx)
	// Request exactly what was checked.
	u := *r.URL
	u.Host = net.JoinHostPort(host, port)
	out.URL, out.Host = &u, authority
	body := &count.Body{ReadCloser: r.Body}
	out.Body = body
	untouched(w.Header())
	reply := &count.Response{ResponseWriter: w}
	defer func() {
		if rec.Verdict == Allowed {
			p.ring.end(rec, body.N.Load(), reply.N.Load())
		}
	}()
	next.ServeHTTP(reply, out)
}

// untouched keeps the server from adding headers to a response.
func untouched(h http.Header) {
	h["Content-Type"], h["Date"] = nil, nil
}

// rewrite reverts what the standard reverse proxy changes: a forward proxy must not
// alter requests.
func rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[h]; ok {
			r.Out.Header[h] = v
		}
	}
	if strings.EqualFold(r.Out.Header.Get("Upgrade"), "h2c") {
		// After an upgrade, requests could be for any host. Without it the server responds in HTTP/1.1.
		for _, h := range []string{"Connection", "Upgrade", "Http2-Settings"} {
			r.Out.Header.Del(h)
		}
	}
	// Last, after the client's Connection header has been applied.
	if c, ok := r.In.Context().Value(callKey{}).(*call); ok {
		c.keys.apply(r.Out)
	}
}

// dialPlain connects for the transport of plain requests.
func (p *Proxy) dialPlain(ctx context.Context, _, addr string) (net.Conn, error) {
	target, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	host, n, err := split(target, port)
	if err != nil {
		return nil, err
	}
	// Not the record of the request: another request may use the connection.
	l, err := p.dial(ctx, host, n, &Record{})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// handleError responds to a request that could not be forwarded.
func (p *Proxy) handleError(w http.ResponseWriter, r *http.Request, err error) {
	if call, ok := r.Context().Value(callKey{}).(*call); ok && !call.recorded {
		call.recorded = true
		p.record(call.rec, err)
	}
	if r.Context().Err() != nil {
		// The client has disconnected, or a credential was revoked: drop the connection.
		panic(http.ErrAbortHandler)
	}
	refuse(w, status(err), err.Error())
}
