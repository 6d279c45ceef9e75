// Package mcp connects tools and the Model Context Protocol, in both directions.
// Handler serves a program's tools, resources and prompts over streamable HTTP, and
// those of other servers that are mounted into it. Sessions calls the tools of other
// servers.
//
// The package owns all that is particular to the protocol: its versions and sessions,
// resumption, cancellation and progress. What a tool is, and how its result reads, is
// up to package toolset.
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
)

const (
	// maxBody is the default limit for a request to a server, and for a tool result
	// from one.
	maxBody = 64 << 20
	// closeWait bounds the end of all sessions.
	closeWait = 5 * time.Second
	// maxSessions is how many sessions may be open, maxOwnSessions how many of one owner.
	maxSessions    = 1000
	maxOwnSessions = 100
)

// Config of a Handler.
type Config struct {
	Name         string
	Version      string
	Instructions string // for the agent: which tool to use for what

	// Tools returns the tools to serve. It is called at the first request, since the
	// table of a program contains this handler, too.
	Tools func() []toolset.Tool
	// Ops is Tools for a program whose tools are its operations as they are.
	// Operations without a Call, or with NoTool, are left out.
	Ops func() []op.Op

	// Visible reports whether a caller sees a tool; nil: all do.
	Visible func(*op.Call, toolset.Tool) bool
	// Fixed returns which tools a caller has, in the form of the query of a request
	// ("tools=a,b"); empty: the caller decides.
	Fixed func(*op.Call) string

	// Around wraps every call: it can refuse, record or trace it. It must return
	// the error of run, or one of its own. size is the length of the arguments in
	// bytes. By default, run is called directly.
	Around func(ctx context.Context, o op.Op, size int, run func(context.Context) error) error

	// Store stores results that are too long for a model; nil: they are cut.
	Store toolset.Store
	// Files are offered as resources; nil: none.
	Files toolset.Files
	// Skills are offered as prompts and resources; nil: none.
	Skills toolset.Skills
	// Resources are offered beside them; nil: none.
	Resources toolset.Resources
	// Guide is a text about the program for agents, offered as the resource llms.txt.
	Guide func(context.Context) (string, error)

	Log     *slog.Logger
	Idle    time.Duration // how long an unused session is kept; default 30 minutes
	MaxBody int64         // default 64 MiB
	// MaxSessions is how many sessions may be open, default 1000; MaxOwnSessions how many of
	// one subject, default 100. Callers without a subject have only the first limit.
	MaxSessions, MaxOwnSessions int
}

// Handler serves tools. It builds the protocol's machinery at the first request: a
// program that serves no tools should not pay for it.
type Handler struct {
	Config
	build func() *engine
	life  context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup

	bodies bodies
	seats  *seats
	mu     sync.Mutex
	engine *engine // nil before the first request
	mounts map[string]*mount
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
	h := &Handler{Config: c, mounts: map[string]*mount{}, seats: newSeats(cmp.Or(c.MaxSessions, maxSessions),
		cmp.Or(c.MaxOwnSessions, maxOwnSessions))}
	h.life, h.stop = context.WithCancel(context.Background())
	h.build = sync.OnceValue(h.newEngine)
	return h
}

// FromOps makes tools of operations as they are. Operations without a Call, or with
// NoTool, are left out.
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

// Close ends all sessions, and with them the calls that they started. It is idempotent.
func (h *Handler) Close() error {
	h.stop()
	h.mu.Lock()
	var mounts []*mount
	for _, m := range h.mounts {
		if m.e != nil {
			mounts = append(mounts, m)
		}
	}
	h.mounts = map[string]*mount{}
	h.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, m := range mounts {
			m.close()
		}
		h.work.Wait()
	}()
	select {
	case <-done:
	case <-time.After(closeWait): // another server, or a client, may never answer
		h.Log.Warn("an MCP connection did not end in time")
	}
	return nil
}

// engine is what the first request builds.
type engine struct {
	h        *Handler
	set      *toolset.Set
	routes   *strings.Replacer // routes to names of tools
	server   *mcp.Server
	sessions http.Handler // for clients that open a session
	streams  http.Handler // for requests that are complete in themselves, answered as a stream
	single   http.Handler // the same, answered with JSON

	mu      sync.Mutex
	watched map[string]*watched // resources that clients subscribed to, by URI
	mounted map[string]string   // tools of other servers, each with its server
}

func (h *Handler) newEngine() *engine {
	e := &engine{h: h, set: toolset.NewSet(h.Tools()), watched: map[string]*watched{}, mounted: map[string]string{}}
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
		// The authentication in front checks hosts and origins for all routes.
		DisableLocalhostProtection: true,
	}
	stateful, stateless := options, options
	stateful.EventStore = newEvents()
	stateless.Stateless = true
	lone := stateless
	lone.JSONResponse = true
	e.sessions = bindSessions(mcp.NewStreamableHTTPHandler(get, &stateful))
	e.streams = mcp.NewStreamableHTTPHandler(get, &stateless)
	e.single = mcp.NewStreamableHTTPHandler(get, &lone)
	context.AfterFunc(h.life, func() {
		for s := range e.server.Sessions() {
			go s.Close()
		}
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.engine = e
	for _, m := range h.mounts {
		m.begin(e)
	}
	return e
}

func (h *Handler) serverOptions(e *engine) *mcp.ServerOptions {
	return &mcp.ServerOptions{
		Instructions:       h.Instructions,
		PageSize:           1000,
		SubscribeHandler:   func(ctx context.Context, r *mcp.SubscribeRequest) error { return h.subscribe(ctx, e, r) },
		UnsubscribeHandler: func(ctx context.Context, r *mcp.UnsubscribeRequest) error { return h.unsubscribe(e, r) },
		CompletionHandler:  h.complete,
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

// describe makes a tool one of the protocol.
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
