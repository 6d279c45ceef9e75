package hub

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/span"
)

const (
	// maxGuests bounds the sessions that are kept open to sandboxes.
	maxGuests = 256
	// guestIdle is how long an unused one is kept.
	guestIdle = 10 * time.Minute
	// guestHello bounds the handshake.
	guestHello = 30 * time.Second
	// maxPages and maxListing bound what a sandbox may go on listing.
	maxPages   = 16
	maxListing = 4 << 20
)

// limitKey carries how large a reply may be.
type limitKey struct{}

// guests keeps the hub's own sessions with the sandboxes' tools.
type guests struct {
	hub *Hub

	mu     sync.Mutex
	closed bool
	byID   map[string]*guest
}

// guest is the session with one sandbox, or the making of it.
type guest struct {
	ready   chan struct{} // closed when session or err is set
	session *mcp.ClientSession
	err     error
	used    time.Time
	busy    int
}

// within runs f with a session to the sandbox, which is awake meanwhile. A
// session that the sandbox no longer knows, since it was started anew, is
// replaced, and f is run once more: then nothing had come of the first time.
func (g *guests) within(ctx context.Context, sb sandbox.Sandbox, f func(*mcp.ClientSession) error) error {
	name := sb.Spec.Name
	b, err := g.hub.enter(ctx, sb, g.hub.cfg.WakeWait)
	if err != nil {
		return g.hub.unreachable(name, err)
	}
	defer b.leave()
	for again := true; ; again = false {
		s, err := g.join(ctx, b)
		if err == nil {
			if err = f(s.session); err == nil {
				g.part(b.id, s, true)
				return nil
			}
			g.part(b.id, s, healthy(err))
		}
		switch {
		case ctx.Err() != nil:
			return op.Errorf(op.Canceled, "nobody waits for sandbox %q any more: %w", name, context.Cause(ctx))
		case again && errors.Is(err, mcp.ErrSessionMissing):
		default:
			return g.explain(name, err)
		}
	}
}

// healthy tells whether a session can be used again after an error: the server
// has answered, if only to refuse.
func healthy(err error) bool {
	_, refused := errors.AsType[*jsonrpc.Error](err)
	return refused
}

func (g *guests) explain(name string, err error) error {
	if missed, ok := errors.AsType[*unreached](err); ok {
		return g.hub.unreachable(name, missed.err)
	}
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return op.Errorf(op.Invalid, "sandbox %q refused the call: %s; getSandbox lists its tools", name, e.Message)
	}
	return op.Errorf(op.Unavailable, "the tools of sandbox %q cannot be reached: %w", name, err)
}

// join returns a living session, which it opens if need be.
func (g *guests) join(ctx context.Context, b *box) (*guest, error) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, sandbox.ErrClosed
	}
	s, ok := g.byID[b.id]
	if !ok {
		s = &guest{ready: make(chan struct{})}
		g.byID[b.id] = s
		g.evict()
		if !g.hub.background(func(life context.Context) { g.open(life, b, s) }) {
			delete(g.byID, b.id)
			g.mu.Unlock()
			return nil, sandbox.ErrClosed
		}
	}
	s.busy++
	s.used = time.Now()
	g.mu.Unlock()
	select {
	case <-s.ready:
	case <-ctx.Done():
		g.part(b.id, s, true)
		return nil, context.Cause(ctx)
	}
	if s.err != nil {
		g.part(b.id, s, false)
		return nil, s.err
	}
	return s, nil
}

// open makes the session. It is nobody's in particular, so no caller's leaving ends it.
func (g *guests) open(life context.Context, b *box, s *guest) {
	defer close(s.ready)
	ctx, cancel := context.WithTimeout(context.WithValue(life, limitKey{}, int64(maxListing)), guestHello)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "cove", Version: g.hub.cfg.Version}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	s.session, s.err = client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint:   "http://" + serverHost + "/mcp",
		HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) { return g.send(b, r) })},
		MaxRetries: -1,
		// Nothing is expected unasked, and an open stream would hold a sandbox awake.
		DisableStandaloneSSE: true,
		MaxEventSize:         maxToolBody,
	}, nil)
}

