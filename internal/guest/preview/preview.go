// Package preview forwards incoming requests to services on ports of the sandbox, through the sandbox's one port: HTTP, event
// streams and WebSockets.
//
// The path (/proxy/{port}/…, /absproxy/{port}/…), a header or the host name selects the port. The package rewrites addresses,
// cookies and forwarded headers, so that a page works at the address that the client uses. It connects only to loopback,
// refuses reserved ports, and passes no credentials of the sandbox to a service: authentication, which handles every request
// first, removes them.
package preview

import (
	"context"
	"log/slog"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Config of the service.
type Config struct {
	// Deny reports whether a port is reserved: the port of the sandbox's server, and ports of its own programs, such as the
	// browser's DevTools. It is called for each request, because such ports change. If it is nil, only the port that received
	// the request is reserved.
	Deny func(port int) bool
	// Open lists the ports that services listen on, for the error if a port is closed.
	Open func() []int
	// MaxOpen is the maximum number of concurrent requests; 0 means 1024.
	MaxOpen int
	Log     *slog.Logger
}

const (
	maxOpen = 1024
	// dialTimeout is reached only if the backlog of a service is full.
	dialTimeout = 5 * time.Second
	// idleTime is shorter than the idle timeout of common servers (Node: 5 s), so that no connection is reused while its server
	// closes it.
	idleTime = 2 * time.Second
	copySize = 64 << 10
)

// Service forwards requests to ports of the sandbox.
type Service struct {
	cfg       Config
	reverse   *httputil.ReverseProxy
	transport *transport
	life      context.Context
	end       context.CancelFunc

	mu     sync.Mutex
	closed bool
	open   int
	work   sync.WaitGroup

	waiting waiting
}

// New returns the service. It has no side effects.
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
	s.transport = newTransport()
	s.reverse = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		ModifyResponse: restore,
		Transport:      s.transport,
		FlushInterval:  -1,
		BufferPool:     &buffers{},
		ErrorHandler:   s.handleError,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// Ops lists the operations. Requests reach them through Front, which also selects ports by
// header and host name.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.Handle(op.Spec{Name: "preview_proxy", Access: op.AccessSafe, Content: op.ContentSite,
			Route: "/proxy/{port}/{path...}", Also: []string{"/proxy/{port}"}, Tag: "preview",
			Doc: "Forward to the service on a port of the sandbox, without the prefix. The header X-Aio-Proxy-Port " +
				"and host names of the form {port}-{anything} select a port too, and keep the whole path."}, s),
		op.Handle(op.Spec{Name: "preview_absproxy", Access: op.AccessSafe, Content: op.ContentSite,
			Route: "/absproxy/{port}/{path...}", Also: []string{"/absproxy/{port}"}, Tag: "preview",
			Doc: "Forward to the service on a port of the sandbox with the whole path, for pages built for this prefix."}, s),
	}
}

// Close ends all requests and waits for them.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	s.transport.close()
	return nil
}

// begin counts a request. It returns false if the service is closed or the limit is reached.
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

// buffers is a pool for copying bodies.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, copySize)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
