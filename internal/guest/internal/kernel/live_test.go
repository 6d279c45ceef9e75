package kernel

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var discard = slog.New(slog.DiscardHandler)

// venv is the project's virtual environment at the root of the module.
func venv(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("got no go.mod above the test, want one")
		}
		dir = filepath.Dir(dir)
	}
	v := filepath.Join(dir, ".venv")
	if _, err := os.Stat(filepath.Join(v, "bin/python")); err != nil {
		testenv.Lack(t, "needs the project's .venv: make deps")
	}
	return v
}

func newRunner(t testing.TB) *proc.Runner {
	t.Helper()
	r := proc.New(proc.Config{Env: []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LANG=C.UTF-8",
	}})
	t.Cleanup(func() { r.Close() })
	return r
}

// pythonSpec returns the venv's kernel without a search.
func pythonSpec(t testing.TB) Spec {
	v := venv(t)
	return Spec{
		Name: "python3", Language: "python", InterruptMode: "signal",
		Argv: []string{filepath.Join(v, "bin/python"), "-m", "ipykernel_launcher", "-f", connectionFile},
	}.inVenv(v)
}

func start(t testing.TB, change ...func(*Config)) *Kernel {
	t.Helper()
	var warnings bytes.Buffer
	cfg := Config{
		Runner: newRunner(t), Spec: pythonSpec(t), Dir: t.TempDir(), RuntimeDir: runtimeDir(t),
		Log: slog.New(slog.NewTextHandler(&warnings, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, c := range change {
		c(&cfg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k.Close()
		if warnings.Len() > 0 {
			t.Errorf("got warnings %s, want none", &warnings)
		}
		if left, err := os.ReadDir(cfg.RuntimeDir); err != nil || len(left) > 0 {
			t.Errorf("got files %v, %v in the runtime folder, want none", left, err)
		}
	})
	return k
}

// runtimeDir returns a folder whose path is short enough for sockets.
func runtimeDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// run executes a cell and folds its outputs.
func run(t testing.TB, k *Kernel, code string) (Reply, []Output) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var outputs []Output
	reply, err := k.Execute(ctx, Request{Code: code}, func(o Output) error {
		outputs = append(outputs, o)
		return nil
	})
	if err != nil {
		t.Fatalf("execute %q: %v", code, err)
	}
	return reply, Fold(outputs)
}

// TestSocketsNamedLikePorts: R's kernel separates the number of a socket with a colon, as in an address of TCP.
func TestSocketsNamedLikePorts(t *testing.T) {
	t.Parallel()
	const program = `
from ipykernel import heartbeat, kernelapp
class App(kernelapp.IPKernelApp):
    def _try_bind_socket(self, s, port):
        s.bind(f"ipc://{self.ip}:{port}")
        return port
heartbeat.Heartbeat._try_bind_socket = lambda h: h.socket.bind(f"ipc://{h.ip}:{h.port}")
App.launch_instance()
`
	k := start(t, func(c *Config) { c.Spec.Argv = []string{c.Spec.Argv[0], "-c", program, "-f", connectionFile} })
	if _, outputs := run(t, k, "6 * 7"); brief(outputs) != "execute_result 42" {
		t.Errorf("got %s, want 42", brief(outputs))
	}
	if err := k.Ping(t.Context()); err != nil {
		t.Errorf("got %v, want a heartbeat", err)
	}
}
