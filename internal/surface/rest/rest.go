// Package rest serves the table of operations over HTTP: routes, envelopes, errors, streams,
// WebSockets and the OpenAPI document. It owns the wire format, and is independent of services.
// It serves only requests that pass the given authentication.
package rest

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth/origin"
)

// Config of a server. Only Table is required.
type Config struct {
	Table   *op.Table
	Dialect Dialect // Guest by default
	Log     *slog.Logger
	MaxBody int64 // default limit of a request body; 64 MiB if 0
	// BodyTimeout is the maximum time for a request body to arrive and, for a body without a
	// limit, the maximum pause. 0 means no timeout.
	BodyTimeout time.Duration
	// Buffer counts the memory of a request's body; nil: it is not counted.
	Buffer func(context.Context) Buffer

	// Guard authenticates callers. It wraps all other handlers, so it runs before routing.
	Guard func(http.Handler) http.Handler
	// Front handles authenticated requests before they are routed by path, such as those
	// that select a preview by host name.
	Front func(http.Handler) http.Handler
	// Linked reports whether a page of another site made the browser open the URL of a request.
	// By default, every other origin is another site.
	Linked func(*http.Request) bool
	// Isolate redirects a browser that opens foreign pages to an origin other than the server's,
	// and reports whether it has responded. Nil means that the pages are already isolated.
	Isolate func(http.ResponseWriter, *http.Request, *op.Op) bool
	// Base returns the URL at which the caller of this request reaches the server.
	Base func(*http.Request) *url.URL
	// Subject returns the authenticated caller.
	Subject func(context.Context) string
	// Caller adds other attributes of the authenticated caller to the call.
	Caller func(context.Context, *op.Call)
	// Admit decides whether the caller may use an operation, before the request body is
	// read. done is called after the request.
	Admit func(*http.Request, op.Op) (done func(), err error)
	// HidePath removes secrets from a path that is logged; nil: paths contain none.
	HidePath func(path string) string
	// Observe is called after every request.
	Observe func(op string, status int, took time.Duration)
	// Served is called after every request, with more detail.
	Served func(Served)
}

// Buffer counts the memory of one request.
type Buffer interface {
	Grow(bytes int) error
	Free()
}

// Served is a finished request.
type Served struct {
	Request *http.Request
	Call    *op.Call
	Op      string // name of the operation; empty if no route matched
	Status  int
	In, Out int64 // bytes of the bodies; negative if unknown
	Took    time.Duration
}

// Server is an http.Handler.
type Server struct {
	Config
	exact   map[route]*op.Op      // routes without parameters
	mux     func() *http.ServeMux // all routes, built on first use
	handler http.Handler
}

type route struct{ method, path string }

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
	if c.Linked == nil {
		c.Linked = origin.IsLinked
	}
	s := &Server{Config: c, exact: make(map[route]*op.Op, len(c.Table.All()))}
	s.mux = sync.OnceValue(s.buildMux)
	all := c.Table.All()
	for i := range all {
		o := &all[i]
		s.addExact(o, o.Route)
		for _, route := range o.Also {
			s.addExact(o, route)
		}
	}
	s.handler = s.chain()
	return s
}

// addExact adds a route without parameters to the exact routes. No pattern is more
// specific, so its requests can bypass the mux.
func (s *Server) addExact(o *op.Op, pattern string) {
	if method, path, ok := strings.Cut(pattern, " "); ok && method != "" && !strings.Contains(path, "{") && !strings.HasSuffix(path, "/") {
		s.exact[route{method, path}] = o
	}
}

// buildMux returns a mux of all routes. It serves requests without an exact route: parameters,
// subtrees, any method, HEAD, and requests that match no route.
func (s *Server) buildMux() *http.ServeMux {
	mux := http.NewServeMux()
	all := s.Table.All()
	for i := range all {
		o := &all[i]
		h := match(o)
		for _, route := range append([]string{o.Route}, o.Also...) {
			mux.Handle(route, h)
		}
	}
	return mux
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

func (s *Server) chain() http.Handler {
	var h http.Handler = http.HandlerFunc(s.dispatch)
	if s.Front != nil {
		front := s.Front(h)
		h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			op.CallOf(r.Context()).Base = s.Base(r)
			front.ServeHTTP(w, r)
		})
	}
	if s.Guard != nil {
		h = s.Guard(h)
	}
	return s.observe(h)
}

