package preview

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

// trip is one request on its way to a service.
type trip struct {
	route
	base *url.URL // the sandbox as the caller reaches it; never nil
}

// at is where the caller sees the service: the prefix with all before it.
func (t *trip) at() string { return t.base.Path + t.prefix }

type tripKey struct{}

// ServeHTTP passes a request on to its port.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, ok := routeOf(r)
	switch {
	case !ok:
		refuse(w, r, http.StatusNotFound, "previews are at /proxy/{port}/ and /absproxy/{port}/")
		return
	case to.fault != "":
		refuse(w, r, http.StatusBadRequest, to.fault)
		return
	case to.port == ownPort(r) || s.cfg.Deny(to.port):
		refuse(w, r, http.StatusForbidden, fmt.Sprintf("port %d is the sandbox's own and has no preview; run your service on another port", to.port))
		return
	case to.strip && to.path == "":
		slashed(w, r, to.port)
		return
	}
	if !s.begin() {
		w.Header().Set("Retry-After", "1")
		refuse(w, r, http.StatusServiceUnavailable, "too many previews are open at once, or the sandbox is stopping; close some and try again")
		return
	}
	defer s.done()
	base := op.CallOf(r.Context()).Base
	if base == nil {
		base = &url.URL{Scheme: "http", Host: r.Host}
	}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), tripKey{}, &trip{to, base}))
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	// Otherwise an answer that begins before the request has ended would wait for it.
	http.NewResponseController(w).EnableFullDuplex()
	h := w.Header()
	// The page is the service's, not ours: it says itself what it holds.
	h.Del("X-Content-Type-Options")
	h["Content-Type"] = nil // the server guesses none
	s.reverse.ServeHTTP(&writer{ResponseWriter: w, ctx: ctx}, r.WithContext(ctx))
}

// slashed sends a browser to the folder, below which its relative links lead.
// The address is relative, and so right behind any prefix.
func slashed(w http.ResponseWriter, r *http.Request, port int) {
	to := strconv.Itoa(port) + "/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusPermanentRedirect)
}

// writer closes a connection that became a WebSocket when the request's context ends:
// a client that neither reads nor writes would hold it for ever.
type writer struct {
	http.ResponseWriter
	ctx context.Context
}

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		context.AfterFunc(w.ctx, func() { c.Close() })
	}
	return c, rw, err
}

// unreached is a failure to connect.
type unreached struct{ err error }

func (e *unreached) Error() string { return e.err.Error() }
func (e *unreached) Unwrap() error { return e.err }

// dial connects to a port on loopback, whatever host is asked for: services listen on
// 127.0.0.1, on ::1 or on both.
func dial(ctx context.Context, _, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTimeout}
	c, err4 := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if err4 == nil {
		return c, nil
	}
	c, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", port))
	if err6 == nil {
		return c, nil
	}
	return nil, &unreached{err4}
}

// broken answers a request that did not get through.
func (s *Service) broken(w http.ResponseWriter, r *http.Request, err error) {
	t := r.Context().Value(tripKey{}).(*trip)
	if _, ok := errors.AsType[*unreached](err); ok && r.Context().Err() == nil {
		refuse(w, r, http.StatusBadGateway, fmt.Sprintf("nothing answers on port %d in the sandbox; start the service and have it listen on 127.0.0.1, ::1 or all addresses", t.port))
		return
	}
	if r.Context().Err() != nil {
		w.WriteHeader(http.StatusServiceUnavailable) // nobody is there to read more, or the sandbox is stopping
		return
	}
	s.cfg.Log.Debug("preview failed", "port", t.port, "error", err)
	refuse(w, r, http.StatusBadGateway, fmt.Sprintf("the service on port %d broke off or gave no proper HTTP answer (%v); see its own log", t.port, err))
}

const pageText = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%[1]s</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:4rem auto;padding:0 1rem;color:#222;background:#fff}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}</style>
</head><body><h1>%[1]s</h1><p>%[2]s.</p></body></html>
`

// refuse answers in the service's stead: with a page for people, otherwise in the
// form that the server's other refusals have.
func refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method == http.MethodGet && r.Header.Get("Upgrade") == "" && strings.Contains(r.Header.Get("Accept"), "text/html") {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'")
		w.WriteHeader(status)
		fmt.Fprintf(w, pageText, http.StatusText(status), html.EscapeString(why))
		return
	}
	b, err := json.Marshal(map[string]any{"detail": why, "success": false, "message": why, "data": nil})
	if err != nil {
		status = http.StatusInternalServerError
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(b)
}
