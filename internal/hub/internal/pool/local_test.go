package pool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// machine is a pool of real sandboxes with the real server in them.
type machine struct {
	t    testing.TB
	p    *local.Provider
	pool *pool.Pool
}

func newMachine(t testing.TB, want pool.Want, change ...func(*pool.Config)) *machine {
	t.Helper()
	testenv.NeedRoot(t)
	testenv.Need(t, "go", "bash")
	dir := t.TempDir()
	hub, aio := filepath.Join(dir, "hub"), filepath.Join(dir, "aio")
	testenv.Build(t, map[string]string{hub: "../../../provider/local/testdata/hub", aio: "../../../../cmd/aio"})
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	p, err := local.Open(t.Context(), local.Config{Dir: filepath.Join(dir, "state"),
		Init: []string{hub, "isolate-init"}, Command: []string{"/run/bin/aio", "serve"},
		Binds: []local.Bind{{Source: aio, Target: "/run/bin/aio"}}, Env: map[string]string{"AIO_LOG_LEVEL": "debug"},
		StopGrace: 2 * time.Second, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, p: p}
	cfg := pool.Config{Provider: p, Log: log, Every: 20 * time.Millisecond,
		Size: func() map[string]pool.Want { return map[string]pool.Want{"e": want} },
		Bind: pool.BindHTTP(func(ctx context.Context, id string) (sandbox.Endpoint, error) { return p.Endpoint(ctx, id, 0) })}
	for _, c := range change {
		c(&cfg)
	}
	m.pool = pool.New(cfg)
	t.Cleanup(func() {
		m.pool.Close()
		list, _ := p.List(context.Background(), sandbox.Filter{})
		for _, sb := range list {
			p.Delete(context.Background(), sb.ID)
		}
		p.Close()
	})
	m.pool.Begin(t.Context())
	testenv.Poll(t, "the pool is filled", func() bool { return m.pool.Ready()["e"] == want.Size })
	return m
}

// call sends a request into a sandbox.
func (m *machine) call(id, path, body string) (int, string) {
	m.t.Helper()
	ep, err := m.p.Endpoint(m.t.Context(), id, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ep.Dial(ctx) }}
	defer tr.CloseIdleConnections()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(m.t.Context(), method, "http://sandbox"+path, strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	res, err := tr.RoundTrip(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// bash runs a command in a sandbox and returns its output.
func (m *machine) bash(id, command string) string {
	m.t.Helper()
	body, _ := json.Marshal(map[string]any{"command": command})
	status, reply := m.call(id, "/v1/bash/exec", string(body))
	var out struct {
		Success bool
		Data    struct {
			Stdout, Stderr string
		}
	}
	if err := json.Unmarshal([]byte(reply), &out); status != 200 || err != nil || !out.Success {
		m.t.Fatalf("%s: got %d %s, want status 200 and success", command, status, reply)
	}
	return out.Data.Stdout + out.Data.Stderr
}

// claim binds a member of the pool to an owner.
func (m *machine) claim(want pool.Want, owner, secret string) sandbox.Sandbox {
	m.t.Helper()
	s := sandbox.Spec{Name: "mine", Owner: owner, Environment: "e", Workdir: "/home/gem/work",
		Env: map[string]string{"OWN": owner, "DISPLAY_WIDTH": "800"}}
	sb, ok, err := m.pool.Claim(m.t.Context(), "e", pool.Fingerprint(want.Spec), pool.Binding{Spec: s,
		Env: map[string]string{"TOKEN": secret},
		Files: []pool.File{{Path: "~/.config/key", Content: []byte(secret + "-file")},
			{Path: "/home/gem/run.sh", Content: []byte("#!/bin/sh\necho ran\n"), Mode: "0755"}}})
	if !ok || err != nil {
		m.t.Fatalf("got %v %v, want a member; ready %v", ok, err, m.pool.Ready())
	}
	return sb
}

// TestClaimedSandboxHasNoTraces: a claimed sandbox contains no data of the pool or of the owner of
// another member. It looks the same as a sandbox that was created directly.
func TestClaimedSandboxHasNoTraces(t *testing.T) {
	want := pool.Want{Size: 2, Spec: sandbox.Spec{Environment: "e", Env: map[string]string{"OF_POOL": "environment"}}}
	m := newMachine(t, want)
	// A member serves no requests before it has an owner.
	for _, sb := range m.list(pool.Owner) {
		if status, _ := m.call(sb.ID, "/v1/bash/exec", `{"command":"true"}`); status != http.StatusServiceUnavailable {
			t.Errorf("bash of a member: got status %d, want 503", status)
		}
		if status, _ := m.call(sb.ID, "/mcp", ""); status != http.StatusServiceUnavailable {
			t.Errorf("MCP of a member: got status %d, want 503", status)
		}
	}
	ann, bob := m.claim(want, "ann", "s3cret-of-ann"), m.claim(want, "bob", "s3cret-of-bob")
	cold, err := m.p.Create(t.Context(), sandbox.Spec{Name: "cold", Environment: "e",
		Env: map[string]string{"OWN": "eve", "TOKEN": "t", "DISPLAY_WIDTH": "800", "WORKSPACE": "/home/gem"}})
	if err != nil {
		t.Fatal(err)
	}
	m.checkBinding(bob.ID)
	m.checkTraces(bob.ID, ann.ID)
	m.checkServer(bob.ID)
	if status, _ := m.call(cold.ID, "/v1/sandbox/init", `{"env":{"A":"b"}}`); status != http.StatusConflict {
		t.Errorf("sandbox that does not wait for an owner: got %d, want status 409", status)
	}
	m.checkSame(bob.ID, cold.ID)
	// The uptime begins with the claim.
	var up struct {
		Uptime float64 `json:"uptime_seconds"`
	}
	if _, reply := m.call(bob.ID, "/readyz", ""); json.Unmarshal([]byte(reply), &up) != nil ||
		up.Uptime > time.Since(pool.Created(bob)).Seconds() {
		t.Errorf("got %s, want an uptime since the claim", reply)
	}
}

// checkBinding fails unless a sandbox has the environment, files and folder of its owner bob before
// its first command.
func (m *machine) checkBinding(id string) {
	m.t.Helper()
	got := m.bash(id, `echo "$OWN $TOKEN $OF_POOL."; cat ~/.config/key; echo; stat -c '%a %U' ~/.config/key `+
		`~/run.sh; ~/run.sh; pwd; hostname; cat /etc/hostname; getent hosts mine | cut -d" " -f1`)
	if want := "bob s3cret-of-bob .\ns3cret-of-bob-file\n600 gem\n755 gem\nran\n/home/gem/work\nmine\nmine\n127.0.0.1\n"; got != want {
		m.t.Errorf("got\n%swant\n%s", got, want)
	}
}

// checkTraces fails if a sandbox contains data of the pool, or of ann's sandbox.
func (m *machine) checkTraces(id, other string) {
	m.t.Helper()
	everything := `env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n'; ` +
		`find / -xdev -newermt '-1 hour' -not -path '/proc/*' 2>/dev/null; grep -raoh 's3cret-of-[a-z]*\|OF_POOL' ` +
		`/home /tmp /var /run /dev/shm /etc 2>/dev/null; hostname; cat /proc/mounts; history; ls -la ~`
	seen := m.bash(id, everything)
	for _, word := range []string{"s3cret-of-ann", "ann", "sub-pool", "cove/pool", other} {
		if found := regexp.MustCompile(`.*\b` + regexp.QuoteMeta(word) + `\b.*`).FindString(seen); found != "" {
			m.t.Errorf(`%q is visible: got %s, want ""`, word, found)
		}
	}
}

// checkServer fails if the environment, the log or a reply of our server contains a secret, or if it
// accepts another owner.
func (m *machine) checkServer(id string) {
	t := m.t
	t.Helper()
	if found := m.bash(id, `for p in /proc/[0-9]*; do case $(readlink $p/exe) in /run/bin/aio) tr '\0' '\n' < `+
		`$p/environ;; esac; done`); strings.Contains(found, "s3cret") || strings.Contains(found, "OWN=") {
		t.Errorf(`the server's environment: got %s, want neither "s3cret" nor "OWN=" in it`, found)
	}
	logs, err := m.p.Logs(t.Context(), id, 1<<20)
	if err != nil || bytes.Contains(logs, []byte("s3cret")) {
		t.Errorf(`log: got %v %s, want logs without "s3cret"`, err, logs)
	}
	for _, path := range []string{"/readyz", "/metrics", "/v1/sandbox", "/v1/sandbox/activity", "/v1/openapi.json"} {
		if _, reply := m.call(id, path, ""); strings.Contains(reply, "s3cret-of-bob") || strings.Contains(reply, "s3cret-of-ann") {
			t.Errorf(`%s: got %s, want no secret`, path, reply)
		}
	}
	if status, reply := m.call(id, "/v1/sandbox/init", `{"env":{"A":"b"}}`); status != http.StatusConflict ||
		strings.Contains(reply, "s3cret") {
		t.Errorf(`second initialization: got %d %s, want status 409 and a reply without "s3cret"`, status, reply)
	}
}

// checkSame fails unless a claimed sandbox has the same processes, files and variables as a cold one,
// except for those of its owner.
func (m *machine) checkSame(claimed, cold string) {
	t := m.t
	t.Helper()
	names := func(id, command string) []string {
		list := strings.Fields(m.bash(id, command))
		slices.Sort(list)
		return slices.Compact(list)
	}
	for _, id := range []string{claimed, cold} {
		testenv.Poll(t, "the record of commands is written", func() bool {
			return strings.Contains(m.bash(id, "ls /var/tmp/aio-*/activity 2>/dev/null || true"), "new.jsonl")
		})
	}
	for what, command := range map[string]string{
		"processes": `for p in /proc/[0-9]*; do readlink $p/exe; done`,
		"files":     `cd /; find home tmp var run root dev etc -xdev 2>/dev/null | grep -v '/work$\|run.sh\|/\.config\|\.lock'`,
		"variables": `env | cut -d= -f1 | grep -v '^OF_POOL$\|^WORKSPACE$'`,
	} {
		if a, b := names(claimed, command), names(cold, command); !slices.Equal(a, b) {
			t.Errorf("%s differ:\nwarm %v\ncold %v", what, a, b)
		}
	}
}

// TestClaimedSandboxRestarts: a claimed sandbox that was stopped starts like a cold one,
// with its own environment.
func TestClaimedSandboxRestarts(t *testing.T) {
	want := pool.Want{Size: 1, Spec: sandbox.Spec{Environment: "e", Env: map[string]string{"OF_POOL": "environment"}}}
	m := newMachine(t, want)
	s := sandbox.Spec{Name: "mine", Owner: "ann", Environment: "e", Env: map[string]string{"OWN": "ann"}}
	sb, ok, err := m.pool.Claim(t.Context(), "e", pool.Fingerprint(want.Spec), pool.Binding{Spec: s})
	if !ok || err != nil || pool.Waits(sb.Spec) {
		t.Fatalf("got %v %v %v, want a claimed sandbox that does not wait for an owner", ok, err, sb.Spec.Env)
	}
	for range 2 {
		if got := m.bash(sb.ID, `echo "$OWN$OF_POOL"; ls ~`); got != "ann\nworkspace\n" {
			t.Errorf("got %q, want \"ann\\nworkspace\\n\"", got)
		}
		if err := m.p.Stop(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		if err := m.p.Start(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *machine) list(owner string) []sandbox.Sandbox {
	m.t.Helper()
	list, err := m.p.List(m.t.Context(), sandbox.Filter{Owner: owner})
	if err != nil {
		m.t.Fatal(err)
	}
	return list
}
