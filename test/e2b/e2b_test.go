// Package e2b tests a real hub with E2B's unmodified public clients. The stories are scripts in this folder.
package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

var aio, cove string

func TestMain(m *testing.M) {
	testenv.MainWithPrograms(m, "../..", func(dir string) {
		aio, cove = filepath.Join(dir, "aio"), filepath.Join(dir, "cove")
	})
}

// hub is a running hub with tenants.
type hub struct {
	url     string
	state   string
	admin   string // key
	log     *output
	process *os.Process
	env     []string // of clients
	send    http.RoundTripper
}

// serve starts a hub that all stories share. Its sandboxes end with the test.
func serve(t *testing.T, args ...string) *hub {
	t.Helper()
	testenv.NeedRoot(t)
	state := t.TempDir()
	args = append([]string{"hub", "--listen", "127.0.0.1:0", "--log-level", "warn", "--state", state, "--tenants"}, args...)
	if venv, err := filepath.EvalSymlinks("../../.venv"); err == nil {
		args = append(args, "--venv", venv)
	}
	var out output
	cmd := exec.Command(cove, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &hub{state: state, log: &out, process: cmd.Process, send: http.DefaultTransport}
	t.Cleanup(func() {
		h.clear(t)
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if t.Failed() {
			t.Logf("hub:\n%s", out.String())
		}
	})
	address := regexp.MustCompile(`serving on (https?://[0-9.:]+)`)
	testenv.Poll(t, "the hub serves", func() bool {
		if m := address.FindStringSubmatch(out.String()); m != nil {
			h.url = m[1]
		}
		return h.url != ""
	})
	b, err := os.ReadFile(filepath.Join(state, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	h.admin = strings.TrimSpace(string(b))
	h.env = []string{"E2B_API_URL=" + h.url, "E2B_SANDBOX_URL=" + h.url}
	return h
}

type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// clear deletes all sandboxes.
func (h *hub) clear(t *testing.T) {
	t.Helper()
	c, err := client.New(client.Config{URL: "unix:" + filepath.Join(h.state, "hub.sock"), Key: h.admin})
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	list, err := c.List(context.Background(), client.ListOptions{User: "*"})
	if err != nil {
		t.Error(err)
	}
	for _, sb := range list {
		if err := c.Delete(context.Background(), sb.ID); err != nil && !client.NotFound(err) {
			t.Error(err)
		}
	}
}

// tenant creates a key in the format that all clients accept.
func (h *hub) tenant(t *testing.T, name, role string) string {
	t.Helper()
	body, err := json.Marshal(map[string]string{"tenant": name, "role": role})
	if err != nil {
		t.Fatal(err)
	}
	status, text := h.call(t, http.MethodPost, "/api/v1/key", string(body), "X-API-Key", h.admin)
	var made struct {
		Data struct {
			Key string `json:"e2b_api_key"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(text), &made); status != http.StatusOK || err != nil ||
		!regexp.MustCompile(`^e2b_[0-9a-f]+$`).MatchString(made.Data.Key) {
		t.Fatalf("add a key: got %d %s %v, want one that starts with e2b_ and is hexadecimal", status, text, err)
	}
	return made.Data.Key
}

// call sends a request. header contains names and values.
func (h *hub) call(t *testing.T, method, path, body string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, h.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	res, err := h.send.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b.String()
}

// patience is long enough for busy machines.
const patience = 9 * time.Minute

// run runs a story with a client's settings.
func (h *hub) run(t *testing.T, key string, program ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "E2B_API_KEY=" + key, "NO_PROXY=*"}, h.env...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "passed") {
		t.Errorf("%s: %v\n%s", strings.Join(program, " "), err, out)
	}
}

// runCLI runs the story of the command line with a release of package.json.
func (h *hub) runCLI(t *testing.T, key, release string, old bool) {
	t.Helper()
	testenv.Need(t, "node", "python3")
	story := []string{"sh", "cli.sh", testenv.NeedFile(t, ".venv-1/bin/python"), "node",
		testenv.NeedFile(t, "node_modules/"+release+"/dist/index.js")}
	if old {
		story = append([]string{"env", "OLD=1"}, story...)
	}
	h.run(t, key, story...)
}

// needDesktop checks the requirements of desktop clients and their tests.
func needDesktop(t *testing.T, release string) {
	t.Helper()
	testenv.Need(t, "node", "Xtigervnc", "openbox", "chromium", "curl", "pgrep", "setsid")
	testenv.NeedFile(t, "node_modules/"+release)
	testenv.NeedFile(t, "../page/node_modules/playwright-core")
}

// needRelease skips all but the newest release of a client in make test.
func needRelease(t *testing.T, newest bool) {
	t.Helper()
	if !newest {
		testenv.Long(t)
	}
}

// TestClients: the public clients of several releases run the stories.
func TestClients(t *testing.T) {
	t.Parallel()
	h := serve(t, "--public-ports")
	key := h.tenant(t, "acme", "user")
	for _, release := range []string{"1", "2", "3"} { // of requirements-N.txt
		t.Run("python "+release, func(t *testing.T) {
			t.Parallel()
			needRelease(t, release == "1")
			h.run(t, key, testenv.NeedFile(t, ".venv-"+release+"/bin/python"), "sandbox.py")
		})
	}
	for _, release := range []string{"e2b", "e2b-2", "e2b-3"} { // of package.json
		t.Run("javascript "+release, func(t *testing.T) {
			t.Parallel()
			needRelease(t, release == "e2b")
			testenv.NeedFile(t, "node_modules/"+release)
			story := []string{"node", "sandbox.mjs", release}
			if release == "e2b" {
				story = append(story, "long")
			}
			h.run(t, key, story...)
		})
	}
	for _, release := range []string{"1", "2"} { // of requirements-N.txt; older ones support only names
		t.Run("interpreter "+release, func(t *testing.T) {
			t.Parallel()
			needRelease(t, release == "1")
			testenv.Need(t, "node")
			h.run(t, key, testenv.NeedFile(t, ".venv-"+release+"/bin/python"), "interpreter.py")
		})
	}
	t.Run("interpreter javascript", func(t *testing.T) {
		t.Parallel()
		testenv.Need(t, "node")
		testenv.NeedFile(t, "node_modules/@e2b/code-interpreter")
		h.run(t, key, "node", "interpreter.mjs")
	})
	for i, release := range []string{"@e2b/desktop", "desktop-2", "desktop-3"} { // of package.json, and of requirements-N.txt
		t.Run("desktop "+release, func(t *testing.T) {
			t.Parallel()
			needRelease(t, i == 0)
			needDesktop(t, release)
			python := []string{testenv.NeedFile(t, fmt.Sprintf(".venv-%d/bin/python", i+1)), "desktop.py"}
			story := []string{"node", "desktop.mjs", release}
			if i == 0 {
				story = append(story, "watch")
			} else {
				python = append(python, "look", "mouse", "stream") // the rest is the same command in all releases
			}
			h.run(t, key, python...)
			h.run(t, key, story...)
		})
	}
	for i, release := range []string{"@e2b/cli", "cli-2", "cli-3"} { // of package.json
		t.Run("command line "+release, func(t *testing.T) {
			t.Parallel()
			needRelease(t, i == 0)
			h.runCLI(t, key, release, i > 0)
		})
	}
	t.Run("attacks", func(t *testing.T) {
		t.Parallel()
		h.attack(t)
	})
}

// TestInstalledKernels: R, Java and what TypeScript requires are installed on first use, from Debian and npm.
func TestInstalledKernels(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	var mirrors []string // may have private addresses
	for _, host := range []string{"deb.debian.org", "registry.npmjs.org"} {
		addresses, err := net.DefaultResolver.LookupHost(t.Context(), host)
		if err != nil {
			testenv.Lack(t, "needs packages from "+host)
		}
		mirrors = append(mirrors, addresses...)
	}
	h := serve(t, "--private-networks", strings.Join(mirrors, ","))
	h.run(t, h.tenant(t, "acme", "user"), testenv.NeedFile(t, ".venv-1/bin/python"), "interpreter.py", "install")
}
