package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// A new user starts the program and opens its endpoints.
func TestLookAround(t *testing.T) {
	t.Parallel()
	s := serve(t)
	testenv.Poll(t, "readiness", func() bool { status, _ := s.get(t, "/readyz"); return status == 200 })
	for path, want := range map[string]string{
		"/healthz":         "OK",
		"/readyz":          `"status":"ready"`,
		"/metrics":         "aio_requests_total",
		"/llms.txt":        "`GET /v1/sandbox` (tool `sandbox_get_context`)",
		"/v1/sandbox":      `"home_dir":"` + s.Home + `"`,
		"/v1/openapi.json": `"openapi":"3.1.0"`,
		"/v1/docs":         "docs/docs.js",
		"/v1/docs/docs.js": "openapi.json",
	} {
		if status, body := s.get(t, path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: got %d %.300q, want 200 containing %q", path, status, body, want)
		}
	}
}

// The same with the command line and that server.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := serve(t)
	env := []string{"AIO_API_URL=" + s.URL}
	if out, errs, code := run(t, env, "sandbox", "info"); code != 0 || !strings.Contains(out, "User: ") {
		t.Errorf("%d %s %s, want code 0, containing \"User: \"", code, out, errs)
	}
	if out, _, code := run(t, env, "sandbox", "hook-list"); code != 0 || out != "[]\n" {
		t.Errorf("%d %q, want code 0, %q", code, out, "[]\n")
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"sandbox", "hook-remove", "none"}, 1, "no such hook"},
		{[]string{"sandbox", "hook-add", "a b", "true"}, 2, "should match pattern"},
		{[]string{"sandbox", "hook-add"}, 2, "--name is required"},
		{[]string{"sandbox", "nonsense"}, 2, "unknown command"},
		{[]string{"nonsense"}, 2, "unknown command"},
		{[]string{"sandbox", "info", "--nonsense"}, 2, "unknown flag"},
		{[]string{"--api-url", "http://127.0.0.1:1", "sandbox", "info"}, 3, "cannot reach"},
	} {
		if _, errs, code := run(t, env, c.args...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: code %d, %q; want %d, %q", c.args, code, errs, c.code, c.want)
		}
	}
	if out, _, code := run(t, nil, "completion", "bash"); code != 0 || !strings.Contains(out, "complete") {
		t.Errorf("completion: %d, want code 0, containing \"complete\"", code)
	}
}

// Invalid settings prevent the start, and the error names them.
func TestRefusalToStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		env  []string
		args []string
		want []string
	}{
		{"open to others", nil, []string{"--listen", "0.0.0.0:0"}, []string{"AUTH_TOKEN", "JWT_PUBLIC_KEY", "--insecure"}},
		{"bad width", []string{"DISPLAY_WIDTH=wide"}, nil, []string{"DISPLAY_WIDTH", "wide"}},
		{"all faults at once", []string{"DISPLAY_WIDTH=1", "TICKET_TTL_SECONDS=x"}, nil, []string{"DISPLAY_WIDTH", "TICKET_TTL_SECONDS"}},
		{"unknown variable", []string{"AIO_LISTN=1"}, nil, []string{"AIO_LISTN", "AIO_LISTEN"}},
		{"unknown flag", nil, []string{"--listn", "x"}, []string{"--listn"}},
		{"bad key", []string{"JWT_PUBLIC_KEY=abc"}, nil, []string{"JWT_PUBLIC_KEY"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, errs, code := run(t, c.env, append([]string{"serve"}, c.args...)...)
			if code != 2 {
				t.Errorf("code %d, want code 2", code)
			}
			for _, want := range c.want {
				if !strings.Contains(errs, want) {
					t.Errorf("%q does not name %s", errs, want)
				}
			}
		})
	}
	out, _, code := run(t, []string{"DISPLAY_WIDTH=800", "AUTH_TOKEN=geheim"}, "config", "--listen", "127.0.0.1:1")
	if code != 0 || strings.Contains(out, "geheim") {
		t.Errorf("%d %s, want code 0, without \"geheim\"", code, out)
	}
	for _, want := range []string{"DISPLAY_WIDTH", "--listen", "default"} {
		if !strings.Contains(out, want) {
			t.Errorf("aio config does not show the origin %s:\n%s", want, out)
		}
	}
}

// A graceful stop runs the shutdown hooks.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	s := serve(t)
	mark := filepath.Join(s.Home, "mark")
	if status, body := s.post(t, "/v1/sandbox/hooks", fmt.Sprintf(`{"name":"m","command":"echo bye > %s"}`, mark)); status != 200 {
		t.Fatalf("got %q, want status 200", body)
	}
	s.stop(t)
	if b, err := os.ReadFile(mark); err != nil || string(b) != "bye\n" {
		t.Errorf("the hook did not run: %q %v, want %q", b, err, "bye\n")
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("code %d: %s, want code 0", code, s.log)
	}
}

// The sandbox is ready only after its start hooks.
func TestStartHooks(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	gate := filepath.Join(home, "gate")
	s := serve(t, "RUN_HOOK_PRE_SERVICES=until [ -e "+gate+" ]; do sleep 0.05; done")
	testenv.Poll(t, "readiness names the running hook", func() bool {
		status, body := s.get(t, "/readyz")
		return status == 503 && strings.Contains(body, "pre_services")
	})
	if status, _ := s.get(t, "/healthz"); status != 200 {
		t.Errorf("healthz: %d, want status 200", status)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "readiness", func() bool { status, _ := s.get(t, "/readyz"); return status == 200 })
}

// kill -9 of the server also ends all its child processes, including daemons.
func TestKillLeavesNoChild(t *testing.T) {
	t.Parallel()
	pids := filepath.Join(t.TempDir(), "pids")
	hook := fmt.Sprintf("echo $$ >> %s; sleep 1000 & echo $! >> %s; setsid bash -c 'echo $$ >> %s; sleep 1001' & "+
		"nohup sleep 1002 >/dev/null 2>&1 & echo $! >> %s; wait", pids, pids, pids, pids)
	s := serve(t, "RUN_HOOK_INIT="+hook)
	var list []string
	testenv.Poll(t, "four children", func() bool {
		b, _ := os.ReadFile(pids)
		list = strings.Fields(string(b))
		return len(list) == 4
	})
	s.cmd.Process.Kill()
	<-s.done
	for _, pid := range list {
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		testenv.Poll(t, "the end of process "+pid, func() bool { return !alive(n) })
	}
}

// alive reports whether a process runs; zombies do not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
	return !strings.HasPrefix(strings.TrimSpace(rest), "Z")
}
