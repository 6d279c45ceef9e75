package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// An agent with only the address of the hub creates a sandbox, works in it and deletes it.
func TestAgentKnowsOnlyTheAddress(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "curl", "python3")
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "page for %s", r.Header.Get("User-Agent"))
	}))
	defer page.Close()
	h := serveHub(t, "--private-networks", "127.0.0.1/32")
	s, call := connectAgent(t, h.URL+"/mcp")
	tools, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	offered := map[string]bool{}
	for _, tool := range tools.Tools {
		offered[tool.Name] = true
	}
	for _, want := range []string{"createSandbox", "getSandbox", "deleteSandbox", "sandboxExecutor", "listSandboxes",
		"pauseSandbox", "resumeSandbox"} {
		if !offered[want] {
			t.Errorf("no tool %s", want)
		}
	}

	// The reply contains the name and ends with the tools as JSON.
	said := call("createSandbox", map[string]any{})
	inside := toolsAt(t, said)
	var name string
	if _, err := fmt.Sscanf(said[strings.Index(said, "Sandbox "):], "Sandbox %s created", &name); err != nil {
		t.Fatalf("%v in %q", err, said)
	}
	for _, want := range []string{"code_execute", "bash_exec", "terminal_execute", "file_read"} {
		if !inside[want] {
			t.Errorf("the sandbox does not offer %s", want)
		}
	}
	do := func(tool string, args map[string]any) string {
		t.Helper()
		return call("sandboxExecutor", map[string]any{"sandbox_name": name, "tool_name": tool, "arguments": args})
	}
	if out := do("code_execute", map[string]any{"language": "python",
		"code": "import platform; print(sum(range(10)), platform.node())"}); !strings.Contains(out, "45 sb-") {
		t.Errorf("got %q, want containing \"45 sb-\"", out)
	}
	if out := do("shell_exec", map[string]any{"command": "echo $((6*7)) > answer; cat answer"}); !strings.Contains(out, "42") {
		t.Errorf("got %q, want containing \"42\"", out)
	}
	fetch := fmt.Sprintf("curl -sS --noproxy '' %s", page.URL)
	if out := do("bash_exec", map[string]any{"command": fetch}); !strings.Contains(out, "page for curl") {
		t.Errorf("got %q, want containing \"page for curl\"", out)
	}
	call("pauseSandbox", map[string]any{"name": name})
	if out := do("file_read", map[string]any{"file": "answer"}); !strings.Contains(out, "42") {
		t.Errorf("got %q, want containing \"42\"", out)
	}
	h.must(t, "network", "set", name, "--mode", "none")
	if out := do("bash_exec", map[string]any{"command": fetch}); strings.Contains(out, "page for") {
		t.Error("the page is reachable although the network is closed:", out)
	}
	if out := call("deleteSandbox", map[string]any{"name": name}); !strings.Contains(out, "deleted") {
		t.Errorf("got %q, want containing \"deleted\"", out)
	}
	if list, err := h.client(t).Get(context.Background(), name); err == nil {
		t.Errorf("the sandbox still exists: %+v, want an error", list)
	}
}

// connectAgent connects an MCP client. The second result calls a tool, which must succeed.
func connectAgent(t *testing.T, url string) (*mcp.ClientSession, func(tool string, args map[string]any) string) {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, func(tool string, args map[string]any) string {
		t.Helper()
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
		var text strings.Builder
		for _, part := range res.Content {
			if p, ok := part.(*mcp.TextContent); ok {
				text.WriteString(p.Text)
			}
		}
		if res.IsError {
			t.Fatalf("%s: %s, want IsError false", tool, &text)
		}
		return text.String()
	}
}

// toolsAt parses the list of tools at the end of a reply.
func toolsAt(t *testing.T, said string) map[string]bool {
	t.Helper()
	at := strings.Index(said, "[{")
	if at < 0 {
		t.Fatalf("got %q, want a list of tools at the end", said)
	}
	var list []struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal([]byte(said[at:]), &list); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, tool := range list {
		names[tool.Name] = true
	}
	return names
}
