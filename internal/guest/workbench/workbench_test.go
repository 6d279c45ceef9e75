package workbench_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/workbench"
)

// echo is a request that the fake received.
type echo struct {
	URI    string      `json:"uri"`
	Host   string      `json:"host"`
	Header http.Header `json:"header"`
	Args   []string    `json:"args"`
}

func (b *bench) echo(path string, header ...string) echo {
	b.t.Helper()
	res, body := b.get(path, header...)
	var e echo
	if err := json.Unmarshal([]byte(body), &e); err != nil || res.StatusCode != http.StatusOK {
		b.t.Fatalf("GET %s: got %d %s", path, res.StatusCode, body)
	}
	return e
}

// TestFirstVisitShowsWaitingPage: also while the program listens but does not work yet.
func TestFirstVisitShowsWaitingPage(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	if got := b.state(); got != "idle" {
		t.Errorf("before the first visit: %s", got)
	}
	broken := filepath.Join(b.dir, "work", "broken")
	must(t, os.WriteFile(broken, nil, 0o600))
	page := b.visit("/code-server/")
	if !strings.Contains(page, "<title>VS Code</title>") ||
		!strings.Contains(page, `src="../workbench/workbench.js"`) || !strings.Contains(page, `name="note" content=""`) {
		t.Errorf("got the page %s", page)
	}
	b.awaitState("starting")
	must(t, os.Remove(broken))
	b.awaitState("ready")
	if page = b.visit("/code-server/"); !strings.Contains(page, "vscode-workbench-web-configuration "+b.dir) {
		t.Errorf("after the start: %s", page)
	}
	if settings, err := os.ReadFile(filepath.Join(b.dir,
		"home/.local/share/code-server/User/settings.json")); err != nil || !json.Valid(settings) ||
		!strings.Contains(string(settings), `"telemetry.telemetryLevel": "off"`) {
		t.Errorf("settings: %s, %v", settings, err)
	}
	if res, _ := b.get("/code-server?a=b"); res.StatusCode != http.StatusTemporaryRedirect ||
		res.Header.Get("Location") != "code-server/?a=b" {
		t.Errorf("without a slash: %d to %q", res.StatusCode, res.Header.Get("Location"))
	}
}

// TestRequestsReachTheProgram: the prefix is stripped, escapes are kept, WebSockets work, and credentials of the sandbox's
// server are removed.
func TestRequestsReachTheProgram(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	e := b.echo("/code-server/a%2Fb/c?d=e%20f", "Cookie", "cove_session_1=secret; theme=dark", "X-Forwarded-Prefix", "/p")
	if e.URI != "/a%2Fb/c?d=e%20f" || e.Host != strings.TrimPrefix(b.url, "http://") {
		t.Errorf("got %q at %q", e.URI, e.Host)
	}
	if got := e.Header.Get("Cookie"); strings.Contains(got, "secret") || !strings.Contains(got, "theme=dark") {
		t.Errorf("cookies: %q", got)
	}
	for _, want := range []string{"--auth", "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"} {
		if !strings.Contains(strings.Join(e.Args, " ")+" ", want+" ") {
			t.Errorf("arguments %q lack %s", e.Args, want)
		}
	}
	c := b.open("/code-server/ws")
	defer c.Close()
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
		t.Errorf("WebSocket: got %q, %v", got, err)
	}
	res, _ := b.get("/code-server/wide")
	if got := res.Header.Get("Service-Worker-Allowed"); got != "/code-server/" {
		t.Errorf("service workers may have the scope %q", got)
	}
	if got := res.Header["Set-Cookie"]; len(got) != 1 || got[0] != "a=b; Path=/code-server/" {
		t.Errorf("cookies are set: %q", got)
	}
	if got := res.Header.Get("Location"); got != "/code-server/elsewhere" {
		t.Errorf("redirected to %q", got)
	}
}

