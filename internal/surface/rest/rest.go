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
	"strings"
	"sync"
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
	// Caller notes in the call who signed in, where there is more to say than a subject.
	Caller func(context.Context, *op.Call)
	// Admit decides whether the caller may use an operation, before anything of
	// the request is read. done is called when the request is over.
	Admit func(*http.Request, op.Op) (done func(), err error)
	// Observe is told of every request that was served.
	Observe func(op string, status int, took time.Duration)
	// Served is told more of it.
	Served func(Served)
}

// Served is a request that is over.
type Served struct {
	Request *http.Request // as it came
	Call    *op.Call
	Op      string // empty: none was found
	Status  int
	In, Out int64 // bytes of the bodies; below 0: not known
	Took    time.Duration
}

// Server is an http.Handler.
type Server struct {
	Config
	exact   map[string]http.Handler // by method and path, of the routes without parameters
	mux     func() *http.ServeMux   // all routes, read when a request needs them
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
	s := &Server{Config: c, exact: make(map[string]http.Handler, len(c.Table.All()))}
	s.mux = sync.OnceValue(s.routes)
	for _, o := range c.Table.All() {
		s.keep(o, o.Route)
		for _, route := range o.Also {
			s.keep(o, route)
		}
	}
	s.handler = s.chain()
	return s
}

// keep notes a route that one method and one path name. Nothing that the mux knows
// is more specific, so that such a request need not ask it.
func (s *Server) keep(o op.Op, route string) {
	if method, path, ok := strings.Cut(route, " "); ok && method != "" && !strings.Contains(path, "{") && !strings.HasSuffix(path, "/") {
		s.exact[route] = s.route(o)
	}
}

// routes are for everything else: parameters, subtrees, any method, HEAD, and the
// answer when there is none.
func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for _, o := range s.Table.All() {
		for _, route := range append([]string{o.Route}, o.Also...) {
			mux.Handle(route, s.route(o))
		}
	}
	return mux
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
	if s.Served != nil {
		s.Served(Served{Request: r, Call: call, Op: rec.op, Status: rec.code(), In: r.ContentLength, Out: rec.bytes, Took: took})
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
	if s.Caller != nil {
		s.Caller(r.Context(), call)
	}
	// A path in an unusual spelling (%65 for e) is the mux's to judge.
	if h, ok := s.exact[r.Method+" "+r.URL.Path]; ok && r.URL.RawPath == "" {
		h.ServeHTTP(w, r)
		return
	}
	mux := s.mux()
	h, pattern := mux.Handler(r)
	if pattern != "" {
		mux.ServeHTTP(w, r)
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
