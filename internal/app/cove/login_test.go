package cove

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/app/cove/login"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// person is a user of the command line with a home directory.
type person struct {
	t    *testing.T
	home string
	vars map[string]string
}

func newPerson(t *testing.T) *person {
	t.Helper()
	return &person{t: t, home: t.TempDir(), vars: map[string]string{}}
}

// runs runs cove as the person and returns everything it printed.
func (p *person) runs(stdin string, args ...string) (string, int) {
	p.t.Helper()
	for _, name := range []string{"COVE_API_KEY", "COVE_TOKEN", "AUTH_TOKEN", "COVE_URL", "COVE_CONTEXT", "XDG_CONFIG_HOME", "COVE_STATE"} {
		p.t.Setenv(name, p.vars[name])
	}
	p.t.Setenv("HOME", p.home)
	if p.vars["COVE_STATE"] == "" {
		p.t.Setenv("COVE_STATE", filepath.Join(p.home, "no-hub"))
	}
	var out bytes.Buffer
	cmd, err := Command("0", args, host.Streams{In: strings.NewReader(stdin), Out: &out, Err: &out})
	if err == nil {
		err = cmd.ExecuteContext(p.t.Context())
	}
	if err != nil {
		out.WriteString(err.Error())
	}
	return out.String(), cli.Code(err)
}

func (p *person) must(stdin string, args ...string) string {
	p.t.Helper()
	out, code := p.runs(stdin, args...)
	if code != 0 {
		p.t.Fatalf("cove %s: got exit code %d and %s, want 0", strings.Join(args, " "), code, out)
	}
	return out
}

// The error for missing credentials says where keys are stored and how to use one.
func TestMissingCredentialsSayWhatToDo(t *testing.T) {
	r := newRig(t, nil)
	r.key("root", "admin")
	p := newPerson(t)
	for _, line := range []string{"key add ann", "list", "exec a -- true", "run -- true", "rm --all"} {
		out, code := p.runs("", append([]string{"--hub-url", r.server.URL}, strings.Fields(line)...)...)
		if code != cli.ExitAuth {
			t.Errorf("cove %s: got exit code %d, want %d", line, code, cli.ExitAuth)
		}
		for _, want := range []string{"admin.key", "COVE_API_KEY", "cove login", "state directory"} {
			if !strings.Contains(out, want) {
				t.Errorf("cove %s: got %q, want containing %q", line, out, want)
			}
		}
	}
}

// The user that runs a hub with tenants needs no key.
func TestOwnHubNeedsNoKey(t *testing.T) {
	r := newRig(t, nil)
	r.key("root", "admin")
	addr := r.server.Listener.Addr()
	forget, err := publishAddress(r.cfg.State, "http://"+addr.String())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(r.cfg.State, login.SocketFile))
	if err != nil {
		t.Fatal(err)
	}
	p := newPerson(t)
	p.vars["COVE_STATE"] = r.cfg.State
	if out := p.must("", "key", "add", "ann"); !strings.Contains(out, "cove_") {
		t.Errorf("got %q, want a key", out)
	}
	if out := p.must("", "list", "--hub-url", "http://"+addr.String()); !strings.HasPrefix(out, "NAME") {
		t.Errorf("got %q, want a list", out)
	}
	if info, err := os.Stat(filepath.Join(r.cfg.State, login.URLFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v and error %v, want mode 0600", info, err)
	}
	// A stopped hub gets no key: another server may use its port.
	l.Close()
	if own, ok := login.FindOwnHub(r.cfg.State); ok {
		t.Errorf("got %v of a hub that does not respond, want none", own)
	}
	forget()
}

func TestLoginIsRemembered(t *testing.T) {
	r := newRig(t, nil)
	key, _ := r.key("acme", "user")
	other := newRig(t, nil)
	otherKey, _ := other.key("globex", "user")
	p := newPerson(t)
	if out, code := p.runs("cove_wrong\n", "login", r.server.URL); code != cli.ExitAuth || !strings.Contains(out, "sign in to") {
		t.Errorf("a wrong key: got exit code %d and %s, want %d", code, out, cli.ExitAuth)
	}
	if out := p.must(key+"\n", "login", r.server.URL+"/", "--context", "work"); !strings.Contains(out, `"work"`) ||
		strings.Contains(out, key) {
		t.Errorf("got %q, want the name of the context and no key", out)
	}
	p.must(otherKey, "login", other.server.URL)
	file := filepath.Join(p.home, ".config", "cove", "contexts.json")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v and error %v, want mode 0600", info, err)
	}
	p.must("", "create", "theirs")
	p.must("", "create", "ours", "--context", "work")
	if out := p.must("", "list", "-q"); out != "theirs\n" {
		t.Errorf("the latest login: got %q, want theirs", out)
	}
	p.must("", "context", "use", "work")
	if out := p.must("", "list", "-q"); out != "ours\n" {
		t.Errorf("after context use: got %q, want ours", out)
	}
	// A URL selects only its own credentials.
	if out := p.must("", "list", "-q", "--hub-url", other.server.URL); out != "theirs\n" {
		t.Errorf("by URL: got %q, want theirs", out)
	}
	out := p.must("", "context", "list")
	if !strings.Contains(out, "*        work") || strings.Contains(out, key) {
		t.Errorf("got %q, want work marked and no key", out)
	}
	p.vars["COVE_CONTEXT"] = strings.TrimPrefix(other.server.URL, "http://")
	if out := p.must("", "list", "-q"); out != "theirs\n" {
		t.Errorf("COVE_CONTEXT: got %q, want theirs", out)
	}
	p.vars["COVE_CONTEXT"] = ""
	p.must("", "logout")
	if b, err := os.ReadFile(file); err != nil || bytes.Contains(b, []byte(key)) {
		t.Errorf("after logout the file contains %s and error %v, want no key", b, err)
	}
	if out, code := p.runs("", "list", "--context", "work"); code != cli.ExitUsage || !strings.Contains(out, `no context "work"`) {
		t.Errorf("got exit code %d and %q, want %d", code, out, cli.ExitUsage)
	}
}

