package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/environ"
)

func write(t testing.TB, path, text string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func names(specs []Spec) (names []string) {
	for _, s := range specs {
		names = append(names, s.Name)
	}
	return names
}

func TestFindPrefersTheVenv(t *testing.T) {
	t.Parallel()
	v := venv(t)
	specs, err := Find(t.Context(), FindConfig{Runner: newRunner(t), Venv: v, System: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	if s := specs[0]; s.Name != "python3" || s.Language != "python" || s.Argv[0] != filepath.Join(v, "bin/python") ||
		!strings.HasPrefix(s.DisplayName, "Python 3.") {
		t.Fatalf(`got %+v, want name "python3", language "python", first program %q and display name that starts with "Python 3."`,
			s, filepath.Join(v, "bin/python"))
	}
	k := start(t, func(c *Config) { c.Spec = specs[0] })
	if _, outputs := run(t, k, "import sys; sys.prefix"); brief(outputs) != "execute_result '"+v+"'" {
		t.Errorf(`got %s, want "execute_result '"+v+"'"`, brief(outputs))
	}
}

func TestFindSkipsPythonWithoutIpykernel(t *testing.T) {
	t.Parallel()
	v, shim := venv(t), t.TempDir()
	write(t, filepath.Join(shim, "python3"), "#!/bin/sh\necho 'ipykernel is not installed' >&2\nexit 1\n", 0o755)
	write(t, filepath.Join(shim, "python"), "not even a program", 0o755)
	env := []string{"PATH=" + shim + ":.:" + filepath.Join(v, "bin") + ":/usr/bin:/bin", "HOME=" + t.TempDir()}
	specs, err := Find(t.Context(), FindConfig{Runner: newRunner(t), Env: env, Venv: "/no/such/venv", System: []string{}})
	if err != nil || !strings.HasPrefix(specs[0].Argv[0], v) || specs[0].Env["VIRTUAL_ENV"] != "" {
		t.Errorf("got %+v, %v, want first program that starts with %q and no VIRTUAL_ENV", specs, err, v)
	}
}

func TestFindReportsWhatToInstall(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	write(t, filepath.Join(home, ".local/share/jupyter/kernels/sh/kernel.json"),
		`{"argv":["/bin/sh","{connection_file}"],"language":"sh"}`, 0o644)
	specs, err := Find(t.Context(), FindConfig{Runner: newRunner(t), Env: []string{"PATH=" + t.TempDir(), "HOME=" + home}, System: []string{}})
	if !errors.Is(err, ErrNoPython) || !strings.Contains(err.Error(), "pip install ipykernel") {
		t.Errorf(`got %v, want ErrNoPython that contains "pip install ipykernel"`, err)
	}
	if got := names(specs); !slices.Equal(got, []string{"sh"}) {
		t.Errorf(`got %q, want "sh"`, got)
	}
}

func TestFindEndsWithItsContext(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	write(t, filepath.Join(bin, "python3"), "#!/bin/sh\nexec /bin/sleep 100\n", 0o755)
	ctx, cancel := context.WithCancel(t.Context())
	runner := newRunner(t)
	done := make(chan error)
	go func() {
		_, err := Find(ctx, FindConfig{Runner: runner, Env: []string{"PATH=" + bin}, System: []string{}})
		done <- err
	}()
	testenv.Poll(t, "the interpreter runs", func() bool { return len(runner.Living()) > 0 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestFindReadsSpecifications(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	spec := func(dir, name, text string) {
		write(t, filepath.Join(root, dir, "kernels", name, "kernel.json"), text, 0o644)
	}
	program := write(t, filepath.Join(root, "sys/bin/mykernel"), "#!/bin/sh\n", 0o755)
	spec("path", "one", `{"argv":["/bin/sh","-f","{connection_file}"],"display_name":"One","language":"x",`+
		`"interrupt_mode":"message","env":{"A":"${HOME}/a"}}`)
	spec("home/.local/share/jupyter", "one", `{"argv":["/bin/true","{connection_file}"]}`)
	spec("home/.local/share/jupyter", "Two", `{"argv":["sh","{connection_file}"]}`)
	spec("sys/share/jupyter", "three", `{"argv":["mykernel","{connection_file}","{resource_dir}/x"]}`)
	spec("sys/share/jupyter", "absent", `{"argv":["/no/such/program","{connection_file}"]}`)
	spec("sys/share/jupyter", "broken", `{"argv":`)
	spec("sys/share/jupyter", "unconnected", `{"argv":["/bin/sh"]}`)
	spec("sys/share/jupyter", "empty", `{}`)
	spec("sys/share/jupyter", "bad name", `{"argv":["/bin/sh","{connection_file}"]}`)
	write(t, filepath.Join(root, "sys/share/jupyter/kernels/file"), "", 0o644)
	env := []string{"PATH=/bin", "HOME=" + filepath.Join(root, "home"), "JUPYTER_PATH=" + filepath.Join(root, "path") + ":relative:"}
	f := &finder{FindConfig{Env: env, System: []string{filepath.Join(root, "sys/share/jupyter")}, Log: discard}}
	got := f.installed()
	three := filepath.Join(root, "sys/share/jupyter/kernels/three")
	want := map[string]Spec{
		"one": {
			Name: "one", DisplayName: "One", Language: "x", Argv: []string{"/bin/sh", "-f", connectionFile},
			Env: map[string]string{"A": "${HOME}/a"}, InterruptMode: "message", Dir: filepath.Join(root, "path/kernels/one"),
		},
		"two": {Name: "two", Argv: []string{"/bin/sh", connectionFile}, InterruptMode: "signal",
			Dir: filepath.Join(root, "home/.local/share/jupyter/kernels/Two")},
		"three": {Name: "three", Argv: []string{program, connectionFile, "{resource_dir}/x"}, InterruptMode: "signal", Dir: three},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if argv := got["three"].command("/c"); !slices.Equal(argv, []string{program, "/c", three + "/x"}) {
		t.Errorf(`got argv %q, want %q, "/c" and %q`, argv, program, three+"/x")
	}
	if a := environ.Get(got["one"].environment(env), "A"); a != filepath.Join(root, "home/a") {
		t.Errorf("got A=%s, want %q", a, filepath.Join(root, "home/a"))
	}
}

// TestFindListsEveryPython: each version has a kernel, and the preferred one is the default.
func TestFindListsEveryPython(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for _, version := range []string{"3.9.1", "3.10.2", "3.12.7"} {
		name := "python" + minor(version)
		testenv.WriteProgram(t, filepath.Join(bin, name), []byte("#!/bin/sh\necho "+filepath.Join(bin, name)+"\necho "+version+"\n"))
	}
	if err := os.Symlink("python3.10", filepath.Join(bin, "python3")); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{"": "3.10", "3.12": "3.12", "python3.9": "3.9", "3.12.1": "3.12", "3.8": "3.10"} {
		specs, err := Find(t.Context(),
			FindConfig{Runner: newRunner(t), Env: []string{"PATH=" + bin, "HOME=" + t.TempDir()}, Version: version, System: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"python3", "python3.10", "python3.12", "python3.9"}, names(specs)); d != "" {
			t.Errorf("version %q: kernels (-want +got):\n%s", version, d)
		}
		if got := filepath.Base(specs[0].Argv[0]); got != "python"+want && !(want == "3.10" && got == "python3") {
			t.Errorf("version %q: got the default %s, want python%s", version, got, want)
		}
	}
}
