package mcp

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestRemoteServerReconnects: calls of a killed remote server fail with an error, and succeed after its
// restart, with and without a session.
func TestRemoteServerReconnects(t *testing.T) {
	t.Parallel()
	program, address := everything(t), freeAddress(t)
	remote, kill := launch(t, nil, program, "-http", address, "-stateless=false")
	url := serve(t, servers(t, map[string]any{"far": map[string]any{"url": remote}, "other": map[string]any{"command": program}}))
	client := gomcp.NewClient(&gomcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &gomcp.StreamableClientTransport{Endpoint: url + "/mcp"},
		&gomcp.ClientSessionOptions{ProtocolVersion: "2025-06-18"})
	must(t, err)
	defer session.Close()
	const tool = "far_test_simple_text"
	ways := map[string]func() string{
		"with a session": func() string {
			r, err := session.CallTool(t.Context(), &gomcp.CallToolParams{Name: tool})
			if err != nil {
				return err.Error()
			}
			b, _ := json.Marshal(r)
			return string(b)
		},
		"without":   func() string { return post(t, url+"/mcp", `{"method":"tools/call","params":{"name":"`+tool+`"}}`) },
		"over REST": func() string { return post(t, url+"/v1/mcp/far/tools/test_simple_text", `{}`) },
	}
	const said = "This is a simple text response"
	for way, call := range ways {
		if got := call(); !strings.Contains(got, said) {
			t.Fatalf("%s: got %s, want a result", way, got)
		}
	}
	kill()
	for way, call := range ways {
		if got := call(); strings.Contains(got, said) || !strings.Contains(got, "cannot be reached") {
			t.Errorf("%s, killed: got %s, want an error that names the cause", way, got)
		}
	}
	if got := post(t, url+"/mcp", `{"method":"tools/call","params":{"name":"other_test_simple_text"}}`); !strings.Contains(got, said) {
		t.Errorf("the other server: got %s, want a result", got)
	}
	launch(t, nil, program, "-http", address, "-stateless=false")
	for way, call := range ways {
		testenv.Poll(t, "the server is used again "+way, func() bool { return strings.Contains(call(), said) })
	}
	testenv.Poll(t, "the state is ready", func() bool { return strings.Count(get(t, url+"/v1/mcp/servers/status"), `"state":"ready"`) == 2 })
}

func newListener() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

func post(t *testing.T, url, body string) string {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	b.ReadFrom(res.Body)
	return b.String()
}

func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	b.ReadFrom(res.Body)
	return b.String()
}

// processOf returns the process whose arguments contain all words.
func processOf(words ...string) int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		has := true
		for _, w := range words {
			has = has && bytes.Contains(b, []byte(w))
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && has {
			return pid
		}
	}
	return 0
}

// TestServersAreMounted: a public npm server as a process, a server by URL and a broken server are
// mounted together. A killed server is restarted.
func TestServersAreMounted(t *testing.T) {
	t.Parallel()
	files, bin := testenv.NeedFile(t, "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"), node(t)
	program := everything(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("from the npm server"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	remote := start(t, nil, program, "-http", address)
	url := serve(t, servers(t, map[string]any{
		"fs":     map[string]any{"command": bin, "args": []string{files, dir}},
		"broken": map[string]any{"command": "/no/such/program"},
	}))
	if got := post(t, url+"/v1/mcp/servers", `{"name":"far","url":"`+remote+`"}`); !strings.Contains(got, `"success":true`) {
		t.Fatalf("add: got %s", got)
	}
	if got := get(t, url+"/v1/mcp/servers"); !strings.Contains(got, `"markitdown","broken","far","fs"`) {
		t.Errorf("got %s, want all servers", got)
	}
	read := func() string {
		return post(t, url+"/mcp", `{"method":"tools/call","params":{"name":"fs_read_text_file","arguments":{"path":"`+dir+`/a.txt"}}}`)
	}
	if got := read(); !strings.Contains(got, "from the npm server") {
		t.Fatalf("got %s, want the file", got)
	}
	if got := post(t, url+"/v1/mcp/far/tools/test_simple_text", `{}`); !strings.Contains(got, `"isError":false`) {
		t.Errorf("got %s, want a result of the server by address", got)
	}
	if got := get(t, url+"/v1/mcp/servers/status"); !strings.Contains(got, "/no/such/program") || strings.Count(got, `"state":"ready"`) != 2 {
		t.Errorf("got %s, want two that are ready, and the error of the third", got)
	}
	if got := post(t, url+"/mcp", `{"method":"tools/list"}`); !strings.Contains(got, "fs_read_text_file") ||
		!strings.Contains(got, "bash_exec") || !strings.Contains(got, "far_test_simple_text") {
		t.Errorf("got %.500s, want the tools of all servers", got)
	}
	pid := processOf(files, dir)
	if pid == 0 {
		t.Fatal("the server does not run as a process")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the killed server is restarted", func() bool {
		return strings.Contains(read(), "from the npm server") && processOf(files, dir) != pid
	})
	req, _ := http.NewRequest(http.MethodDelete, url+"/v1/mcp/servers/far", nil)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	testenv.Poll(t, "the tools of the removed server are removed", func() bool {
		return !strings.Contains(post(t, url+"/mcp", `{"method":"tools/list"}`), "far_test_simple_text")
	})
}