// TestPathsDoNotLeaveTheProgram: every path reaches only the socket of the program.
func TestPathsDoNotLeaveTheProgram(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	for path, want := range map[string]string{
		"/code-server/..%2f..%2fetc%2fpasswd":          "/..%2f..%2fetc%2fpasswd", // an opaque name for the program
		"/code-server/%2e%2e/%2e%2e/v1/sandbox":        "/%2e%2e/%2e%2e/v1/sandbox",
		"/code-server/http:%2f%2f127.0.0.1:1%2f":       "/http:%2f%2f127.0.0.1:1%2f",
		"/code-server/@127.0.0.1:1/":                   "/@127.0.0.1:1/",
		"/code-server/x?socket=/var/run/docker.sock":   "/x?socket=/var/run/docker.sock",
		"/code-server/unix:/var/run/docker.sock:/info": "/unix:/var/run/docker.sock:/info",
	} {
		if got := b.echo(path).URI; got != want {
			t.Errorf("%s: the program got %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{"/code-server/../v1/sandbox/components", "/code-server//evil.example/"} {
		res, body := b.get(path)
		if res.StatusCode < 300 || res.StatusCode == http.StatusOK || strings.Contains(res.Header.Get("Location"),
			"//") || strings.Contains(body, "uri") {
			t.Errorf("%s: got %d to %q, %s", path, res.StatusCode, res.Header.Get("Location"), body)
		}
	}
	for _, header := range [][]string{{"Host", "evil.example"}, {"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		if res, body := b.get("/code-server/x", header...); res.StatusCode != http.StatusForbidden {
			t.Errorf("%v: got %d %s", header, res.StatusCode, body)
		}
	}
}

// TestSocketIsPrivate: other users cannot bypass the server.
func TestSocketIsPrivate(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	args := b.echo("/code-server/x").Args
	var socket string
	for i, a := range args {
		if a == "--socket" {
			socket = args[i+1]
		}
	}
	info, err := os.Stat(filepath.Dir(socket))
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the socket's folder has the mode %v", info.Mode())
	}
	must(t, b.Close())
	if _, err := os.Stat(filepath.Dir(socket)); !os.IsNotExist(err) {
		t.Errorf("the socket's folder was not removed: %v", err)
	}
}

// TestKilledProgramIsReplaced: the next visit shows a note once, and gets a new program.
func TestKilledProgramIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.echo("/code-server/x")
	living := b.runner.Living()
	if len(living) != 1 {
		t.Fatalf("%d processes", len(living))
	}
	must(t, syscall.Kill(living[0].PID, syscall.SIGKILL))
	testenv.Poll(t, "the exit is detected", func() bool { return strings.HasPrefix(b.state(), "failed") || b.state() == "idle" })
	page := b.visit("/code-server/")
	if !strings.Contains(page, "VS Code ended unexpectedly") || !strings.Contains(page, "Saved files are kept") {
		t.Errorf("the page has no note: %s", page)
	}
	b.awaitState("ready")
	if page = b.visit("/code-server/"); !strings.Contains(page, "vscode-workbench") {
		t.Errorf("the page has a second note, or the program does not run: %s", page)
	}
	// The exit is also reported if the visit itself ends the program.
	if page = b.visit("/code-server/?exit"); !strings.Contains(page, "VS Code ended unexpectedly") {
		t.Errorf("a visit that ends the program shows %s", page)
	}
	b.awaitState("ready")
	if page = b.visit("/code-server/"); !strings.Contains(page, "vscode-workbench") {
		t.Errorf("the page has a second note, or the program does not run: %s", page)
	}
	// A request of an open page restarts it, too. The next visit shows the note.
	b.get("/code-server/exit")
	testenv.Poll(t, "a request restarts it", func() bool { res, _ := b.get("/code-server/x"); return res.StatusCode == http.StatusOK })
	if page = b.visit("/code-server/"); !strings.Contains(page, "VS Code ended unexpectedly") || !strings.Contains(page, "was restarted") {
		t.Errorf("the page has no note: %s", page)
	}
}

// TestStopsWithoutClients: it runs while a client is connected.
func TestStopsWithoutClients(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *workbench.Config) { c.Idle = 50 * time.Millisecond })
	c := b.open("/code-server/ws")
	defer c.Close()
	for range 3 { // longer than the idle time
		time.AfterFunc(50*time.Millisecond, func() { c.Write([]byte(".")) })
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatalf("the connection ended: %v", err)
		}
	}
	if got := b.state(); got != "ready" {
		t.Errorf("while a client is connected: %s", got)
	}
	c.Close()
	testenv.Poll(t, "it stops", func() bool { return b.state() == "idle" && len(b.runner.Living()) == 0 })
	page := b.visit("/code-server/")
	if !strings.Contains(page, `name="note" content=""`) {
		t.Errorf("a regular stop is reported as a crash: %s", page)
	}
}

// TestCloseEndsConnections: also of a client that neither reads nor writes.
func TestCloseEndsConnections(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	c := b.open("/code-server/ws")
	defer c.Close()
	must(t, b.Close())
	if n := len(b.runner.Living()); n != 0 {
		t.Errorf("%d processes still run", n)
	}
	if res, _ := b.get("/code-server/"); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after Close: %d", res.StatusCode)
	}
}

