package node

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// newTypesService returns a service whose Node.js cannot remove types itself.
func newTypesService(t *testing.T, npmPackage string) *Service {
	t.Helper()
	testenv.Need(t, "node", "npm")
	blind := filepath.Join(t.TempDir(), "blind.js")
	if err := os.WriteFile(blind, []byte("delete require('module').stripTypeScriptTypes"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newService(t, func(c *Config) {
		c.State = t.TempDir()
		c.Runner = proc.New(proc.Config{Env: append(c.Runner.Environ(), "NODE_OPTIONS=--require="+blind, "npm_config_offline=true")})
	})
	s.typesPackage = npmPackage
	return s
}

// TestTypeScript: the package that removes types is installed once, by the first of several calls.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	folder, err := filepath.Abs(testenv.NeedFile(t, "../../../test/e2b/node_modules/amaro"))
	if err != nil {
		t.Fatal(err)
	}
	s := newTypesService(t, folder)
	const code = "enum Color { Red = 'ä' }\nconst c: string = Color.Red as string"
	var installed atomic.Int64
	var wait sync.WaitGroup
	for range 3 {
		wait.Go(func() {
			got, err := s.StripTypes(t.Context(), code, func() { installed.Add(1) })
			if err != nil || strings.Contains(got, ": string") || !strings.Contains(got, `"ä"`) {
				t.Errorf("got %q, %v, want JavaScript", got, err)
			}
		})
	}
	wait.Wait()
	if n := installed.Load(); n == 0 {
		t.Error("no call reported the installation, want one")
	}
	if got, err := s.StripTypes(t.Context(), "const a: = 1", func() { t.Error("the package is installed again") }); err == nil {
		t.Errorf("got %q, want an error", got)
	} else if e, ok := op.AsError(err); !ok || e.Code != op.Invalid || !strings.Contains(e.Msg, "Unexpected token") {
		t.Errorf("got %v, want the error of the compiler", err)
	}
}

// TestTypeScriptCannotBeInstalled: the error contains the command that installs the package.
func TestTypeScriptCannotBeInstalled(t *testing.T) {
	t.Parallel()
	s := newTypesService(t, "no-such-package@1")
	_, err := s.StripTypes(t.Context(), "1", func() {})
	want := "run: npm install --prefix " + s.Config.State + "/typescript no-such-package@1"
	if e, ok := op.AsError(err); !ok || e.Code != op.Unavailable || !strings.Contains(e.Msg, want) ||
		!strings.Contains(e.Msg, "cannot be installed: npm") {
		t.Errorf("got %v, want the reason and %q", err, want)
	}
}
