package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// Every example runs as described in examples/README.md, prints the documented output, and leaves no sandbox.
func TestExamples(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "go", "python3")
	pythons := map[string]string{} // by the first words of the command that needs it
	for example, at := range map[string]string{"": "../sdk/.venv/bin/python",
		"frameworks/": "../mcp/.venv-1/bin/python", "frameworks/pydantic": "../mcp/.venv-2/bin/python"} {
		python, err := filepath.Abs(testenv.NeedFile(t, at))
		if err != nil {
			t.Fatal(err)
		}
		pythons[example] = python
	}
	h := serveHub(t)
	b, err := os.ReadFile("../../examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// A repository root with built programs and a python3 that has the public SDK.
	dir := t.TempDir()
	for name, at := range map[string]string{"bin": filepath.Dir(cove), "examples": filepath.Join(root, "examples"),
		"client": filepath.Join(root, "client"), "go.mod": filepath.Join(root, "go.mod"), "go.sum": filepath.Join(root, "go.sum")} {
		if err := os.Symlink(at, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("all", func(t *testing.T) {
		ran := 0
		for line := range strings.Lines(string(b)) {
			command, ok := strings.CutPrefix(line, "    ")
			if !ok || strings.HasPrefix(command, "export ") {
				continue
			}
			ran++
			command, want, ok := strings.Cut(command, "# prints: ")
			if !ok {
				t.Errorf("%s: got no comment, want its expected output", command)
			}
			t.Run(strings.Fields(command)[1], func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
				defer cancel()
				cmd := exec.CommandContext(ctx, "bash", "-ec", command)
				example, python := strings.TrimPrefix(strings.Fields(command)[1], "examples/"), pythons[""]
				for _, first := range []string{"frameworks/", "frameworks/pydantic"} {
					if strings.HasPrefix(example, first) {
						python = pythons[first]
					}
				}
				path := "PATH=" + filepath.Dir(python) + ":" + os.Getenv("PATH")
				cmd.Dir, cmd.Env = dir, append(environment(os.Getenv("HOME"), h.env), path)
				if strings.HasPrefix(command, "go ") {
					cmd.Dir, cmd.Env = root, append(os.Environ(), h.env...) // with this machine's Go settings
				}
				var out, errs bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &errs
				if err := cmd.Run(); err != nil || !strings.Contains(out.String(), strings.TrimSpace(want)) {
					t.Errorf("%s: got error %v, %s and %s, want %q", command, err, &out, &errs, want)
				}
			})
		}
		if ran < 12 {
			t.Errorf("got %d examples in the README, want at least 12", ran)
		}
	})
	if out := h.must(t, "list", "-q"); out != "" {
		t.Errorf("got sandboxes %q at the end, want none", out)
	}
	if out := h.must(t, "snapshot", "list", "-q"); !strings.HasPrefix(out, "best-") || strings.Count(out, "\n") != 1 {
		t.Errorf("got snapshots %q at the end, want that of the fleet example", out)
	}
}
