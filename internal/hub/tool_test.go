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

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// agent is an MCP client that knows nothing but the hub's address.
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
	s, err := client.Connect(r.t.Context(), &mcp.StreamableClientTransport{Endpoint: r.server.URL + "/mcp", HTTPClient: &http.Client{Transport: who}}, nil)
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

func TestAgentNeedsOnlyTheAddress(t *testing.T) {
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
	for _, want := range []string{"createSandbox", "getSandbox", "deleteSandbox", "sandboxExecutor", "listSandboxes", "pauseSandbox", "resumeSandbox"} {
		if !slices.Contains(names, want) {
			t.Errorf("no tool %s in %v", want, names)
		}
	}
	// Without a name the name is told, and everything has its defaults.
	made := a.call("createSandbox", object{})
	name := made.StructuredContent.(object)["sandbox"].(object)["name"].(string)
	if made.IsError || !strings.HasPrefix(said(made), "Sandbox "+name+" created successfully") {
		t.Fatal(said(made))
	}
	sb, err := r.provider.List(t.Context(), sandbox.Filter{Name: name})
	if err != nil || len(sb) != 1 || sb[0].Spec.Resources.MemoryLimit != 1<<30 || sb[0].Spec.Lifetime.IdleTimeout != 10*time.Minute {
		t.Errorf("%+v %v", sb, err)
	}
	// It ends with the tools, as JSON.
	for _, res := range []*mcp.CallToolResult{made, a.call("getSandbox", object{"name": name})} {
		text := said(res)
		var tools []toolInfo
		if err := json.Unmarshal([]byte(text[strings.LastIndex(text, "\n")+1:]), &tools); err != nil || len(tools) != 3 || tools[2].Name != "say" || tools[2].Description != "Say it back." || tools[2].InputSchema == nil {
			t.Errorf("%v %s", err, text)
		}
	}
	if res := a.call("sandboxExecutor", object{"sandbox_name": name, "tool_name": "say", "arguments": object{"a": 1}}); said(res) != name+` {"a":1}` {
		t.Error(said(res))
	}
	if res := a.call("listSandboxes", object{}); !strings.Contains(said(res), name) {
		t.Error(said(res))
	}
	for _, c := range []struct{ tool, want string }{{"pauseSandbox", "is paused"}, {"resumeSandbox", "is running"}, {"deleteSandbox", "deleted successfully"}} {
		if res := a.call(c.tool, object{"name": name}); res.IsError || !strings.Contains(said(res), c.want) {
			t.Errorf("%s: %s", c.tool, said(res))
		}
	}
	if left := r.store.Left(); len(left) > 0 {
		t.Error(left)
	}
	for _, c := range []struct {
		tool string
		args object
		want string
	}{
		{"getSandbox", object{"name": name}, "there is no sandbox"},
		{"getSandbox", object{}, "name: Field required"},
		{"createSandbox", object{"environment": "nowhere"}, "there is no environment"},
		{"createSandbox", object{"name": "Bad"}, "lower-case"},
		{"sandboxExecutor", object{"sandbox_name": name, "tool_name": "say"}, "there is no sandbox"},
	} {
		if res := a.call(c.tool, c.args); !res.IsError || !strings.Contains(said(res), c.want) {
			t.Errorf("%s %v: %s", c.tool, c.args, said(res))
		}
	}
}

// TestResultsArePassedOnWhole: images, structured content, metadata and errors.
func TestResultsArePassedOnWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	a := r.agent(as{})
	exec := func(tool string, args any) *mcp.CallToolResult {
		return a.call("sandboxExecutor", object{"sandbox_name": "a", "tool_name": tool, "arguments": args})
	}
	res := exec("all", nil)
	b, _ := json.Marshal(res)
	for _, want := range []string{`{"type":"text","text":"text"}`, `"type":"image","mimeType":"image/png","data":"AQID"`, `"uri":"file:///a"`, `"structuredContent":{"list":["a"],"n":1}`, `"trace":"x"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s is missing in %s", want, b)
		}
	}
	if res := exec("fail", object{}); !res.IsError || said(res) != "it went wrong" || res.StructuredContent.(object)["errno"] != 2.0 {
		t.Errorf("%+v", res)
	}
	if res := exec("nothing", object{}); !res.IsError || !strings.Contains(said(res), `unknown tool "nothing"`) {
		t.Errorf("%s", said(res))
	}
	if res := exec("say", `{"as":"text"}`); said(res) != `a {"as":"text"}` {
		t.Error(said(res))
	}
	for _, args := range []any{[]any{1}, "text", 5} {
		if res := exec("say", args); !res.IsError || !strings.Contains(said(res), "must be an object") {
			t.Errorf("%v: %s", args, said(res))
		}
	}
	// Small scripts call without a handshake.
	reply := r.do("POST", "/mcp", `{"method":"tools/call","params":{"name":"sandboxExecutor","arguments":{"sandbox_name":"a","tool_name":"say","arguments":{"b":2}}}}`)
	if reply.Status != 200 || !strings.Contains(reply.Body, `a {\"b\":2}`) || !strings.HasPrefix(reply.Header.Get("Content-Type"), "application/json") {
		t.Errorf("%d %v %s", reply.Status, reply.Header, reply.Body)
	}
}

