package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/attack"
	"github.com/cove-sandbox/cove/test/cluster"
)

// box is a container of the image.
type box struct {
	t      *testing.T
	e      *cluster.Engine
	name   string
	dial   func() (net.Conn, error)
	client *http.Client
}

// runBox starts a container and waits until it is ready.
func runBox(t *testing.T, e *cluster.Engine, image string, port int, args ...string) *box {
	t.Helper()
	b := startBox(t, e, image, port, append([]string{"--security-opt", "seccomp=../../deploy/seccomp.json"}, args...)...)
	b.waitFor("/readyz")
	return b
}

// startBox starts a container with the defaults of the engine.
func startBox(t *testing.T, e *cluster.Engine, image string, port int, args ...string) *box {
	t.Helper()
	b := reachBox(t, e, fmt.Sprintf("image-%d", port), port)
	args = append([]string{"run", "-d", "--name", b.name, "-p", fmt.Sprintf("127.0.0.1:%d:8080", port)}, args...)
	e.Run(t, nil, append(args, image)...)
	t.Cleanup(func() { e.Run(t, nil, "rm", "-f", b.name) })
	return b
}

// reachBox returns a container that another tool starts.
func reachBox(t *testing.T, e *cluster.Engine, name string, port int) *box {
	dial := func() (net.Conn, error) { return e.Dial(fmt.Sprintf("127.0.0.1:%d", port)) }
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}
	return &box{t: t, e: e, name: name, dial: dial, client: &http.Client{Transport: tr, Timeout: 2 * time.Minute}}
}

func (b *box) waitFor(path string) {
	b.t.Helper()
	testenv.Poll(b.t, b.name+" answers "+path, func() bool {
		resp, err := b.client.Get("http://localhost:8080" + path)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// forward makes the container reachable by other programs and returns its address.
func (b *box) forward() string {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	open, closed := map[net.Conn]bool{}, false
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if open[c] = true; closed {
			c.Close()
		}
	}
	forget := func(c net.Conn) {
		c.Close()
		mu.Lock()
		defer mu.Unlock()
		delete(open, c)
	}
	serve := func(in net.Conn) {
		defer forget(in)
		out, err := b.dial()
		if err != nil {
			return
		}
		keep(out)
		defer forget(out)
		wg.Go(func() { io.Copy(out, in); out.Close() })
		io.Copy(in, out)
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			keep(in)
			wg.Go(func() { serve(in) })
		}
	})
	b.t.Cleanup(func() {
		l.Close()
		mu.Lock()
		closed = true
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return "http://" + l.Addr().String()
}

// call posts to the sandbox and returns the data of its response.
func (b *box) call(path string, in any) map[string]any {
	b.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.client.Post("http://localhost:8080"+path, "application/json", bytes.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var out struct{ Data map[string]any }
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(text, &out) != nil {
		b.t.Fatalf("%s: got %s, %q, %v", path, resp.Status, text, err)
	}
	return out.Data
}

// wantOutput runs commands in the sandbox.
func (b *box) wantOutput(commands map[string]string) {
	b.t.Helper()
	for command, want := range commands {
		got := b.call("/v1/bash/exec", map[string]any{"command": command})
		if got["stdout"] != want {
			b.t.Errorf("%s: got %v, want %q", command, got, want)
		}
	}
}

// get returns the response to a GET request.
func (b *box) get(path string, header http.Header) (status int, body []byte) {
	b.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://localhost:8080"+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	resp, err := b.client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, body
}

// browser starts Chromium and reports whether its sandbox is enabled, or why not.
func (b *box) browser() (own bool, reason string) {
	b.t.Helper()
	var info struct {
		Data struct {
			Sandbox bool
			Reason  string `json:"sandbox_off_reason"`
		}
	}
	if status, body := b.get("/v1/browser/info", nil); status != http.StatusOK || json.Unmarshal(body, &info) != nil {
		b.t.Fatalf("browser: got %d, %s", status, body)
	}
	return info.Data.Sandbox, info.Data.Reason
}

// run runs a program of a user.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestImage builds the images and tests the image of the sandbox with the programs of users.
func TestImage(t *testing.T) {
	t.Parallel()
	e := cluster.StartDocker(t)
	e.BuildImages(t, "../..", programs)
	for _, c := range []struct {
		name string
		run  func(*testing.T, *cluster.Engine)
	}{
		{"of the hub", testHubImage}, {"as root", testAsRoot}, {"as another user", testOtherUser}, {"credentials", testCredentials},
		{"as its users do", testUsers}, {"uid 1000 and a read-only root", testReadOnly},
		{"without a profile", testNoProfile}, {"compose", testCompose}, {"Kubernetes", testKubernetes},
		{"hub", testHub}, {"killed hub", testKilledHub},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, e) })
	}
}

