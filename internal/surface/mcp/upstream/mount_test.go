package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// own is the name and the URI path of the features of the program itself.
const own = "own"

// rig is a list of servers, and a client of the program that offers their features.
type rig struct {
	*Servers
	client *mcp.ClientSession
}

func newRig(t *testing.T) *rig {
	t.Helper()
	local := mcp.NewServer(&mcp.Implementation{Name: "local", Version: "1"}, nil)
	addFeatures(local, "program", own)
	s := New(Config{Name: "local", Version: "1", Log: slog.New(slog.DiscardHandler),
		Wrap: func(h mcp.ToolHandler) mcp.ToolHandler { return h },
		Reserved: func(_ Kind, name string) bool {
			return strings.HasSuffix(name, own) || strings.HasSuffix(name, own+"/{x}")
		}})
	s.Begin(local)
	here, there := mcp.NewInMemoryTransports()
	if _, err := local.Connect(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), here,
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return &rig{s, c}
}

// addFeatures adds a tool, a prompt, a resource and a template of each name, which return who.
func addFeatures(s *mcp.Server, who string, names ...string) {
	for _, name := range names {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: map[string]any{"type": "object"}},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: who}}}, nil
			})
		s.AddPrompt(&mcp.Prompt{Name: name}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return &mcp.GetPromptResult{Description: who}, nil
		})
		read := func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: who}}}, nil
		}
		s.AddResource(&mcp.Resource{Name: name, URI: "test://" + name}, read)
		s.AddResourceTemplate(&mcp.ResourceTemplate{Name: name, URITemplate: "test://" + name + "/{x}"}, read)
	}
}

// newServer returns a server with features, and its address.
func newServer(t *testing.T, name string, features ...string) (*mcp.Server, Server) {
	t.Helper()
	s := mcp.NewServer(&mcp.Implementation{Name: name, Version: "1"}, nil)
	addFeatures(s, name, features...)
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s },
		&mcp.StreamableHTTPOptions{DisableLocalhostProtection: true}))
	t.Cleanup(func() {
		for session := range s.Sessions() {
			session.Close()
		}
		web.CloseClientConnections()
		web.Close()
	})
	return s, Server{Name: name, Bare: true, URL: web.URL}
}

// offered returns who offers the features of a name: the tool, the prompt, the resource and the template.
func (r *rig) offered(t *testing.T, name string) string {
	t.Helper()
	var all []string
	note := func(who string, err error) {
		if err != nil {
			who = "none"
		}
		all = append(all, who)
	}
	var who string
	result, err := r.client.CallTool(t.Context(), &mcp.CallToolParams{Name: name})
	if err == nil {
		who = result.Content[0].(*mcp.TextContent).Text
	}
	note(who, err)
	prompt, err := r.client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: name})
	if err == nil {
		who = prompt.Description
	}
	note(who, err)
	for _, uri := range []string{"test://" + name, "test://" + name + "/1"} {
		read, err := r.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err == nil {
			who = read.Contents[0].Text
		}
		note(who, err)
	}
	return strings.Join(slices.Compact(all), " ")
}

// TestNamesOfOthers: a server neither replaces nor removes the features of the program and of other
// servers. When a server is removed, others can use its names.
func TestNamesOfOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, a := newServer(t, "a", own, "shared", "only-a")
	_, b := newServer(t, "b", own, "shared", "only-b")
	r.Mount(a)
	r.Await(t.Context())
	r.Mount(b)
	check := func(step, name, want string) {
		t.Helper()
		if got := r.offered(t, name); got != want {
			t.Errorf("%s: got %s offered by %q, want %q", step, name, got, want)
		}
	}
	status := r.Status(t.Context())
	if got := fmt.Sprint(status[0].Tools, status[1].Tools); got != "[only-a shared] [only-b]" {
		t.Errorf("got the tools %s, want only those that are offered", got)
	}
	check("both", own, "program")
	check("both", "shared", "a")
	check("both", "only-b", "b")
	r.Unmount("b")
	testenv.Poll(t, "removal of b", func() bool { return r.offered(t, "only-b") == "none" })
	check("without b", own, "program")
	check("without b", "shared", "a")
	r.Mount(b)
	r.Await(t.Context())
	r.Unmount("a")
	testenv.Poll(t, "b gets the names of a", func() bool { return r.offered(t, "shared") == "b" })
	check("without a", own, "program")
	check("without a", "only-a", "none")
}

// TestServerIsReplaced: a server of the same name replaces another one completely.
func TestServerIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, first := newServer(t, "first", "x", "old")
	_, second := newServer(t, "second", "x", "new")
	first.Name, second.Name = "same", "same"
	for range 5 {
		r.Mount(first)
		r.Await(t.Context())
		r.Mount(second)
		r.Await(t.Context())
		for name, want := range map[string]string{"x": "second", "new": "second", "old": "none"} {
			if got := r.offered(t, name); got != want {
				t.Errorf("got %s offered by %q, want %q", name, got, want)
			}
		}
	}
}

// TestListsAreNotReadConcurrently: many reports of changes cause one refresh at a time, and the last
// list is offered.
func TestListsAreNotReadConcurrently(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	remote, server := newServer(t, "a", "f0")
	var reading, overlaps atomic.Int64
	remote.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if strings.HasSuffix(method, "/list") {
				if reading.Add(1) > 1 {
					overlaps.Add(1)
				}
				defer reading.Add(-1)
			}
			return next(ctx, method, req)
		}
	})
	r.Mount(server)
	r.Await(t.Context())
	r.mu.Lock()
	m := r.mounts["a"]
	r.mu.Unlock()
	last := 40
	for i := range last {
		addFeatures(remote, "a", fmt.Sprint("f", i+1))
		m.refreshSoon()
	}
	testenv.Poll(t, "the last features", func() bool { return r.offered(t, fmt.Sprint("f", last)) == "a" })
	if n := overlaps.Load(); n > 0 {
		t.Errorf("got %d lists that were read during another one, want none", n)
	}
}
