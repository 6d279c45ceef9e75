package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/hub/toolcatalog"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
)

// agent is an MCP client that knows only the hub's address.
type agent struct {
	t *testing.T
	*mcp.ClientSession
}

// as adds a header to every request.
type as struct{ name, value string }

func (a as) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if a.name != "" {
		r.Header.Set(a.name, a.value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func (r *rig) agent(who as) *agent {
	r.t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	s, err := client.Connect(r.t.Context(), &mcp.StreamableClientTransport{Endpoint: r.server.URL + "/mcp",
		HTTPClient: &http.Client{Transport: who}}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	return &agent{r.t, s}
}

func (a *agent) call(tool string, args any) *mcp.CallToolResult {
	a.t.Helper()
	res, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	return res
}

func said(r *mcp.CallToolResult) string {
	if len(r.Content) == 0 {
		return ""
	}
	if c, ok := r.Content[0].(*mcp.TextContent); ok {
		return c.Text
	}
	return fmt.Sprintf("%T", r.Content[0])
}

type object = map[string]any

// TestAgentDiscoversTools: an agent that knows only the address of the hub finds the tools of the
// hub and of its sandboxes.
func TestAgentDiscoversTools(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	a := r.agent(as{})
	list, err := a.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	for _, want := range []string{"createSandbox", "getSandbox", "deleteSandbox", "sandboxExecutor", "listSandboxes",
		"pauseSandbox", "resumeSandbox"} {
		if !slices.Contains(names, want) {
			t.Errorf("got tools %v, want %s among them", names, want)
		}
	}
	made, name := a.create()
	sb, err := r.provider.List(t.Context(), sandbox.Filter{Name: name})
	if err != nil || len(sb) != 1 || sb[0].Spec.Resources.MemoryLimit != 1<<30 || sb[0].Spec.Lifetime.IdleTimeout != 10*time.Minute {
		t.Errorf("got %+v, %v, want one sandbox with the default limits", sb, err)
	}
	// The text ends with the tools, as JSON.
	for _, res := range []*mcp.CallToolResult{made, a.call("getSandbox", object{"name": name})} {
		text := said(res)
		var tools []struct {
			Name, Description string
			InputSchema       any
		}
		if err := json.Unmarshal([]byte(text[strings.LastIndex(text, "\n")+1:]), &tools); err != nil ||
			len(tools) != 3 || tools[2].Name != "say" || tools[2].Description != "Say it back." || tools[2].InputSchema != nil {
			t.Errorf("got %s, %v, want a list of three tools at the end", text, err)
		}
	}
	if got := said(a.call("getSandbox", object{"name": name, "schemas": true})); !strings.Contains(got, `"inputSchema"`) {
		t.Errorf("getSandbox with schemas: got %s, want the arguments of the tools", got)
	}
	if got := said(a.call("listSandboxTools",
		object{"sandbox_name": name, "tool_name": "say"})); !strings.Contains(got, `"inputSchema"`) || strings.Contains(got, `"fail"`) {
		t.Errorf("listSandboxTools: got %s, want only the arguments of say", got)
	}
}

// create creates a sandbox without arguments and returns its name, which is part of the result.
func (a *agent) create() (res *mcp.CallToolResult, name string) {
	a.t.Helper()
	res = a.call("createSandbox", object{})
	name = res.StructuredContent.(object)["sandbox"].(object)["name"].(string)
	if res.IsError || !strings.HasPrefix(said(res), "Sandbox "+name+" created successfully") {
		a.t.Fatalf("createSandbox: got %s", said(res))
	}
	return res, name
}

func TestAgentCallsTools(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	a := r.agent(as{})
	_, name := a.create()
	if res := a.call("executeInSandboxes", object{"sandbox_names": []string{name, "nobody"}, "tool_name": "say",
		"arguments": object{"a": 1}}); res.IsError || !strings.Contains(said(res), "1 of 2 succeeded") ||
		!strings.Contains(said(res), name+` {"a":1}`) || !strings.Contains(said(res), "== nobody failed") {
		t.Errorf("executeInSandboxes: got %s, want one success and one failure", said(res))
	}
	if res := a.call("sandboxExecutor", object{"sandbox_name": name, "tool_name": "say",
		"arguments": object{"a": 1}}); said(res) != name+` {"a":1}` {
		t.Errorf("say: got %s, want %s", said(res), name+` {"a":1}`)
	}
	if res := a.call("listSandboxes", object{}); !strings.Contains(said(res), name) {
		t.Errorf("listSandboxes: got %s, want %s among them", said(res), name)
	}
	for _, c := range []struct{ tool, want string }{{"pauseSandbox", "is paused"}, {"resumeSandbox", "is running"},
		{"deleteSandbox", "deleted successfully"}} {
		if res := a.call(c.tool, object{"name": name}); res.IsError || !strings.Contains(said(res), c.want) {
			t.Errorf("%s: got %s, want %s", c.tool, said(res), c.want)
		}
	}
	if left := r.store.Left(); len(left) > 0 {
		t.Errorf("got %v left, want none", left)
	}
	for _, c := range []struct {
		tool string
		args object
		want string
	}{
		{"getSandbox", object{"name": name}, "no sandbox"},
		{"getSandbox", object{}, `missing argument "name"`},
		{"createSandbox", object{"environment": "nowhere"}, "no environment"},
		{"createSandbox", object{"name": "Bad"}, "lower-case"},
		{"sandboxExecutor", object{"sandbox_name": name, "tool_name": "say"}, "no sandbox"},
	} {
		if res := a.call(c.tool, c.args); !res.IsError || !strings.Contains(said(res), c.want) {
			t.Errorf("%s %v: got %s, want the error %s", c.tool, c.args, said(res), c.want)
		}
	}
}

// TestResultsAreForwarded: images, structured content, metadata and errors.
func TestResultsAreForwarded(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	a := r.agent(as{})
	exec := func(tool string, args any) *mcp.CallToolResult {
		return a.call("sandboxExecutor", object{"sandbox_name": "a", "tool_name": tool, "arguments": args})
	}
	res := exec("all", nil)
	b, _ := json.Marshal(res)
	for _, want := range []string{`{"type":"text","text":"text"}`,
		`"type":"image","mimeType":"image/png","data":"AQID"`, `"uri":"file:///a"`, `"structuredContent":{"list":["a"],"n":1}`, `"trace":"x"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("got %s, want %s in it", b, want)
		}
	}
	if res := exec("fail", object{}); !res.IsError || said(res) != "it went wrong" || res.StructuredContent.(object)["errno"] != 2.0 {
		t.Errorf("got %+v, want the sandbox's own error", res)
	}
	if res := exec("nothing", object{}); !res.IsError || !strings.Contains(said(res), `unknown tool "nothing"`) {
		t.Errorf("got %s, want an error that the tool is unknown", said(res))
	}
	if res := exec("say", `{"as":"text"}`); said(res) != `a {"as":"text"}` {
		t.Errorf(`got %s, want a {"as":"text"}`, said(res))
	}
	for _, args := range []any{[]any{1}, "text", 5} {
		if res := exec("say", args); !res.IsError || !strings.Contains(said(res), "must be an object") {
			t.Errorf("arguments %v: got %s, want an error that they must be an object", args, said(res))
		}
	}
	// Simple scripts call tools without a handshake.
	reply := r.do("POST", "/mcp", `{"method":"tools/call","params":{"name":"sandboxExecutor",`+
		`"arguments":{"sandbox_name":"a","tool_name":"say","arguments":{"b":2}}}}`)
	if reply.Status != 200 || !strings.Contains(reply.Body, `a {\"b\":2}`) ||
		!strings.HasPrefix(reply.Header.Get("Content-Type"), "application/json") {
		t.Errorf("got %d %v %s, want the tool's result as JSON", reply.Status, reply.Header, reply.Body)
	}
}

// forgetful records the sandboxes whose sessions the hub closes.
type forgetful struct {
	toolcatalog.Remote
	forgotten chan string
}

func (f forgetful) Forget(id string) {
	f.forgotten <- id
	f.Remote.Forget(id)
}

// TestToolsAfterRestart: a restarted sandbox no longer knows the hub's session.
func TestToolsAfterRestart(t *testing.T) {
	t.Parallel()
	sessions := upstream.NewSessions(upstream.SessionsConfig{Name: "cove", Version: "1"})
	defer sessions.Close()
	forgotten := make(chan string, 100)
	r := newRig(t, setup{hub: Config{SandboxTools: forgetful{sessions, forgotten}}})
	id := r.create(`{"name":"a"}`).ID
	a := r.agent(as{})
	for i := range 3 {
		if got := said(a.call("sandboxExecutor", object{"sandbox_name": "a", "tool_name": "say"})); got != "a {}" {
			t.Fatalf("call %d: got %q, want %q", i, got, "a {}")
		}
		r.do("POST", "/api/v1/sandbox/a/stop", "") // the next call wakes it
	}
	select {
	case id := <-forgotten:
		t.Errorf("the session with %s was closed, although the sandbox exists", id)
	default:
	}
	r.do("DELETE", "/api/v1/sandbox/a", "")
	if got := <-forgotten; got != id {
		t.Errorf("closed the session with %q, want %q", got, id)
	}
}

func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	r.create(`{"name":"b"}`)
	a := r.agent(as{})
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			name := []string{"a", "b"}[i%2]
			if got := said(a.call("sandboxExecutor", object{"sandbox_name": name, "tool_name": "say",
				"arguments": object{"i": i}})); got != fmt.Sprintf(`%s {"i":%d}`, name, i) {
				t.Errorf("got %s, want %s {\"i\":%d}", got, name, i)
			}
		})
	}
	wait.Wait()
}

// TestSandboxWithoutTools: a custom image can have no tools.
func TestSandboxWithoutTools(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux = http.NewServeMux()
		g.mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	}})
	a := r.agent(as{})
	res := a.call("createSandbox", object{"name": "a"})
	if res.IsError || !strings.Contains(said(res), "Its tools cannot be listed") || !strings.HasSuffix(said(res), "\n[]") {
		t.Errorf("createSandbox: got %s, want an empty list of tools and the reason", said(res))
	}
	if res := a.call("sandboxExecutor", object{"sandbox_name": "a", "tool_name": "x"}); !res.IsError {
		t.Errorf("sandboxExecutor: got %s, want an error", said(res))
	}
}