// observe assigns an ID to each request, returns 500 after a panic, and writes the access log.
// It is outermost, so that rejected requests are logged too.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		call := &op.Call{ID: requestID(r.Header.Get("X-Request-Id")), Via: "rest"}
		rec := &recorder{ResponseWriter: w}
		rec.Header().Set("X-Request-Id", call.ID)
		rec.Header().Set("X-Content-Type-Options", "nosniff")
		r = r.WithContext(op.WithCall(r.Context(), call))
		defer func() {
			p := recover()
			if s.BodyTimeout > 0 && r.Body != http.NoBody {
				// The server reads the rest of a body before it sends the response.
				http.NewResponseController(rec).SetReadDeadline(time.Now().Add(s.BodyTimeout))
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				s.finish(r, rec, call, start)
				panic(http.ErrAbortHandler)
			}
			if p != nil {
				s.Log.Error("request panicked", "id", call.ID, "panic", p, "stack", string(debug.Stack()))
				if !rec.wrote {
					s.writePlain(rec, r, http.StatusInternalServerError, op.InternalMessage(call.ID))
				}
			}
			s.finish(r, rec, call, start)
		}()
		next.ServeHTTP(rec, r)
	})
}

// finish reports a finished request and writes it to the access log.
func (s *Server) finish(r *http.Request, rec *recorder, call *op.Call, start time.Time) {
	took := time.Since(start)
	if s.Observe != nil {
		s.Observe(rec.op, rec.code(), took)
	}
	if s.Served != nil {
		s.Served(Served{Request: r, Call: call, Op: rec.op, Status: rec.code(), In: r.ContentLength, Out: rec.bytes, Took: took})
	}
	path := r.URL.Path
	if s.HidePath != nil {
		path = s.HidePath(path)
	}
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	s.Log.LogAttrs(r.Context(), slog.LevelInfo, "request",
		slog.String("id", call.ID), slog.String("method", r.Method), slog.String("path", path),
		slog.Int("status", rec.code()), slog.Int64("bytes", rec.bytes),
		slog.Duration("took", took), slog.String("subject", call.Subject))
}

// dispatch routes by path. A request that matches no route gets a JSON response too.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	call := op.CallOf(r.Context())
	if call.Base == nil {
		call.Base = s.Base(r)
	}
	if s.Subject != nil {
		call.Subject = s.Subject(r.Context())
	}
	if s.Caller != nil {
		s.Caller(r.Context(), call)
	}
	// The mux handles paths with unusual escapes (%65 for e).
	if o, ok := s.exact[route{r.Method, r.URL.Path}]; ok && r.URL.RawPath == "" {
		s.serve(w, r, o)
		return
	}
	probe := &probe{header: http.Header{}}
	s.mux().ServeHTTP(probe, r)
	switch {
	case probe.matched != nil:
		s.serve(w, r, probe.matched)
	case probe.status == http.StatusMethodNotAllowed:
		allow := probe.header.Get("Allow")
		w.Header().Set("Allow", allow)
		s.writePlain(w, r, probe.status, "Method Not Allowed: use "+allow)
	case probe.status >= 300 && probe.status < 400 && r.Pattern != "": // to a route that exists
		maps.Copy(w.Header(), probe.header)
		w.WriteHeader(probe.status)
	case origin.IsNavigation(r):
		writeMissing(w, r)
	default:
		s.writePlain(w, r, http.StatusNotFound, "Not Found: see /v1/openapi.json for all routes")
	}
}

// probe matches a request with the mux without serving it. It receives the operation of the
// route, or the response of the mux if no route matches.
type probe struct {
	matched *op.Op
	header  http.Header
	status  int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
func (p *probe) WriteHeader(status int)      { p.status = status }

// match is the handler of a route in the mux.
func match(o *op.Op) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.(*probe).matched = o })
}
