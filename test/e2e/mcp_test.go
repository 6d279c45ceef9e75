package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// protocols are the versions of MCP that current clients use.
var protocols = []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"}

// venv is the setting for the Python that has a Jupyter kernel.
func venv() string {
	dir, err := filepath.EvalSymlinks("../../.venv")
	if err != nil {
		return "AIO_VENV="
	}
	dir, _ = filepath.Abs(dir)
	return "AIO_VENV=" + dir
}

// dial connects an MCP client of a version.
func dial(t *testing.T, url, version string) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatalf("connect with %s: %v", version, err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// texts joins the texts of a result.
func texts(r *mcp.CallToolResult) string {
	var all []string
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			all = append(all, c.Text)
		}
	}
	return strings.Join(all, "\n")
}

// isRunning reports whether a process has the word in its arguments.
func isRunning(word string) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte("\x00"+word+"\x00")) {
			return true
		}
	}
	return false
}

var marks atomic.Int64

// endless are calls that never end, each with a process whose arguments contain the mark.
var endless = []struct {
	tool string
	args func(mark string) map[string]any
}{
	{"bash_exec", func(m string) map[string]any { return map[string]any{"command": "sleep " + m + " & wait"} }},
	{"shell_exec", func(m string) map[string]any { return map[string]any{"command": "sleep " + m} }},
	{"code_execute", func(m string) map[string]any {
		return map[string]any{"language": "python", "code": "import subprocess\nsubprocess.run(['sleep','" + m + "'])", "timeout": 300}
	}},
	{"nodejs_execute", func(m string) map[string]any {
		return map[string]any{"code": "require('child_process').execFileSync('sleep',['" + m + "'])", "timeout": 300}
	}},
}

// TestCanceledCallsEnd: a canceled call leaves no process, in every version, direct and
// through the hub.
func TestCanceledCallsEnd(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "node")
	direct := serve(t, venv()).URL + "/mcp"
	h := serveHub(t)
	h.must(t, "create", "a")
	for _, way := range []string{"direct", "hub"} {
		for _, version := range protocols {
			t.Run(way+" "+version, func(t *testing.T) {
				t.Parallel()
				url := direct
				if way == "hub" {
					url = h.URL + "/mcp"
				}
				s := dial(t, url, version)
				for _, e := range endless {
					mark := fmt.Sprint(770000000 + os.Getpid()%1000*1000 + int(marks.Add(1)))
					p := &mcp.CallToolParams{Name: e.tool, Arguments: e.args(mark)}
					if way == "hub" {
						p = &mcp.CallToolParams{Name: "sandboxExecutor",
							Arguments: map[string]any{"sandbox_name": "a", "tool_name": e.tool, "arguments": e.args(mark)}}
					}
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() { _, err := s.CallTool(ctx, p); done <- err }()
					testenv.Poll(t, e.tool+" runs", func() bool {
						select {
						case err := <-done:
							t.Fatalf("%s ended by itself: %v", e.tool, err)
						default:
						}
						return isRunning(mark)
					})
					cancel()
					if err := <-done; err == nil {
						t.Errorf("%s: got a result, want an error", e.tool)
					}
					testenv.Poll(t, e.tool+" ends", func() bool { return !isRunning(mark) })
				}
			})
		}
	}
}

// TestCutConnectionResumes: after a lost connection, a client resumes from the last event that it
// received and gets the result of its call. The command runs once.
func TestCutConnectionResumes(t *testing.T) {
	t.Parallel()
	s := serve(t)
	post := func(session, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
			req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := post("", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",`+
		`"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	session := res.Header.Get("Mcp-Session-Id")
	read(t, res)
	read(t, post(session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	file := filepath.Join(t.TempDir(), "count")
	gate := file + ".gate"
	args, _ := json.Marshal(map[string]any{"command": fmt.Sprintf("echo ran >> %s; until [ -e %s ]; do sleep 0.05; "+
		"done; wc -l < %s", file, gate, file)})
	res = post(session, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bash_exec","arguments":`+string(args)+`}}`)
	if res.StatusCode != 200 {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("got %s %s, want a stream", res.Status, b)
	}
	// The first event has an ID and no message, so that a client can resume from it.
	var last string
	lines := bufio.NewScanner(res.Body)
	for last == "" && lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			last = id
		}
	}
	testenv.Poll(t, "the command runs", func() bool { _, err := os.Stat(file); return err == nil })
	res.Body.Close() // drop the connection
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Accept": "text/event-stream", "Mcp-Session-Id": session,
		"Mcp-Protocol-Version": "2025-11-25", "Last-Event-ID": last} {
		req.Header.Set(k, v)
	}
	// The stream remains in use until the server detects the lost connection.
	testenv.Poll(t, "the stream is resumed", func() bool {
		if res, err = http.DefaultClient.Do(req); err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 200 {
			res.Body.Close()
		}
		return res.StatusCode == 200
	})
	defer res.Body.Close()
	lines = bufio.NewScanner(res.Body)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && strings.Contains(data, `"id":2`) {
			if !strings.Contains(data, `1\n[exit code 0]`) {
				t.Errorf("got %s, want one run", data)
			}
			return
		}
	}
	t.Fatalf("no result after event %q: %v", last, lines.Err())
}

