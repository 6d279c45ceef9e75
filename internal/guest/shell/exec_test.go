package shell

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// execCall runs a command and also returns the call with its message and hint.
func execCall(t testing.TB, s *Service, in ExecIn) (CommandResult, *op.Call) {
	t.Helper()
	call := &op.Call{}
	out, err := s.Exec(op.WithCall(t.Context(), call), in)
	if err != nil {
		t.Fatal(err)
	}
	return out, call
}

func TestTimeoutLimitsOnlyTheCall(t *testing.T) {
	t.Parallel()
	s := newService(t)
	run(t, s, "a", "true")
	out, call := execCall(t, s, ExecIn{ID: new("a"), Command: "echo first; read x; echo got $x", Timeout: new(5.0), Truncate: true})
	if out.Status != running || out.ExitCode != nil || *out.Output != "first" || !strings.Contains(call.Hint, "is still running") {
		t.Errorf(`got %+v %q %q, want status %q, no exit code, output "first" and hint that contains "is still running"`,
			out, *out.Output, call.Hint, running)
	}
	write(t, s, "a", "it", true)
	wantEnd(t, wait(t, s, "a"), "first\nit\ngot it", 0)
	if out := exec(t, s, ExecIn{ID: new("a"), Command: "sleep 300", Timeout: new(0.0)}); out.Status != running {
		t.Errorf("got %+v, want status %q", out, running)
	}
}

func TestNoChangeTimeout(t *testing.T) {
	t.Parallel()
	s := newService(t)
	// Continuous output resets the timeout.
	out := exec(t, s, ExecIn{ID: new("a"), Command: "for i in $(seq 45); do echo $i; sleep 0.1; done; sleep 300",
		NoChangeTimeout: new(4), Truncate: true})
	if out.Status != noChange || *out.Output != numbers(45) || out.ExitCode != nil {
		t.Errorf("got %+v %q, want status %q, output %q and no exit code", out, *out.Output, noChange, numbers(45))
	}
	if _, err := s.Kill(t.Context(), KillIn{ID: "a"}); err != nil {
		t.Fatal(err)
	}

	if r, err := s.UpdateSession(t.Context(), UpdateSessionIn{ID: "a", NoChangeTimeout: new(1)}); err != nil || r.NoChangeTimeout != 1 {
		t.Fatalf("got %+v %v, want no change timeout 1", r, err)
	}
	if out := exec(t, s, ExecIn{ID: new("a"), Command: "sleep 300"}); out.Status != noChange {
		t.Errorf("got %+v with the setting of the session, want status %q", out, noChange)
	}
	s.Kill(t.Context(), KillIn{ID: "a"})
	if out := exec(t, s, ExecIn{ID: new("a"), Command: "sleep 1.2", NoChangeTimeout: new(0)}); out.Status != completed {
		t.Errorf("got %+v without a timeout, want status %q", out, completed)
	}
	created, err := s.CreateSession(t.Context(), CreateSessionIn{NoChangeTimeout: new(1)})
	if err != nil {
		t.Fatal(err)
	}
	if out := exec(t, s, ExecIn{ID: &created.SessionID, Command: "sleep 300"}); out.Status != noChange {
		t.Errorf("got %+v with the setting of the creation, want status %q", out, noChange)
	}
}

func TestHardTimeout(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for name, c := range map[string]struct {
		run   string
		async bool
	}{
		"program":            {"sh -c 'sleep 300 & echo $!; sleep 300'; echo not reached", false},
		"ignores signals":    {`sh -c 'trap "" TERM INT; sleep 300 & echo $!; while :; do sleep 1; done'`, false},
		"child ignores TERM": {`sh -c '(trap "" TERM; sleep 300; sleep 300) & echo $!; exec sleep 300'`, false},
		"slow shell": {`trap : INT; sh -c '(trap "" TERM; sleep 300; sleep 300) & echo $!; exec sleep 300'; ` +
			`end=$((${EPOCHREALTIME/./} + 300000)); while ((${EPOCHREALTIME/./} < end)); do :; done; false`, false},
		"loop":         {"for i in 1 2 3; do sh -c 'echo $$; exec sleep 300'; done", false},
		"in the shell": {"echo 999999999; while :; do :; done", false},
		"async":        {"sh -c 'echo $$; exec sleep 300'", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, s, name, "kept=yes")
			out := exec(t, s, ExecIn{ID: &name, Command: c.run, HardTimeout: new(5.0), Truncate: true, AsyncMode: c.async})
			if c.async {
				wait(t, s, name)
			} else if out.Status != hardTimeout || out.ExitCode == nil || *out.ExitCode == 0 {
				t.Errorf("got %+v, want status %q and a nonzero exit code", out, hardTimeout)
			}
			v := view(t, s, name)
			pid, _, _ := strings.Cut(v.Output, "\n")
			if v.Status != hardTimeout || strings.Contains(v.Output, "not reached") {
				t.Errorf(`got %+v, want status %q and output without "not reached"`, v, hardTimeout)
			}
			if _, err := strconv.Atoi(pid); err != nil {
				t.Errorf("got process ID %q, want a number", pid)
			}
			testenv.Poll(t, "the end of process "+pid, func() bool { return !alive(pid) })
			wantOutput(t, s, name, "echo $kept", "yes")
		})
	}
	t.Run("ends before", func(t *testing.T) {
		t.Parallel()
		if out := exec(t, s, ExecIn{ID: new("quick"), Command: "echo a", HardTimeout: new(300.0)}); out.Status != completed {
			t.Errorf("got %+v, want status %q", out, completed)
		}
	})
}

