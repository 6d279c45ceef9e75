package jupyter

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// newSmallService returns a service on a machine with few programs: those of PATH are links in one folder.
func newSmallService(t *testing.T, programs map[string]string) *Service {
	t.Helper()
	bin := t.TempDir()
	for _, name := range []string{"bash", "cat", "id", "mkdir", "mktemp", "mv", "rm", "sed", "java", "javac", "jshell"} {
		if programs[name] != "" {
			continue // writing it below would follow the link and replace the machine's program
		}
		if path, err := filepath.Glob("/usr/bin/" + name); err == nil && len(path) == 1 {
			if err := os.Symlink(path[0], filepath.Join(bin, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, script := range programs {
		if script == "none" {
			continue
		}
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return newService(t, func(c *Config) {
		c.Runner = proc.New(proc.Config{Env: []string{"PATH=" + bin, "HOME=" + c.Home, "LANG=C.UTF-8"}})
	})
}

// TestMissingKernels: an error says why a kernel cannot be installed, and which command installs it.
func TestMissingKernels(t *testing.T) {
	t.Parallel()
	noJava := map[string]string{"javac": "none"}
	for name, c := range map[string]struct {
		kernel   string
		packaged bool
		programs map[string]string
		why      string
		fix      string
	}{
		"R on a user's machine": {"ir", false, nil, "only in a hub's sandboxes", "r-cran-irkernel"},
		"Java, too":             {"Java", false, noJava, "only in a hub's sandboxes", "default-jdk-headless"},
		"not Debian":            {"ir", true, nil, "apt-get is not installed", "r-cran-irkernel"},
		"no sudo": {"ir", true, map[string]string{"apt-get": "exit 8", "id": "echo 1000", "sudo": "exit 1"},
			"cannot run sudo without a password", "r-cran-irkernel"},
		"no packages": {"java", true, map[string]string{"javac": "none", "id": "echo 1000", "sudo": `shift; exec "$@"`, "true": "exit 0",
			"apt-get": "echo 'Failed to fetch lists' >&2; exit 100"}, "Failed to fetch lists", "default-jdk-headless"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSmallService(t, c.programs)
			s.Packaged = c.packaged
			for range 2 { // the second call repeats the error
				_, err := s.Execute(t.Context(), ExecuteIn{Code: "1", KernelName: &c.kernel, Timeout: 60})
				wantError(t, err, op.Unavailable, c.why)
				wantError(t, err, op.Unavailable, "; run: sudo apt-get update && sudo apt-get install -y --no-install-recommends "+c.fix)
			}
		})
	}
}

// TestJavaIsInstalledOnFirstUse: the first call compiles the kernel, with a JDK that is installed, and reports the progress.
func TestJavaIsInstalledOnFirstUse(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "javac", "jshell")
	s := newSmallService(t, nil)
	java := "java"
	var printed strings.Builder
	var out *ExecuteOut
	err := s.ExecuteStream(t.Context(), ExecuteIn{Code: "int x = 6;\nx * 7", KernelName: &java, SessionID: &java, Timeout: 300},
		func(e op.Event) error {
			if ev := e.Data.(ExecuteEvent); ev.Result != nil {
				out = ev.Result
			} else if ev.Output.Text != nil {
				printed.WriteString(*ev.Output.Text)
			}
			return nil
		})
	if err != nil || out == nil || summarize(out.Outputs) != "= 42" {
		t.Fatalf("got %+v, %v, want 42", out, err)
	}
	if want := "Installing Java: compiling the kernel\n"; !strings.Contains(printed.String(), want) {
		t.Errorf("got %q, want the progress %q", printed.String(), want)
	}
	for _, c := range []struct{ code, want string }{
		{"x = 7", ""},
		{"int y = x;", ""},
		{`System.out.print("ä€😀"); System.err.println(y); "a" + x`, "stdout ä€😀\nstderr 7⏎\n= \"a7\""},
		{"class P { public String toString() { return \"P\"; } }\nnew P()", "= P"},
		{"List.of(1, 2).stream().map(i -> i * 2).collect(Collectors.toList()) // imports", "= [2, 4]"},
		{"int div(int a) { return 1 / a; }\ndiv(0)", "error java.lang.ArithmeticException: / by zero"},
		{"int z = ;", "error CompilationError: illegal start of expression"},
		{"System.in.read()", "= -1"},
		{"void f() { g(); }", "stderr cannot be used until defined: method g()⏎"},
		{"System.getProperty(\"HOME\")", `= "` + s.Home + `"`},
		{"System.out.print(\"a\".repeat(100_000).length()); // nothing else", "stdout 100000"},
		{"  // nothing", ""},
		{"", ""},
	} {
		if got := summarize(runIn(t, s, "java", c.code).Outputs); got != c.want {
			t.Errorf("%s: got %.300q, want %q", c.code, got, c.want)
		}
	}
	fault := runIn(t, s, "java", `throw new RuntimeException("a", new IllegalStateException("b"))`).Outputs[0]
	if got := strings.Join(*fault.Traceback, "\n"); !strings.Contains(got, "java.lang.RuntimeException: a\n\tat cell(") ||
		!strings.Contains(got, "Caused by: java.lang.IllegalStateException: b") {
		t.Errorf("got the traceback %q, want both exceptions with their lines", got)
	}
	// An interrupt keeps the variables.
	for _, code := range []string{"while (true) {}", "Thread.sleep(600_000)", "while (true) System.out.println(x)"} {
		out := execute(t, s, ExecuteIn{Code: code, SessionID: &java, Timeout: 1})
		got := summarize(out.Outputs)
		if out.Status != "timeout" || !strings.HasSuffix(got, "error InterruptedException: the cell was interrupted") {
			t.Errorf("%s: got %s, …%.100s, want that it is interrupted", code, out.Status, got[max(0, len(got)-100):])
		}
	}
	if got := summarize(runIn(t, s, "java", "x").Outputs); got != "= 7" {
		t.Errorf("after interrupts: got %.300q, want the variable", got)
	}
	// Code can end its process and send any message to the kernel: this affects only its session.
	if got := summarize(runIn(t, s, "java", "System.exit(3)").Outputs); !strings.Contains(got, "error ProcessExit: ") {
		t.Errorf("exit: got %.300q, want that the process has ended", got)
	}
	if got := summarize(runIn(t, s, "java", "1 + 1").Outputs); got != "= 2" {
		t.Errorf("after the exit: got %.300q, want a new process", got)
	}
}
