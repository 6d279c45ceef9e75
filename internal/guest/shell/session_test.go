package shell

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func listSessions(t testing.TB, s *Service) map[string]Info {
	t.Helper()
	list, err := s.List(t.Context(), op.None{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Sessions
}

func TestSessions(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxSessions = 4; c.Idle = time.Hour })
	ctx := t.Context()
	first := exec(t, s, ExecIn{Command: "cd /usr; echo a"}) // no id: a new one
	second := exec(t, s, ExecIn{Command: "pwd"})
	if first.SessionID == second.SessionID || *second.Output != s.Workspace ||
		!regexp.MustCompile(`^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$`).MatchString(first.SessionID) {
		t.Errorf("got %q %q %q, want two UUIDs and output %q", first.SessionID, second.SessionID, *second.Output, s.Workspace)
	}
	created, err := s.CreateSession(ctx, CreateSessionIn{ID: "named", ExecDir: new("/usr/bin")})
	if err != nil || created != (Created{"named", resolveLinks("/usr/bin", false)}) {
		t.Errorf("got %+v %v, want %+v", created, err, Created{"named", resolveLinks("/usr/bin", false)})
	}
	run(t, s, "named", "cd /")
	call := &op.Call{}
	again, err := s.CreateSession(op.WithCall(ctx, call), CreateSessionIn{ID: "named", ExecDir: new("/usr/bin")})
	if err != nil || again != (Created{"named", "/"}) || call.Message != "Session named exists already" {
		t.Errorf(`got %+v %v %q, want %+v and message "Session named exists already"`, again, err, call.Message, Created{"named", "/"})
	}
	call = &op.Call{}
	if lost, err := s.CreateSession(op.WithCall(ctx, call), CreateSessionIn{ExecDir: new("/nosuch")}); err != nil ||
		lost.WorkingDir != s.Workspace || !strings.Contains(call.Hint, "does not exist") {
		t.Errorf(`got %+v %v %q, want working directory %q and hint that contains "does not exist"`, lost, err, call.Hint, s.Workspace)
	}

	background(t, s, "named", "sleep 300")
	st, err := s.Stats(ctx, op.None{})
	if want := (Stats{TotalSessions: 4, ActiveSessions: 4, MaxSessions: 4, SessionTimeout: 3600, UsageRatio: 1}); err != nil || st != want {
		t.Errorf("got %+v %v, want %v", st, err, want)
	}
	list := listSessions(t, s)
	i := list["named"]
	if len(list) != 4 || i.Status != "active" || *i.CurrentCommand != "sleep 300" || i.WorkingDir != "/" ||
		i.CreatedAt.IsZero() || i.LastUsedAt.Before(i.CreatedAt) {
		t.Errorf(`got %+v, want 4 sessions, and one that runs "sleep 300" in "/", created and then used`, list)
	}
	if i := list[first.SessionID]; i.Status != "idle" || i.CurrentCommand != nil || i.WorkingDir != "/usr" {
		t.Errorf(`got %+v, want status "idle", no current command and working directory "/usr"`, i)
	}

	if r, err := s.Cleanup(ctx, CleanupIn{SessionID: "named"}); err != nil || r.Cleaned != 1 {
		t.Errorf("got %+v %v, want cleaned 1", r, err)
	}
	if r, err := s.CleanupAll(ctx, op.None{}); err != nil || r.Cleaned != 3 {
		t.Errorf("got %+v %v, want cleaned 3", r, err)
	}
	if list := listSessions(t, s); len(list) != 0 || len(s.Runner.Living()) != 0 {
		t.Errorf("got sessions %v and processes %v, want none", list, s.Runner.Living())
	}
	wantOutput(t, s, "named", "pwd", s.Workspace)
}

