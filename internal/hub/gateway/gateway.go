// Package gateway is the way into sandboxes: it forwards requests, WebSockets and
// streams to a sandbox's server or one of its ports, and wakes a sandbox that sleeps.
//
// It owns no state. Who may come in is decided in front of it, which sandboxes a
// caller has by package fleet.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/audit"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/page"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

const (
	// bufferSize is the size of a copy buffer.
	bufferSize = 64 << 10
	// headerPort asks Cove's own server for a port inside.
	headerPort = "X-Aio-Proxy-Port"
)

// Provider is what the gateway needs of a provider.
type Provider interface {
	Abilities() sandbox.Abilities
	Get(ctx context.Context, id string) (sandbox.Sandbox, error)
	List(ctx context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error)
}

// Fleet finds and wakes sandboxes.
type Fleet interface {
	Find(ctx context.Context, name string) (sandbox.Sandbox, error)
	Enter(ctx context.Context, sb sandbox.Sandbox, patience time.Duration) (*fleet.Box, error)
	Visit(ctx context.Context, sb sandbox.Sandbox) (*fleet.Box, error)
}

// Config of a Gateway.
type Config struct {
	Provider Provider
	Fleet    Fleet
	// WhileValid returns a context that ends with the caller's credentials.
	WhileValid func(context.Context) (_ context.Context, done func())
	// Domains are the names below which sandboxes and their ports have host names,
	// PublicHosts further names of the hub, which can be below a domain.
	Domains     naming.Domains
	PublicHosts []string
	// Tokens are those of sandboxes, for E2B's clients; nil: there are none.
	Tokens *token.Signer
	// PublicPorts opens the ports of sandboxes to everybody who knows their E2B host names.
	PublicPorts bool
	// Sessions starts sessions on sites; nil: there are none to start.
	Sessions Sessions
	// WakeWait is how long a request waits for a sleeping sandbox, PageWait how long
	// a person looks at a blank page.
	WakeWait, PageWait time.Duration
	Tracer             *span.Tracer
	Log                *slog.Logger
}

// Gateway forwards requests into sandboxes.
type Gateway struct {
	Config
	proxy *httputil.ReverseProxy
}

// New returns a gateway.
func New(cfg Config) *Gateway {
	g := &Gateway{Config: cfg}
	g.proxy = &httputil.ReverseProxy{
		Rewrite:        rewriteRequest,
		ModifyResponse: rewriteResponse,
		Transport:      transport{},
		FlushInterval:  -1,
		BufferPool:     &buffers{},
		ErrorHandler:   g.handleError,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return g
}

// OpName is the name of the operation that leads into sandboxes.
const OpName = "sandbox_proxy"

// Op is the operation that leads into sandboxes.
func (g *Gateway) Op() op.Op {
	return op.Handle(op.Spec{Name: OpName, Access: op.AccessSafe, Content: op.ContentSite,
		Route: "/sandbox/{name}/{path...}", Also: []string{"/sandbox/{name}"}, Tag: "reach",
		Doc: "Forwards to the sandbox's own server, WebSockets and streams included, and below proxy/{port} to a " +
			"service inside. Wakes a sleeping sandbox."}, g)
}

// trip is one request on its way into a sandbox.
type trip struct {
	route
	box  *fleet.Box
	sb   sandbox.Sandbox
	base *url.URL // the hub as the caller reaches it; never nil

	status int // of the sandbox's response
}

type tripKey struct{}

func tripOf(ctx context.Context) *trip { return ctx.Value(tripKey{}).(*trip) }

// transport sends a request to the sandbox of its trip.
type transport struct{}

func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return tripOf(r.Context()).box.RoundTrip(r)
}

