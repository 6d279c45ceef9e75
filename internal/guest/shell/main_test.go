package shell

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newService returns a service with a real bash and temporary folders.
func newService(t testing.TB, change ...func(*Config)) *Service {
	t.Helper()
	testenv.Need(t, "bash")
	dir := t.TempDir()
	home, work := dir+"/home", dir+"/work"
	for _, d := range []string{home, work} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := Config{
		Runner: proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}}),
		Home:   home, Workspace: work, State: dir + "/state",
	}
	// The prompt of /etc/bash.bashrc differs between machines.
	if err := os.WriteFile(home+"/.bashrc", []byte("PS1='> '\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(&c)
	}
	s := New(c)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s.Close()
		c.Runner.Close()
		if left, _ := os.ReadDir(c.State + "/shell"); len(left) > 0 {
			t.Errorf("got %d files in the state folder, such as %s, want none", len(left), left[0].Name())
		}
	})
	return s
}

// patience limits every wait in these tests.
const patience = 5 * time.Minute

func exec(t testing.TB, s *Service, in ExecIn) CommandResult {
	t.Helper()
	out, err := s.Exec(t.Context(), in)
	if err != nil {
		t.Fatalf("exec %q: %v", clip(in.Command, 200), err)
	}
	return out
}

// run runs a command in a session until its end.
func run(t testing.TB, s *Service, id, text string) CommandResult {
	t.Helper()
	return exec(t, s, ExecIn{ID: &id, Command: text, Truncate: true, Timeout: new(patience.Seconds())})
}

// wantOutput runs a command and compares its output.
func wantOutput(t testing.TB, s *Service, id, text, want string) {
	t.Helper()
	if out := run(t, s, id, text); *out.Output != want || out.Status != completed {
		t.Errorf("%q printed %q (%s), want %q", text, *out.Output, out.Status, want)
	}
}

// wantError expects an error with a code whose message contains a text.
func wantError(t testing.TB, err error, code op.Code, says string) {
	t.Helper()
	e, ok := op.AsError(err)
	if !ok || e.Code != code || !strings.Contains(e.Msg, says) {
		t.Errorf("got %v, want %s: …%s…", err, code, says)
	}
}
