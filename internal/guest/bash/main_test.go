package bash

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	testenv.Main(m)
}

func testEnv(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8"}
}

// withGuard adds a guard, which also ends processes that have left their process group.
func withGuard(c *Config) {
	c.Runner = proc.New(proc.Config{Env: testEnv(c.Home), Guard: []string{"/proc/self/exe", "guard"}})
}

// newService returns a service with a real bash and temporary folders.
func newService(t testing.TB, change ...func(*Config)) *Service {
	t.Helper()
	testenv.Need(t, "bash")
	dir := t.TempDir()
	c := Config{
		Runner: proc.New(proc.Config{Env: testEnv(dir)}),
		Home:   dir, Workspace: dir, State: dir + "/state",
	}
	for _, f := range change {
		f(&c)
	}
	s := New(c)
	t.Cleanup(func() {
		s.Close()
		s.Close()
		c.Runner.Close()
		if left := s.store.memory.used.Load(); left != 0 {
			t.Errorf("got %d reserved bytes of memory, want 0", left)
		}
		if left := s.store.disk.used.Load(); left != 0 {
			t.Errorf("got %d reserved bytes of disk, want 0", left)
		}
	})
	return s
}

func run(t testing.TB, s *Service, in ExecIn) ExecResult {
	t.Helper()
	if in.MaxOutputLength == 0 {
		in.MaxOutputLength = 50000
	}
	out, err := s.Exec(t.Context(), in)
	if err != nil {
		t.Fatalf("exec %q: %v", in.Command, err)
	}
	return out
}

// background starts a command in a session and returns its ID.
func background(t testing.TB, s *Service, session, text string) string {
	t.Helper()
	return run(t, s, ExecIn{Command: text, SessionID: &session, AsyncMode: true}).CommandID
}

func output(t testing.TB, s *Service, in OutputIn) OutputResult {
	t.Helper()
	out, err := s.Output(t.Context(), in)
	if err != nil {
		t.Fatalf("output: %v", err)
	}
	return out
}

// await reads output in pieces of limit bytes until the command has ended.
func await(t testing.TB, s *Service, session, id string, limit int) OutputResult {
	t.Helper()
	var all OutputResult
	var out, errs strings.Builder
	for {
		all = output(t, s, OutputIn{SessionID: session, CommandID: &id, Offset: all.Offset,
			StderrOffset: all.StderrOffset, Wait: true, WaitTimeout: 30, Limit: &limit})
		out.WriteString(all.Stdout)
		errs.WriteString(all.Stderr)
		if all.Command.ExitCode != nil && !all.More {
			all.Stdout, all.Stderr = out.String(), errs.String()
			return all
		}
	}
}

// waitForOutput reads until stdout contains a text.
func waitForOutput(t testing.TB, s *Service, session, id, text string) string {
	t.Helper()
	got, at := "", OutputResult{}
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(got, text); {
		if time.Now().After(deadline) {
			t.Fatalf("got stdout %q after 30 seconds, want %q in it", got, text)
		}
		at = output(t, s, OutputIn{SessionID: session, CommandID: &id, Offset: at.Offset,
			StderrOffset: at.StderrOffset, Wait: true, WaitTimeout: 5})
		got += at.Stdout
		if at.Command.ExitCode != nil && !strings.Contains(got, text) {
			t.Fatalf("the command ended with stdout %q and stderr %q, want %q in stdout", got, at.Stderr, text)
		}
	}
	return got
}

// wantError expects an error with a code whose message contains a text.
func wantError(t testing.TB, err error, code op.Code, says string) {
	t.Helper()
	e, ok := op.AsError(err)
	if !ok || e.Code != code || !strings.Contains(e.Msg, says) {
		t.Errorf("got %v, want %s: …%s…", err, code, says)
	}
}

func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
