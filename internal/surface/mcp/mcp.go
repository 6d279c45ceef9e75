// Package mcp serves the tools, resources and prompts of a program over the Model Context
// Protocol. It owns what is specific to the protocol: versions, sessions, resumption,
// cancellation and progress. Package toolset defines tools and their results; package
// upstream connects to other servers.
package mcp

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
)

const (
	// maxBody is the default limit of a request.
	maxBody = 64 << 20
	// closeWait bounds the time that Close takes.
	closeWait = 5 * time.Second
	// maxSessions and maxOwnSessions are default limits: of all sessions, and of one owner's.
	maxSessions    = 1000
	maxOwnSessions = 100
)

// Config of a Handler.
type Config struct {
	Name         string
	Version      string
	Instructions string // for the agent: which tool to use for what

	// Tools returns the tools to serve. It is called at the first request, because the
	// program's table of operations contains this handler.
	Tools func() []toolset.Tool
	// Ops replaces Tools in a program that serves its operations as tools. Operations
	// without a Call, or with NoTool, are omitted.
	Ops func() []op.Op

	// Visible reports whether a caller sees a tool; nil: all callers see all tools.
	Visible func(*op.Call, toolset.Tool) bool
	// Fixed returns the tools of a caller in the form of a request's query
	// ("tools=a,b"); empty: the caller decides.
	Fixed func(*op.Call) string
	// FixedBy names the setting that Fixed returns; empty: the key of the caller.
	FixedBy string

	// Around wraps every call. It can refuse, record or trace the call, and returns the
	// error of run or another one. size is the length of the arguments in bytes. By
	// default, run is called directly.
	Around func(ctx context.Context, o op.Op, size int, run func(context.Context) error) error

	// Store stores results that are too long for a model; nil: they are truncated.
	Store toolset.Store
	// Files are offered as resources; nil: none.
	Files toolset.Files
	// Skills are offered as prompts and resources; nil: none.
	Skills toolset.Skills
	// Resources are additional resources; nil: none.
	Resources toolset.Resources
	// Guide describes the program to agents. It is offered as the resource llms.txt.
	Guide func(context.Context) (string, error)

	Log     *slog.Logger
	Idle    time.Duration // an unused session is closed after that time; default 30 minutes
	MaxBody int64         // default 64 MiB
	// MaxSessions limits all open sessions, default 1000; MaxOwnSessions those of one subject,
	// default 100. Only the first limit applies to callers without a subject.
	MaxSessions, MaxOwnSessions int
}

// Handler serves tools. It builds its engine at the first request, so that a program without
// MCP clients does not pay for it.
type Handler struct {
	Config
	build func() *engine
	life  context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup

	bodies    bodies
	seats     *seats
	upstreams *upstream.Servers
}

// New returns the handler; it starts nothing.
func New(c Config) *Handler {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Around == nil {
		c.Around = func(ctx context.Context, _ op.Op, _ int, run func(context.Context) error) error { return run(ctx) }
	}
	if c.Idle == 0 {
		c.Idle = 30 * time.Minute
	}
	if c.MaxBody == 0 {
		c.MaxBody = maxBody
	}
	if c.Tools == nil {
		c.Tools = func() []toolset.Tool { return FromOps(c.Ops()) }
	}
	h := &Handler{Config: c, seats: newSeats(cmp.Or(c.MaxSessions, maxSessions), cmp.Or(c.MaxOwnSessions, maxOwnSessions))}
	h.life, h.stop = context.WithCancel(context.Background())
	h.build = sync.OnceValue(h.newEngine)
	h.upstreams = upstream.New(upstream.Config{Name: c.Name, Version: c.Version, Log: c.Log, Store: c.Store,
		Reserved: h.reserves, Wrap: h.wrapForwarded, Identify: func(extra *mcp.RequestExtra) string {
			_, call := receiveCall(context.Background(), extra)
			return callerID(call)
		}})
	return h
}

// FromOps returns operations as tools. Operations without a Call, or with NoTool, are
// omitted.
func FromOps(ops []op.Op) []toolset.Tool {
	var all []toolset.Tool
	for _, o := range ops {
		if o.Call != nil && !o.NoTool {
			t := toolset.FromOp(o)
			t.Core = true
			all = append(all, t)
		}
	}
	return all
}