func TestCanceledRequest(t *testing.T) {
	t.Parallel()
	s := newService(t)
	run(t, s, "a", "true")
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := s.Exec(ctx, ExecIn{ID: new("a"), Command: "echo on; read x; echo $x"})
		result <- err
	}()
	waitForOutput(t, s, "a", "on")
	cancel()
	wantError(t, <-result, op.Canceled, "was canceled")
	write(t, s, "a", "end", true)
	wantEnd(t, wait(t, s, "a"), "on\nend\nend", 0)
}

func TestTruncate(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const lines = 20_000
	command := fmt.Sprintf("seq -f 'line %%06.0f' %d", lines) // 12 characters each
	out := run(t, s, "a", command)
	m := regexp.MustCompile(`^(?s)(line 000001\n.*)\[\.\.\. (\d+) characters omitted ` +
		`\.\.\.\]\n(.*line 020000)$`).FindStringSubmatch(*out.Output)
	if m == nil {
		t.Fatalf("got %q … %q, want head, note and tail", clip(*out.Output, 100), (*out.Output)[len(*out.Output)-100:])
	}
	missing, _ := strconv.Atoi(m[2])
	if all := len(m[1]) + missing + len(m[3]); all != lines*12-1 {
		t.Errorf("got %d + %d + %d characters, want %d together", len(m[1]), missing, len(m[3]), lines*12-1)
	}
	if kept := len(m[1]) + len(m[3]); kept > maxOutput || kept < maxOutput-500 {
		t.Errorf("got %d characters, want %d to %d", kept, maxOutput-500, maxOutput)
	}
	if !strings.HasSuffix(m[1], "\n") || !strings.HasPrefix(m[3], "line ") {
		t.Errorf(`got %q, %q, want a head that ends with "\n" and a tail that starts with "line "`,
			m[1][len(m[1])-20:], m[3][:20])
	}
	if v := view(t, s, "a"); v.Output != *out.Output || v.Console[0].Output != *out.Output {
		t.Errorf("got view %.100q and record %.100q, want the output %.100q", v.Output, v.Console[0].Output, *out.Output)
	}
	out = exec(t, s, ExecIn{ID: new("a"), Command: command})
	if got := strings.Split(*out.Output, "\n"); len(got) != lines || got[lines-1] != "line 020000" {
		t.Errorf(`got %d lines, the last %q, without truncation, want %d, the last "line 020000"`, len(got), got[len(got)-1], lines)
	}
	out = run(t, s, "a", "head -c 40000 /dev/zero | tr '\\0' '\\344'; printf 'ä%.0s' $(seq 30000)") // not UTF-8, and two bytes each
	if len([]rune(*out.Output)) > maxOutput+100 {
		t.Errorf("got %d characters, want at most %d", len([]rune(*out.Output)), maxOutput+100)
	}
	wantOutput(t, s, "a", "printf 'ä%.0s' $(seq 30000)", strings.Repeat("ä", maxOutput))
}

