package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
)

// shelf has one file, one skill and one other resource, which are empty.
type shelf struct{}

func (shelf) List(context.Context) ([]toolset.File, error) { return nil, nil }

func (shelf) Read(context.Context, string, int64) ([]byte, string, error) {
	return nil, "text/plain", nil
}

func (shelf) Watch(context.Context, string, func()) (func() error, error) {
	return func() error { return nil }, nil
}

type skills struct{}

func (skills) List(context.Context) ([]toolset.Skill, error) { return nil, nil }

func (skills) Read(context.Context, string) (string, error) { return "", nil }

type others struct{}

func (others) Offers() []toolset.Resource {
	return []toolset.Resource{{URI: "console://logs", Name: "logs"}, {URI: "screenshot://{+name}", Name: "screenshot"}}
}

func (others) List(context.Context) ([]toolset.Resource, error) { return nil, nil }

func (others) Read(context.Context, string, int64) ([]byte, string, error) { return nil, "", nil }

// TestNamesOfTheProgram: other servers cannot offer tools and resources that are the program's own.
func TestNamesOfTheProgram(t *testing.T) {
	t.Parallel()
	h := New(Config{Ops: toys, Files: shelf{}, Skills: skills{}, Resources: others{},
		Guide: func(context.Context) (string, error) { return "", nil }})
	t.Cleanup(func() { h.Close() })
	for _, x := range []struct {
		kind upstream.Kind
		name string
		own  bool
	}{
		{upstream.Tool, "text", true},
		{upstream.Tool, "hidden", false},
		{upstream.Prompt, "text", false},
		{upstream.Resource, "sandbox://llms.txt", true},
		{upstream.Resource, "console://logs", true},
		{upstream.Resource, "CONSOLE://logs", true},
		{upstream.Resource, "screenshot://a", true},
		{upstream.Resource, "skill://pdf", true},
		{upstream.Resource, "file:///etc/hosts", true},
		{upstream.Resource, "file://localhost/etc/hosts", true},
		{upstream.Resource, "file://other-host/etc/hosts", false},
		{upstream.Resource, "test://a", false},
		{upstream.Template, "file:///{path}", true},
		{upstream.Template, "file://{host}/x", false},
		{upstream.Template, "skill://{name}", true},
		{upstream.Template, "{+uri}", false},
	} {
		if got := h.reserves(x.kind, x.name); got != x.own {
			t.Errorf("%s %s: got %v, want %v", x.kind, x.name, got, x.own)
		}
	}
}

// TestEmptyResource: clients of all versions receive the text of an empty resource.
func TestEmptyResource(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{Files: shelf{}})
	for _, version := range versions {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(`{"jsonrpc":"2.0","id":1,`+
			`"method":"resources/read","params":{"uri":"file:///empty","_meta":{"io.modelcontextprotocol/protocolVersion":"`+version+
			`","io.modelcontextprotocol/clientCapabilities":{}}}}`))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Mcp-Protocol-Version": version, "Accept": "application/json",
			"Mcp-Method": "resources/read", "Mcp-Name": "file:///empty"} {
			req.Header.Set(name, value)
		}
		res, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		var reply struct {
			Result struct{ Contents json.RawMessage }
		}
		if err := errors.Join(err, json.Unmarshal(b, &reply)); err != nil ||
			string(reply.Result.Contents) != `[{"mimeType":"text/plain","text":"","uri":"file:///empty"}]` {
			t.Errorf("%s: got %s, %v, want an empty text", version, b, err)
		}
	}
}

// TestEmbeddedEmptyResource: clients receive the text of an empty resource in the result of a tool and in a prompt, also those
// of another server.
func TestEmbeddedEmptyResource(t *testing.T) {
	t.Parallel()
	h := New(Config{Name: "here", Version: "1", Ops: toys})
	h.Mount(mountByAddress(t, newRemote("2025-11-25")))
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		h.Close()
		s.CloseClientConnections()
		s.Close()
	})
	for _, body := range []string{`{"method":"tools/call","params":{"name":"far_work"}}`,
		`{"method":"prompts/get","params":{"name":"far_greet"}}`} {
		res, err := s.Client().Post(s.URL+"/mcp", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		want := `"resource":{"mimeType":"text/plain","text":"","uri":"far://empty"}`
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: got %s, %v, want %s", body, b, err, want)
		}
	}
}

