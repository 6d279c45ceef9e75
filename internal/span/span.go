// Package span makes OpenTelemetry traces: spans with the W3C trace context, sent in
// batches as OTLP over HTTP in JSON to the endpoint that is configured.
//
// It owns a bounded queue and the goroutine that empties it, which begins with the
// first span. It refuses to be in the way: a request never waits for it, and spans that
// find no room, or that the endpoint does not take, are dropped and counted.
package span

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Config of a Tracer. Zero values mean the defaults.
type Config struct {
	Endpoint string            // the collector's base address; /v1/traces is added unless it ends so. Empty: no traces
	Headers  map[string]string // of each export, for its authentication
	Service  string            // service.name
	Version  string            // service.version
	Log      *slog.Logger      // told when exports begin to fail, and when they work again; none
	Client   *http.Client      // one of its own, which follows no redirects

	Queue    int           // spans that may wait; 4096
	Batch    int           // spans in one export; 512
	Interval time.Duration // between exports that are not full; 2 s
	Timeout  time.Duration // of one export, and of Close; 5 s
}

// Tracer makes spans. A nil one makes none, at next to no cost.
type Tracer struct {
	cfg     Config
	url     string
	own     bool // the client is
	dropped atomic.Uint64

	wake, stop, end chan struct{}

	mu      sync.Mutex
	queue   []*Span
	started bool
	closed  bool
}

// New makes a tracer, or none when no endpoint is given.
func New(cfg Config) *Tracer {
	if cfg.Endpoint == "" {
		return nil
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Queue <= 0 {
		cfg.Queue = 4096
	}
	if cfg.Batch <= 0 {
		cfg.Batch = 512
	}
	if cfg.Interval <= 0 {
		cfg.Interval = 2 * time.Second
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Second
	}
	t := &Tracer{cfg: cfg, url: strings.TrimSuffix(cfg.Endpoint, "/"),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), end: make(chan struct{})}
	if !strings.HasSuffix(t.url, tracesPath) {
		t.url += tracesPath
	}
	if cfg.Client == nil {
		t.own = true
		t.cfg.Client = &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: cfg.Timeout},
			// The headers may hold a secret that is for the endpoint alone.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return t
}

const tracesPath = "/v1/traces"

// Status is how a span ended: OK, or the code of an error, never its text.
type Status string

// OK is the status of what went well.
const OK Status = ""

// What a span can be, with OTLP's numbers.
const (
	kindInternal = 1
	kindServer   = 2
	kindClient   = 3
)

// Bounds of what one span can hold.
const (
	maxName  = 256
	maxText  = 1024
	maxAttrs = 32
)

// Span is something that takes time. All its methods work on a nil one.
type Span struct {
	t      *Tracer
	at     spot
	parent [8]byte
	name   string
	start  time.Time
	stop   time.Time
	status Status

	mu    sync.Mutex
	ended bool
	kind  int
	attrs []slog.Attr
}

// Start begins a span below the one in ctx, or below the caller's when ctx comes from
// Extract, or a trace of its own. A span that begins here what came from outside is
// one of a server; one that is injected into a request is one of a client. When the
// caller said that its trace is not recorded the span is nil, and ctx carries the
// caller's on.
func (t *Tracer) Start(ctx context.Context, name string, attrs ...slog.Attr) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	parent, found := spotOf(ctx)
	if found && !parent.sampled() {
		return ctx, nil
	}
	s := &Span{t: t, name: cut(name, maxName), start: time.Now(), kind: kindInternal, parent: parent.span}
	if !found {
		binary.NativeEndian.PutUint64(parent.trace[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(parent.trace[8:], rand.Uint64()|1)
		parent.flags = flagSampled
	}
	if !found || parent.local == nil {
		s.kind = kindServer
	}
	s.at = parent
	s.at.local = s
	binary.NativeEndian.PutUint64(s.at.span[:], rand.Uint64()|1) // all zeros would be no span
	s.Set(attrs...)
	return context.WithValue(ctx, key{}, s.at), s
}

// Set adds attributes. More than 32 are left out, long texts are cut.
func (s *Span) Set(attrs ...slog.Attr) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.attrs = append(s.attrs, attrs[:min(len(attrs), maxAttrs-len(s.attrs))]...)
	}
}

// End ends the span and hands it over to be sent. Only the first call counts.
func (s *Span) End(status Status) {
	if s == nil {
		return
	}
	s.mu.Lock()
	again := s.ended
	s.ended = true
	s.mu.Unlock()
	if again {
		return
	}
	s.status, s.stop = status, s.start.Add(time.Since(s.start))
	s.t.add(s)
}

func (t *Tracer) add(s *Span) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.queue) >= t.cfg.Queue {
		t.dropped.Add(1)
		return
	}
	t.queue = append(t.queue, s)
	if !t.started {
		t.started = true
		go t.run()
	}
	if len(t.queue) >= t.cfg.Batch {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// Dropped tells how many spans were not delivered.
func (t *Tracer) Dropped() uint64 {
	if t == nil {
		return 0
	}
	return t.dropped.Load()
}

// Close sends what waits, for no longer than Timeout. It may be called more than once.
func (t *Tracer) Close() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	first, started := !t.closed, t.started
	t.closed = true
	t.mu.Unlock()
	if !started {
		return nil
	}
	if first {
		close(t.stop)
	}
	<-t.end
	return nil
}

// cut shortens a text to at most n bytes, between two characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