func testHubImage(t *testing.T, e *cluster.Engine) {
	for program, want := range map[string]string{"/usr/local/bin/cove": "cove", "/usr/local/lib/cove/aio": "aio"} {
		if got := e.Run(t, nil, "run", "--rm", "--network", "none", "--entrypoint", program, cluster.HubImage,
			"version"); !strings.HasPrefix(got, want+" ") {
			t.Errorf("%s: got %q, want its version", program, got)
		}
	}
}

func testAsRoot(t *testing.T, e *cluster.Engine) {
	b := runBox(t, e, cluster.SlimImage, 8081, "--health-interval", "1s", "-e", "WORKSPACE=/data/space", "-e",
		"TZ=Asia/Singapore", "-e", "RUN_HOOK_INIT=echo hooked >/tmp/hook")
	b.wantOutput(map[string]string{
		"id -un; pwd; date +%Z": "gem\n/data/space\n+08\n", "sudo id -u": "0\n", "cat /tmp/hook": "hooked\n",
		"python3 -c 'print(6*7)'": "42\n",
		"git --version | cut -c1-11; rg --version | head -c 7; node -e 'console.log(1)'": "git version\nripgrep1\n",
		"ps -o user= -p 1": "root\n",
	})
	b.call("/v1/file/write", map[string]any{"file": "/data/space/a.txt", "content": "hello"})
	b.wantOutput(map[string]string{"cat a.txt": "hello"})
	if status, body := b.get("/v1/sandbox", nil); status != http.StatusOK {
		t.Errorf("health check of the public compose file: got %d, %s", status, body)
	}
	testenv.Poll(t, "the engine finds it healthy", func() bool {
		return e.Run(t, nil, "inspect", "-f", "{{.State.Health.Status}}", b.name) == "healthy\n"
	})
}

func testOtherUser(t *testing.T, e *cluster.Engine) {
	b := runBox(t, e, cluster.SlimImage, 8082, "-e", "USER=ann", "-e", "USER_UID=1234", "-e", "USER_GID=1235")
	b.wantOutput(map[string]string{"id -un; id -u; id -g; touch x && echo ok": "ann\n1234\n1235\nok\n"})
}

func testCredentials(t *testing.T, e *cluster.Engine) {
	in := attack.NewSignIn(t)
	var args []string
	for _, v := range in.Env() {
		args = append(args, "-e", v)
	}
	b := startBox(t, e, cluster.SlimImage, 8084, args...)
	b.waitFor("/healthz") // which needs none
	in.Attack(t, b.dial)
	in.CheckLog(t, e.Run(t, nil, "logs", b.name))
}

// testUsers: Playwright, the pages, the public client and MCP clients work with the resources of the public Kubernetes
// example and the default shared memory of an engine. Finally, SIGTERM ends the container while everything is in use.
func testUsers(t *testing.T, e *cluster.Engine) {
	testenv.Need(t, "node", "chromium")
	python := testenv.NeedFile(t, "../sdk/.venv/bin/python")
	testenv.NeedFile(t, "../page/node_modules/playwright-core/package.json")
	testenv.NeedFile(t, "../mcp/node_modules/@modelcontextprotocol/sdk/package.json")
	began := time.Now()
	b := runBox(t, e, cluster.FullImage, 8085, "--memory", "2g", "--cpus", "1", "-v", "image-hooks:/kept")
	t.Cleanup(func() { e.Run(t, nil, "rm", "-f", b.name); e.Run(t, nil, "volume", "rm", "-f", "image-hooks") })
	t.Logf("ready after %v", time.Since(began).Round(time.Millisecond))
	url := b.forward()
	t.Log(run(t, []string{"URL=" + url}, "node", "../page/story.mjs", "image.mjs"))
	if out := run(t, nil, python, "../sdk/story.py", url, "", "sync", "9001"); !strings.HasSuffix(out, "131 methods\n") {
		t.Errorf("public client: got %s, want 131 methods", out)
	}
	t.Log(run(t, nil, "node", "../mcp/story.mjs", `[{"url":"`+url+`/mcp","mark":"1001"}]`))

	b.wantOutput(map[string]string{"sudo chown gem /kept; echo ok": "ok\n"})
	b.call("/v1/sandbox/hooks", map[string]any{"name": "bye", "command": "echo bye >/kept/bye"})
	b.call("/v1/bash/exec", map[string]any{"command": "nohup sleep 1000 >/dev/null 2>&1 & echo"})
	b.browser()
	began = time.Now()
	e.Run(t, nil, "stop", "-t", "60", b.name) // seconds until SIGKILL, which would be exit status 137
	t.Logf("it ended %s after SIGTERM, with the hook and a browser", time.Since(began).Round(time.Millisecond))
	if got := e.Run(t, nil, "inspect", "-f", "{{.State.ExitCode}}", b.name); got != "0\n" {
		t.Errorf("exit status: got %q, want 0", got)
	}
	if got := e.Run(t, nil, "run", "--rm", "--network", "none", "-v", "image-hooks:/kept", cluster.SlimImage, "cat",
		"/kept/bye"); got != "bye\n" {
		t.Errorf("output of the hook: got %q, want bye", got)
	}
}