// TestCallIsCanceledWhenHubStops: a tool that never returns delays neither the cancellation
// of its caller nor the shutdown of the hub.
func TestCallIsCanceledWhenHubStops(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 1)
	r := newRig(t, setup{more: func(g *guestServer) {
		server := mcp.NewServer(&mcp.Implementation{Name: "guest", Version: "1"}, nil)
		server.AddTool(&mcp.Tool{Name: "hang", InputSchema: object{"type": "object"}},
			func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				entered <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			})
		g.mux = http.NewServeMux()
		g.mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
		g.mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
			&mcp.StreamableHTTPOptions{Stateless: true, DisableLocalhostProtection: true, PropagateRequestCancellation: true}))
	}})
	r.create(`{"name":"a"}`)
	a := r.agent(as{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := a.CallTool(ctx, &mcp.CallToolParams{Name: "sandboxExecutor", Arguments: object{"sandbox_name": "a", "tool_name": "hang"}})
		ended <- err
	}()
	<-entered
	if n := r.openRequests("a"); n != 1 {
		t.Errorf("got %d in-flight requests, want 1", n)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("got a result, want an error")
	}
	go a.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandboxExecutor", Arguments: object{"sandbox_name": "a", "tool_name": "hang"}})
	<-entered
	r.hub.Close()
}

// TestEndlessReplies: replies of a sandbox cannot exhaust the hub's memory.
func TestEndlessReplies(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux = http.NewServeMux()
		g.mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
		g.mux.HandleFunc("/mcp", func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			line := []byte(strings.Repeat(" ", 64<<10))
			for {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		})
	}})
	res := r.agent(as{}).call("createSandbox", object{"name": "a"})
	if res.IsError || !strings.Contains(said(res), "Its tools cannot be listed") {
		t.Errorf("createSandbox: got %s, want an error that its tools cannot be listed", said(res))
	}
}
