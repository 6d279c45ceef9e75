package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// wire is a server whose connections can be interrupted.
type wire struct {
	URL    string
	mu     sync.Mutex
	open   map[net.Conn]bool
	called map[net.Conn]string // data that the server has sent since a tool was called
}

func newWire(t *testing.T, address string) *wire {
	t.Helper()
	l, err := newListener()
	must(t, err)
	w := &wire{URL: "http://" + l.Addr().String(), open: map[net.Conn]bool{}, called: map[net.Conn]string{}}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
			if err != nil {
				in.Close()
				continue
			}
			w.mu.Lock()
			w.open[in], w.open[out] = true, true
			w.mu.Unlock()
			work.Go(func() { io.Copy(out, io.TeeReader(in, noteFunc(func(b string) { w.note(in, b, true) }))); out.Close() })
			work.Go(func() {
				io.Copy(io.MultiWriter(in, noteFunc(func(b string) { w.note(in, b, false) })), out)
				in.Close()
			})
		}
	})
	t.Cleanup(func() { l.Close(); w.cut(); work.Wait() })
	return w
}

// noteFunc is called with the data of each write.
type noteFunc func(string)

func (f noteFunc) Write(b []byte) (int, error) { f(string(b)); return len(b), nil }

// note records data that the client of a connection has sent or received.
func (w *wire) note(c net.Conn, b string, sent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, called := w.called[c]; called && !sent || sent && strings.Contains(b, "tools/call") {
		w.called[c] += b
	}
}

// resumable reports whether the client has received the ID of the first event of a call, which it needs
// to resume the response.
func (w *wire) resumable() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, got := range w.called {
		if strings.Contains(got, "\nid:") {
			return true
		}
	}
	return false
}

// cut closes all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		c.Close()
	}
	clear(w.open)
}

// TestClientsResume: public clients whose connection is interrupted during a call get its result over
// another connection, and the command runs once, in a sandbox and through the hub.
func TestClientsResume(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "node")
	testenv.NeedFile(t, "node_modules/@modelcontextprotocol/client")
	python1, python2 := testenv.NeedFile(t, ".venv-1/bin/python"), testenv.NeedFile(t, ".venv-2/bin/python")
	targets := map[string]string{"sandbox": serve(t)}
	if os.Geteuid() == 0 {
		targets["hub"] = serveHub(t)
	}
	for name, url := range targets {
		for _, c := range [][]string{{"node", "resume.mjs", "1"}, {"node", "resume.mjs", "2"},
			{python1, "resume.py", "1"}, {python2, "resume.py", "2"}, {"go", "client", "1"}} {
			t.Run(name+" "+c[1]+" "+c[2], func(t *testing.T) {
				t.Parallel()
				call := func(command string) map[string]any {
					p := map[string]any{"name": "bash_exec", "arguments": map[string]any{"command": command, "timeout": 240}}
					if name == "hub" {
						p = map[string]any{"name": "sandboxExecutor", "arguments": map[string]any{"sandbox_name": "a",
							"tool_name": "bash_exec", "arguments": p["arguments"]}}
					}
					return p
				}
				run := func(command string) string {
					b, _ := json.Marshal(map[string]any{"method": "tools/call", "params": call(command)})
					return post(t, url+"/mcp", string(b))
				}
				file := fmt.Sprintf("/tmp/resume-%s-%s-%s", filepath.Base(t.TempDir()), c[2], filepath.Base(c[1]))
				file = strings.ReplaceAll(file, ".", "-") + fmt.Sprint(os.Getpid())
				defer run("rm -f " + file + " " + file + ".gate")
				w := newWire(t, url)
				b, _ := json.Marshal(call(fmt.Sprintf("echo ran >> %s; until [ -e %s.gate ]; do sleep 0.05; done; "+
					"echo runs: $(wc -l < %s)", file, file, file)))
				type outcome struct {
					out string
					err error
				}
				done := make(chan outcome, 1)
				go func() {
					if c[0] == "go" {
						out, err := callWithGo(t.Context(), w.URL+"/mcp", b)
						done <- outcome{out, err}
						return
					}
					out, err := exec.CommandContext(t.Context(), c[0], append(c[1:], w.URL+"/mcp", string(b))...).CombinedOutput()
					done <- outcome{string(out), err}
				}()
				testenv.Poll(t, "the command runs", func() bool { return strings.Contains(run("cat "+file), "ran") })
				testenv.Poll(t, "the client can resume the call", w.resumable)
				w.cut()
				run("touch " + file + ".gate")
				if got := <-done; got.err != nil || !strings.Contains(got.out, "runs: 1") {
					t.Errorf("got %v: %s, want the result of one run", got.err, got.out)
				}
			})
		}
	}
}

// callWithGo calls a tool with the Go client and returns its result as JSON.
func callWithGo(ctx context.Context, url string, params json.RawMessage) (string, error) {
	var p gomcp.CallToolParams
	if err := json.Unmarshal(params, &p); err != nil {
		return "", err
	}
	client := gomcp.NewClient(&gomcp.Implementation{Name: "resume", Version: "1"}, nil)
	s, err := client.Connect(ctx, &gomcp.StreamableClientTransport{Endpoint: url, MaxRetries: 50},
		&gomcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		return "", err
	}
	defer s.Close()
	r, err := s.CallTool(ctx, &p)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(r)
	return string(b), err
}

// serveHub starts a hub with the sandbox a, which is deleted at the end.
func serveHub(t *testing.T) string {
	t.Helper()
	hub := start(t, nil, cove, "hub", "--listen", "127.0.0.1:0", "--state", filepath.Join(t.TempDir(), "state"),
		"--aio", aio, "--log-level", "warn")
	res, err := http.Post(hub+"/api/v1/sandbox", "application/json", strings.NewReader(`{"name":"a"}`))
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("create: got %v %v, want 200", res, err)
	}
	res.Body.Close()
	t.Cleanup(func() { // sandboxes outlive their hub
		req, _ := http.NewRequest(http.MethodDelete, hub+"/api/v1/sandbox/a", nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != 200 {
			t.Errorf("delete: got %v %v, want 200", res, err)
			return
		}
		res.Body.Close()
	})
	return hub
}
