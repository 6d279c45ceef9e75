// Package rest serves the table of operations over HTTP: routes, the reply's
// envelope, the shapes of errors, streams and WebSockets, the OpenAPI document.
// It owns every quirk of the wire, so that no service has one. It knows
// operations, never a service, and refuses anything that has not passed the
// sign-in it was given.
package rest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// Config of a server. Table is needed; everything else has a default.
type Config struct {
	Table   *op.Table
	Dialect Dialect // default: Guest
	Log     *slog.Logger
	MaxBody int64 // of a request, where its Spec says nothing; default 64 MiB

	// Guard signs callers in. It wraps everything: no routing happens before it.
	Guard func(http.Handler) http.Handler
	// Front sees signed-in requests before they are routed by path, such as those
	// for a preview by host name.
	Front func(http.Handler) http.Handler
	// Base is the server's address as the caller of this request reaches it.
	Base func(*http.Request) *url.URL
	// Subject names who signed in.
	Subject func(context.Context) string
	// Observe is told of every request that was served.
	Observe func(op string, status int, took time.Duration)
}

// Server is an http.Handler.
type Server struct {
	Config
	mux     *http.ServeMux
	handler http.Handler
}

// New builds the routes; it starts nothing.
func New(c Config) *Server {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Dialect == nil {
		c.Dialect = Guest
	}
	if c.MaxBody == 0 {
		c.MaxBody = 64 << 20
	}
	if c.Base == nil {
		c.Base = func(r *http.Request) *url.URL { return &url.URL{Scheme: "http", Host: r.Host} }
	}
	s := &Server{Config: c, mux: http.NewServeMux()}
	for _, o := range c.Table.All() {
		for _, route := range append([]string{o.Route}, o.Also...) {
			s.mux.Handle(route, s.route(o))
		}
	}
	s.handler = s.chain()
	return s
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

func (s *Server) chain() http.Handler {
	var h http.Handler = http.HandlerFunc(s.dispatch)
	if s.Front != nil {
		h = s.Front(h)
	}
	if s.Guard != nil {
		h = s.Guard(h)
	}
	return s.watched(h)
}

// watched gives each request an id, turns a panic into a 500, and writes the
// access log. It is outermost, so that refused requests are logged too.
func (s *Server) watched(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		call := &op.Call{ID: requestID(r.Header.Get("X-Request-Id")), Via: "rest"}
		rec := &recorder{ResponseWriter: w}
		rec.Header().Set("X-Request-Id", call.ID)
		rec.Header().Set("X-Content-Type-Options", "nosniff")
		r = r.WithContext(op.WithCall(r.Context(), call))
		defer func() {
			p := recover()
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				s.access(r, rec, call, start)
				panic(http.ErrAbortHandler)
			}
			if p != nil {
				s.Log.Error("request panicked", "id", call.ID, "panic", p, "stack", string(debug.Stack()))
				if !rec.wrote {
					s.plain(rec, r, http.StatusInternalServerError, internalMessage(call.ID))
				}
			}
			s.access(r, rec, call, start)
		}()
		next.ServeHTTP(rec, r)
	})
}

func (s *Server) access(r *http.Request, rec *recorder, call *op.Call, start time.Time) {
	took := time.Since(start)
	if s.Observe != nil {
		s.Observe(rec.op, rec.code(), took)
	}
	path := r.URL.Path
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	s.Log.LogAttrs(r.Context(), slog.LevelInfo, "request",
		slog.String("id", call.ID), slog.String("method", r.Method), slog.String("path", path),
		slog.Int("status", rec.code()), slog.Int64("bytes", rec.bytes),
		slog.Duration("took", took), slog.String("subject", call.Subject))
}

// dispatch routes by path; what no operation takes is answered in JSON.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	call := op.CallOf(r.Context())
	call.Base = s.Base(r)
	if s.Subject != nil {
		call.Subject = s.Subject(r.Context())
	}
	h, pattern := s.mux.Handler(r)
	if pattern != "" {
		s.mux.ServeHTTP(w, r)
		return
	}
	probe := &probe{header: http.Header{}}
	h.ServeHTTP(probe, r)
	if allow := probe.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
	}
	switch probe.status {
	case http.StatusMethodNotAllowed:
		s.plain(w, r, probe.status, "Method Not Allowed: use "+probe.header.Get("Allow"))
	default:
		s.plain(w, r, http.StatusNotFound, "Not Found: the OpenAPI document lists every route")
	}
}

// probe takes the answer of a handler that found no route.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
func (p *probe) WriteHeader(status int)      { p.status = status }
