package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// hub is one running cove hub.
type hub struct {
	*server
	State string
	env   []string // for the command line
	with  []string // of the hub
	key   string   // to sign in with
}

// serveHub starts cove hub with an empty state folder; args are flags.
func serveHub(t *testing.T, args ...string) *hub {
	t.Helper()
	testenv.NeedRoot(t)
	h := &hub{State: t.TempDir()}
	h.begin(t, args...)
	return h
}

// begin starts the hub, and stops it after the test.
func (h *hub) begin(t *testing.T, args ...string) {
	t.Helper()
	h.start(t, args...)
	t.Cleanup(func() {
		h.clear(t)
		h.stop(t)
	})
}

func (h *hub) start(t *testing.T, args ...string) {
	t.Helper()
	h.server = launch(t, cove, h.flags(args), os.Getenv("HOME"), h.with)
	h.env = []string{"COVE_URL=" + h.URL}
}

// flags are the arguments of cove.
func (h *hub) flags(more []string) []string {
	args := append([]string{"hub", "--listen", "127.0.0.1:0", "--log-level", "warn", "--state", h.State}, more...)
	if venv, err := filepath.EvalSymlinks("../../.venv"); err == nil && !slices.Contains(more, "--venv") {
		if venv, err = filepath.Abs(venv); err == nil {
			args = append(args, "--venv", venv)
		}
	}
	return args
}

// clear deletes the sandboxes that a test left.
func (h *hub) clear(t *testing.T) {
	t.Helper()
	c := h.client(t)
	var o client.ListOptions
	if h.key != "" {
		o.User = "*"
	}
	list, err := c.List(context.Background(), o)
	if err != nil {
		return // the test stopped the hub
	}
	var wait sync.WaitGroup
	for _, sb := range list {
		wait.Go(func() {
			if err := c.Delete(context.Background(), sb.ID); err != nil && !client.NotFound(err) {
				t.Error(err)
			}
		})
	}
	wait.Wait()
}

func (h *hub) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: h.URL, Key: h.key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// cove runs a command of the command line with the hub.
func (h *hub) cove(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, cove, args...)
	cmd.Env = environment(t.TempDir(), h.env)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must runs a command that must succeed.
func (h *hub) must(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, code := h.cove(t, "", args...)
	if code != 0 {
		t.Fatalf("cove %s: code %d: %s%s, want code 0", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// A user manages sandboxes from the command line.
func TestHubByHand(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	if out := h.must(t, "create", "a"); out != "a\n" {
		t.Errorf("got %q, want \"a\\n\"", out)
	}
	if out, errs, code := h.cove(t, "from here", "exec", "-i", "a", "--",
		"cat; echo; echo aside >&2; exit 7"); out != "from here\n" || errs != "aside\n" || code != 7 {
		t.Errorf("%q %q %d, want %q, errs %q, code 7", out, errs, code, "from here\n", "aside\n")
	}
	if out := h.must(t, "exec", "a", "-e", "COLOUR=blue", "--dir", "/tmp", "--", "sh", "-c", `echo "$COLOUR $PWD $1"`,
		"x", "two words"); out != "blue /tmp two words\n" {
		t.Errorf("%q, want %q", out, "blue /tmp two words\n")
	}

	dir := t.TempDir()
	h.copyByHand(t, dir)
	status := func() string {
		var o struct {
			Status string `json:"status"`
		}
		json.Unmarshal([]byte(h.must(t, "get", "a")), &o)
		return o.Status
	}
	for _, turn := range []struct{ verb, after string }{{"pause", "paused"}, {"resume", "running"},
		{"pause", "paused"}, {"stop", "stopped"}, {"start", "running"}, {"stop", "stopped"}} {
		h.must(t, turn.verb, "a")
		if got := status(); got != turn.after {
			t.Errorf("after %s it is %s, want %v", turn.verb, got, turn.after)
		}
	}
	if out := h.must(t, "exec", "a", "cat note"); out != "typed" {
		t.Errorf("the disk of a stopped sandbox holds %q, want \"typed\"", out)
	}
	if out := h.must(t, "open", "a"); !strings.HasSuffix(out, "/sandbox/a/\n") {
		t.Errorf("got %q, want the address of a's page", out)
	} else if res, err := http.Get(strings.TrimSpace(out)); err != nil || res.StatusCode != 200 {
		t.Errorf("%v %v, want StatusCode 200", res, err)
	} else {
		res.Body.Close()
	}
	if out := h.must(t, "logs", "a"); !strings.Contains(out, "serving on") {
		t.Errorf("got %q, want containing \"serving on\"", out)
	}
	h.must(t, "rm", "a")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"get", "a"}, 5, `no sandbox "a"`},
		{[]string{"exec", "a", "true"}, 5, `no sandbox "a"`},
		{[]string{"create", "A"}, 2, "lower-case"},
		{[]string{"create", "--environment", "moon"}, 2, "moon"},
		{[]string{"cp", "x", "y"}, 2, "NAME:PATH"},
		{[]string{"cp", filepath.Join(dir, "none"), "a:x"}, 1, "no such file"},
		{[]string{"--hub-url", "http://127.0.0.1:1", "list"}, 3, "cannot reach"},
		{[]string{"--hub-url", "http://127.0.0.1:1", "exec", "a", "true"}, 3, "refused"},
	} {
		if out, errs, code := h.cove(t, "", c.args...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: code %d, %q %q; want %d, %q", c.args, code, out, errs, c.code, c.want)
		}
	}
	if out := h.must(t, "doctor", "--state", h.State); !strings.Contains(out, "a trial sandbox ran") {
		t.Errorf("got %q, want containing \"a trial sandbox ran\"", out)
	}
}

