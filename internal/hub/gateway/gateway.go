// Package gateway forwards requests, WebSockets and streams to a sandbox's server or one of its
// ports, and wakes a sandbox that sleeps.
//
// A pure function, policy.decide, turns a request into a decision; Gateway carries it out. The
// package owns no state. Package auth authenticates callers before, and package fleet knows which
// sandboxes a caller may use.
package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth/origin"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/page"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

const (
	// bufferSize is the size of a copy buffer.
	bufferSize = 64 << 10
	// headerPort selects a port of the sandbox; Cove's own server forwards to it.
	headerPort = "X-Aio-Proxy-Port"
)

// Provider is the part of a provider that the gateway uses.
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
	// LastActive is the time at which a sandbox was last used.
	LastActive(sandbox.Sandbox) time.Time
}

// Config of a Gateway.
type Config struct {
	Provider Provider
	Fleet    Fleet
	// WhileValid returns a context that ends when the caller's credentials become invalid.
	WhileValid func(context.Context) (_ context.Context, done func())
	// Domains are the domains under which sandboxes and their ports have host names. PublicHosts
	// are other host names of the hub, which can be under such a domain.
	Domains     naming.Domains
	PublicHosts []string
	// Tokens are the tokens of sandboxes, for E2B clients; nil: none.
	Tokens *token.Signer
	// PublicPorts opens the ports of sandboxes to all clients that know their E2B host names.
	PublicPorts bool
	// Shares reports whether the hub has links to sandboxes.
	Shares bool
	// Sessions starts sessions on sites; nil: sites have no sessions.
	Sessions Sessions
	// WakeWait is how long a request waits until a sandbox is awake; PageWait applies instead if
	// a browser shows the reply to a person.
	WakeWait, PageWait time.Duration
	Tracer             *span.Tracer
	Log                *slog.Logger
}

// Gateway forwards requests into sandboxes.
type Gateway struct {
	Config
	policy policy
	proxy  *httputil.ReverseProxy
}

// New returns a gateway.
func New(cfg Config) *Gateway {
	g := &Gateway{Config: cfg, policy: policy{domains: cfg.Domains, publicHosts: cfg.PublicHosts,
		sessions: cfg.Sessions != nil, wakeWait: cfg.WakeWait, pageWait: cfg.PageWait}}
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

// OpName is the name of the operation that forwards into sandboxes.
const OpName = "sandbox_proxy"

// Op is the operation that forwards into sandboxes.
func (g *Gateway) Op() op.Op {
	return op.Handle(op.Spec{Name: OpName, Access: op.AccessSafe, Content: op.ContentSite,
		Route: "/sandbox/{name}/{path...}", Also: []string{"/sandbox/{name}"}, Tag: "reach",
		Doc: "Forwards to the sandbox's server, including WebSockets and streams. Requests under proxy/{port} go to " +
			"that port of the sandbox. Wakes a sleeping sandbox, unless the query has wake=false, or a browser visits a page of a stopped one."}, g)
}

// finder looks up what decisions depend on.
type finder struct {
	gateway *Gateway
	ctx     context.Context
}

func (f finder) Find(name string) (sandbox.Sandbox, error) { return f.gateway.Fleet.Find(f.ctx, name) }

func (f finder) Abilities() sandbox.Abilities { return f.gateway.Provider.Abilities() }

func (f finder) FindSigned(l token.Link) (id string, ok bool) {
	if f.gateway.Tokens == nil {
		return "", false
	}
	list, err := f.gateway.Provider.List(f.ctx, sandbox.Filter{})
	if err != nil {
		return "", false
	}
	ids := make([]string, len(list))
	for i, sb := range list {
		ids[i] = sb.ID
	}
	return f.gateway.Tokens.FindSigned(ids, l, time.Now())
}

// Front receives authenticated requests before they are routed by path. It passes those for a
// sandbox to Op, under a path that the router does not clean: double slashes, dots and escapes
// have a meaning for the server inside.
func (g *Gateway) Front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Tracer != nil {
			r = r.WithContext(span.Extract(r.Context(), r.Header))
		}
		d := g.policy.locate(newRequest(r), finder{g, r.Context()})
		switch d.action {
		case serveHub:
		case forward:
			u := *r.URL
			u.Path, u.RawPath = naming.Path(d.target.name)+"/", ""
			if d.target.path == "" {
				u.Path = naming.Path(d.target.name)
			}
			r = r.WithContext(context.WithValue(r.Context(), targetKey{}, d.target))
			r.URL = &u
		default:
			g.execute(w, r, d)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ServeHTTP serves Op.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.execute(w, r, g.policy.decide(newRequest(r), finder{g, r.Context()}))
}

// execute carries out a decision.
func (g *Gateway) execute(w http.ResponseWriter, r *http.Request, d decision) {
	switch d.action {
	case forward:
		g.forward(w, r, d)
	case describe:
		g.describe(w, r, d)
	case offerStart:
		page.WriteStart(w, r, d.sandbox, pageURL(r, true))
	case confirmHealth:
		w.WriteHeader(http.StatusNoContent)
	case redirectFolder:
		to := d.location
		if r.URL.RawQuery != "" {
			to += "?" + r.URL.RawQuery
		}
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusPermanentRedirect)
	case redirectHub, redirectOrigin:
		query := r.URL.RawQuery
		if d.session.Name != "" {
			ticket, err := g.Sessions.IssueFor(r.Context(), d.session.Key())
			if err != nil {
				g.refuse(w, r, op.Errorf(op.Exhausted, "open sandbox %q: %w", d.target.name, err))
				return
			}
			query = strings.TrimPrefix(query+"&ticket="+ticket, "&")
		}
		origin.Redirect(w, d.location, query)
	case redirectPass:
		origin.Redirect(w, d.location+g.Sessions.Pass(r.Context(), d.session.Key())+d.path, r.URL.RawQuery)
	case reject:
		g.reject(w, r, d)
	case serveHub: // Front and decide never leave this to execute.
	}
}

// reject replies to a request that the gateway does not forward.
func (g *Gateway) reject(w http.ResponseWriter, r *http.Request, d decision) {
	switch {
	case d.status != 0 && d.e2b:
		rejectE2B(w, r, d.target.name, d.status, d.reason.Error())
	case d.status != 0:
		page.Write(w, r, d.status, 0, d.reason.Error())
	case d.e2b:
		g.fail(w, r, d.target, d.reason)
	default:
		g.refuse(w, r, d.reason)
	}
}

// fail replies with an error, in the form that the caller expects.
func (g *Gateway) fail(w http.ResponseWriter, r *http.Request, to target, err error) {
	e, ok := op.AsError(err)
	if !to.e2b || !ok {
		g.refuse(w, r, err)
		return
	}
	op.CallOf(r.Context()).Code = e.Code
	status, message := e2bReply(e)
	rejectE2B(w, r, to.name, status, message)
}

func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, err error) {
	page.WriteError(w, r, err, g.Log)
}