func TestTooManySessions(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxSessions = 3 })
	run(t, s, "a", "true")
	busy := exec(t, s, ExecIn{Command: "sleep 300 &"}).SessionID
	idle := exec(t, s, ExecIn{Command: "true"}).SessionID
	// An idle session with a generated ID is evicted.
	run(t, s, "b", "true")
	if list := listSessions(t, s); len(list) != 3 || list[busy].Status == "" || list[idle].Status != "" {
		t.Errorf("got %v, want 3 sessions with %s, without %s", list, busy, idle)
	}
	_, err := s.Exec(t.Context(), ExecIn{ID: new("c"), Command: "true"})
	wantError(t, err, op.Exhausted, "shell session limit reached (3)")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{})
	wantError(t, err, op.Exhausted, "shell session limit reached (3)")
	if len(listSessions(t, s)) != 3 {
		t.Errorf("got %v, want 3 sessions", listSessions(t, s))
	}
	run(t, s, "a", "exit 0")
	testenv.Poll(t, "the shell is released", func() bool { return len(listSessions(t, s)) == 2 })
	run(t, s, "c", "true")
	_, err = s.Exec(t.Context(), ExecIn{ID: new("a"), Command: "true"})
	wantError(t, err, op.Exhausted, "shell session limit reached (3)")
	// Sessions without a shell are limited, too.
	for i := range 10 {
		if _, err := s.Cleanup(t.Context(), CleanupIn{SessionID: "c"}); i == 0 && err != nil {
			t.Fatal(err)
		}
		run(t, s, fmt.Sprint("n", i), "exit 0")
		testenv.Poll(t, "the shell is released", func() bool { return len(listSessions(t, s)) == 2 })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := s.sessions.Len(); got > 2+3+1 {
		t.Errorf("got %d sessions, want at most 6", got)
	}
}

// TestSessionsCountAsActiveFor5Minutes: the public image has the same limit.
func TestSessionsCountAsActiveFor5Minutes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		state  string
		unused time.Duration
		want   bool
	}{{completed, 4 * time.Minute, true}, {completed, 6 * time.Minute, false}, {running, time.Hour, true}} {
		if got := isActive(row.state, row.unused); got != row.want {
			t.Errorf("%s, unused for %v: got %v, want %v", row.state, row.unused, got, row.want)
		}
	}
}

func TestIdleSessionsExpire(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Idle = 300 * time.Millisecond })
	run(t, s, "idle", "true")
	background(t, s, "busy", "sleep 300")
	testenv.Poll(t, "the idle session expires", func() bool { _, there := listSessions(t, s)["idle"]; return !there })
	if len(listSessions(t, s)) != 1 {
		t.Errorf("got %v, want 1 session", listSessions(t, s))
	}
	_, err := s.View(t.Context(), ViewIn{ID: "idle"})
	wantError(t, err, op.NotFound, "expired")
	if _, err := s.Kill(t.Context(), KillIn{ID: "busy"}); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the other session expires after its command has ended", func() bool { return len(listSessions(t, s)) == 0 })
}

func TestSessionAfterShellExit(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if _, err := s.CreateSession(t.Context(), CreateSessionIn{ID: "a", ExecDir: new("/usr")}); err != nil {
		t.Fatal(err)
	}
	out, call := execCall(t, s, ExecIn{ID: new("a"), Command: "cd /; exit 3", Truncate: true})
	if out.Status != terminated || *out.ExitCode != 3 || !strings.Contains(call.Hint, "starts a new one") {
		t.Errorf(`got %+v %q, want status %q, exit code 3 and hint that contains "starts a new one"`, out, call.Hint, terminated)
	}
	if v := view(t, s, "a"); v.Status != terminated || *v.ExitCode != 3 || *v.Command != "cd /; exit 3" || len(v.Console) != 1 {
		t.Errorf(`got %+v, want status %q, exit code 3, command "cd /; exit 3" and 1 record`, v, terminated)
	}
	if st, err := s.Wait(t.Context(), WaitIn{ID: "a"}); err != nil || st.Status != terminated {
		t.Errorf("got %+v %v, want status %q", st, err, terminated)
	}
	wantOutput(t, s, "a", "pwd", "/usr")
	if v := view(t, s, "a"); len(v.Console) != 2 {
		t.Errorf("got %+v, want 2 records", v.Console)
	}
}