// Credentials of a context never go to another server, not even one that a project's
// environment names.
func TestContextKeysStayHome(t *testing.T) {
	r := newRig(t, nil)
	key, _ := r.key("acme", "user")
	p := newPerson(t)
	p.must(key, "login", r.server.URL)
	seen := make(chan http.Header, 10)
	thief := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		w.WriteHeader(http.StatusTeapot)
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go thief.Serve(l)
	defer thief.Close()
	p.vars["COVE_URL"] = "http://" + l.Addr().String()
	p.runs("", "list")
	if h := <-seen; h.Get("X-API-Key")+h.Get("Authorization") != "" {
		t.Errorf("got credentials %v at a foreign server, want none", h)
	}
}

func TestDamagedContextsFileSaysSo(t *testing.T) {
	p := newPerson(t)
	file := filepath.Join(p.home, ".config", "cove", "contexts.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := p.runs("", "list"); code != cli.ExitUsage || !strings.Contains(out, file) {
		t.Errorf("got exit code %d and %q, want %d and the file's name", code, out, cli.ExitUsage)
	}
	if out, code := p.runs("", "version"); code != 0 || !strings.Contains(out, "commit") {
		t.Errorf("cove version: got exit code %d and %q, want 0 and a commit", code, out)
	}
}

// Verbs that are used in scripts print one short line for each object.
func TestShortOutput(t *testing.T) {
	r := newRig(t, nil)
	key, _ := r.key("acme", "user")
	p := newPerson(t)
	p.must(key, "login", r.server.URL)
	if out := p.must("", "create", "a"); out != "a\n" {
		t.Errorf("create: got %q, want %q", out, "a\n")
	}
	p.must("", "create", "b")
	p.must("", "new", "c")
	out := p.must("", "ls")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 4 ||
		!strings.HasPrefix(lines[0], "NAME  STATUS") || !strings.HasPrefix(lines[1], "a     running") {
		t.Errorf("ls: got %q, want a header and three lines", out)
	}
	if out := p.must("", "list", "-o", "json"); !strings.HasPrefix(out, "[") {
		t.Errorf("list -o json: got %q, want JSON", out)
	}
	if out := p.must("", "list", "-o", "wide"); !strings.Contains(out, r.server.URL+"/sandbox/a") {
		t.Errorf("list -o wide: got %q, want URLs", out)
	}
	if out := p.must("", "__complete", "rm", ""); !strings.HasPrefix(out, "a\nb\nc\n") {
		t.Errorf("completion: got %q, want three names", out)
	}
	if out := p.must("", "pause", "a", "b"); out != "a\nb\n" {
		t.Errorf("pause: got %q, want two names", out)
	}
	p.must("", "delete", "a")
	if out := p.must("", "rm", "--all", "-f"); out != "b\nc\n" {
		t.Errorf("rm --all: got %q, want two names", out)
	}
	if out, code := p.runs("", "rm", "--all", "x"); code != cli.ExitUsage {
		t.Errorf("rm --all x: got exit code %d and %s, want %d", code, out, cli.ExitUsage)
	}
	if out, code := p.runs("", "deleet", "x"); code != cli.ExitUsage || !strings.Contains(out, `did you mean "cove delete"?`) {
		t.Errorf("got exit code %d and %q, want a suggestion", code, out)
	}
}

// slowBuffer is written by a verb while the test reads.
type slowBuffer struct{ ch chan string }

func (b slowBuffer) Write(p []byte) (int, error) { b.ch <- string(p); return len(p), nil }

func TestListWatchShowsChanges(t *testing.T) {
	r := newRig(t, nil)
	key, _ := r.key("acme", "user")
	p := newPerson(t)
	p.must(key, "login", r.server.URL)
	ctx, cancel := context.WithCancel(t.Context())
	out := slowBuffer{make(chan string, 100)}
	cmd, err := Command("0", []string{"list", "--watch"}, host.Streams{In: strings.NewReader(""), Out: out, Err: out})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	<-out.ch // the header
	p.must("", "create", "a")
	p.must("", "rm", "a")
	testenv.Poll(t, "a line says that a is deleted", func() bool {
		select {
		case line := <-out.ch:
			f := strings.Fields(line)
			return f[0] == "a" && f[1] == "deleted"
		default:
			return false
		}
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v after an interrupt, want none", err)
	}
}