// TestPagesWithoutOrigin: under a path of a hub VS Code cannot work, and is not started.
func TestPagesWithoutOrigin(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	page := b.visit("/code-server/", "X-Forwarded-Prefix", "/sandbox/a/~0UXamPrxqEyh2A0VLhH84k5mxmNRtk06")
	if !strings.Contains(page, `name="origin" content="none"`) || b.state() != "idle" {
		t.Errorf("state %s, page %s", b.state(), page)
	}
}

func TestDisabledPrograms(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *workbench.Config) { c.NoCode, c.NoLab = true, true })
	if res, _ := b.get("/code-server/", "Accept", "text/html"); res.StatusCode != http.StatusNotFound {
		t.Errorf("GET /code-server/: %d", res.StatusCode)
	}
	if list, err := b.List(t.Context(), op.None{}); err != nil || len(list) != 0 {
		t.Errorf("components: %v, %v", list, err)
	}
	if _, err := b.Install(t.Context(), workbench.InstallIn{Name: "code-server", Wait: true}); codeOf(err) != op.NotFound {
		t.Errorf("install: %v", err)
	}
}

func codeOf(err error) op.Code {
	if e, ok := op.AsError(err); ok {
		return e.Code
	}
	return ""
}

// npm is a fake npm: it creates the files that the recipe expects, from the installed fake of code-server.
const npm = `#!/bin/bash
set -e
[ -e "$STAND_IN/broken" ] && { echo "npm error 404 no such package" >&2; exit 1; }
for arg; do case $prev in --prefix) to=$arg ;; esac; prev=$arg; done
case "$*" in
*node-linux*)
  for a in x64 arm64; do
    mkdir -p "$to/node_modules/node-linux-$a/bin"
    cp "$STAND_IN/node" "$to/node_modules/node-linux-$a/bin/"
  done ;;
*code-server@*)
  code=$to/node_modules/code-server
  mkdir -p "$code/out/node" "$code/lib/vscode/"{extensions,node_modules/{node-pty/prebuilds,@vscode/ripgrep-universal/bin}}
  touch "$code/out/node/entry.js" ;;
*) while [ -e "$STAND_IN/wait" ]; do sleep 0.01; done ;;
esac
`

// TestInstall: an installation reports its progress and the reason of a failure, and the program works after it.
func TestInstall(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	b := newBench(t, func(c *workbench.Config) { c.Components = []string{filepath.Join(c.Home, "components")} })
	parts := filepath.Join(b.dir, "components", "code-server")
	testenv.WriteProgram(t, filepath.Join(b.dir, "bin", "npm"), []byte(strings.ReplaceAll(npm, "$STAND_IN", parts)))
	if !strings.HasPrefix(b.state(), "absent install it with: aio component install code-server") {
		t.Errorf("state: %s", b.state())
	}
	b.visit("/code-server/")
	in := workbench.InstallIn{Name: "code-server", Wait: true}

	broken := filepath.Join(parts, "broken")
	must(t, os.WriteFile(broken, nil, 0o600))
	if _, err := b.Install(t.Context(), in); codeOf(err) != op.Unavailable || !strings.Contains(err.Error(), "404 no such package") {
		t.Errorf("a failing installer: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(b.dir, "home/components/*")); len(left) != 0 {
		t.Errorf("files were not removed: %v", left)
	}
	must(t, os.Remove(broken))

	wait := filepath.Join(parts, "wait")
	must(t, os.WriteFile(wait, nil, 0o600))
	c, err := b.Install(t.Context(), workbench.InstallIn{Name: "code-server"})
	if err != nil || c.State != "installing" {
		t.Errorf("without waiting: %+v, %v", c, err)
	}
	testenv.Poll(t, "progress", func() bool {
		list, err := b.List(t.Context(), op.None{})
		return err == nil && list[0].Installing != nil && list[0].Installing.Percent == 55 && list[0].Failure == ""
	})
	must(t, os.Remove(wait))
	if c, err = b.Install(t.Context(), in); err != nil || c.State != "idle" { // waits for the running installation
		t.Errorf("the second call: %+v, %v", c, err)
	}
	if e := b.echo("/code-server/x"); e.URI != "/x" {
		t.Errorf("after the installation: %+v", e)
	}
	if c, err = b.Install(t.Context(), in); err != nil || c.State != "ready" {
		t.Errorf("already installed: %+v, %v", c, err)
	}
}
