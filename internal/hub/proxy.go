package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/span"
)

const (
	// serverHost stands for the sandbox's server in its transport; "port-N" for a port.
	serverHost = "server"
	portHost   = "port-"
	// bootWait is how long a server that was ready may refuse connections: it may
	// be starting itself anew.
	bootWait = 10 * time.Second
	// copySize is a copying buffer's.
	copySize = 64 << 10
	// headerPort asks the project's own server for a port inside.
	headerPort = "X-Aio-Proxy-Port"
)

// trip is one request on its way into a sandbox.
type trip struct {
	route
	box  *box
	sb   sandbox.Sandbox
	base *url.URL // the hub as the caller reaches it; never nil

	status int // that the sandbox answered with
}

type tripKey struct{}

// newProxy makes the handler of everything that leads into sandboxes.
func (h *Hub) newProxy() http.Handler {
	reverse := &httputil.ReverseProxy{
		Rewrite:        rewrite,
		ModifyResponse: restore,
		Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			return r.Context().Value(tripKey{}).(*trip).box.transport.RoundTrip(r)
		}),
		FlushInterval: -1,
		BufferPool:    &buffers{},
		ErrorHandler:  h.broken,
		ErrorLog:      slog.NewLogLogger(h.cfg.Log.Handler(), slog.LevelDebug),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.lead(w, r, reverse) })
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, copySize)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// lead passes a request on to the sandbox it is for.
func (h *Hub) lead(w http.ResponseWriter, r *http.Request, reverse http.Handler) {
	to, ok := routeOf(r)
	if r.Method == http.MethodConnect {
		h.answer(w, r, http.StatusMethodNotAllowed, 0, "this is no forward proxy")
		return
	}
	if !ok {
		h.refuse(w, r, noSandbox(r.PathValue("name")))
		return
	}
	ctx := r.Context()
	sb, err := h.find(ctx, to.name)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	if sh := op.CallOf(ctx).Share; sh != nil && sh.Port != 0 {
		// The port is addressed as such, so that no path leads anywhere else.
		if to = to.service(); to.port != sh.Port {
			h.refuse(w, r, noSandbox(to.name))
			return
		}
	}
	base := op.CallOf(ctx).Base
	if base == nil {
		base = &url.URL{Scheme: "http", Host: r.Host}
	}
	if to.path == "" && !to.host {
		slashed(w, r, base, to)
		return
	}
	if !native(sb) {
		to = to.service()
		if to.port != 0 && !h.cfg.Provider.Abilities().AnyPort {
			h.refuse(w, r, op.Errorf(op.Invalid, "provider %s reaches only the server of sandbox %q, not its port %d", h.cfg.Provider.Abilities().Provider, to.name, to.port))
			return
		}
	}
	patience := h.cfg.WakeWait
	if navigation(r) {
		patience = h.cfg.PageWait
	}
	b, err := h.enter(ctx, sb, patience)
	if err != nil {
		h.refuse(w, r, h.unreachable(to.name, err))
		return
	}
	defer b.leave()
	// Otherwise an answer that begins before the request has ended would wait for it.
	http.NewResponseController(w).EnableFullDuplex()
	t := &trip{route: to, box: b, sb: sb, base: base}
	ctx, over := h.whileValid(ctx)
	defer over()
	ctx, s := h.cfg.Tracer.Start(ctx, proxyOp, slog.String("http.request.method", r.Method))
	out := r.WithContext(context.WithValue(ctx, tripKey{}, t))
	reverse.ServeHTTP(w, out)
	if s != nil {
		s.Set(append(about(op.CallOf(ctx)), slog.Int("http.response.status_code", t.status))...)
		s.End(span.Status(op.CallOf(ctx).Code))
	}
}

// slashed sends a browser to the folder, below which its relative links lead.
func slashed(w http.ResponseWriter, r *http.Request, base *url.URL, to route) {
	u := base.Path + to.prefix + "/"
	if r.URL.RawQuery != "" {
		u += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", u)
	w.WriteHeader(http.StatusPermanentRedirect)
}

// newTransport reaches one sandbox. Connections are kept and used again; they
// are few, since a sandbox can hold as many of ours as it likes.
func (h *Hub) newTransport(b *box) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, _ := strings.Cut(addr, ":")
			port := 0
			if digits, ok := strings.CutPrefix(host, portHost); ok {
				port, _ = strconv.Atoi(digits)
			}
			return h.dial(ctx, b, port)
		},
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        90 * time.Second, // the server's own is longer: it never closes one that we just took
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
		WriteBufferSize:        copySize,
		ReadBufferSize:         copySize / 4,
	}
}

// unreached is a failure to connect: nothing was sent.
type unreached struct {
	port int
	err  error
}

func (e *unreached) Error() string { return e.err.Error() }
func (e *unreached) Unwrap() error { return e.err }

// dial connects to a port inside. A sandbox that fell asleep meanwhile is woken,
// and a server that does not answer yet is awaited: callers never see it boot.
func (h *Hub) dial(ctx context.Context, b *box, port int) (net.Conn, error) {
	deadline := time.Now().Add(bootWait)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		c, err := h.dialOnce(ctx, b.id, port)
		switch {
		case err == nil:
			return c, nil
		case errors.Is(err, sandbox.ErrState):
			if err := h.awake(ctx, b, h.cfg.WakeWait); err != nil {
				return nil, &unreached{port, err}
			}
		case port != 0 || errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, sandbox.ErrUnsupported) || errors.Is(err, sandbox.ErrClosed):
			return nil, &unreached{port, err}
		}
		if time.Now().After(deadline) {
			return nil, &unreached{port, err}
		}
		select {
		case <-ctx.Done():
			return nil, &unreached{port, context.Cause(ctx)}
		case <-time.After(pause):
		}
	}
}

func (h *Hub) dialOnce(ctx context.Context, id string, port int) (net.Conn, error) {
	ep, err := h.cfg.Provider.Endpoint(ctx, id, port)
	if err != nil {
		return nil, err
	}
	return ep.Dial(ctx)
}

// broken answers a request that did not get through.
func (h *Hub) broken(w http.ResponseWriter, r *http.Request, err error) {
	t := r.Context().Value(tripKey{}).(*trip)
	if r.Context().Err() != nil {
		w.WriteHeader(499) // nobody is there to read more
		return
	}
	missed, unsent := errors.AsType[*unreached](err)
	switch {
	case unsent && missed.port != 0:
		h.answer(w, r, http.StatusBadGateway, 0, fmt.Sprintf("nothing answers on port %d in sandbox %q: %v; start the service and have it listen on that port", missed.port, t.name, missed.err))
		return
	case unsent:
		err = h.unreachable(t.name, missed.err)
	default:
		if _, gone := h.cfg.Provider.Get(r.Context(), t.sb.ID); errors.Is(gone, sandbox.ErrNotFound) {
			err = noSandbox(t.name)
		}
	}
	if e, ok := op.AsError(err); ok {
		h.refuse(w, r, e)
		return
	}
	h.cfg.Log.Warn("request into a sandbox failed", "sandbox", t.sb.ID, "error", err)
	if unsent {
		h.answer(w, r, http.StatusServiceUnavailable, retrySoon, fmt.Sprintf("the server of sandbox %q does not answer; see its logs, or stop and start it", t.name))
		return
	}
	what := "broke off the connection"
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		what = "gave an answer that cannot be passed on: " + err.Error()
	}
	h.answer(w, r, http.StatusBadGateway, 0, fmt.Sprintf("the server of sandbox %q %s", t.name, what))
}
