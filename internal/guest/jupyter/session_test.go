package jupyter

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// installOther installs Python as a kernel with another name.
func installOther(t testing.TB, c *Config) {
	t.Helper()
	dir := filepath.Join(c.Home, ".local/share/jupyter/kernels/other")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{
		"argv":         []string{filepath.Join(c.Venv, "bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"},
		"display_name": "Other", "language": "python",
		"env": map[string]string{"KERNEL": "other"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSessionLife(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { installOther(t, c); c.Idle = 90 * time.Second; c.MaxSessions = 3 })
	ctx := t.Context()
	sub := filepath.Join(s.Workspace, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	i, err := s.Info(ctx, op.None{})
	if err != nil || i.DefaultKernel != "python3" || !slices.Contains(i.AvailableKernels, "other") ||
		i.SessionTimeoutSeconds != 90 || i.MaxSessions != 3 || i.ActiveSessions != 0 {
		t.Errorf("got %v, %+v, "+
			`want default kernel "python3", an available kernel "other", session timeout 90 s, max sessions 3 and active sessions 0`,
			err, i)
	}
	made, err := s.CreateSession(ctx, CreateSessionIn{SessionID: new("s"), Cwd: new("sub"), KernelName: new("python3.11")})
	if err != nil && strings.Contains(err.Error(), "no such kernel") { // another Python
		made, err = s.CreateSession(ctx, CreateSessionIn{SessionID: new("s"), Cwd: new("sub"), KernelName: new("python")})
	}
	if err != nil || made.SessionID != "s" || made.KernelName != "python3" || made.Message != "The session was created" {
		t.Fatalf(`got %v, %+v, want session ID "s", kernel name "python3" and message "The session was created"`, err, made)
	}
	first := runIn(t, s, "s", "import os, sys\nx = 5\n(os.getcwd(), sys.prefix, os.environ.get('KERNEL'))")
	if want := fmt.Sprintf("= ('%s', '%s', None)", sub, s.Venv); summarize(first.Outputs) != want {
		t.Errorf("got %v, want outputs %q", summarize(first.Outputs), want)
	}
	again, err := s.CreateSession(ctx, CreateSessionIn{SessionID: new("s")})
	if err != nil || again.Message != "The session already exists" {
		t.Errorf(`got %v, %+v, want message "The session already exists"`, err, again)
	}
	if out := execute(t, s, ExecuteIn{Code: "(x, os.getcwd())", SessionID: new("s"),
		Cwd: new("~")}); summarize(out.Outputs) != fmt.Sprintf("= (5, '%s')", s.Home) {
		t.Errorf("got %v, want outputs %q", summarize(out.Outputs), fmt.Sprintf("= (5, '%s')", s.Home))
	}
	if out := execute(t, s, ExecuteIn{Code: "import os; os.environ['KERNEL'], os.getcwd()", SessionID: new("o"),
		KernelName: new("other"), Cwd: &sub}); summarize(out.Outputs) != fmt.Sprintf("= ('other', '%s')", sub) || out.KernelName != "other" {
		t.Errorf(`got %+v %s, want outputs %q and kernel name "other"`, out, summarize(out.Outputs), fmt.Sprintf("= ('other', '%s')", sub))
	}
	list, err := s.ListSessions(ctx, op.None{})
	if err != nil || len(list.Sessions) != 2 || list.Sessions["s"].KernelName != "python3" ||
		list.Sessions["o"].KernelName != "other" || list.Sessions["s"].State != "idle" ||
		time.Since(time.UnixMicro(int64(list.Sessions["s"].LastUsed*1e6))) > time.Minute {
		t.Errorf(`got %v, %+v, want "s" with python3, idle and used within the last %v, and "o" with other`,
			err, list, time.Minute)
	}
	// Deleting a session runs the exit handlers of its kernel.
	mark := filepath.Join(t.TempDir(), "bye")
	runIn(t, s, "s", fmt.Sprintf("import atexit\n_ = atexit.register(lambda: open(%q, 'w').close())", mark))
	if _, err := s.DeleteSession(ctx, SessionIn{SessionID: "s"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		in   ExecuteIn
		code op.Code
		says string
	}{
		"another kernel":    {ExecuteIn{SessionID: new("o"), KernelName: new("python3")}, op.Conflict, "has the kernel other, not python3"},
		"unknown kernel":    {ExecuteIn{KernelName: new("fortran")}, op.NotFound, `no such kernel: "fortran"; available: python3, other`},
		"another Python":    {ExecuteIn{KernelName: new("python3.1")}, op.NotFound, `no such kernel: "python3.1"`},
		"no such directory": {ExecuteIn{Cwd: new("none")}, op.NotFound, "does not exist"},
		"session's name":    {ExecuteIn{SessionID: new("a/b")}, op.Invalid, "no slash"},
		"zero byte":         {ExecuteIn{Cwd: new("a\x00")}, op.Invalid, "zero byte"},
	} {
		c.in.Code = "1"
		_, err := s.Execute(ctx, c.in)
		wantError(t, err, c.code, c.says)
		if t.Failed() {
			t.Fatalf("got failures of %s, want none", name)
		}
	}
	_, err = s.CreateSession(ctx, CreateSessionIn{KernelName: new("fortran")})
	wantError(t, err, op.NotFound, "no such kernel")
}

func TestSessionExpires(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Idle = time.Hour })
	runIn(t, s, "old", "1")
	runIn(t, s, "new", "1")
	s.mu.Lock()
	old, _ := s.sessions.Get("old")
	s.sessions.SetIdle(old, time.Millisecond)
	s.mu.Unlock()
	testenv.Poll(t, "the kernel of the session that expired ends", func() bool { return len(s.Runner.Living()) == 1 })
	list, err := s.ListSessions(t.Context(), op.None{})
	if _, ok := list.Sessions["new"]; err != nil || len(list.Sessions) != 1 || !ok {
		t.Errorf("got %v, %+v; want the session \"new\" alone", err, list)
	}
}

func TestWithoutPython(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) {
		c.Runner, c.Venv = proc.New(proc.Config{Env: []string{"PATH=" + c.Home, "HOME=" + c.Home}}), ""
	})
	s.specs.find = noKernels(s)
	if state, _ := s.State(); state != "idle" {
		t.Errorf(`got %v, want "idle"`, state)
	}
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1"})
	wantError(t, err, op.Unavailable, "pip install ipykernel")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{})
	wantError(t, err, op.Unavailable, "pip install ipykernel")
	if i, err := s.Info(t.Context(), op.None{}); err != nil || i.DefaultKernel != "" || !strings.Contains(i.KernelDetection, "ipykernel") {
		t.Errorf(`got %v, %+v, want no default kernel and kernel detection that contains "ipykernel"`, err, i)
	}
	if state, why := s.State(); state != "absent" || !strings.Contains(why, "ipykernel") {
		t.Errorf(`got %s %s, want state "absent" and reason that contains "ipykernel"`, state, why)
	}
}

func TestKernelThatDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if state, _ := s.State(); state != "idle" {
		t.Errorf(`got %v, want "idle"`, state)
	}
	s.specs.find = brokenKernel
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1"})
	wantError(t, err, op.Unavailable, "kernel \"python3\" did not start")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("s")})
	wantError(t, err, op.Unavailable, "kernel \"python3\" did not start")
	_, err = s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: new("s")})
	wantError(t, err, op.Unavailable, "kernel \"python3\" did not start")
	if state, why := s.State(); state != "failed" || why == "" {
		t.Errorf(`got %s %s, want state "failed" and a reason`, state, why)
	}
	if list, _ := s.ListSessions(t.Context(), op.None{}); len(list.Sessions) != 0 {
		t.Errorf("got %+v, want no sessions", list)
	}
}

// TestCreateReplacesAKernelThatExited: other Jupyter clients restart kernels in this way, and find them by their file.
func TestCreateReplacesAKernelThatExited(t *testing.T) {
	t.Parallel()
	s := newService(t)
	runIn(t, s, "a", "x = 1")
	info := func() SessionInfo {
		list, err := s.ListSessions(t.Context(), op.None{})
		if err != nil {
			t.Fatal(err)
		}
		return list.Sessions["a"]
	}
	before := info()
	if info, err := os.Stat(before.ConnectionFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got connection file %v, %v; want one that only its user can read", info, err)
	}
	if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the kernel has exited", func() bool { return info().State == "stopped" })
	if _, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("a")}); err != nil {
		t.Fatal(err)
	}
	after := info()
	if after.State != "idle" || after.PID == before.PID || after.ConnectionFile == before.ConnectionFile {
		t.Errorf("got %+v, then %+v; want a new kernel", before, after)
	}
}

// client is another Jupyter client in the sandbox.
const client = `
import sys
from jupyter_client import BlockingKernelClient
c = BlockingKernelClient(connection_file=sys.argv[1])
c.load_connection_file()
c.start_channels()
c.wait_for_ready(timeout=60)
reply = c.execute_interactive("theirs = ours + 1; print('sum', theirs)", timeout=60)
print(reply["content"]["status"])
`

// TestOtherClientsShareTheKernel: other clients, such as JupyterLab, share the variables of a
// session, and their use keeps it from expiring.
func TestOtherClientsShareTheKernel(t *testing.T) {
	t.Parallel()
	s := newService(t)
	runIn(t, s, "a", "ours = 41")
	s.mu.Lock()
	ss, _ := s.sessions.Get("a")
	k := ss.k
	s.mu.Unlock()
	if !k.SharedUse().IsZero() {
		t.Errorf("got shared use at %v before another client connected, want none", k.SharedUse())
	}
	res, err := s.Runner.Run(t.Context(), proc.Command{Path: filepath.Join(s.Venv, "bin", "python"),
		Args: []string{"-c", client, k.ConnectionFile()}})
	if err != nil || !strings.Contains(string(res.Stdout), "sum 42") || !strings.Contains(string(res.Stdout), "ok") {
		t.Fatalf("the other client got %v, %s %s, want the sum 42", err, res.Stdout, res.Stderr)
	}
	if got := summarize(runIn(t, s, "a", "theirs").Outputs); !strings.Contains(got, "42") {
		t.Errorf("got %s, want the variable of the other client", got)
	}
	if k.SharedUse().IsZero() {
		t.Error("got no shared use, want the time of the other client's request")
	}
}
