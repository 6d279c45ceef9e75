package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestSessionLife(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ctx := t.Context()
	sub := filepath.Join(s.Workspace, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	made, err := s.CreateSession(ctx, CreateSessionIn{SessionID: new("s"), Cwd: new("sub"), MaxIdleTime: 600})
	if err != nil || !made.Created || made.SessionID != "s" || made.Session.Cwd != sub ||
		made.Session.State != Idle || made.Session.MaxIdleTime != 600_000 || made.Session.Version == "" {
		t.Fatalf(`got %v, %+v, %+v, want created, session ID "s", working directory %q, state %q, idle time 600000 and a version`,
			err, made, made.Session, sub, Idle)
	}
	runIn(t, s, "s", "const x = 5")
	again, err := s.CreateSession(ctx, CreateSessionIn{SessionID: new("s"), MaxIdleTime: 86400})
	if err != nil || again.Created || again.Session.MaxIdleTime != 600_000 {
		t.Errorf("got %v, %+v, want not created and idle time 600000", err, again)
	}
	if out := runIn(t, s, "s", "[x, process.cwd()]"); summarize(out.Outputs) != fmt.Sprintf("= [ 5, '%s' ]", sub) {
		t.Errorf("got %+v, want outputs %q", out, fmt.Sprintf("= [ 5, '%s' ]", sub))
	}
	changed, err := s.UpdateSession(ctx, UpdateSessionIn{SessionID: "s", Cwd: new("~"), MaxIdleTime: new(60)})
	if err != nil || !changed.Updated || changed.Session.Cwd != s.Home || changed.Session.MaxIdleTime != 60_000 {
		t.Errorf("got %v, %+v, want updated, working directory %q and idle time 60000", err, changed, s.Home)
	}
	if out := runIn(t, s, "s", "process.cwd()"); summarize(out.Outputs) != fmt.Sprintf("= '%s'", s.Home) {
		t.Errorf("got %+v, want outputs %q", out, fmt.Sprintf("= '%s'", s.Home))
	}
	runIn(t, s, "s", "process.chdir('sub')")
	if got, err := s.GetSession(ctx, SessionIn{SessionID: "s"}); err != nil || got.Session.Cwd != sub {
		t.Errorf("got %v, %+v, want working directory %q", err, got, sub)
	}
	if out := execute(t, s, ExecuteIn{Code: "[x, __dirname]", SessionID: new("s"),
		Cwd: &s.Workspace}); summarize(out.Outputs) != fmt.Sprintf("= [ 5, '%s' ]", s.Workspace) {
		t.Errorf("got %+v, want outputs %q", out, fmt.Sprintf("= [ 5, '%s' ]", s.Workspace))
	}
	named := execute(t, s, ExecuteIn{Code: "1", Stateful: true})
	if named.SessionID == nil || len(*named.SessionID) != 16 {
		t.Errorf("got %+v, want a session ID of 16 bytes", named)
	}
	list, err := s.ListSessions(ctx, ListSessionsIn{})
	if err != nil || len(list.Sessions) != 2 || list.Sessions["s"].State != Idle {
		t.Errorf(`got %v, %+v, want 2 sessions and state of "s" %q`, err, list, Idle)
	}
	for version, want := range map[string]int{made.Session.Version: 2, "v" + strings.Split(made.Session.Version, ".")[0]: 2, "1": 0} {
		if list, _ := s.ListSessions(ctx, ListSessionsIn{Version: &version}); len(list.Sessions) != want {
			t.Errorf("version %s: got %+v, want %d sessions", version, list, want)
		}
	}
}

func TestSessionExpires(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Idle = time.Hour })
	runIn(t, s, "old", "1")
	runIn(t, s, "new", "1")
	i, err := s.GetSession(t.Context(), SessionIn{SessionID: "old"})
	if err != nil || i.Session.MaxIdleTime != 3_600_000 {
		t.Fatalf("got %v, %+v, want idle time 3600000", err, i)
	}
	s.mu.Lock()
	old, _ := s.sessions.Get("old")
	p := old.p
	s.sessions.SetIdle(old, time.Millisecond)
	s.mu.Unlock()
	<-p.finished
	list, err := s.ListSessions(t.Context(), ListSessionsIn{})
	if err != nil || len(list.Sessions) != 1 || list.Sessions["new"].SessionID != "new" {
		t.Errorf("got %v, %+v; want the session \"new\" alone", err, list)
	}
}

