package node

import (
	"os"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newService returns a service with a real Node.js and temporary folders.
func newService(t testing.TB, change ...func(*Config)) *Service {
	t.Helper()
	testenv.Need(t, "node")
	dir := t.TempDir()
	c := Config{
		Runner: proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8"}}),
		Home:   dir, Workspace: dir, State: dir + "/state",
	}
	for _, f := range change {
		f(&c)
	}
	s := New(c)
	t.Cleanup(func() {
		s.Close()
		s.Close()
		if left := c.Runner.Living(); len(left) > 0 {
			t.Errorf("processes remain: %v, want none", left)
		}
		c.Runner.Close()
		if left, _ := os.ReadDir(dir + "/state/nodejs"); len(left) > 0 {
			t.Errorf("folders remain: %v, want none", left)
		}
	})
	return s
}

func execute(t testing.TB, s *Service, in ExecuteIn) ExecuteOut {
	t.Helper()
	if in.Timeout == 0 {
		in.Timeout = 60
	}
	out, err := s.Execute(t.Context(), in)
	if err != nil {
		t.Fatalf("execute %q: %v", in.Code, err)
	}
	return out
}

// runIn runs code in a session.
func runIn(t testing.TB, s *Service, session, code string) ExecuteOut {
	t.Helper()
	return execute(t, s, ExecuteIn{Code: code, SessionID: &session})
}

// summarize formats outputs one per line, for readable tables.
func summarize(outputs []Output) string {
	var lines []string
	for _, o := range outputs {
		switch o.Type {
		case "stream":
			lines = append(lines, *o.Name+" "+strings.ReplaceAll(*o.Text, "\n", "⏎"))
		case "error":
			lines = append(lines, "error "+*o.EName+": "+strings.ReplaceAll(*o.EValue, "\n", "⏎"))
		default:
			lines = append(lines, "= "+strings.ReplaceAll((*o.Data)["text/plain"].(string), "\n", "⏎"))
		}
	}
	return strings.Join(lines, "\n")
}

// wantError expects an error with a code whose message contains a text.
func wantError(t testing.TB, err error, code op.Code, says string) {
	t.Helper()
	e, ok := op.AsError(err)
	if !ok || e.Code != code || !strings.Contains(e.Msg, says) {
		t.Errorf("got %v, want %s: …%s…", err, code, says)
	}
}
