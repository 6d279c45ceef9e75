package jupyter

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// venv is the project's virtual environment at the root of the module.
func venv(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../../../.venv")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "bin/python")); err != nil {
		testenv.Lack(t, "needs the project's .venv: make deps")
	}
	return dir
}

// newService returns a service with real kernels and temporary folders.
func newService(t testing.TB, change ...func(*Config)) *Service {
	t.Helper()
	dir := t.TempDir()
	state, err := os.MkdirTemp("", "j") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Runner: proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8"}}),
		Venv:   venv(t), Home: dir, Workspace: dir, State: state,
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
		if left, _ := os.ReadDir(state + "/jupyter"); len(left) > 0 {
			t.Errorf("folders remain: %v, want none", left)
		}
		os.RemoveAll(state)
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

// runIn runs a cell in a session.
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
			lines = append(lines, "error "+*o.EName+": "+*o.EValue)
		default:
			text, _ := (*o.Data)["text/plain"].(string)
			for _, media := range []string{"text/html", "text/latex", "text/markdown", "image/png"} {
				if _, ok := (*o.Data)[media]; ok {
					text += " +" + media
				}
			}
			mark := map[string]string{"execute_result": "= ", "display_data": "show "}[o.Type]
			lines = append(lines, mark+strings.ReplaceAll(text, "\n", "⏎"))
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

// noKernels searches for kernels on a machine without any.
func noKernels(s *Service) func(context.Context) ([]kernel.Spec, error) {
	return func(ctx context.Context) ([]kernel.Spec, error) {
		return kernel.Find(ctx, kernel.FindConfig{Runner: s.Runner, System: []string{}})
	}
}

// brokenKernel finds a kernel that exits immediately.
func brokenKernel(context.Context) ([]kernel.Spec, error) {
	return []kernel.Spec{{Name: "python3", DisplayName: "Python 3", Argv: []string{"/bin/false", "{connection_file}"}}}, nil
}