// copyByHand copies a folder and a stream to sandbox a and back.
func (h *hub) copyByHand(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "in", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "in", "sub", "name with space"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.must(t, "cp", filepath.Join(dir, "in"), "a:there")
	h.must(t, "cp", "a:there", filepath.Join(dir, "back"))
	if b, err := os.ReadFile(filepath.Join(dir, "back", "sub", "name with space")); err != nil || string(b) != "content" {
		t.Errorf("%q %v, want \"content\"", b, err)
	}
	if _, errs, code := h.cove(t, "typed", "cp", "-", "a:note"); code != 0 {
		t.Errorf("got %q, want code 0", errs)
	}
	if out := h.must(t, "cp", "a:note", "-"); out != "typed" {
		t.Errorf("%q, want \"typed\"", out)
	}
}

// Programs get the variables that a user sets, but not those that the hub sets for the sandbox's server.
func TestHubStartsServersAlone(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "a")
	const names = "env | grep -E '^(GOMAXPROCS|AIO_ALONE|AIO_LISTEN_FD|AIO_CONTAINED|COVE_)' | sort; ls /proc/self/fd | wc -w"
	if out := h.must(t, "exec", "a", names); out != "4\n" {
		t.Errorf("%q, want %q", out, "4\n")
	}
	h.must(t, "create", "b", "--env", "GOMAXPROCS=3")
	if out := h.must(t, "exec", "b", names); out != "GOMAXPROCS=3\n4\n" {
		t.Errorf("%q, want %q", out, "GOMAXPROCS=3\n4\n")
	}
	// The helper program is in the same folder.
	const convert = `printf '<title>T</title><p>a <b>c</b>' > p.html; curl -s --unix-socket "${AIO_API_URL#unix:}" ` +
		`-H 'content-type: application/json' -d '{"uri": "p.html"}' http://x/v1/util/convert_to_markdown`
	if out := h.must(t, "exec", "a", convert); !strings.Contains(out, `# T\n\na **c**\n`) {
		t.Errorf("got %q, want containing %q", out, `# T\n\na **c**\n`)
	}
}

// A program cannot duplicate file descriptors of its server, which runs as the same user: their
// sockets would expose information about the host's network.
func TestHubConnectionsRevealNothing(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "python3")
	h := serveHub(t)
	h.must(t, "create", "a")
	const look = `
import array, ctypes, fcntl, os, struct
call = ctypes.CDLL(None).syscall
server = [p for p in os.listdir('/proc') if p.isdigit() and open('/proc/%s/cmdline' % p).read().startswith('/run/bin/aio\0')][0]
pidfd, seen = call(434, int(server), 0), 0
for fd in range(64):
    got = call(438, pidfd, fd, 0)
    if got < 0 or not os.readlink('/proc/self/fd/%d' % got).startswith('socket:'):
        continue
    seen += 1
    names = array.array('B', bytes(4096))
    n, _ = struct.unpack('iL', fcntl.ioctl(got, 0x8912, struct.pack('iL', 4096, names.buffer_info()[0])))
    for i in range(0, n, 40):
        print(bytes(names[i:i + 16]).split(b'\0')[0].decode())
print('saw', seen)
`
	for _, python := range []string{"python3 -", "sudo python3 -"} {
		if out, errs, code := h.cove(t, look, "exec", "-i", "a", "--", python); code != 0 || out != "saw 0\n" {
			t.Errorf("%s: got %d %q %q, want no descriptor of the server", python, code, out, errs)
		}
	}
}