func TestLargeOutput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	size := testenv.Times(20_000_000, 100_000_000)
	for name, command := range map[string]string{
		"lines":    fmt.Sprintf("yes 'this is a line of fifty characters with its newline' | head -c %d; echo; echo end", size/2),
		"one line": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo; echo end", size/2),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := exec(t, s, ExecIn{ID: &name, Command: command})
			if out.Status != completed || !strings.HasSuffix(*out.Output, "\nend") ||
				len(*out.Output) > keptOutput+keptOutput/8 || len(*out.Output) < keptOutput/2 {
				t.Errorf(`got %s, %d bytes, ends with %q, want status %q, output that ends with "\nend", at most %d bytes and at least %d bytes`,
					out.Status, len(*out.Output), (*out.Output)[max(0, len(*out.Output)-20):], completed, keptOutput+keptOutput/8, keptOutput/2)
			}
			dropped := regexp.MustCompile(`\[\.\.\. (\d+) characters dropped \.\.\.\]`).FindStringSubmatch(*out.Output)
			if dropped == nil {
				t.Error("got no note, want one with the number of dropped characters")
			}
			wantOutput(t, s, name, "echo alive", "alive")
		})
	}
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	s := newService(t)
	real := filepath.Join(s.Workspace, "real dir\n")
	link := filepath.Join(s.Workspace, "link")
	for _, err := range []error{os.Mkdir(real, 0o755), os.Symlink(real, link), os.WriteFile(s.Workspace+"/file", nil, 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	pwd := func(in ExecIn, want string) {
		t.Helper()
		in.Command, in.Truncate = "printf %q \"$PWD\"", true
		if in.ID == nil {
			in.ID = new("a")
		}
		want = strings.ReplaceAll(want, "real dir\n", `real dir\n`)
		if strings.Contains(want, `\n`) {
			want = "$'" + want + "'"
		}
		if out := exec(t, s, in); *out.Output != want || out.Status != completed {
			t.Errorf("got directory %s, want %s", *out.Output, want)
		}
	}
	pwd(ExecIn{}, s.Workspace)
	pwd(ExecIn{ExecDir: &link}, real)
	pwd(ExecIn{}, real)
	pwd(ExecIn{ExecDir: &link, PreserveSymlinks: true}, link)
	pwd(ExecIn{ExecDir: new("~")}, s.Home)
	pwd(ExecIn{ExecDir: new("link")}, real)
	pwd(ExecIn{ExecDir: new("/usr"), Strict: new(true)}, "/usr")
	pwd(ExecIn{ExecDir: new("/nosuch"), Strict: new(false)}, "/usr")
	pwd(ExecIn{ID: new("new"), ExecDir: &link}, real)
	pwd(ExecIn{ID: new("new, logical"), ExecDir: &link, PreserveSymlinks: true}, link)
	pwd(ExecIn{ID: new("new, missing"), ExecDir: new("/nosuch")}, s.Workspace)
	if _, call := execCall(t, s, ExecIn{ID: new("a"), Command: "true",
		ExecDir: new("/nosuch")}); !strings.Contains(call.Hint, `"/nosuch" does not exist`) {
		t.Errorf(`got hint %q, want one that contains "/nosuch" does not exist`, call.Hint)
	}
	for dir, says := range map[string]string{"/nosuch": "does not exist", s.Workspace + "/file": "not a directory", "/x\x00y": "zero byte"} {
		_, err := s.Exec(t.Context(), ExecIn{ID: new("a"), Command: "touch ran", ExecDir: &dir, Strict: new(true)})
		if e, ok := op.AsError(err); !ok || !strings.Contains(e.Msg, says) {
			t.Errorf("%q: got %v, want an error that contains %q", dir, err, says)
		}
	}
	if os.Geteuid() != 0 {
		os.Chmod(real, 0)
		out := exec(t, s, ExecIn{ID: new("a"), Command: "touch ran", ExecDir: &real, Strict: new(true)})
		if *out.ExitCode != 1 || !strings.Contains(*out.Output, "Permission denied") {
			t.Errorf(`got %+v %q, want exit code 1 and output that contains "Permission denied"`, out, *out.Output)
		}
		os.Chmod(real, 0o755)
	}
	if left, _ := filepath.Glob(s.Workspace + "/*/ran"); len(left) > 0 {
		t.Errorf("got files %v of commands, want none", left)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for name, c := range map[string]struct {
		in   ExecIn
		code op.Code
		says string
	}{
		"zero byte":        {ExecIn{Command: "echo a\x00b"}, op.Invalid, "zero byte"},
		"too long":         {ExecIn{Command: strings.Repeat("x", maxCommand+1)}, op.TooLarge, "write it to a file"},
		"negative timeout": {ExecIn{Timeout: new(-1.0)}, op.Invalid, "negative"},
		"bad id":           {ExecIn{ID: new("a/b")}, op.Invalid, "no slash"},
		"unprintable id":   {ExecIn{ID: new("a\nb")}, op.Invalid, "printable"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Exec(t.Context(), c.in)
			wantError(t, err, c.code, c.says)
		})
	}
	if st, err := s.Stats(t.Context(), op.None{}); err != nil || st.TotalSessions != 0 {
		t.Errorf("got %+v %v, want total sessions 0", st, err)
	}
}

// TestBackgroundOutput: later output of a job does not block a session and is not added to
// completed records.
func TestBackgroundOutput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	run(t, s, "a", "mkfifo f; { read x <f; echo late output; echo done >f; } &")
	wantOutput(t, s, "a", "echo now", "now")
	if out := run(t, s, "a", "echo go >f; read y <f; echo $y"); !strings.HasPrefix(*out.Output, "late output\ndone") {
		t.Errorf(`got %q, want output that starts with "late output\ndone"`, *out.Output)
	}
	run(t, s, "a", "wait")
	run(t, s, "a", "{ while :; do echo noise; sleep 0.001; done; } & noise=$!")
	for range 20 {
		out := run(t, s, "a", "echo signal")
		if got := strings.ReplaceAll(*out.Output, "noise\n", ""); strings.TrimSuffix(got, "\nnoise") != "signal" || out.Status != completed {
			t.Errorf(`got %q %s, want "signal" among the noise and status %q`, *out.Output, out.Status, completed)
		}
	}
	run(t, s, "a", "kill $noise; wait $noise")
	wantOutput(t, s, "a", "echo quiet", "quiet")
}
