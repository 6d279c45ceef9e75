package mcphub

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	testenv.Main(m)
}

// hub records mounted servers, and returns the arguments of calls.
type hub struct {
	mounted map[string]Server
	starts  map[string]Starter
}

func (h *hub) Mount(name string, s Server, start Starter) {
	h.mounted[name], h.starts[name] = s, start
}
func (h *hub) Unmount(name string) { delete(h.mounted, name) }

func (h *hub) Status(context.Context) (all []Status) {
	for _, name := range slices.Sorted(maps.Keys(h.mounted)) {
		all = append(all, Status{Name: name, State: "ready"})
	}
	return all
}

func (h *hub) Tools(_ context.Context, server string) ([]any, error) {
	return []any{map[string]any{"name": server + "_tool"}}, nil
}

func (h *hub) Call(_ context.Context, server, tool string, args json.RawMessage) (any, error) {
	return map[string]any{"content": []any{map[string]any{"type": "text", "text": server + " " + tool + " " +
		string(args)}}, "isError": true}, nil
}

func newService(t *testing.T, c Config) (*Service, *hub) {
	t.Helper()
	h := &hub{map[string]Server{}, map[string]Starter{}}
	c.Hub, c.Groups = h, []string{"file", "shell"}
	if c.State == "" {
		c.State = t.TempDir()
	}
	s := New(c)
	t.Cleanup(func() { s.Close() })
	return s, h
}

// TestListsOfServers: the list contains servers of files, of JSON in a variable and of calls. An invalid server is reported and
// does not affect others.
func TestListsOfServers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "mcp.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct{ file, extra, want, fault string }{
		{`{"mcpServers":{"a":{"command":"x"},"b":{"url":"http://b/mcp"}}}`, "", "a b", ""},
		{`{"a":{"command":"x"}}`, "", "a", ""},
		{`{"mcpServers":{"a":{"command":"x","disabled":true},"hidden":{"command":"x","hidden":true}}}`, "", "hidden", ""},
		{`{"mcpServers":{"a":{"command":"x"}}}`, `{"mcpServers":{"c":{"url":"https://c"}}}`, "a c", ""},
		{`not JSON`, `{"mcpServers":{"c":{"url":"https://c"}}}`, "c", `want {"mcpServers"`},
		{`{"mcpServers":{"file":{"command":"x"},"ok":{"command":"x"}}}`, "", "ok", "a built-in server of the sandbox"},
		{`{"mcpServers":{"no spaces":{"command":"x"},"ok":{"command":"x"}}}`, "", "ok", "letters, digits"},
		{`{"mcpServers":{"both":{"command":"x","url":"http://x"},"none":{},"ok":{"command":"x"}}}`, "", "ok", "set either command or url"},
		{`{"mcpServers":{"odd":{"url":"gopher://x"},"ok":{"command":"x"}}}`, "", "ok", "must start with http"},
		{`{"mcpServers":{"odd":{"url":"http://x","type":"smoke"},"ok":{"command":"x"}}}`, "", "ok", `unknown type "smoke"`},
	} {
		write(x.file)
		s, h := newService(t, Config{File: file, Extra: x.extra})
		if len(h.mounted) > 0 {
			t.Error("servers were mounted before the first use")
		}
		list, err := s.List(t.Context(), ListIn{IncludeHidden: true})
		if got := strings.Join(list, " "); err != nil || got != strings.TrimSpace("file shell "+x.want) {
			t.Errorf("%s %s: got %q, %v, want %q", x.file, x.extra, got, err, x.want)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(h.mounted)), " "); got != x.want {
			t.Errorf("%s: got %q mounted, want %q", x.file, got, x.want)
		}
		status, err := s.Show(t.Context(), op.None{})
		if err != nil || !strings.Contains(status.Fault, x.fault) || x.fault == "" && status.Fault != "" {
			t.Errorf("%s: got %+v, %v, want the fault %q", x.file, status, err, x.fault)
		}
	}
	s, _ := newService(t, Config{File: filepath.Join(dir, "none.json")})
	if list, err := s.List(t.Context(), ListIn{}); err != nil || len(list) != 2 {
		t.Errorf("no file: got %v, %v, want only the groups", list, err)
	}
}

// TestDocumentedServers: the examples of the documentation are accepted where it says so.
func TestDocumentedServers(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(b), "## Add servers to a sandbox")
	blocks := strings.Split(section, "```")
	if len(blocks) < 4 {
		t.Fatalf("got %q, want a list for the file and a body for the request", section)
	}
	list, body := strings.TrimPrefix(blocks[1], "json"), strings.TrimPrefix(blocks[3], "json")
	s, h := newService(t, Config{Extra: strings.TrimSpace(list)})
	if names, err := s.List(t.Context(), ListIn{}); err != nil || !slices.Equal(names, []string{"file", "shell", "docs", "git"}) {
		t.Errorf("%s: got %v, %v, want its servers", list, names, err)
	}
	var in AddIn
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		t.Fatalf("%s: got %v, want the body of POST /v1/mcp/servers", body, err)
	}
	if _, err := s.Add(t.Context(), in); err != nil || h.mounted[in.Name].Command != in.Command {
		t.Errorf("%s: got %v, want it added", body, err)
	}
}