type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// ServeHTTP forwards a request to the sandbox it is for.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to, ok := routeOf(r)
	if r.Method == http.MethodConnect {
		page.Write(w, r, http.StatusMethodNotAllowed, 0, "this is not a forward proxy")
		return
	}
	if !ok {
		g.refuse(w, r, fault.NoSandbox(r.PathValue("name")))
		return
	}
	ctx := r.Context()
	sb, err := g.Fleet.Find(ctx, to.name)
	if err != nil {
		g.fail(w, r, to, err)
		return
	}
	if to.client && g.serveClient(w, r, to, sb) {
		return
	}
	if share := op.CallOf(ctx).Share; share != nil && share.Port != 0 {
		// The port is addressed as such, so that no path leads anywhere else.
		if to = to.toPort(); to.port != share.Port {
			g.refuse(w, r, fault.NoSandbox(to.name))
			return
		}
	}
	if g.isolate(w, r, to, sb) {
		return
	}
	base := baseOf(r)
	if to.path == "" && !to.byHost {
		redirectToFolder(w, r, base, to)
		return
	}
	if !fleet.IsNative(sb) {
		to = to.toPort()
		if able := g.Provider.Abilities(); to.port != 0 && !able.AnyPort {
			g.refuse(w, r, op.Errorf(op.Invalid, "provider %s reaches only the server of sandbox %q, not its port %d",
				able.Provider, to.name, to.port))
			return
		}
	}
	patience := g.WakeWait
	if page.IsNavigation(r) {
		patience = g.PageWait
	}
	b, leave, err := g.enter(ctx, sb, patience)
	if err != nil {
		g.fail(w, r, to, fleet.Unreachable(to.name, err))
		return
	}
	defer leave()
	// Otherwise a response that begins before the request has ended would wait for it.
	http.NewResponseController(w).EnableFullDuplex()
	t := &trip{route: to, box: b, sb: sb, base: base}
	ctx, over := g.WhileValid(ctx)
	defer over()
	ctx, s := g.Tracer.Start(ctx, OpName, slog.String("http.request.method", r.Method))
	g.proxy.ServeHTTP(w, r.WithContext(context.WithValue(ctx, tripKey{}, t)))
	if s != nil {
		s.Set(append(audit.Attrs(op.CallOf(ctx)), slog.Int("http.response.status_code", t.status))...)
		s.End(span.Status(op.CallOf(ctx).Code))
	}
}

// enter opens the way into a sandbox until leave is called. A caller who may only read
// neither wakes a sandbox nor keeps it awake.
func (g *Gateway) enter(ctx context.Context, sb sandbox.Sandbox, patience time.Duration) (b *fleet.Box, leave func(), err error) {
	if op.CallOf(ctx).Reader {
		b, err = g.Fleet.Visit(ctx, sb)
		return b, func() {}, err
	}
	if b, err = g.Fleet.Enter(ctx, sb, patience); err != nil {
		return nil, nil, err
	}
	return b, b.Leave, nil
}

// redirectToFolder sends a browser to the folder, below which its relative links lead.
func redirectToFolder(w http.ResponseWriter, r *http.Request, base *url.URL, to route) {
	u := base.Path + to.prefix + "/"
	if r.URL.RawQuery != "" {
		u += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", u)
	w.WriteHeader(http.StatusPermanentRedirect)
}

// fail replies with an error, in the form that the caller expects.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, to route, err error) {
	if to.client {
		g.failClient(w, r, to, err)
		return
	}
	g.refuse(w, r, err)
}

func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, err error) {
	page.WriteError(w, r, err, g.Log)
}

// handleError replies to a request that did not get through.
func (g *Gateway) handleError(w http.ResponseWriter, r *http.Request, err error) {
	t := tripOf(r.Context())
	if r.Context().Err() != nil {
		w.WriteHeader(op.StatusCanceled) // nobody is there to read more
		return
	}
	dial, unsent := errors.AsType[*fleet.DialError](err)
	switch {
	case unsent && dial.Port != 0:
		page.Write(w, r, http.StatusBadGateway, 0,
			fmt.Sprintf("nothing listens on port %d in sandbox %q, so the port is not open: %v; start the service "+
				"and have it listen on that port", dial.Port, t.name, dial.Err))
		return
	case unsent:
		err = fleet.Unreachable(t.name, dial.Err)
	default:
		if sb, gone := g.Provider.Get(r.Context(), t.sb.ID); errors.Is(gone, sandbox.ErrNotFound) || sb.State == sandbox.Deleting {
			err = fault.NoSandbox(t.name)
		}
	}
	if e, ok := op.AsError(err); ok {
		g.fail(w, r, t.route, e)
		return
	}
	g.Log.Warn("request into a sandbox failed", "sandbox", t.sb.ID, "error", err)
	if unsent {
		page.Write(w, r, http.StatusServiceUnavailable, fault.RetrySoon,
			fmt.Sprintf("the server of sandbox %q does not answer; read its logs, or stop and start it", t.name))
		return
	}
	what := "closed the connection"
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		what = "sent an invalid response: " + err.Error()
	}
	page.Write(w, r, http.StatusBadGateway, 0, fmt.Sprintf("the server of sandbox %q %s", t.name, what))
}