func testReadOnly(t *testing.T, e *cluster.Engine) {
	b := runBox(t, e, cluster.FullImage, 8083, "--user", "1000:1000", "--read-only", "--cap-drop", "ALL",
		"--security-opt", "no-new-privileges",
		"--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/home/gem:uid=1000,gid=1000,exec")
	b.wantOutput(map[string]string{"id -u; touch ~/x && echo ok; touch /etc/x 2>&1 | grep -c Read-only": "1000\nok\n1\n"})
	if own, reason := b.browser(); !own {
		t.Errorf("Chromium's own sandbox is off: %s", reason)
	}
	if status, body := b.get("/v1/browser/screenshot", nil); status != http.StatusOK || !bytes.HasPrefix(body, []byte("\x89PNG")) {
		t.Errorf("screenshot: got %d, %.100q, want a picture", status, body)
	}
	for language, code := range map[string]string{"python": "print(6*7)", "javascript": "console.log(6*7)"} {
		if got := fmt.Sprint(b.call("/v1/code/execute", map[string]any{"language": language, "code": code})); !strings.Contains(got, "42") {
			t.Errorf("%s: got %s, want 42", language, got)
		}
	}
}

// testNoProfile: if the seccomp profile of the engine forbids user namespaces, the browser works without its sandbox, and
// the image logs it.
func testNoProfile(t *testing.T, e *cluster.Engine) {
	b := startBox(t, e, cluster.FullImage, 8086)
	b.waitFor("/readyz")
	if own, reason := b.browser(); own || reason == "" {
		t.Errorf("Chromium's own sandbox: got %v, %q, want it off, with a reason", own, reason)
	}
	if log := e.Run(t, nil, "logs", b.name); !strings.Contains(log, "--security-opt seccomp=") {
		t.Errorf("log: got %q, want advice", log)
	}
}

// testCompose: the Compose file of the repository and one with all settings of the public image work.
func testCompose(t *testing.T, e *cluster.Engine) {
	testenv.Need(t, "docker-compose")
	for _, c := range []struct {
		file, folder string
		port         int
	}{{"compose.yaml", "../../deploy", 8087}, {"public-compose.yaml", "testdata", 8088}} {
		compose := func(args ...string) {
			t.Helper()
			cmd := exec.Command("docker-compose", append([]string{"-f", c.file, "-p", fmt.Sprintf("compose-%d", c.port)}, args...)...)
			cmd.Dir = c.folder // which the profile's path refers to
			cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+e.Socket, "SANDBOX_IMAGE="+cluster.FullImage,
				fmt.Sprintf("HOST_PORT=%d", c.port), "PROJECT_DIR="+t.TempDir())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s %s: %v: %s", c.file, args[0], err, out)
			}
		}
		t.Cleanup(func() { compose("down", "-v", "-t", "1") })
		compose("up", "-d")
		b := reachBox(t, e, c.file, c.port)
		b.waitFor("/readyz")
		b.wantOutput(map[string]string{"pwd": "/home/gem\n"})
		if own, reason := b.browser(); !own {
			t.Errorf("%s: Chromium's own sandbox is off: %s", c.file, reason)
		}
	}
}