// send passes a message on and bounds its reply. A goodbye is sent only to a sandbox that is awake,
// and not for long: it must neither wake one nor wait for one.
func (g *guests) send(b *box, r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodDelete {
		span.Inject(r.Context(), r.Header)
		res, err := b.transport.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		limit, ok := r.Context().Value(limitKey{}).(int64)
		if !ok {
			limit = maxToolBody
		}
		// The library reads replies whole, and this one is nobody's we trust.
		res.Body = http.MaxBytesReader(nil, res.Body, limit)
		return res, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	if sb, err := g.hub.cfg.Provider.Get(ctx, b.id); err == nil && sb.State == sandbox.Running && g.hub.life.Err() == nil {
		if res, err := b.transport.RoundTrip(r.WithContext(ctx)); err == nil {
			res.Body.Close()
		}
	}
	return &http.Response{StatusCode: http.StatusNoContent, Proto: r.Proto, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// part ends the use of a session. One that is not well is not used again.
func (g *guests) part(id string, s *guest, well bool) {
	g.mu.Lock()
	s.busy--
	s.used = time.Now()
	if !well && g.byID[id] == s {
		delete(g.byID, id)
	}
	dead := g.byID[id] != s && s.busy == 0
	g.mu.Unlock()
	if dead {
		g.end(s)
	}
}

// end closes a session in the background: its goodbye goes to a sandbox that may
// never answer.
func (g *guests) end(s *guest) {
	if !g.hub.background(func(context.Context) { s.close() }) {
		s.close() // the hub is closing, and sends no goodbyes
	}
}

func (s *guest) close() {
	<-s.ready
	if s.session != nil {
		s.session.Close()
	}
}

// evict lets go of the session that was unused for longest when there are too
// many; g.mu is held.
func (g *guests) evict() {
	if len(g.byID) <= maxGuests {
		return
	}
	oldest := ""
	for id, s := range g.byID {
		if s.busy == 0 && !s.used.IsZero() && (oldest == "" || s.used.Before(g.byID[oldest].used)) {
			oldest = id
		}
	}
	if oldest != "" {
		s := g.byID[oldest]
		delete(g.byID, oldest)
		g.end(s)
	}
}

// forget lets go of the session with a sandbox that is gone.
func (g *guests) forget(id string) {
	g.mu.Lock()
	s, ok := g.byID[id]
	delete(g.byID, id)
	idle := ok && s.busy == 0
	g.mu.Unlock()
	if idle {
		g.end(s)
	}
}

// sweep lets go of sessions that nobody uses.
func (g *guests) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, s := range g.byID {
		if s.busy == 0 && time.Since(s.used) > guestIdle {
			delete(g.byID, id)
			g.end(s)
		}
	}
}

// close refuses new sessions and ends those there are.
func (g *guests) close() {
	g.mu.Lock()
	left := g.byID
	g.byID, g.closed = map[string]*guest{}, true
	g.mu.Unlock()
	for _, s := range left {
		s.close()
	}
}

// list asks a sandbox for its tools.
func (g *guests) list(ctx context.Context, sb sandbox.Sandbox) ([]*mcp.Tool, error) {
	var all []*mcp.Tool
	ctx = context.WithValue(ctx, limitKey{}, int64(maxListing))
	err := g.within(ctx, sb, func(s *mcp.ClientSession) error {
		all = nil
		var p mcp.ListToolsParams
		for range maxPages {
			page, err := s.ListTools(ctx, &p)
			if err != nil {
				return err
			}
			all = append(all, page.Tools...)
			if page.NextCursor == "" {
				break
			}
			p.Cursor = page.NextCursor
		}
		return nil
	})
	return all, err
}

// call calls a tool of a sandbox.
func (g *guests) call(ctx context.Context, sb sandbox.Sandbox, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
	var result *mcp.CallToolResult
	err := g.within(ctx, sb, func(s *mcp.ClientSession) (err error) {
		result, err = s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
		return err
	})
	return result, err
}