// TestSessionsAreMadeAnew: after a restart of the sandbox nothing is left of the
// session that the hub had with it.
func TestSessionsAreMadeAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	a := r.agent(as{})
	say := func() string {
		return said(a.call("sandboxExecutor", object{"sandbox_name": "a", "tool_name": "say"}))
	}
	for range 3 {
		if got := say(); got != "a {}" {
			t.Fatal(got)
		}
		r.do("POST", "/api/v1/sandbox/a/stop", "") // and the call wakes it
	}
	g := &r.hub.tools.guests
	count := func() int { g.mu.Lock(); defer g.mu.Unlock(); return len(g.byID) }
	if n := count(); n != 1 {
		t.Errorf("%d sessions", n)
	}
	r.do("DELETE", "/api/v1/sandbox/a", "")
	if n := count(); n != 0 {
		t.Errorf("%d sessions of a sandbox that is gone", n)
	}
}

func TestSessionsAreEvicted(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	r.agent(as{}).call("sandboxExecutor", object{"sandbox_name": "a", "tool_name": "say"})
	g := &r.hub.tools.guests
	g.mu.Lock()
	for _, s := range g.byID {
		s.used = time.Now().Add(-guestIdle - time.Second)
	}
	// Far more than are kept, the oldest first.
	ready := make(chan struct{})
	close(ready)
	for i := range maxGuests {
		g.byID[fmt.Sprint(i)] = &guest{ready: ready, used: time.Now().Add(time.Duration(i) * time.Millisecond)}
	}
	g.evict()
	if len(g.byID) != maxGuests {
		t.Errorf("%d sessions", len(g.byID))
	}
	id := r.hub.known1(t, "a").id
	if g.byID[id] != nil {
		t.Error("the session that was unused for longest was kept")
	}
	for _, s := range g.byID {
		s.used = time.Now().Add(-guestIdle - time.Second)
	}
	g.mu.Unlock()
	g.sweep()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.byID) != 0 {
		t.Errorf("%d unused sessions are kept", len(g.byID))
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	r.create(`{"name":"b"}`)
	a := r.agent(as{})
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			name := []string{"a", "b"}[i%2]
			if got := said(a.call("sandboxExecutor", object{"sandbox_name": name, "tool_name": "say", "arguments": object{"i": i}})); got != fmt.Sprintf(`%s {"i":%d}`, name, i) {
				t.Error(got)
			}
		})
	}
	wait.Wait()
}

// TestSandboxWithoutTools: an image of one's own need not offer any.
func TestSandboxWithoutTools(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux = http.NewServeMux()
		g.mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	}})
	a := r.agent(as{})
	res := a.call("createSandbox", object{"name": "a"})
	if res.IsError || !strings.Contains(said(res), "Its tools cannot be listed") || !strings.HasSuffix(said(res), "\n[]") {
		t.Error(said(res))
	}
	if res := a.call("sandboxExecutor", object{"sandbox_name": "a", "tool_name": "x"}); !res.IsError {
		t.Error(said(res))
	}
}

// TestCallEndsWithTheHub: a tool that never answers holds up neither its caller's
// leaving nor the hub's end.
func TestCallEndsWithTheHub(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 1)
	r := newRig(t, setup{more: func(g *guestServer) {
		server := mcp.NewServer(&mcp.Implementation{Name: "guest", Version: "1"}, nil)
		server.AddTool(&mcp.Tool{Name: "hang", InputSchema: object{"type": "object"}}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			entered <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		g.mux = http.NewServeMux()
		g.mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
		g.mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true, DisableLocalhostProtection: true, PropagateRequestCancellation: true}))
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
	if n := r.hub.known1(t, "a").busy(); n != 1 {
		t.Errorf("%d uses", n)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("answered")
	}
	go a.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandboxExecutor", Arguments: object{"sandbox_name": "a", "tool_name": "hang"}})
	<-entered
	r.hub.Close()
}

// TestEndlessAnswers: a sandbox cannot fill the hub's memory.
func TestEndlessAnswers(t *testing.T) {
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
		t.Error(said(res))
	}
}