func TestRecordsAreLimited(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for range 22 {
		run(t, s, "a", "seq 8000")
	}
	if v := view(t, s, "a"); len(v.Console) > 18 || len(v.Console) < 10 {
		t.Errorf("got %d records, want 10 to 18 records", len(v.Console))
	}
	for range maxRecords {
		run(t, s, "a", "true")
	}
	if v := view(t, s, "a"); len(v.Console) != maxRecords {
		t.Errorf("got %d records, want %v", len(v.Console), maxRecords)
	}
}

// TestStartupFiles starts shells with startup files that leave them in unusual states.
func TestStartupFiles(t *testing.T) {
	t.Parallel()
	for name, rc := range map[string]string{
		"missing":    "",
		"usual":      "alias ll='ls -l'; export FOO=bar; PROMPT_COMMAND='true'; PS1='\\u@\\h:\\w\\$ '\n",
		"noisy":      "echo welcome; echo oops >&2; fortune 2>/dev/null; printf '\\e]0;title'",
		"returns":    "return 1",
		"fails":      "false; nosuchcommand; (exit 3)",
		"broken":     "if then",
		"errexit":    "set -eu; set -o pipefail",
		"vi":         "set -o vi; bind 'set show-mode-in-prompt on'",
		"traced":     "set -x; PS4='trace '",
		"no editing": "set +o emacs",
		"traps":      "trap 'echo bye' EXIT; trap : DEBUG",
		"exits":      "echo no shell for you; exit 3",
		"execs":      "exec sh -c 'exit 4'",
		"job":        "sleep 300 &",
		"errors off": "exec 2>/dev/null",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, func(c *Config) {
				file := filepath.Join(c.Home, ".bashrc")
				if rc == "" {
					os.Remove(file)
				} else if err := os.WriteFile(file, []byte(rc), 0o644); err != nil {
					t.Fatal(err)
				}
			})
			for range 2 {
				out := run(t, s, "a", "echo a; echo b")
				if got := regexp.MustCompile(`t+race .*\n`).ReplaceAllString(*out.Output, ""); got != "a\nb" || out.Status != completed {
					t.Errorf(`got %q %s, want "a\nb" and status %q`, *out.Output, out.Status, completed)
				}
			}
		})
	}
}

// TestCommandNotPassed: an error while a command is passed to the shell is reported.
func TestCommandNotPassed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	run(t, s, "a", "true")
	ss, err := s.find("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(ss.terminal.path+".cmd", 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = s.Exec(t.Context(), ExecIn{ID: new("a"), Command: "true"})
	wantError(t, err, op.Unavailable, "pass the command to the shell")
	wantOutput(t, s, "a", "echo works again", "works again")
}

func TestNoShell(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Shell = "/nosuch/bash" })
	_, err := s.Exec(t.Context(), ExecIn{Command: "true"})
	wantError(t, err, op.Unavailable, "cannot start a shell")
	s = newService(t, func(c *Config) { c.Shell = "/bin/false" })
	_, err = s.CreateSession(t.Context(), CreateSessionIn{})
	wantError(t, err, op.Unavailable, "did not show its prompt (ended with code 1)")
	if got := s.sessions.Len(); got != 0 {
		t.Errorf("got %d sessions after a failed start, want none", got)
	}
	s.Close()
	_, err = s.Exec(t.Context(), ExecIn{Command: "true"})
	wantError(t, err, op.Unavailable, "stopping")
}

