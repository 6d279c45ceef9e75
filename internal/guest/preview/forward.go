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
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// forwarding is a request to a service.
type forwarding struct {
	route
	base *url.URL // URL of the sandbox as the client sees it; never nil
}

// at returns the path of the service as the client sees it.
func (t *forwarding) at() string { return t.base.Path + t.prefix }

type forwardingKey struct{}

// ServeHTTP forwards a request to its port.
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
		refuse(w, r, http.StatusForbidden, fmt.Sprintf("port %d is reserved for the sandbox; run your service on another port", to.port))
		return
	case to.strip && to.path == "":
		redirectToSlash(w, r, to.port)
		return
	}
	if !s.begin() {
		w.Header().Set("Retry-After", "1")
		refuse(w, r, http.StatusServiceUnavailable, "too many concurrent preview requests, or the sandbox is stopping; retry later")
		return
	}
	defer s.done()
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), forwardingKey{}, &forwarding{to, baseOf(r)}))
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	// A response may start before the request ends.
	http.NewResponseController(w).EnableFullDuplex()
	h := w.Header()
	// Only the service sets the content type of its response.
	h.Del("X-Content-Type-Options")
	h["Content-Type"] = nil // so that the server does not guess it
	s.reverse.ServeHTTP(&writer{ResponseWriter: w, ctx: ctx}, r.WithContext(ctx))
}

// redirectToSlash adds the slash at the end of the prefix, so that relative links work. The location is relative, so that it
// is correct behind any reverse proxy.
func redirectToSlash(w http.ResponseWriter, r *http.Request, port int) {
	to := strconv.Itoa(port) + "/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusPermanentRedirect)
}

// writer closes a WebSocket connection when the context of the request ends. Otherwise a client that neither reads nor writes
// would keep it open.
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

// dialError is a failure to connect.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dial connects to a port on loopback and ignores the host: services listen on 127.0.0.1, on ::1 or on both.
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
	return nil, &dialError{err4}
}

// openPorts returns a sentence with the open ports for an error message.
func (s *Service) openPorts() string {
	if s.cfg.Open == nil {
		return ""
	}
	const maxPorts = 20
	var list []string
	for _, port := range slices.Compact(slices.Sorted(slices.Values(s.cfg.Open()))) {
		if list = append(list, strconv.Itoa(port)); len(list) == maxPorts {
			break
		}
	}
	if len(list) == 0 {
		return ". No port is open"
	}
	return ". Open ports: " + strings.Join(list, ", ")
}

// handleError responds to a request that could not be forwarded.
func (s *Service) handleError(w http.ResponseWriter, r *http.Request, err error) {
	t := r.Context().Value(forwardingKey{}).(*forwarding)
	if _, ok := errors.AsType[*dialError](err); ok && r.Context().Err() == nil {
		refuse(w, r, http.StatusBadGateway,
			fmt.Sprintf("nothing answers on port %d in the sandbox, so the port is not open; start the service on "+
				"127.0.0.1, ::1 or all addresses", t.port)+s.openPorts())
		return
	}
	if r.Context().Err() != nil {
		w.WriteHeader(http.StatusServiceUnavailable) // the client has disconnected, or the sandbox is stopping
		return
	}
	s.cfg.Log.Debug("preview failed", "port", t.port, "error", err)
	refuse(w, r, http.StatusBadGateway, fmt.Sprintf("the service on port %d sent no valid HTTP response (%v); check its log", t.port, err))
}

const pageText = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%[1]s</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:4rem auto;padding:0 1rem;color:#222;background:#fff}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}</style>
</head><body><h1>%[1]s</h1><p>%[2]s.</p></body></html>
`

// refuse responds with an error: as a page to browsers, otherwise as JSON like other errors of the server.
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

// baseOf returns the URL of the sandbox as the client sees it.
func baseOf(r *http.Request) *url.URL {
	if base := op.CallOf(r.Context()).Base; base != nil {
		return base
	}
	return &url.URL{Scheme: "http", Host: r.Host}
}