// Sandboxes survive when the hub is killed; the next hub adopts all of them.
func TestHubIsKilled(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "a", "--timeout", "90m")
	h.must(t, "create", "b")
	h.must(t, "pause", "b")
	h.must(t, "exec", "a", "nohup sh -c 'while :; do date +%s%N > next; mv next beat; sleep 0.1; done' >/dev/null "+
		"2>&1 & until [ -e beat ]; do sleep 0.1; done")
	before := h.must(t, "get", "a")

	other := exec.Command(cove, "hub", "--listen", "127.0.0.1:0", "--state", h.State)
	other.Env = environment(t.TempDir(), nil)
	if out, err := other.CombinedOutput(); err == nil || !strings.Contains(string(out), "in use by another hub") {
		t.Errorf("a second hub on the same state: %v %s, want an error, containing \"in use by another hub\"", err, out)
	}

	h.cmd.Process.Kill()
	<-h.done
	h.start(t)
	var was, is struct {
		ID      string `json:"id"`
		Status  string `json:"status"`
		Expires string `json:"expires_at"`
	}
	json.Unmarshal([]byte(before), &was)
	json.Unmarshal([]byte(h.must(t, "get", "a")), &is)
	if was != is {
		t.Errorf("after the restart: %+v, want %+v", is, was)
	}
	beat := h.must(t, "exec", "a", "cat beat")
	testenv.Poll(t, "the program in it resumes", func() bool { return h.must(t, "exec", "a", "cat beat") != beat })
	if out := h.must(t, "exec", "b", "echo awake"); out != "awake\n" {
		t.Errorf("%q, want %q", out, "awake\n")
	}
}

// Without an API key, only local clients have access; with one, only clients that send it.
func TestHubSignIn(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	cmd := exec.Command(cove, "hub", "--listen", "0.0.0.0:0", "--state", t.TempDir())
	cmd.Env = environment(t.TempDir(), nil)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "COVE_API_KEY") {
		t.Fatalf("a public hub without a key: %v %s, want an error, containing \"COVE_API_KEY\"", err, out)
	}
	h := serveHub(t, "--api-key", "secret-of-the-test")
	for _, door := range []string{"GET /", "GET /api/v1/sandbox", "POST /api/v1/sandbox", "GET /sandbox/a/v1/sandbox",
		"POST /mcp", "GET /v1/docs", "GET /metrics", "GET /readyz", "GET /nowhere", "GET /sandbox/a/v1/shell/ws"} {
		method, path, _ := strings.Cut(door, " ")
		req, _ := http.NewRequest(method, h.URL+path, nil)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if status, body := read(t, res); status != 401 {
			t.Errorf("%s without a key: %d %s, want status 401", door, status, body)
		}
	}
	if status, _ := h.get(t, "/healthz"); status != 200 {
		t.Errorf("healthz: %d, want status 200", status)
	}
	h.env = append(h.env, "COVE_API_KEY=secret-of-the-test")
	h.must(t, "create", "a")
	if out := h.must(t, "exec", "a", "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"); strings.Contains(out, "secret-of-the-test") {
		t.Error("the sandbox has the hub's key")
	}
	out := strings.TrimSpace(h.must(t, "open", "a"))
	jar, _ := cookiejar.New(nil) // it never fails
	browser := &http.Client{Jar: jar}
	res, err := browser.Get(out)
	if err != nil {
		t.Fatal(err)
	}
	if status, body := read(t, res); status != 200 {
		t.Errorf("%s: %d %s, want status 200", out, status, body)
	}
	h.must(t, "rm", "a")
}