// changing are skills that a test changes.
type changing struct {
	mu  sync.Mutex
	all map[string]string
}

func (c *changing) set(name, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = map[string]string{}
	if name != "" {
		c.all[name] = text
	}
}

func (c *changing) List(context.Context) ([]toolset.Skill, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []toolset.Skill
	for name := range c.all {
		list = append(list, toolset.Skill{Name: name, Description: "ours"})
	}
	return list, nil
}

func (c *changing) Read(_ context.Context, name string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text, ok := c.all[name]; ok {
		return text, nil
	}
	return "", op.Errorf(op.NotFound, "no skill %q", name)
}

// TestSkillsPrecedePrompts: a skill of the program hides the prompt of another server with the same name, while it exists.
func TestSkillsPrecedePrompts(t *testing.T) {
	t.Parallel()
	own := &changing{}
	h := New(Config{Name: "here", Version: "1", Ops: toys, Skills: own})
	h.Mount(mountByAddress(t, newRemote("2025-11-25")))
	web := httptest.NewServer(h)
	t.Cleanup(func() {
		h.Close()
		web.CloseClientConnections()
		web.Close()
	})
	c := newListener(t, web.URL, "2025-11-25")
	for _, x := range []struct{ skill, doc, first string }{{"", "", "a greeting"}, {"far_greet", "ours", "our text"}, {"", "", "a greeting"}} {
		own.set(x.skill, "our text")
		list, err := c.ListPrompts(t.Context(), nil)
		if err != nil || len(list.Prompts) != 1 || list.Prompts[0].Name != "far_greet" || list.Prompts[0].Description != x.doc {
			t.Errorf("skill %q: got %+v, %v, want one prompt with the description %q", x.skill, list, err, x.doc)
		}
		got, err := c.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "far_greet"})
		if err != nil {
			t.Fatal(err)
		}
		first := got.Description
		if text, ok := got.Messages[0].Content.(*mcp.TextContent); ok {
			first = text.Text
		}
		if first != x.first {
			t.Errorf("skill %q: got %q, want %q", x.skill, first, x.first)
		}
	}
}

// TestOlderNames: tools with older names can be called under the name of every group, other tools
// only under their own.
func TestOlderNames(t *testing.T) {
	t.Parallel()
	h := New(Config{Tools: func() []toolset.Tool {
		all := FromOps(toys())
		for i := range all {
			all[i].Server, all[i].Older = "shell", all[i].Name == "text"
			if all[i].Name == "list" {
				all[i].Server = "sandbox"
			}
		}
		return all
	}})
	t.Cleanup(func() { h.Close() })
	for _, x := range []struct {
		server, tool string
		ok           bool
	}{{"shell", "text", true}, {"sandbox", "text", true}, {"all", "text", true}, {"added", "text", false}, {"sandbox", "object", false}} {
		if _, err := h.CallOf(t.Context(), x.server, x.tool, json.RawMessage(`{}`)); (err == nil) != x.ok {
			t.Errorf("%s of %s: got %v, want success: %v", x.tool, x.server, err, x.ok)
		}
	}
}

// TestSelectionOfTools: a client that selects tools can call others. A fixed selection restricts
// calls too, and the error names its origin.
func TestSelectionOfTools(t *testing.T) {
	t.Parallel()
	fixed := func(*op.Call) string { return "tools=text" }
	for _, x := range []struct {
		name, query, want string
		c                 Config
	}{
		{"address", "?tools=text", `"structuredContent":{`, Config{}},
		{"setting", "", "AIO_MCP_TOOLS does not select it", Config{Fixed: fixed, FixedBy: "AIO_MCP_TOOLS"}},
		{"key", "", "your key does not have the tool", Config{Fixed: fixed}},
	} {
		s := serve(t, x.c)
		post := func(body string) string {
			res, err := s.Client().Post(s.URL+"/mcp"+x.query, "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		if got := post(`{"method":"tools/list"}`); !strings.Contains(got, `"name":"text"`) || strings.Contains(got, `"name":"object"`) {
			t.Errorf("%s: got %s, want only the tool text", x.name, got)
		}
		got := post(`{"method":"tools/call","params":{"name":"object","arguments":{}}}`)
		if !strings.Contains(got, x.want) {
			t.Errorf("%s: got %s, want %s", x.name, got, x.want)
		}
	}
}