func TestStdinAndFilesOfASession(t *testing.T) {
	t.Parallel()
	s := newService(t)
	out := execute(t, s, ExecuteIn{
		Code: "let all = ''; for await (const c of process.stdin) all += c; [all, require('./a/b.js')]", SessionID: new("s"), Stdin: new("typed"),
		Files: &map[string]string{"a/b.js": "module.exports = 'created'"},
	})
	if summarize(out.Outputs) != "= [ 'typed', 'created' ]" {
		t.Errorf(`got %+v, want outputs "= [ 'typed', 'created' ]"`, out)
	}
	if out := runIn(t, s, "s", "let none = ''; for await (const c of process.stdin) none += c; none"); summarize(out.Outputs) != "= ''" {
		t.Errorf(`got %+v, want outputs "= ''"`, out)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ctx := t.Context()
	if err := os.WriteFile(filepath.Join(s.Workspace, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/tmp", filepath.Join(s.Workspace, "out")); err != nil {
		t.Fatal(err)
	}
	many := map[string]string{}
	for i := range maxFiles + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for name, c := range map[string]struct {
		in   ExecuteIn
		code op.Code
		says string
	}{
		"no such directory": {ExecuteIn{Cwd: new("none")}, op.NotFound, "does not exist"},
		"file as directory": {ExecuteIn{Cwd: new("file")}, op.Invalid, "not a directory"},
		"zero byte":         {ExecuteIn{Cwd: new("a\x00")}, op.Invalid, "zero byte"},
		"file above":        {ExecuteIn{Files: &map[string]string{"../x": ""}}, op.Invalid, "not a relative path"},
		"absolute file":     {ExecuteIn{Files: &map[string]string{"/etc/x": ""}}, op.Invalid, "not a relative path"},
		"nameless file":     {ExecuteIn{Files: &map[string]string{"": ""}}, op.Invalid, "not a relative path"},
		"file behind link":  {ExecuteIn{SessionID: new("s"), Files: &map[string]string{"out/x": ""}}, op.Invalid, "cannot write"},
		"file below file":   {ExecuteIn{Files: &map[string]string{"a": "", "a/b": ""}}, op.Invalid, "cannot write"},
		"many files":        {ExecuteIn{Files: &many}, op.Invalid, "at most 1000"},
		"session's name":    {ExecuteIn{SessionID: new("a/b")}, op.Invalid, "no slash"},
		"version":           {ExecuteIn{Version: new("4")}, op.NotFound, "Node.js 4 is not installed; available: "},
		"session's version": {ExecuteIn{SessionID: new("v"), Version: new("4")}, op.NotFound, "Node.js 4 is not installed"},
	} {
		c.in.Code = "1"
		_, err := s.Execute(ctx, c.in)
		wantError(t, err, c.code, c.says)
		if t.Failed() {
			t.Fatalf("got failures of %s, want none", name)
		}
	}
	for _, call := range []func(SessionIn) error{
		func(in SessionIn) error { _, err := s.GetSession(ctx, in); return err },
		func(in SessionIn) error { _, err := s.DeleteSession(ctx, in); return err },
		func(in SessionIn) error {
			_, err := s.UpdateSession(ctx, UpdateSessionIn{SessionID: in.SessionID})
			return err
		},
	} {
		wantError(t, call(SessionIn{SessionID: "none"}), op.NotFound, "no Node.js session")
	}
	runIn(t, s, "s", "1")
	wantError(t, func() error {
		_, err := s.GetSession(ctx, SessionIn{SessionID: "s", Version: new("4")})
		return err
	}(), op.NotFound, "no Node.js session")
	_, err := s.Execute(ctx, ExecuteIn{Code: "1", SessionID: new("s"), Version: new("4")})
	wantError(t, err, op.Conflict, "omit version")
	_, err = s.CreateSession(ctx, CreateSessionIn{Cwd: new("none")})
	wantError(t, err, op.NotFound, "does not exist")
	_, err = s.CreateSession(ctx, CreateSessionIn{Version: new("4")})
	wantError(t, err, op.NotFound, "is not installed")
	if list, err := s.ListSessions(ctx, ListSessionsIn{}); err != nil || len(list.Sessions) != 1 {
		t.Errorf("got %v, %+v, want only the session that started", err, list)
	}
}

func TestDirectoryOfASessionIsRemoved(t *testing.T) {
	t.Parallel()
	s := newService(t)
	sub := filepath.Join(s.Workspace, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	execute(t, s, ExecuteIn{Code: "1", SessionID: new("s"), Cwd: new("sub")})
	if err := os.Remove(sub); err != nil {
		t.Fatal(err)
	}
	if out := runIn(t, s, "s", "1"); out.Status != "ok" {
		t.Errorf(`got %+v, want status "ok"`, out)
	}
	runIn(t, s, "s", "process.exit()")
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: new("s")})
	wantError(t, err, op.NotFound, "no longer exists; send a cwd that does")
	if out := execute(t, s, ExecuteIn{Code: "1", SessionID: new("s"), Cwd: &s.Workspace}); out.Status != "ok" {
		t.Errorf(`got %+v, want status "ok"`, out)
	}
}

// install writes a program that reports a version of Node.js.
func install(t testing.TB, home, version string) {
	t.Helper()
	dir := filepath.Join(home, ".nvm/versions/node/v"+version+"/bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = --version ]; then echo v%s; exit; fi\nexport FAKE=%s\nexec "+
		"%s \"$@\"\n", version, version, realNode(t))
	testenv.WriteProgram(t, filepath.Join(dir, "node"), []byte(script))
}

func realNode(t testing.TB) string {
	t.Helper()
	r := proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH")}})
	defer r.Close()
	path, ok := r.Look("node")
	if !ok {
		t.Fatal("node is not in PATH")
	}
	return path
}

func TestVersions(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, v := range []string{"9.1.0", "9.10.0", "8.0.0"} {
		install(t, s.Home, v)
	}
	i, err := s.Info(t.Context(), op.None{})
	if err != nil || len(i.AvailableVersions) != 4 ||
		strings.Join(i.AvailableVersions[1:], " ") != "9.10.0 9.1.0 8.0.0" || *i.CurrentVersion != i.NodeVersion ||
		i.AvailableVersions[0] != i.NodeVersion {
		t.Fatalf("got %v, %+v, want versions %s, 9.10.0, 9.1.0 and 8.0.0, the first as current", err, i, i.NodeVersion)
	}
	for requested, want := range map[string]string{"9": "'9.10.0'", "v9.1": "'9.1.0'", "node8": "'8.0.0'",
		"": "undefined", "default": "undefined", i.NodeVersion: "undefined"} {
		code := "process.env.FAKE + ' ' + require('child_process').execSync('which node').toString().includes('.nvm')"
		want = strings.Trim(want, "'") + map[bool]string{true: " true", false: " false"}[want != "undefined"]
		for _, session := range []string{"", "s" + requested} {
			out := execute(t, s, ExecuteIn{Code: code, Version: &requested, SessionID: &session})
			if summarize(out.Outputs) != "= '"+want+"'" {
				t.Errorf("%q in %q: got %+v, want outputs %q", requested, session, out, "= '"+want+"'")
			}
		}
	}
}

func TestInfo(t *testing.T) {
	t.Parallel()
	s := newService(t)
	workspace(t, s.Workspace)
	i, err := s.Info(t.Context(), op.None{})
	if err != nil || i.NodeVersion == "" || i.Error != nil || *i.RuntimeDirectory != s.Workspace {
		t.Fatalf("got %v, %+v, want a node version, no error and runtime directory %q", err, i, s.Workspace)
	}
	if diff := cmp.Diff([]Package{{"pkg", "1.2.3"}}, i.RuntimePackages); diff != "" {
		t.Error(diff)
	}
	if out := execute(t, s, ExecuteIn{Code: "process.versions.node"}); summarize(out.Outputs) != "= '"+i.NodeVersion+"'" {
		t.Errorf("got %+v, %s, want outputs %q", out, i.NodeVersion, "= '"+i.NodeVersion+"'")
	}
	if version, details, err := s.About(t.Context()); err != nil || version != i.NodeVersion || details["max_sessions"] != 16 {
		t.Errorf("got %s, %v, %v, want version %q and max_sessions 16", version, details, err, i.NodeVersion)
	}
}

func TestWithoutNode(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Runner = proc.New(proc.Config{Env: []string{"PATH=" + c.Home}}) })
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1"})
	wantError(t, err, op.Unavailable, "apt-get install nodejs")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{})
	wantError(t, err, op.Unavailable, "apt-get install nodejs")
	if i, err := s.Info(t.Context(), op.None{}); err != nil || i.Error == nil || i.NodeVersion != "" {
		t.Errorf("got %v, %+v, want an error and no node version", err, i)
	}
	if state, why := s.State(); state != "absent" || why != notInstalled {
		t.Errorf(`got %s %s, want state "absent", why %v`, state, why, notInstalled)
	}
}

func TestState(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if state, _ := s.State(); state != "idle" {
		t.Errorf(`got %v, want "idle"`, state)
	}
	execute(t, s, ExecuteIn{Code: "1"})
	if state, _ := s.State(); state != "ready" {
		t.Errorf(`got %v, want "ready"`, state)
	}
	broken := newService(t, func(c *Config) {
		testenv.WriteProgram(t, c.Home+"/node", []byte("#!/no/such/program\n"))
		c.Runner = proc.New(proc.Config{Env: []string{"PATH=" + c.Home}})
	})
	if _, err := broken.Execute(t.Context(), ExecuteIn{Code: "1"}); err == nil {
		t.Error("got no error, want one")
	}
	if state, why := broken.State(); state != "failed" || why == "" {
		t.Errorf(`got %s %s, want state "failed" and a reason`, state, why)
	}
}
