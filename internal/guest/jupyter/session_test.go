package jupyter

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/testenv"
)

// other installs a kernel that is Python under another name.
func other(t testing.TB, c *Config) {
	t.Helper()
	dir := filepath.Join(c.Home, ".local/share/jupyter/kernels/other")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{
		"argv": []string{filepath.Join(c.Venv, "bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"}, "display_name": "Other", "language": "python",
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
	s := newService(t, func(c *Config) { other(t, c); c.Idle = 90 * time.Second; c.MaxSessions = 3 })
	ctx := t.Context()
	sub := filepath.Join(s.Workspace, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	i, err := s.Info(ctx, None{})
	if err != nil || i.DefaultKernel != "python3" || !slices.Contains(i.AvailableKernels, "other") || i.SessionTimeoutSeconds != 90 || i.MaxSessions != 3 || i.ActiveSessions != 0 {
		t.Errorf("%v, %+v", err, i)
	}
	made, err := s.CreateSession(ctx, CreateSessionIn{SessionID: new("s"), Cwd: new("sub"), KernelName: new("python3.11")})
	if err != nil && strings.Contains(err.Error(), "no kernel") { // another Python
		made, err = s.CreateSession(ctx, CreateSessionIn{SessionID: new("s"), Cwd: new("sub"), KernelName: new("python")})
	}
	if err != nil || made.SessionID != "s" || made.KernelName != "python3" || made.Message != "The session was made" {
		t.Fatalf("%v, %+v", err, made)
	}
	if out := in(t, s, "s", "import os, sys\nx = 5\n(os.getcwd(), sys.prefix, os.environ.get('KERNEL'))"); brief(out.Outputs) != fmt.Sprintf("= ('%s', '%s', None)", sub, s.Venv) {
		t.Error(brief(out.Outputs))
	}
	again, err := s.CreateSession(ctx, CreateSessionIn{SessionID: new("s")})
	if err != nil || again.Message != "The session exists already" {
		t.Errorf("%v, %+v", err, again)
	}
	if out := execute(t, s, ExecuteIn{Code: "(x, os.getcwd())", SessionID: new("s"), Cwd: new("~")}); brief(out.Outputs) != fmt.Sprintf("= (5, '%s')", s.Home) {
		t.Error(brief(out.Outputs))
	}
	if out := execute(t, s, ExecuteIn{Code: "import os; os.environ['KERNEL'], os.getcwd()", SessionID: new("o"), KernelName: new("other"), Cwd: &sub}); brief(out.Outputs) != fmt.Sprintf("= ('other', '%s')", sub) || out.KernelName != "other" {
		t.Errorf("%+v %s", out, brief(out.Outputs))
	}
	list, err := s.ListSessions(ctx, None{})
	if err != nil || len(list.Sessions) != 2 || list.Sessions["s"].KernelName != "python3" || list.Sessions["o"].KernelName != "other" || list.Sessions["s"].State != "idle" || time.Since(time.UnixMicro(int64(list.Sessions["s"].LastUsed*1e6))) > time.Minute {
		t.Errorf("%v, %+v", err, list)
	}
	// What is registered for the end of the kernel runs when its session is deleted.
	mark := filepath.Join(t.TempDir(), "bye")
	in(t, s, "s", fmt.Sprintf("import atexit\n_ = atexit.register(lambda: open(%q, 'w').close())", mark))
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
		"unknown kernel":    {ExecuteIn{KernelName: new("fortran")}, op.NotFound, `there is no kernel "fortran"; there is: python3, other`},
		"another Python":    {ExecuteIn{KernelName: new("python3.1")}, op.NotFound, `there is no kernel "python3.1"`},
		"no such directory": {ExecuteIn{Cwd: new("none")}, op.NotFound, "does not exist"},
		"session's name":    {ExecuteIn{SessionID: new("a/b")}, op.Invalid, "no slash"},
		"zero byte":         {ExecuteIn{Cwd: new("a\x00")}, op.Invalid, "zero byte"},
	} {
		c.in.Code = "1"
		_, err := s.Execute(ctx, c.in)
		refused(t, err, c.code, c.says)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	_, err = s.CreateSession(ctx, CreateSessionIn{KernelName: new("fortran")})
	refused(t, err, op.NotFound, "no kernel")
}

func TestSessionExpires(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Idle = time.Hour })
	in(t, s, "old", "1")
	in(t, s, "new", "1")
	s.mu.Lock()
	s.sessions["old"].used = s.now().Add(-time.Hour)
	s.mu.Unlock()
	s.sweep()
	list, err := s.ListSessions(t.Context(), None{})
	if err != nil || len(list.Sessions) != 1 || list.Sessions["new"].KernelName == "" {
		t.Errorf("%v, %+v", err, list)
	}
	testenv.Poll(t, "its kernel ends", func() bool { return len(s.Runner.Living()) == 1 })
	// The timer does the same by itself.
	s.mu.Lock()
	s.Idle = 10 * time.Millisecond
	s.schedule()
	s.mu.Unlock()
	testenv.Poll(t, "the session expires", func() bool { return len(s.Runner.Living()) == 0 })
}

func TestWithoutPython(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) {
		c.Runner, c.Venv = proc.New(proc.Config{Env: []string{"PATH=" + c.Home, "HOME=" + c.Home}}), ""
	})
	s.specs.find = noKernels(s)
	if state, _ := s.State(); state != "idle" {
		t.Error(state)
	}
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1"})
	refused(t, err, op.Unavailable, "pip install ipykernel")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{})
	refused(t, err, op.Unavailable, "pip install ipykernel")
	if i, err := s.Info(t.Context(), None{}); err != nil || i.DefaultKernel != "" || !strings.Contains(i.KernelDetection, "ipykernel") {
		t.Errorf("%v, %+v", err, i)
	}
	if state, why := s.State(); state != "absent" || !strings.Contains(why, "ipykernel") {
		t.Errorf("%s %s", state, why)
	}
}

func TestKernelThatDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if state, _ := s.State(); state != "idle" {
		t.Error(state)
	}
	s.specs.find = broken
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1"})
	refused(t, err, op.Unavailable, "the kernel python3 did not start")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("s")})
	refused(t, err, op.Unavailable, "the kernel python3 did not start")
	_, err = s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: new("s")})
	refused(t, err, op.Unavailable, "the kernel python3 did not start")
	if state, why := s.State(); state != "failed" || why == "" {
		t.Errorf("%s %s", state, why)
	}
	if list, _ := s.ListSessions(t.Context(), None{}); len(list.Sessions) != 0 {
		t.Errorf("%+v", list)
	}
}
