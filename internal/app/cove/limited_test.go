package cove

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bearer sends a key with every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// TestKeyWithFewTools: a key that is limited to some tools can list and call only those, with and
// without a session. All other requests are rejected.
func TestKeyWithFewTools(t *testing.T) {
	t.Parallel()
	a := newArena(t)
	sb := a.fresh()
	made := a.must(a.admin, "POST", "/api/v1/key", `{"tenant":"acme","role":"user","tools":["list*","sandboxExecutor"]}`)
	key := field(t, made.data, "secret")
	if got := string(a.must(a.admin, "GET", "/api/v1/key", "").data); !strings.Contains(got, `"tools":["list*","sandboxExecutor"]`) {
		t.Errorf("got %s, want the limit in the list of keys", got)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	for _, query := range []string{"", "?tools=all"} {
		s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: a.server.URL + "/mcp" + query,
			HTTPClient: &http.Client{Transport: bearer(key)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for tool, err := range s.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(tool.Name, "list") && tool.Name != "sandboxExecutor" {
				t.Errorf("%s: got %s in the list, want only the tools of the key", query, tool.Name)
			}
		}
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandboxExecutor",
			Arguments: map[string]any{"sandbox_name": sb.Spec.Name, "tool_name": "say"}})
		if err != nil || r.IsError {
			t.Errorf("got %+v, %v, want a result of the key's tool", r, err)
		}
		if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "deleteSandbox",
			Arguments: map[string]any{"name": sb.Spec.Name}}); err == nil || !strings.Contains(err.Error(), "your key does not have the tool") {
			t.Errorf("got %v, want the tool rejected", err)
		}
		s.Close()
	}
	bare := a.do(key, "POST", "/mcp", `{"method":"tools/call","params":{"name":"deleteSandbox","arguments":{"name":"`+sb.Spec.Name+`"}}}`)
	if !strings.Contains(bare.body, "your key does not have the tool") {
		t.Errorf("a call without a session: got %s, want it rejected", bare.body)
	}
	limited := caller{name: "user", secret: key}
	rows := map[string]request{}
	for name, r := range doors {
		rows[name] = r
	}
	for _, o := range a.hub.Table.All() {
		rows[o.Name] = requestFor(t, o)
	}
	for name, r := range rows {
		if r.kind == public || name == "mcp" {
			continue
		}
		if got := a.knock(limited, sb, r); got != http.StatusForbidden {
			t.Errorf("%s: got %d, want 403: the key is for tools only", name, got)
		}
	}
	if _, err := a.provider.Get(t.Context(), sb.ID); err != nil {
		t.Errorf("the sandbox: got %v, want it unchanged", err)
	}
	for _, tools := range []string{`["a b"]`, `[""]`, `["` + strings.Repeat("x", 300) + `"]`} {
		if got := a.do(a.admin, "POST", "/api/v1/key", `{"tenant":"acme","tools":`+tools+
			`}`); got.status != http.StatusBadRequest && got.status != http.StatusUnprocessableEntity {
			t.Errorf("tools %s: got %d %s, want it rejected", tools, got.status, got.body)
		}
	}
	var listed struct {
		Result struct{ Tools []struct{ Name string } }
	}
	text := a.do(key, "POST", "/mcp", `{"method":"tools/list"}`).body
	if err := json.Unmarshal([]byte(text), &listed); err != nil || len(listed.Result.Tools) < 2 {
		t.Errorf("got %.300s, %v, want the tools of the key", text, err)
	}
}