func TestTerminalURL(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ctx := op.WithCall(t.Context(), &op.Call{Base: &url.URL{Scheme: "https", Host: "box.example", Path: "/p"}})
	u, err := s.TerminalURL(ctx, TerminalURLIn{SessionID: new("my shell")})
	if err != nil || u != "https://box.example/p/terminal?session_id=my+shell" {
		t.Errorf(`got %s %v, want "https://box.example/p/terminal?session_id=my+shell"`, u, err)
	}
	if u, err := s.TerminalURL(ctx, TerminalURLIn{}); err != nil ||
		!regexp.MustCompile(`/terminal\?session_id=[0-9a-f-]{36}$`).MatchString(u) {
		t.Errorf("got %s %v, want a URL that ends with /terminal?session_id= and a UUID", u, err)
	}
	_, err = s.TerminalURL(ctx, TerminalURLIn{SessionID: new("a/b")})
	wantError(t, err, op.Invalid, "no slash")
	if len(listSessions(t, s)) != 0 {
		t.Error("got a session, want none")
	}
}

// TestSameNewSession runs concurrent commands in a session that does not exist yet.
func TestSameNewSession(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var wait sync.WaitGroup
	var mu sync.Mutex
	done, busy := 0, 0
	for range 20 {
		wait.Go(func() {
			out, err := s.Exec(t.Context(), ExecIn{ID: new("a"), Command: "echo a"})
			mu.Lock()
			defer mu.Unlock()
			switch e, _ := op.AsError(err); {
			case err == nil && *out.Output == "a":
				done++
			case e != nil && e.Code == op.Conflict:
				busy++
			default:
				t.Errorf("got %+v %v, want output a or a conflict", out, err)
			}
		})
	}
	wait.Wait()
	if done == 0 || done+busy != 20 || len(listSessions(t, s)) != 1 {
		t.Errorf("got %d runs, %d conflicts, sessions %v, want at least 1 run, 20 together and 1 session", done, busy, listSessions(t, s))
	}
}

// TestManySessions runs many sessions concurrently and checks that all resources are released.
// It is not parallel, because it counts goroutines and files.
func TestManySessions(t *testing.T) {
	sessions, commands := testenv.Times(20, 200), testenv.Times(5, 20)
	s := newService(t, func(c *Config) { c.MaxSessions = sessions })
	run(t, s, "first", "true")
	s.CleanupAll(t.Context(), op.None{})
	goroutines, files := runtime.NumGoroutine(), openFiles(t)

	var wait sync.WaitGroup
	for i := range sessions {
		wait.Go(func() {
			id := fmt.Sprint("s", i)
			for j := range commands {
				want := fmt.Sprintf("%d-%d", i, j)
				out, err := s.Exec(t.Context(), ExecIn{ID: &id, Command: fmt.Sprintf("n=$((n+1)); echo %s $n; (exit %d)", want, j), Truncate: true})
				if err != nil {
					t.Errorf("%s: %v", want, err)
					return
				}
				if *out.Output != fmt.Sprint(want, " ", j+1) || out.Status != completed || *out.ExitCode != j {
					t.Errorf("%s: got %q %s %d, want exit code %d", want, *out.Output, out.Status, *out.ExitCode, j)
				}
			}
		})
	}
	wait.Wait()
	if st, _ := s.Stats(t.Context(), op.None{}); st.TotalSessions != sessions {
		t.Errorf("got %+v, want total sessions %d", st, sessions)
	}
	if r, err := s.CleanupAll(t.Context(), op.None{}); err != nil || r.Cleaned != sessions {
		t.Errorf("got %+v %v, want cleaned %d", r, err, sessions)
	}
	if left := s.Runner.Living(); len(left) != 0 || len(listSessions(t, s)) != 0 {
		t.Errorf("got processes %v and sessions %v, want none", left, listSessions(t, s))
	}
	testenv.Poll(t, "goroutines and files are released", func() bool {
		return runtime.NumGoroutine() <= goroutines && openFiles(t) <= files
	})
}

func openFiles(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