// TestAddedServersPersist: servers that calls add survive a restart and can be removed; servers of files cannot be removed.
func TestAddedServersPersist(t *testing.T) {
	t.Parallel()
	dir, state := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "mcp.json")
	if err := os.WriteFile(file, []byte(`{"mcpServers":{"fixed":{"command":"x"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, h := newService(t, Config{File: file, State: state})
	secret := Server{URL: "http://far/mcp", Headers: map[string]string{"Authorization": "Bearer s3cret"}}
	if _, err := s.Add(t.Context(), AddIn{Name: "far", Server: secret}); err != nil {
		t.Fatal(err)
	}
	if h.mounted["far"].URL != secret.URL || h.starts["far"] != nil {
		t.Errorf("got %+v, want it mounted by URL", h.mounted)
	}
	for name, server := range map[string]Server{"": secret, "file": secret, "x": {}, "all": secret} {
		if _, err := s.Add(t.Context(), AddIn{Name: name, Server: server}); err == nil {
			t.Errorf("%q %+v: got no error, want an error", name, server)
		}
	}
	info, err := os.Stat(s.store())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want a file with mode 0600", info.Mode(), err)
	}
	again, h := newService(t, Config{File: file, State: state})
	if list, err := again.List(t.Context(), ListIn{}); err != nil || !slices.Equal(list, []string{"file", "shell", "far", "fixed"}) {
		t.Errorf("after a restart: got %v, %v", list, err)
	}
	if h.mounted["far"].Headers["Authorization"] != "Bearer s3cret" {
		t.Errorf("got %+v, want its headers", h.mounted["far"])
	}
	for name, want := range map[string]string{"fixed": "defined in a file", "missing": "no added server"} {
		if _, err := again.Remove(t.Context(), RemoveIn{name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
	if _, err := again.Remove(t.Context(), RemoveIn{"far"}); err != nil || h.mounted["far"].URL != "" {
		t.Errorf("got %v, %+v, want it removed", err, h.mounted)
	}
}

// TestREST: unknown servers are errors, and results have the format of MCP.
func TestREST(t *testing.T) {
	t.Parallel()
	s, _ := newService(t, Config{Extra: `{"mcpServers":{"a":{"command":"x"}}}`})
	for _, server := range []string{"a", "file", "all"} {
		out, err := s.Execute(t.Context(), ExecuteIn{Server: server, Tool: "t", Args: json.RawMessage(`{"k":1}`)})
		b, _ := json.Marshal(out)
		if err != nil || string(b) != fmt.Sprintf(`{"_meta":null,"content":[{"text":"%s t `+
			`{\"k\":1}","type":"text"}],"structuredContent":null,"isError":true}`, server) {
			t.Errorf("got %s, %v, want the result", b, err)
		}
		list, err := s.Tools(t.Context(), ToolsIn{server})
		if b, _ = json.Marshal(list); err != nil || !strings.Contains(string(b), `"name":"`+server+`_tool"`) {
			t.Errorf("got %s, %v, want the tool", b, err)
		}
	}
	if _, err := s.Execute(t.Context(), ExecuteIn{Server: "missing", Tool: "t"}); err == nil ||
		!strings.Contains(err.Error(), "no MCP server") {
		t.Errorf("got %v, want an error", err)
	}
}

// TestProcess: a server's process has its environment and folder, its standard error is split into lines, and stop ends it with
// its children.
func TestProcess(t *testing.T) {
	t.Parallel()
	runner := proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH")}, Guard: []string{"/proc/self/exe", "guard"}})
	defer runner.Close()
	dir := t.TempDir()
	s, h := newService(t, Config{Runner: runner, Workspace: dir})
	_, err := s.Add(t.Context(), AddIn{Name: "p",
		Server: Server{Command: "sh", Args: []string{"-c",
			`head -c 100000 /dev/zero >&2; echo "$PWD $MINE"; sleep 1000 & read line; echo "got $line"; wait`},
			Env: map[string]string{"MINE": "yes"}}})
	if err != nil {
		t.Fatal(err)
	}
	out, in, stop, err := h.starts["p"](t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != dir+" yes" {
		t.Errorf("got %q, want its folder and variable", lines.Text())
	}
	fmt.Fprintln(in, "hello")
	if !lines.Scan() || lines.Text() != "got hello" {
		t.Errorf("got %q, want the input", lines.Text())
	}
	stop()
	stop()
	if left := runner.Living(); len(left) > 0 {
		t.Errorf("got %v left, want none", left)
	}
	_, err = s.Add(t.Context(), AddIn{Name: "q", Server: Server{Command: "/no/such/program"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := h.starts["q"](t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("got %v, want the program in the error", err)
	}
}
