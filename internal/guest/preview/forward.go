package preview

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/card"
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

// openPorts returns some open ports.
func (s *Service) openPorts() (list []int) {
	if s.cfg.Open == nil {
		return nil
	}
	const maxPorts = 20
	list = slices.Compact(slices.Sorted(slices.Values(s.cfg.Open())))
	return list[:min(len(list), maxPorts)]
}

// handleError responds to a request that could not be forwarded.
func (s *Service) handleError(w http.ResponseWriter, r *http.Request, err error) {
	t := r.Context().Value(forwardingKey{}).(*forwarding)
	if _, ok := errors.AsType[*dialError](err); ok && r.Context().Err() == nil {
		s.reportClosed(w, r, t)
		return
	}
	if r.Context().Err() != nil {
		w.WriteHeader(http.StatusServiceUnavailable) // the client has disconnected, or the sandbox is stopping
		return
	}
	s.cfg.Log.Debug("preview failed", "port", t.port, "error", err)
	refuse(w, r, http.StatusBadGateway, fmt.Sprintf("the service on port %d sent no valid HTTP response (%v); check its log", t.port, err))
}

// reportClosed responds to a request for a port on which no program listens. A page waits for the program.
func (s *Service) reportClosed(w http.ResponseWriter, r *http.Request, t *forwarding) {
	why := fmt.Sprintf("nothing answers on port %d in the sandbox, so the port is not open; start the service on "+
		"127.0.0.1, ::1 or all addresses", t.port)
	c := card.Card{Title: fmt.Sprintf("Nothing runs on port %d", t.port), Text: "Start the service on 127.0.0.1, ::1 or all addresses.",
		Links: []card.Link{{Text: "Try again"}}}
	if s.waiting.waits(t.port, time.Now()) {
		c.Wait, c.Text = reloadSeconds, c.Text+" This page opens it as soon as it answers."
	}
	ports := s.openPorts()
	names := make([]string, len(ports))
	byPath := t.prefix != "" && t.strip
	for i, port := range ports {
		names[i] = strconv.Itoa(port)
		if byPath {
			c.Also = append(c.Also, card.Link{URL: t.base.Path + "/proxy/" + names[i] + "/", Text: names[i]})
		}
	}
	if c.More = "No port is open."; len(ports) > 0 {
		c.More = "Open ports:"
		why += ". Open ports: " + strings.Join(names, ", ")
		if !byPath {
			c.Text += " Open ports: " + strings.Join(names, ", ") + "."
		}
	} else {
		why += ". No port is open"
	}
	if byPath {
		c.Links = append(c.Links, card.Link{URL: t.base.Path + "/", Text: "The sandbox", Top: true})
	}
	reply(w, r, http.StatusBadGateway, why, c)
}

// refuse responds with an error.
func refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	reply(w, r, status, why, card.Card{Title: http.StatusText(status), Text: why + ".", Links: []card.Link{{Text: "Try again"}}})
}

// reply responds with an error: with a card to browsers, otherwise as JSON like other errors of the server.
func reply(w http.ResponseWriter, r *http.Request, status int, why string, c card.Card) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Method == http.MethodGet && r.Header.Get("Upgrade") == "" && strings.Contains(r.Header.Get("Accept"), "text/html") {
		c.Write(w, status)
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
