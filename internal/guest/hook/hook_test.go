package hook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func newService(t *testing.T, c Config) *Service {
	t.Helper()
	c.Runner = proc.New(proc.Config{Env: []string{"PATH=/usr/bin:/bin"}})
	c.Dir = t.TempDir()
	t.Cleanup(func() { c.Runner.Close() })
	return New(c)
}

func register(t *testing.T, s *Service, name, command string, priority int, timeout float64) {
	t.Helper()
	if _, err := s.Register(t.Context(), RegisterIn{Name: name, Event: "shutdown", Command: command,
		Priority: priority, Timeout: timeout}); err != nil {
		t.Fatal(err)
	}
}

func TestShutdownHooksRunByPriority(t *testing.T) {
	s := newService(t, Config{})
	// The hooks of priority 5 wait for each other, so they must run concurrently.
	register(t, s, "last", "echo last >> log", 9, 10)
	register(t, s, "a", "mkfifo f; echo x > f; echo mid >> log", 5, 10)
	register(t, s, "b", "until [ -p f ]; do sleep 0.01; done; cat f", 5, 10)
	register(t, s, "first", "echo first >> log", -1, 10)
	register(t, s, "fails", "exit 3", 6, 10)
	register(t, s, "hangs", "echo began >> log; sleep 1000; echo never >> log", 7, 0.2)
	s.Shutdown(t.Context())
	b, err := os.ReadFile(filepath.Join(s.Dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(b)); strings.Join(got, " ") != "first mid began last" {
		t.Errorf("ran %v, want first mid began last", got)
	}
}

func TestRegisterListRemove(t *testing.T) {
	s := newService(t, Config{})
	call := &op.Call{}
	ctx := op.WithCall(t.Context(), call)
	register(t, s, "x", "true", 100, 10)
	if _, err := s.Register(ctx, RegisterIn{Name: "x", Event: "shutdown", Command: "false",
		Timeout: 1}); err != nil || call.Message != "Hook x replaced" {
		t.Errorf("%q %v, want Message \"Hook x replaced\"", call.Message, err)
	}
	list, err := s.List(ctx, ListIn{Event: "shutdown"})
	if err != nil || len(list) != 1 || list[0].Command != "false" || list[0].Source != "api" {
		t.Errorf(`%+v %v, want 1 entry, first command "false" and first source "api"`, list, err)
	}
	if _, err := s.Remove(ctx, RemoveIn{"x"}); err != nil {
		t.Error(err)
	}
	for name, f := range map[string]func() error{
		"removed twice": func() error { _, err := s.Remove(ctx, RemoveIn{"x"}); return err },
		"unknown event": func() error { _, err := s.List(ctx, ListIn{Event: "birthday"}); return err },
		"wrong event":   func() error { _, err := s.Register(ctx, RegisterIn{Name: "y", Event: "z", Command: "a"}); return err },
		"empty command": func() error {
			_, err := s.Register(ctx, RegisterIn{Name: "y", Event: "shutdown", Command: " "})
			return err
		},
		"timeout zero": func() error {
			_, err := s.Register(ctx, RegisterIn{Name: "y", Event: "shutdown", Command: "a"})
			return err
		},
		"too many hooks": func() error { return fill(ctx, s) },
	} {
		if _, ok := errors.AsType[*op.Error](f()); !ok {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

func fill(ctx context.Context, s *Service) error {
	for i := range maxHooks + 1 {
		if _, err := s.Register(ctx, RegisterIn{Name: strconv.Itoa(i), Event: "shutdown", Command: "a", Timeout: 1}); err != nil {
			return err
		}
	}
	return nil
}

func TestBeginWaitsForPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	s := newService(t, Config{Init: "echo init >> log", PreServices: "echo pre >> log", PostReady: "echo post >> log", WaitPorts: []int{port}})
	if state, _ := s.State(); state != "starting" {
		t.Errorf("state %s before the start, want state \"starting\"", state)
	}
	done := make(chan struct{})
	go func() { s.Begin(t.Context()); close(done) }()
	testenv.Poll(t, "waiting for the port", func() bool { _, why := s.State(); return why == "waiting for port "+strconv.Itoa(port) })
	l, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	<-done
	if state, why := s.State(); state != "ready" || why != "" {
		t.Errorf("%s %s, want state \"ready\", why \"\"", state, why)
	}
	if b, _ := os.ReadFile(filepath.Join(s.Dir, "log")); string(b) != "init\npre\npost\n" {
		t.Errorf("log %q, want %q", b, "init\npre\npost\n")
	}
}

func TestFailedStartIsReported(t *testing.T) {
	for name, c := range map[string]Config{
		"hook fails":   {Init: "exit 4", Strict: true},
		"port is shut": {WaitPorts: []int{1}, WaitTimeout: 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, c)
			s.Begin(t.Context())
			if state, why := s.State(); state != "failed" || why == "" {
				t.Errorf(`%s %s, want state "failed" and a reason`, state, why)
			}
		})
	}
}

// The start continues after a failed hook, unless RUN_HOOKS_STRICT is set.
func TestHookFailsAndTheStartContinues(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{Init: "exit 4"})
	s.Begin(t.Context())
	if state, why := s.State(); state != "ready" {
		t.Errorf("got %s: %s, want ready", state, why)
	}
}

func TestShutdownHooksOfTheSettings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":          "[]",
		"echo a; b": "[{env-1 shutdown echo a; b 30 100 env}]",
		`["a", {"name":"n","command":"b","timeout":2,"priority":1}]`: "[{env-1 shutdown a 30 100 env} {n shutdown b 2 1 env}]",
		`[{"name":"n"}]`: "error", `["a`: "error", `[1]`: "error", `[{"command":"a","timeout":-1}]`: "error",
	} {
		list, err := ParseShutdown(text, 30*time.Second)
		got := fmt.Sprint(list)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: got %s (%v), want %s", text, got, err, want)
		}
	}
	list, _ := ParseShutdown("echo of the settings >> log", time.Minute)
	s := newService(t, Config{AtShutdown: list})
	if _, err := s.Remove(t.Context(), RemoveIn{"env-1"}); err == nil {
		t.Error("removed a hook of the settings, want an error")
	}
	if _, err := s.Register(t.Context(), RegisterIn{Name: "env-1", Event: "shutdown", Command: "true", Timeout: 1}); err == nil {
		t.Error("replaced a hook of the settings, want an error")
	}
	s.Shutdown(t.Context())
	if b, err := os.ReadFile(filepath.Join(s.Dir, "log")); string(b) != "of the settings\n" {
		t.Errorf("got %q and %v, want that it ran", b, err)
	}
}