// serveRootless starts cove hub as a user without privileges.
func serveRootless(t *testing.T, args ...string) *hub {
	t.Helper()
	testenv.NeedRoot(t) // to run as another user
	state, err := os.MkdirTemp("", "cove-rootless-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	if err := os.Chown(state, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	h := &hub{State: filepath.Join(state, "hub")}
	cmd := exec.Command(cove, h.flags(append(args, readableVenv(t, state)...))...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	h.server = launchCommand(t, cmd, state, nil)
	h.env = []string{"COVE_URL=" + h.URL, "COVE_SERVER_USERS=65534"}
	t.Cleanup(func() {
		h.clear(t)
		h.stop(t)
	})
	return h
}

// readableVenv returns the option for a path of the repository's virtual environment that other users
// can read. If the repository is in root's home directory, the virtual environment is mounted in dir.
func readableVenv(t *testing.T, dir string) []string {
	t.Helper()
	venv, err := filepath.Abs("../../.venv")
	if err != nil {
		t.Fatal(err)
	}
	try := exec.Command("test", "-r", filepath.Join(venv, "pyvenv.cfg"))
	try.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if _, err := os.Stat(venv); err != nil || try.Run() == nil {
		return nil
	}
	at := filepath.Join(dir, "venv")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(venv, at, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return []string{"--venv", at}
}

// A rootless hub works and reports its limitations.
func TestHubWithoutRoot(t *testing.T) {
	t.Parallel()
	h := serveRootless(t)
	h.must(t, "create", "a")
	if out := h.must(t, "exec", "a", "id -un; echo kept > note"); out != "gem\n" {
		t.Errorf("%q, want %q", out, "gem\n")
	}
	h.must(t, "stop", "a")
	if out := h.must(t, "exec", "a", "cat note"); out != "kept\n" {
		t.Errorf("%q, want %q", out, "kept\n")
	}
	if out := h.must(t, "info"); !strings.Contains(out, "not running as root") {
		t.Errorf("got %q, want containing \"not running as root\"", out)
	}
	h.must(t, "rm", "a")
}

// A hundred concurrent creates succeed, each with a command.
func TestHundredAtOnce(t *testing.T) {
	testenv.Long(t)
	h := serveHub(t)
	c := h.client(t)
	var wait sync.WaitGroup
	errs := make(chan error, 100)
	for i := range 100 {
		wait.Go(func() {
			name := fmt.Sprintf("n%d", i)
			if _, err := c.Create(t.Context(), client.CreateOptions{Name: name}); err != nil {
				errs <- err
				return
			}
			var out bytes.Buffer
			if _, err := c.Guest(name).Exec(t.Context(), "echo $((6*7)) in $(hostname) && echo mine > note",
				client.ExecOptions{Stdout: &out}); err != nil || out.String() != "42 in "+name+"\n" {
				errs <- fmt.Errorf("%s: got %q and error %v, want \"42 in %s\\n\"", name, out.String(), err, name)
			}
		})
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

// idleMemory is the maximum memory of an idle sandbox.
const idleMemory = 20 << 20

// Idle sandboxes respond and use little memory. After their deletion, nothing is left.
func TestManyIdle(t *testing.T) {
	many := testenv.Times(50, 300)
	h := serveHub(t)
	c := h.client(t)
	turns := make(chan struct{}, 8)
	each := func(what string, act func(name string) error) {
		var wait sync.WaitGroup
		for i := range many {
			wait.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				if err := act(fmt.Sprintf("n%d", i)); err != nil {
					t.Errorf("%s n%d: %v", what, i, err)
				}
			})
		}
		wait.Wait()
	}
	each("create", func(name string) error {
		_, err := c.Create(t.Context(), client.CreateOptions{Name: name})
		return err
	})
	list, err := c.List(t.Context(), client.ListOptions{Status: []string{"running"}})
	if err != nil || len(list) != many {
		t.Fatalf("got %d running sandboxes and error %v, want %d", len(list), err, many)
	}
	var memory atomic.Int64
	each("memory of", func(name string) error {
		stats, err := c.Stats(t.Context(), name)
		if err == nil && stats.MemoryBytes <= 0 {
			err = fmt.Errorf("got %d bytes, want the memory counted", stats.MemoryBytes)
		}
		memory.Add(stats.MemoryBytes)
		return err
	})
	one := memory.Load() / int64(many)
	t.Logf("%.1f MiB for each of %d idle sandboxes", float64(one)/(1<<20), many)
	if one > idleMemory {
		t.Errorf("got %d MiB for each of %d idle sandboxes, want at most %d", one>>20, many, idleMemory>>20)
	}
	each("command in", func(name string) error {
		var out bytes.Buffer
		_, err := c.Guest(name).Exec(t.Context(), "hostname", client.ExecOptions{Stdout: &out})
		if err == nil && out.String() != name+"\n" {
			err = fmt.Errorf("got %q, want its name", out.String())
		}
		return err
	})
	each("delete", func(name string) error { return c.Delete(t.Context(), name) })
	if list, err := c.List(t.Context(), client.ListOptions{}); err != nil || len(list) != 0 {
		t.Errorf("got %d sandboxes and error %v after deleting all, want none", len(list), err)
	}
	left := func() (ids []string) {
		groups := h.groups()
		for _, sb := range list {
			if groups[sb.ID] {
				ids = append(ids, sb.ID)
			}
		}
		return ids
	}
	if !testenv.Eventually(func() bool { return len(left()) == 0 }) {
		t.Errorf("got control groups of %q after deleting all, want none", left())
	}
}

// A thousand creates and deletes leave nothing behind.
func TestRoundsLeaveNothing(t *testing.T) {
	testenv.Long(t)
	rounds := testenv.Times(100, 1000)
	h := serveHub(t)
	c := h.client(t)
	round := func(name string) error {
		if _, err := c.Create(t.Context(), client.CreateOptions{Name: name}); err != nil {
			return err
		}
		var out bytes.Buffer
		if _, err := c.Guest(name).Exec(t.Context(), "echo hello", client.ExecOptions{Stdout: &out}); err != nil || out.String() != "hello\n" {
			return fmt.Errorf("%q %w", out.String(), err)
		}
		return c.Delete(t.Context(), name)
	}
	for i := range 16 { // fills caches
		if err := round(fmt.Sprintf("warm%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	// The number of sandboxes that the hub keeps prepared.
	const prepared = 8
	var before map[string]int
	testenv.Poll(t, "the hub has prepared them", func() bool {
		last := before
		before = h.traces(t)
		// The hub creates a control group before its process.
		return before["cgroups"] == prepared && before["children of the hub"] >= prepared && maps.Equal(before, last)
	})
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			for i := range rounds / 4 {
				if err := round(fmt.Sprintf("w%d-%d", w, i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
	var now map[string]int
	defer func() {
		if t.Failed() {
			t.Logf("got %v, want %v", now, before)
		}
	}()
	testenv.Poll(t, "everything is as before", func() bool {
		now = h.traces(t)
		for what, n := range now {
			// The number of idle connections varies.
			if slack := map[string]int{"files of the hub": 16, "threads of the hub": 8}[what]; n > before[what]+slack {
				return false
			}
		}
		return true
	})
}

// traces counts everything that sandboxes could leave on this machine.
func (h *hub) traces(t *testing.T) map[string]int {
	t.Helper()
	count := map[string]int{}
	lines := func(path, part string) int {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), part)
	}
	count["mounts"] = lines("/proc/self/mountinfo", h.State)
	count["sockets"] = lines("/proc/net/unix", h.State)
	filepath.WalkDir(h.State, func(name string, _ os.DirEntry, _ error) error {
		if filepath.Base(filepath.Dir(name)) != "records" { // of activity, which outlive their sandboxes
			count["files"]++
		}
		return nil
	})
	count["cgroups"] = len(h.groups())
	processes, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, p := range processes {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) > 1 && fields[1] == fmt.Sprint(h.cmd.Process.Pid) {
			count["children of the hub"]++
		}
	}
	files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.cmd.Process.Pid))
	count["files of the hub"] = len(files)
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", h.cmd.Process.Pid))
	count["threads of the hub"] = len(threads)
	return count
}

// groups returns the names of sandboxes that have a control group of this hub.
func (h *hub) groups() map[string]bool {
	sum := sha256.Sum256([]byte(h.State))
	names := map[string]bool{}
	for _, pattern := range []string{"/sys/fs/cgroup/cove-%x/sb-*", "/sys/fs/cgroup/*/cove-%x/sb-*"} {
		found, _ := filepath.Glob(fmt.Sprintf(pattern, sum[:4]))
		for _, dir := range found {
			names[filepath.Base(dir)] = true
		}
	}
	return names
}

// launch starts one of the programs and waits for its address.
func launch(t *testing.T, program string, args []string, home string, env []string) *server {
	t.Helper()
	return launchCommand(t, exec.Command(program, args...), home, env)
}

func launchCommand(t *testing.T, cmd *exec.Cmd, home string, env []string) *server {
	t.Helper()
	s := &server{Home: home, cmd: cmd, log: &output{}, done: make(chan struct{})}
	s.cmd.Env = environment(home, env)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.cmd.Wait(); close(s.done) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %v\n%s", s.cmd, s.cmd.ProcessState, s.log)
		}
	})
	testenv.Poll(t, "the server's address", func() bool {
		_, rest, ok := strings.Cut(s.log.String(), "serving on ")
		if ok {
			s.URL, _, _ = strings.Cut(rest, "\n")
		}
		select {
		case <-s.done:
			t.Fatalf("the server ended: %s", s.log)
		default:
		}
		return ok && strings.Contains(rest, "\n")
	})
	return s
}
