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
	"time"
)

// handler answers clients that speak HTTP.
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
			refuse(w, http.StatusBadRequest, fmt.Sprintf("%s cannot be asked for like this; open a tunnel with CONNECT", r.URL.Scheme))
		default:
			refuse(w, http.StatusBadRequest, "this is the way out of a sandbox; use it as an HTTP or SOCKS5 proxy")
		}
	})
}

func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	io.WriteString(w, "cove: "+why+"\n")
}

// status is how a failure is answered.
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
	rec := &Record{Time: time.Now(), Protocol: "connect", Host: short(r.URL.Hostname())}
	far, err := p.open(r.Context(), r.URL.Hostname(), r.URL.Port(), rec)
	p.judge(rec, err)
	if err != nil {
		refuse(w, status(err), err.Error())
		return
	}
	client, early, err := http.NewResponseController(w).Hijack()
	if err != nil {
		far.Close()
		p.ring.end(rec, 0, 0)
		return
	}
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		client.Close()
		far.Close()
		p.ring.end(rec, 0, 0)
		return
	}
	client.SetDeadline(time.Time{})
	p.pass(client, early.Reader, far, rec)
}

// open checks a target and connects to it.
func (p *Proxy) open(ctx context.Context, target, port string, rec *Record) (*link, error) {
	host, n, err := split(target, port)
	if err != nil {
		return nil, err
	}
	rec.Host, rec.Port = host, n
	return p.dial(ctx, host, n, rec)
}

// short bounds what a client sent before it was checked.
func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// callKey carries a request that is passed on.
type callKey struct{}

// call is one request, over plain HTTP or in a tunnel that is looked into.
type call struct {
	rec    *Record // nil in a tunnel, which has its own
	judged bool
	keys   keys
	tunnel *tunnel
}

// forward passes a plain request on. The rules are asked for each, since
// connections are used again.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, next http.Handler) {
	rec := &Record{Time: time.Now(), Protocol: "http", Host: short(r.URL.Hostname())}
	port := r.URL.Port()
	if port == "" {
		port = "80"
	}
	host, n, err := split(r.URL.Hostname(), port)
	if err == nil {
		rec.Host, rec.Port = host, n
		err = p.rules.Load().Allow(host, n)
	}
	if err != nil {
		p.judge(rec, err)
		refuse(w, status(err), err.Error())
		return
	}
	call := &call{rec: rec}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), callKey{}, call))
	defer cancel()
	authority := r.URL.Host
	if p.keys.Load().any(host, n) {
		f := &flow{host: host, port: n, cut: cancel}
		if call.keys = p.carry(f); len(call.keys) > 0 {
			defer p.leave(f)
			if echoes(w, r) {
				return
			}
			authority, rec.Brokered = f.authority(), true
		}
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if !call.judged {
			call.judged = true
			rec.Address, _, _ = net.SplitHostPort(got.Conn.RemoteAddr().String())
			p.judge(rec, nil)
		}
	}})
	out := r.WithContext(ctx)
	// What was checked is what is asked for.
	u := *r.URL
	u.Host = net.JoinHostPort(host, port)
	out.URL, out.Host = &u, authority
	body := &counter{ReadCloser: r.Body}
	out.Body = body
	untouched(w.Header())
	reply := &counting{ResponseWriter: w}
	defer func() {
		if rec.Verdict == Allowed {
			p.ring.end(rec, body.n.Load(), reply.n.Load())
		}
	}()
	next.ServeHTTP(reply, out)
}

// untouched keeps the server from adding what an answer does not have.
func untouched(h http.Header) {
	h["Content-Type"], h["Date"] = nil, nil
}

// rewrite takes back what the standard proxy changes: this one is no front of a
// server, and nothing a program sends is ours to tidy.
func rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[h]; ok {
			r.Out.Header[h] = v
		}
	}
	// Last, when what the client has to say of its own headers was heeded.
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
	// Not the record of the request: the connection may end up with another's.
	l, err := p.open(ctx, target, port, &Record{})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// failed answers a request that could not be passed on.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if call, ok := r.Context().Value(callKey{}).(*call); ok && !call.judged {
		call.judged = true
		p.judge(call.rec, err)
	}
	if r.Context().Err() != nil {
		// Nobody is there, or a credential was taken away: no answer is the answer.
		panic(http.ErrAbortHandler)
	}
	refuse(w, status(err), err.Error())
}