// TestLargeResultsStaySmall: for any tool result, the event is much smaller than 1 MiB, explains how
// to read the rest, and contains the payload once.
func TestLargeResultsStaySmall(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := serve(t, venv())
	c := dial(t, s.URL+"/mcp?tools=all", "2025-06-18")
	big := filepath.Join(s.Home, "big.txt")
	if err := os.WriteFile(big, []byte(strings.Repeat("0123456789abcde\n", 40000)), 0o600); err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(s.Home, "big.bin")
	if err := os.WriteFile(blob, bytes.Repeat([]byte{0, 1, 2, 255}, 400000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		tool string
		args map[string]any
		want string
	}{
		{"file_read", map[string]any{"path": big}, "continue with start_line 1863"},
		{"bash_exec", map[string]any{"command": "seq 10000000"}, "bash_output with session_id"},
		{"terminal_execute", map[string]any{"command": "seq 100000"}, "omitted"},
		{"code_execute", map[string]any{"language": "python", "code": "print('x'*5000000)"}, "file_read"},
		{"file_list", map[string]any{"path": "/usr/bin"}, "/usr/bin/"},
		{"file_grep", map[string]any{"path": big, "pattern": "0", "max_results": 10000}, "there are more matches"},
		{"file_download", map[string]any{"path": blob}, "Saved 1600000 bytes to"},
		{"sandbox_get_python_packages", nil, "pip"},
		{"bash_exec", map[string]any{"command": "echo one-payload-only"}, "one-payload-only"},
		{"code_execute", map[string]any{"language": "python", "code": "'one-'+'payload-only'"}, "one-payload-only"},
	} {
		r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: x.tool, Arguments: x.args})
		if err != nil || r.IsError {
			t.Errorf("%s: got %v, %+v, want a result", x.tool, err, r)
			continue
		}
		b, err := json.Marshal(r)
		if err != nil || len(b) > 100_000 || len([]rune(texts(r))) > 30_100 {
			t.Errorf("%s: got %d bytes, %d characters, want at most 30,000", x.tool, len(b), len(texts(r)))
		}
		if !strings.Contains(texts(r), x.want) {
			t.Errorf("%s: got …%s, want %q in it", x.tool, texts(r)[max(0, len(texts(r))-300):], x.want)
		}
		if n := bytes.Count(b, []byte("one-payload-only")); n > 1 {
			t.Errorf("%s: got the payload %d times in %s, want once", x.tool, n, b)
		}
	}
	r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "code_execute",
		Arguments: map[string]any{"language": "python", "code": "from IPython.display import Image\nimport struct,zlib\n" +
			"def png(n):\n c=lambda k,d: struct.pack('>I',len(d))+k+d+struct.pack('>I',zlib.crc32(k+d))\n import os\n " +
			"return b'\\x89PNG\\r\\n\\x1a\\n'+c(b'IHDR',struct.pack('>IIBBBBB',n,n,8,2,0,0,0))+" +
			"c(b'IDAT',zlib.compress(b''.join(b'\\0'+os.urandom(3*n) for _ in range(n))))+c(b'IEND',b'')\nImage(png(900))"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err != nil || len(b) > 1<<20 || !bytes.Contains(b, []byte(`"type":"image"`)) {
		t.Errorf("a plot of 2.4 MB: got %d bytes: %.300s, want an image below 1 MiB", len(b), b)
	}
}

// TestThousandSessions: a client can open and close a thousand sessions.
func TestThousandSessions(t *testing.T) {
	t.Parallel()
	s := serve(t)
	open := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
		`"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	ids := map[string]bool{}
	for range 1000 {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/mcp", strings.NewReader(open))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		ids[res.Header.Get("Mcp-Session-Id")] = true
	}
	if len(ids) != 1000 {
		t.Fatalf("got %d sessions, want 1000", len(ids))
	}
	for id := range ids {
		req, _ := http.NewRequestWithContext(t.Context(), "DELETE", s.URL+"/mcp", nil)
		req.Header.Set("Mcp-Session-Id", id)
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != http.StatusNoContent {
			t.Fatalf("close: got %v, %v, want 204", res, err)
		}
		res.Body.Close()
	}
	if status, body := s.post(t, "/mcp",
		`{"method":"tools/call","params":{"name":"bash_exec","arguments":{"command":"echo alive"}}}`); status != 200 ||
		!strings.Contains(body, `"text":"alive`) {
		t.Errorf("got %d %s, want a working server", status, body)
	}
}
