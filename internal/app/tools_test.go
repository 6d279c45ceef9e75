package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/toolcatalog"
)

// newToolAio returns a sandbox in separate folders, whose operations can be called.
func newToolAio(t *testing.T) *Aio {
	t.Helper()
	dir := t.TempDir()
	var cfg config.Aio
	if _, err := config.Load(&cfg,
		config.Source{Flags: map[string][]string{"listen": {"127.0.0.1:8080"}, "state": {dir + "/state"},
			"home": {dir}, "workspace": {dir}}}); err != nil {
		t.Fatal(err)
	}
	cfg.DisableJupyter = true
	a, err := NewAio(cfg, []string{"PATH=/usr/bin:/bin"}, "0.0.0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// TestDefaultListFitsAModel: the default list has at most 30 tools and about 5,000 tokens of 4 characters.
func TestDefaultListFitsAModel(t *testing.T) {
	list := newToolAio(t).tools.List("")
	b, err := json.Marshal(list)
	if err != nil || len(list) > 30 || len(b) > 4*5000 {
		t.Errorf("got %d tools with %d characters, %v, want at most 30 and 20,000", len(list), len(b), err)
	}
}

// TestToolTextsAreForModels: tool texts contain no REST terms, arguments have types, and model
// providers accept the names.
func TestToolTextsAreForModels(t *testing.T) {
	for _, tool := range toolset.NewSet(toolcatalog.Tools(newToolAio(t).Table.All(), nil)).Tools {
		text, err := json.Marshal([]any{tool.Doc, tool.Title, tool.Input()})
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"stream=true", "ETag", "multipart", "GET /", "POST /", "PUT /", "DELETE /",
			"/v1/", "over HTTP", "HTTP header", "response header", "query parameter"} {
			if strings.Contains(string(text), word) {
				t.Errorf("%s: got %q in %s, want terms of tools", tool.Name, word, text)
			}
		}
		if len(tool.Name) > 64 || tool.Doc == "" || strings.Trim(tool.Name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("got the name %q, want lower-case letters, digits and _", tool.Name)
		}
		checkTypes(t, tool.Name, tool.Input())
	}
}

// checkTypes rejects schemas that OpenAI's strict mode, Anthropic or Gemini reject.
func checkTypes(t *testing.T, at string, s *jsonschema.Schema) {
	t.Helper()
	if s.Type == "" || len(s.AnyOf)+len(s.OneOf)+len(s.AllOf) > 0 || s.Ref != "" || s.AdditionalProperties != nil ||
		s.Type == "array" && s.Items == nil {
		b, _ := json.Marshal(s)
		t.Errorf("%s: got %s, want one type and nothing but properties and items", at, b)
	}
	if s.Type != "string" && len(s.Enum) > 0 {
		t.Errorf("%s: got an enum of %s, want strings", at, s.Type)
	}
	for name, p := range s.Properties {
		checkTypes(t, at+"."+name, p)
	}
	if s.Items != nil {
		checkTypes(t, at+"[]", s.Items)
	}
}

// TestEveryToolChecksItsArguments: missing, wrong and unknown arguments of both families are
// results that describe the solution.
func TestEveryToolChecksItsArguments(t *testing.T) {
	a := newToolAio(t)
	set := toolset.NewSet(toolcatalog.Tools(a.Table.All(), nil))
	for _, tool := range set.Tools {
		refused := func(kind string, args map[string]any, want string) {
			t.Helper()
			raw, _ := json.Marshal(args)
			_, err := tool.Call(context.Background(), raw)
			e, ok := op.AsError(err)
			if !ok || e.Code != op.Invalid || !strings.Contains(e.Msg, want) {
				t.Errorf("%s with %s: got %v, want %q", tool.Name, kind, err, want)
			}
		}
		refused("an unknown argument", map[string]any{"no_such_argument_here": 1}, "unknown argument")
		in := tool.Input()
		if len(in.Required) > 0 {
			refused("missing arguments", map[string]any{}, `missing argument "`)
		}
		for _, name := range in.PropertyOrder {
			if tool.Op.In().Kind == op.Union {
				break // its selector comes first
			}
			if in.Properties[name].Type == "integer" || in.Properties[name].Type == "boolean" {
				refused("a wrong type of "+name, map[string]any{name: []any{map[string]any{}}}, name)
				break
			}
		}
	}
}

// TestSynonymsOfArguments: names that models confuse are synonyms.
func TestSynonymsOfArguments(t *testing.T) {
	a := newToolAio(t)
	set := toolset.NewSet(toolcatalog.Tools(a.Table.All(), nil))
	bash, _ := set.Get("bash_exec")
	for _, args := range []string{`{"command":"pwd","exec_dir":"/tmp"}`, `{"cmd":"pwd","cwd":"/tmp"}`} {
		if r, err := bash.Call(t.Context(), json.RawMessage(args)); err != nil || !strings.HasPrefix(r.Text, "/tmp\n[exit code 0") {
			t.Errorf("%s: got %q, %v, want /tmp", args, r.Text, err)
		}
	}
	if _, err := bash.Call(t.Context(), json.RawMessage(`{"comand":"pwd"}`)); err == nil ||
		!strings.Contains(err.Error(), `did you mean "command"?`) {
		t.Errorf("got %v, want the nearest name", err)
	}
	write, _ := set.Get("file_write")
	read, _ := set.Get("file_read")
	if _, err := write.Call(t.Context(), json.RawMessage(`{"file":"l.txt","content":"one\ntwo\nthree\n"}`)); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{`{"path":"l.txt","start_line":2,"end_line":2}`: "two",
		`{"file":"l.txt","start_line":1,"end_line":-2}`: "one\ntwo", `{"path":"l.txt","start_line":-1}`: "three"} {
		if r, err := read.Call(t.Context(), json.RawMessage(args)); err != nil || strings.TrimSpace(r.Text) != want {
			t.Errorf("%s: got %q, %v, want %q", args, r.Text, err, want)
		}
	}
	search, _ := set.Get("file_search")
	if r, err := search.Call(t.Context(), json.RawMessage(`{"path":"l.txt","regex":"two"}`)); err != nil || r.Text != "2:two" {
		t.Errorf("got %q, %v, want line 2, counted from 1", r.Text, err)
	}
	upload, _ := set.Get("file_upload")
	if r, err := upload.Call(t.Context(), json.RawMessage(`{"path":"u.txt","file":"aGVsbG8="}`)); err != nil {
		t.Errorf("file_upload: got %+v, %v, want a result", r, err)
	}
}

// TestToolLists: the query of the URL selects the tools of a client.
func TestToolLists(t *testing.T) {
	a := newToolAio(t)
	names := func(query string) []string {
		var all []string
		for _, tool := range a.tools.List(query) {
			all = append(all, tool.Name)
		}
		return all
	}
	for query, want := range map[string]string{"": "bash_exec", "tools=all": "file_stat",
		"servers=file": "file_mkdir", "search=shell": "bash_sessions", "tools=older": "sandbox_file_operations",
		"tools=sandbox_*": "sandbox_execute_bash", "tools=file_read,bash_exec": "bash_exec"} {
		if got := names(query); !slices.Contains(got, want) {
			t.Errorf("%q: got %v, want %s among them", query, got, want)
		}
	}
	for query, other := range map[string]string{"": "sandbox_execute_bash", "tools=all": "sandbox_file_operations",
		"servers=file": "bash_exec", "tools=file_read": "bash_exec"} {
		if got := names(query); slices.Contains(got, other) {
			t.Errorf("%q: got %s, want it omitted", query, other)
		}
	}
}

// TestRESTAndMCPAgree: a tool has the same result over REST and over MCP.
func TestRESTAndMCPAgree(t *testing.T) {
	a := newToolAio(t)
	_, inside := a.Handlers()
	s := httptest.NewServer(inside)
	defer s.Close()
	c, err := gomcp.NewClient(&gomcp.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(),
		&gomcp.StreamableClientTransport{Endpoint: s.URL + "/mcp"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, x := range []struct{ server, tool, args string }{
		{"shell", "bash_exec", `{"command":"echo same"}`}, {"file", "list", `{"path":"/etc/apt"}`}, {"file", "file_stat", `{"path":"/etc"}`},
		{"file", "read", `{"path":"/no/such"}`},
		{"sandbox", "sandbox_execute_code", `{"code":"x","language":"none"}`}, {"sandbox", "sandbox_list_hooks", `{}`},
		{"shell", "bash_exec", `{"x":1}`}, {"markitdown", "convert", `{"uri":"data:text/plain,hi"}`},
		{"markitdown", "markitdown_extract_images", `{"uri":"data:text/plain,hi"}`},
	} {
		name := x.tool
		if !strings.Contains(name, "_") {
			name = x.server + "_" + name
		}
		r, err := c.CallTool(t.Context(), &gomcp.CallToolParams{Name: name, Arguments: json.RawMessage(x.args)})
		if err != nil {
			t.Fatal(err)
		}
		want, _ := json.Marshal(r.Content)
		var reply struct {
			Data struct {
				Content json.RawMessage
				IsError bool
			}
		}
		if err := json.Unmarshal([]byte(post(t, s.URL+"/v1/mcp/"+x.server+"/tools/"+x.tool, x.args)), &reply); err != nil {
			t.Fatal(err)
		}
		if string(reply.Data.Content) != string(want) || reply.Data.IsError != r.IsError {
			t.Errorf("%s: got %s %v over REST, want %s %v as over MCP", x.tool, reply.Data.Content, reply.Data.IsError, want, r.IsError)
		}
	}
}