// Close ends all sessions, their calls and the connections to other servers. It is
// idempotent.
func (h *Handler) Close() error {
	h.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.upstreams.Close()
		h.work.Wait()
	}()
	select {
	case <-done:
	case <-time.After(closeWait): // a server or a client may never answer
		h.Log.Warn("MCP connection did not end in time")
	}
	return nil
}

// engine is the state that the first request builds.
type engine struct {
	h        *Handler
	set      *toolset.Set
	routes   *strings.Replacer // routes to names of tools
	server   *mcp.Server
	sessions http.Handler // for clients that open a session
	streams  http.Handler // for requests without a session, answered as a stream
	single   http.Handler // the same, answered with JSON

	mu      sync.Mutex
	watched map[string]*watched // resources that clients subscribed to, by URI
}

func (h *Handler) newEngine() *engine {
	e := &engine{h: h, set: toolset.NewSet(h.Tools()), watched: map[string]*watched{}}
	e.routes = routeNames(e.set)
	e.server = mcp.NewServer(&mcp.Implementation{Name: h.Name, Version: h.Version}, h.serverOptions(e))
	for _, t := range e.set.Tools {
		e.server.AddTool(describe(t), h.handle(e, t))
	}
	h.addResources(e)
	e.server.AddReceivingMiddleware(h.middleware(e))
	get := func(*http.Request) *mcp.Server { return e.server }
	options := mcp.StreamableHTTPOptions{
		SessionTimeout:               h.Idle,
		MaxRequestBodyBytes:          h.MaxBody,
		PropagateRequestCancellation: true,
		// Authentication checks hosts and origins of all routes.
		DisableLocalhostProtection: true,
	}
	stateful, stateless := options, options
	stateful.EventStore = newEvents()
	stateless.Stateless = true
	single := stateless
	single.JSONResponse = true
	e.sessions = bindSessions(mcp.NewStreamableHTTPHandler(get, &stateful))
	e.streams = mcp.NewStreamableHTTPHandler(get, &stateless)
	e.single = mcp.NewStreamableHTTPHandler(get, &single)
	context.AfterFunc(h.life, func() {
		for s := range e.server.Sessions() {
			go s.Close()
		}
	})
	h.upstreams.Begin(e.server)
	return e
}

func (h *Handler) serverOptions(e *engine) *mcp.ServerOptions {
	return &mcp.ServerOptions{
		Instructions:       h.Instructions,
		PageSize:           1000,
		SubscribeHandler:   func(ctx context.Context, r *mcp.SubscribeRequest) error { return h.subscribe(ctx, e, r) },
		UnsubscribeHandler: func(ctx context.Context, r *mcp.UnsubscribeRequest) error { return h.unsubscribe(e, r) },
		CompletionHandler:  h.upstreams.Complete,
		Capabilities: &mcp.ServerCapabilities{
			Logging:   &mcp.LoggingCapabilities{},
			Tools:     &mcp.ToolCapabilities{ListChanged: true},
			Resources: &mcp.ResourceCapabilities{ListChanged: true, Subscribe: true},
			Prompts:   &mcp.PromptCapabilities{ListChanged: true},
		},
	}
}

// List describes the tools that a query selects, as agents see them.
func (h *Handler) List(query string) []*mcp.Tool {
	e := h.build()
	f := parseFilter(query)
	var all []*mcp.Tool
	for _, t := range e.set.Tools {
		if f.lists(t) {
			all = append(all, describe(t))
		}
	}
	return all
}

// describe returns a tool as the protocol describes it.
func describe(t toolset.Tool) *mcp.Tool {
	d := &mcp.Tool{
		Name: t.Name, Title: t.Title, Description: t.Doc, InputSchema: t.Input(),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: t.ReadOnly(), DestructiveHint: new(t.Destructive()), OpenWorldHint: new(t.World)},
	}
	if s := t.Output(); s != nil {
		d.OutputSchema = s
	}
	return d
}

// Serve serves one session over a pair of streams, such as standard input and output,
// until the input ends. query selects the tools, as in the address of the server.
func (h *Handler) Serve(ctx context.Context, in io.ReadCloser, out io.WriteCloser, query string) error {
	e := h.build()
	ctx = context.WithValue(ctx, queryKey{}, query)
	return e.server.Run(ctx, &mcp.IOTransport{Reader: in, Writer: out})
}

type queryKey struct{}
