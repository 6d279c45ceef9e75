package jupyter

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// kernelWheel creates a package whose installation makes ipykernel available: that of the project's
// environment, because a test downloads nothing.
func kernelWheel(t *testing.T) string {
	t.Helper()
	sites, err := filepath.Glob(filepath.Join(venv(t), "lib/python3.*/site-packages"))
	if err != nil || len(sites) != 1 {
		t.Fatalf("packages of the project's environment: got %q, %v", sites, err)
	}
	return testenv.Wheel(t, "thing.pth", sites[0]+"\n")
}

// newBareService returns a service on a machine whose Python has no kernel.
func newBareService(t *testing.T, packages string) *Service {
	t.Helper()
	testenv.Need(t, "/usr/bin/python3")
	s := newService(t, func(c *Config) {
		c.Venv, c.Packages = filepath.Join(c.State, "venv"), packages
		c.Runner = proc.New(proc.Config{Env: append(c.Runner.Environ(), "PIP_NO_INDEX=1")})
	})
	s.specs.find = func(ctx context.Context) ([]kernel.Spec, error) {
		return kernel.Find(ctx, kernel.FindConfig{Runner: s.Runner, Env: []string{"PATH=/none"}, Venv: s.Venv, System: []string{}})
	}
	return s
}

// The first call installs a kernel, and reports the progress.
func TestPythonIsInstalledOnFirstUse(t *testing.T) {
	t.Parallel()
	s := newBareService(t, kernelWheel(t)+"\n")
	var printed strings.Builder
	var out *ExecuteOut
	err := s.ExecuteStream(t.Context(), ExecuteIn{Code: "import sys; print(sys.prefix)", Timeout: 60}, func(e op.Event) error {
		if ev := e.Data.(ExecuteEvent); ev.Result != nil {
			out = ev.Result
		} else if ev.Output.Text != nil {
			printed.WriteString(*ev.Output.Text)
		}
		return nil
	})
	if err != nil || out == nil || summarize(out.Outputs) != "stdout "+s.Venv+"⏎" {
		t.Fatalf("got %+v, %v, want output %q", out, err, s.Venv)
	}
	if !strings.Contains(printed.String(), "Installing Python: ") {
		t.Errorf("events: got %q, want the progress", printed.String())
	}
	if out := runIn(t, s, "s", "6*7"); summarize(out.Outputs) != "= 42" {
		t.Errorf("the next call: got %+v, want 42", out)
	}
}

// A failed installation says why, in every reply.
func TestPythonCannotBeInstalled(t *testing.T) {
	t.Parallel()
	s := newBareService(t, "no-such-package\n")
	s.installer.wait = 0
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1", Timeout: 60})
	wantError(t, err, op.Unavailable, "Python is being installed")
	s.installer.wait = 5 * time.Minute
	for range 2 {
		_, err := s.Execute(t.Context(), ExecuteIn{Code: "1", Timeout: 60})
		wantError(t, err, op.Unavailable, "no-such-package")
	}
	if _, err := s.CreateSession(t.Context(), CreateSessionIn{}); err == nil {
		t.Error("create a session: got no error, want one")
	}
	if i, err := s.Info(t.Context(), op.None{}); err != nil || !strings.Contains(i.KernelDetection, "no-such-package") {
		t.Errorf("got %+v, %v, want the reason", i, err)
	}
	if state, why := s.State(); state != "absent" || !strings.Contains(why, "no-such-package") {
		t.Errorf("got %s, %s, want absent with the reason", state, why)
	}
}

// A hub may build the environment of a sandbox, which cannot write to it.
func TestPythonIsInstalledByAnother(t *testing.T) {
	t.Parallel()
	s := newBareService(t, "")
	if err := os.Mkdir(s.Venv, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Venv, ".progress"), []byte(`{"step": "Collecting numpy"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	s.installer.mine = func() bool { return false }
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan string, 1)
	go func() {
		<-seen
		cancel()
	}()
	err := s.ExecuteStream(ctx, ExecuteIn{Code: "1", Timeout: 60}, func(e op.Event) error {
		seen <- *e.Data.(ExecuteEvent).Output.Text
		return nil
	})
	wantError(t, err, op.Canceled, "continues")
	if err := os.WriteFile(filepath.Join(s.Venv, ".progress"), []byte(`{"failure": "no space"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = s.Execute(t.Context(), ExecuteIn{Code: "1", Timeout: 60})
	wantError(t, err, op.Unavailable, "no space")
}
