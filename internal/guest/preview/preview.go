// Package preview shows what listens on a port inside the sandbox to callers
// outside, through the sandbox's one port: HTTP, event streams and WebSockets.
//
// A port is chosen by path (/proxy/{port}/…, /absproxy/{port}/…), by header or by
// host name. The package owns what is changed on the way so that a page works where
// its caller sees it: addresses, cookies, the forwarded headers. It reaches
// nothing but loopback, refuses the ports that the sandbox keeps to itself, and
// hands no service the credentials of the sandbox: those were taken out by the
// sign-in, which sees every request first.
package preview

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// Config of the service.
type Config struct {
	// Deny tells the ports that nobody may look at: the sandbox's own server and
	// what it runs for itself, such as the browser's DevTools. It is asked for each
	// request, since such ports come and go. Nil: none beside the one that the
	// request came in by.
	Deny func(port int) bool
	// MaxOpen is how many requests may be on their way at once; 0: 1024.
	MaxOpen int
	Log     *slog.Logger
}

const (
	maxOpen = 1024
	// dialTimeout is long for loopback: only a service with a full backlog needs it.
	dialTimeout = 5 * time.Second
	// idleTime is shorter than that of any common server (Node's has 5 s): no
	// connection is used again just when its server closes it.
	idleTime = 2 * time.Second
	copySize = 64 << 10
)

// Service forwards requests to ports inside.
type Service struct {
	cfg     Config
	reverse *httputil.ReverseProxy
	wire    *http.Transport
	life    context.Context
	end     context.CancelFunc

	mu     sync.Mutex
	closed bool
	open   int
	work   sync.WaitGroup
}

// New returns the service. It starts nothing.
func New(cfg Config) *Service {
	if cfg.Deny == nil {
		cfg.Deny = func(int) bool { return false }
	}
	if cfg.MaxOpen <= 0 {
		cfg.MaxOpen = maxOpen
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{cfg: cfg}
	s.life, s.end = context.WithCancel(context.Background())
	s.wire = &http.Transport{
		DialContext:            dial,
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
	}
	s.reverse = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		ModifyResponse: restore,
		Transport:      s.wire,
		FlushInterval:  -1,
		BufferPool:     &buffers{},
		ErrorHandler:   s.broken,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// Ops lists what it offers. Requests reach them through Front, which alone knows the
// ways that are not a path.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.Handle(op.Spec{Name: "preview_proxy", Route: "/proxy/{port}/{path...}", Also: []string{"/proxy/{port}"}, Tag: "preview",
			Doc: "Show the service on a port inside; the prefix is taken off. The header X-Aio-Proxy-Port and host names of the form {port}-{anything} do the same with the whole path."}, s),
		op.Handle(op.Spec{Name: "preview_absproxy", Route: "/absproxy/{port}/{path...}", Also: []string{"/absproxy/{port}"}, Tag: "preview",
			Doc: "Show the service on a port inside, which sees the whole path: for pages that were built for this prefix."}, s),
	}
}

// Close ends everything that is on its way, and waits for it.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	s.wire.CloseIdleConnections()
	return nil
}

// begin joins a request to the service's life.
func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.open >= s.cfg.MaxOpen {
		return false
	}
	s.open++
	s.work.Add(1)
	return true
}

func (s *Service) done() {
	s.mu.Lock()
	s.open--
	s.mu.Unlock()
	s.work.Done()
}

// buffers are for copying bodies.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, copySize)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
