// Package span records OpenTelemetry traces: spans with the W3C trace context, exported in
// batches to the configured endpoint as OTLP over HTTP in JSON.
//
// It owns a bounded queue and the goroutine that empties it, which starts with the first
// span. A request never waits for it: spans that exceed the queue, or that the
// endpoint rejects, are dropped and counted.
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

// Config configures a Tracer. Zero values mean the defaults.
type Config struct {
	Endpoint string            // base URL of the collector; /v1/traces is added if missing. Empty means no traces
	Headers  map[string]string // HTTP headers of each export, for authentication
	Service  string            // service.name
	Version  string            // service.version
	Log      *slog.Logger      // logs when exports start to fail, and when they recover; default: none
	Client   *http.Client      // default: a new client that follows no redirects

	Queue    int           // maximum number of queued spans; default 4096
	Batch    int           // maximum number of spans in one export; default 512
	Interval time.Duration // between exports of partial batches; default 2 s
	Timeout  time.Duration // of one export, and of Close; default 5 s
}

// Tracer creates spans. A nil Tracer creates none, at almost no cost.
type Tracer struct {
	cfg     Config
	url     string
	own     bool // the tracer created the client
	dropped atomic.Uint64

	wake, stop, end chan struct{}

	mu      sync.Mutex
	queue   []*Span
	started bool
	closed  bool
}

// New returns a tracer, nil if there is no endpoint.
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
			// The headers can contain a secret that only the endpoint may see.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return t
}

const tracesPath = "/v1/traces"

// Status is the status of a finished span: OK, or the code of an error, never its text.
type Status string

// OK is the status of a success.
const OK Status = ""

// Kinds of spans, as numbered by OTLP.
const (
	kindInternal = 1
	kindServer   = 2
	kindClient   = 3
)

// Limits of a span.
const (
	maxName  = 256
	maxText  = 1024
	maxAttrs = 32
)

// Span is a timed part of a trace. Its methods do nothing on a nil Span.
type Span struct {
	t      *Tracer
	at     spanContext
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

// Start starts a span. Its parent is the span in ctx, or that of the caller if ctx comes from
// Extract; otherwise it starts a new trace. A span whose parent is not local is a server
// span; one that is injected into a request becomes a client span. If the caller's trace is
// not sampled, the span is nil and ctx still carries the caller's.
func (t *Tracer) Start(ctx context.Context, name string, attrs ...slog.Attr) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	parent, found := contextOf(ctx)
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
	binary.NativeEndian.PutUint64(s.at.span[:], rand.Uint64()|1) // all zeros is invalid
	s.Set(attrs...)
	return context.WithValue(ctx, key{}, s.at), s
}

// Set adds attributes. It drops those after the first 32 and truncates long texts.
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

// End ends the span and queues it for export. Only the first call counts.
func (s *Span) End(status Status) {
	if s == nil {
		return
	}
	s.mu.Lock()
	already := s.ended
	s.ended = true
	s.mu.Unlock()
	if already {
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

// Dropped returns the number of spans that were not exported.
func (t *Tracer) Dropped() uint64 {
	if t == nil {
		return 0
	}
	return t.dropped.Load()
}

// Close exports the queued spans, for no longer than Timeout. It is idempotent.
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

// cut truncates s to at most n bytes, without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
