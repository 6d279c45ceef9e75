// Package upstream is the client side of the Model Context Protocol. Servers offers the tools,
// prompts and resources of other servers as if they were ours, and forwards requests to them.
// Sessions calls tools of other servers by name.
package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// listWait is how long a list waits for servers that are connecting.
const listWait = 10 * time.Second

// Config configures Servers.
type Config struct {
	Name    string // of this program, as other servers see it
	Version string
	// Reserved reports whether a name belongs to a feature of the program itself.
	Reserved func(kind Kind, name string) bool
	// Identify returns who sent a request. Only the same caller may continue it; nil: all are the same.
	Identify func(*mcp.RequestExtra) string
	// Wrap adds to a forwarded tool what all tools of the program have in common.
	Wrap func(mcp.ToolHandler) mcp.ToolHandler
	// Store stores results that are too long for a model; nil: they are truncated.
	Store toolset.Store
	Log   *slog.Logger
}

// Server is another server, whose tools, prompts and resources are offered too.
type Server struct {
	Name string
	Bare bool // its tools keep their names; otherwise the server's name is their prefix

	// Start starts the server as a process that speaks over standard input and
	// output; stop ends it. Nil: the server is reached at URL.
	Start func(ctx context.Context) (out io.ReadCloser, in io.WriteCloser, stop func(), err error)
	Idle  time.Duration // a process that is unused for that long is stopped; 0: never

	URL    string
	SSE    bool // the transport that preceded streamable HTTP
	Client *http.Client
}

// Status is the state of a Server.
type Status struct {
	Name  string
	State string // connecting, ready, idle or failed
	Why   string // why it failed
	Tools []string
}

// Servers connects other servers and offers what they have. It owns their processes and
// connections.
type Servers struct {
	cfg  Config
	life context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	local  *mcp.Server // offers the features; nil before Begin
	mounts map[string]*mount

	owners  owners
	parking parking
}

// New returns an empty list of servers; it starts nothing.
func New(c Config) *Servers {
	s := &Servers{cfg: c, mounts: map[string]*mount{}, owners: owners{by: map[feature]*mount{}},
		parking: parking{byState: map[string]*parked{}}}
	s.life, s.stop = context.WithCancel(context.Background())
	return s
}

// Begin connects all servers in the background and offers their features through local.
func (s *Servers) Begin(local *mcp.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.local = local
	for _, m := range s.mounts {
		m.begin()
	}
}

// Mount adds a server. It replaces one of the same name. The server is connected in the
// background, but not before Begin.
func (s *Servers) Mount(server Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.newMount(server)
	m.before = s.remove(server.Name)
	s.mounts[server.Name] = m
	if s.local != nil {
		m.begin()
	}
}

// Unmount removes a server and ends its process.
func (s *Servers) Unmount(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(name)
}

// remove removes a server, and returns it if it may still offer something. Servers whose names it
// used offer them then. mu is held.
func (s *Servers) remove(name string) *mount {
	m := s.mounts[name]
	if m == nil {
		return nil
	}
	delete(s.mounts, name)
	m.stop()
	if s.local == nil {
		return nil
	}
	s.work.Go(func() {
		m.close()
		for _, other := range s.all() {
			other.refreshSoon()
		}
	})
	return m
}

// Close ends all connections and processes, and waits for them. It is idempotent.
func (s *Servers) Close() {
	s.stop()
	s.mu.Lock()
	var begun []*mount
	if s.local != nil {
		begun = slices.Collect(maps.Values(s.mounts))
	}
	s.mounts = map[string]*mount{}
	s.mu.Unlock()
	for _, m := range begun {
		m.close()
	}
	s.work.Wait()
	s.parking.clear()
}

// all returns the servers, sorted by name.
func (s *Servers) all() []*mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.mounts), func(a, b *mount) int { return strings.Compare(a.Name, b.Name) })
}

// Await waits until every server was tried once, for at most listWait.
func (s *Servers) Await(ctx context.Context) {
	all := s.all()
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	for _, m := range all {
		select {
		case <-m.settled:
		case <-ctx.Done():
			return
		}
	}
}

// Status returns the states of all servers, sorted by name, after Await.
func (s *Servers) Status(ctx context.Context) []Status {
	s.Await(ctx)
	var out []Status
	for _, m := range s.all() {
		m.mu.Lock()
		out = append(out, Status{Name: m.Name, State: m.state, Why: m.why, Tools: slices.Sorted(maps.Keys(m.tools.byName))})
		m.mu.Unlock()
	}
	return out
}

// Owner returns the server that offers a tool; empty: none does.
func (s *Servers) Owner(tool string) string {
	if m := s.owners.of(Tool, tool); m != nil {
		return m.Name
	}
	return ""
}

// Tools returns the tools of a server, or of all servers if name is empty. A server that
// failed before its tools were listed is an error.
func (s *Servers) Tools(name string) ([]*mcp.Tool, error) {
	var all []*mcp.Tool
	for _, m := range s.all() {
		if name != "" && name != m.Name {
			continue
		}
		m.mu.Lock()
		state, why := m.state, m.why
		for tool, t := range m.tools.byName {
			offered := *t
			offered.Name = tool
			all = append(all, &offered)
		}
		m.mu.Unlock()
		if state == "failed" && name == m.Name && len(all) == 0 {
			return nil, op.Errorf(op.Unavailable, "the MCP server %q does not work: %s", name, why)
		}
	}
	return all, nil
}

// Call calls a tool for a caller that is not an MCP client. Questions of the server are
// refused, because the caller cannot answer them.
func (s *Servers) Call(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
	m := s.owners.of(Tool, tool)
	if m == nil {
		return nil, op.Errorf(op.NotFound, "no MCP server has the tool %q; list tools with GET /v1/mcp/all/tools", tool)
	}
	m.mu.Lock()
	t := m.tools.byName[tool]
	m.mu.Unlock()
	if t == nil { // it is being added or removed
		return nil, op.Errorf(op.NotFound, "server %q has no tool %q; list its tools with GET /v1/mcp/%s/tools", m.Name, tool, m.Name)
	}
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage(`{}`)
	}
	result, err := forward(m, ctx, client{}, round{}, func(ctx context.Context, l *link, meta mcp.Meta, _ round) (*mcp.CallToolResult, error) {
		return l.conn.CallTool(ctx, &mcp.CallToolParams{Meta: meta, Name: t.Name, Arguments: args})
	})
	if refused, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return failed(refused.Message), nil
	}
	if err != nil {
		return nil, err
	}
	if result.NeedsInput() {
		return failed(fmt.Sprintf("the tool %q requires answers from a user; call it with an MCP client", tool)), nil
	}
	return s.bound(tool, result), nil
}

func failed(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}
