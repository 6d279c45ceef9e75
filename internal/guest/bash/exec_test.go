package bash

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// execCase is a command and its result.
type execCase struct {
	name   string
	in     ExecIn
	out    string
	errs   string
	code   int
	status string // empty: completed
}

// outputCases are commands with their output and exit code.
func outputCases() []execCase {
	return []execCase{
		{name: "nothing", in: ExecIn{Command: ""}},
		{name: "true", in: ExecIn{Command: "true"}},
		{name: "exit code", in: ExecIn{Command: "exit 3"}, code: 3},
		{name: "both streams", in: ExecIn{Command: "echo out; echo err >&2; false"}, out: "out\n", errs: "err\n", code: 1},
		{name: "no newline", in: ExecIn{Command: "printf abc"}, out: "abc"},
		{name: "leading dash", in: ExecIn{Command: "-x; echo $#"}, out: "0\n", errs: "bash: line 1: -x: command not found\n"},
		{name: "comment", in: ExecIn{Command: "# nothing\necho a # b"}, out: "a\n"},
		{name: "here document", in: ExecIn{Command: "cat <<'E'\n$x\n  y\nE\n"}, out: "$x\n  y\n"},
		{name: "syntax error", in: ExecIn{Command: "echo 'a"},
			errs: "bash: -c: line 1: unexpected EOF while looking for matching `''\n", code: 2},
		{name: "not found", in: ExecIn{Command: "no-such-program"}, errs: "bash: line 1: no-such-program: command not found\n", code: 127},
		{name: "set -e", in: ExecIn{Command: "set -e; false; echo no"}, code: 1},
		{name: "exec", in: ExecIn{Command: "exec printf '%s' \"$0\""}, out: "bash"},
		{name: "trap", in: ExecIn{Command: "trap 'echo bye' EXIT; exit 4"}, out: "bye\n", code: 4},
		{name: "ended by its own signal", in: ExecIn{Command: "kill -9 $$"}, code: 137},
		{name: "unicode", in: ExecIn{Command: "echo '日本語 ✓ é'"}, out: "日本語 ✓ é\n"},
		{name: "not unicode", in: ExecIn{Command: `printf 'a\xff\xe2\x82b\xe2\x82'`}, out: "a\ufffd\ufffd\ufffdb\ufffd\ufffd"},
		{name: "zero bytes", in: ExecIn{Command: `printf 'a\0b'`}, out: "a\x00b"},
		{name: "carriage returns stay", in: ExecIn{Command: `printf '1%%\r2%%\r\n'`}, out: "1%\r2%\r\n"},
	}
}

// processCases check the environment of the process.
func processCases(home string) []execCase {
	return []execCase{
		{name: "input is empty", in: ExecIn{Command: "cat; read x; echo $?"}, out: "1\n"},
		{name: "no terminal", in: ExecIn{Command: "[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none"}, out: "none\n"},
		{name: "workspace", in: ExecIn{Command: "pwd"}, out: home + "\n"},
		{name: "directory", in: ExecIn{Command: "pwd", ExecDir: new(home + "/sub")}, out: home + "/sub\n"},
		{name: "relative directory", in: ExecIn{Command: "pwd", ExecDir: new("sub")}, out: home + "/sub\n"},
		{name: "home directory", in: ExecIn{Command: "pwd", ExecDir: new("~/sub")}, out: home + "/sub\n"},
		{name: "environment", in: ExecIn{Command: `echo "$A|$LANG|${HOME-none}"`,
			Env: map[string]*string{"A": new("x y"), "LANG": new("C"), "HOME": nil}}, out: "x y|C|none\n"},
		{name: "changed path", in: ExecIn{Command: `echo $PATH; type -t ls`,
			Env: map[string]*string{"PATH": new("/nowhere")}}, out: "/nowhere\n", code: 1},
		{name: "own group", in: ExecIn{Command: "[ $$ = $(cut -d' ' -f5 /proc/self/stat) ] && echo own"}, out: "own\n"},
		{name: "long command", in: ExecIn{Command: "echo begin; : '" + strings.Repeat("x", 300<<10) +
			"'; [ -e /proc/$$/fd/3 ] || echo closed; echo $0 $#; exit 5"}, out: "begin\nclosed\nbash 0\n", code: 5},
		{name: "pipe status", in: ExecIn{Command: "yes | head -n1; echo ${PIPESTATUS[*]}"}, out: "y\n141 0\n"},
	}
}

// excerptCases check the limit of output in a reply.
func excerptCases() []execCase {
	return []execCase{
		{name: "middle omitted", in: ExecIn{Command: "printf 'é%.0s' {1..30}", MaxOutputLength: 5},
			out: "ééé\n[... 50 bytes omitted; read them with bash_output from offset 6 ...]\néé"},
		{name: "just fits", in: ExecIn{Command: "printf 'é%.0s' {1..5}", MaxOutputLength: 5}, out: "ééééé"},
		{name: "one too many", in: ExecIn{Command: "printf 'é%.0s' {1..6}", MaxOutputLength: 5},
			out: "ééé\n[... 2 bytes omitted; read them with bash_output from offset 6 ...]\néé"},
		{name: "cut within limit", in: ExecIn{Command: "printf '%s' {a..z}; printf 1234 >&2", MaxOutputLength: 4},
			out: "ab\n[... 22 bytes omitted; read them with bash_output from offset 2 ...]\nyz", errs: "1234"},
		{name: "no limit", in: ExecIn{Command: "printf '%060000d' 1", MaxOutputLength: -1}, out: fmt.Sprintf("%060000d", 1)},
	}
}

// timeoutCases check timeouts and background processes.
func timeoutCases() []execCase {
	return []execCase{
		{name: "hard timeout", in: ExecIn{Command: "echo a; sleep 1000; echo b", HardTimeout: new(0.2)}, out: "a\n", code: 143, status: timedOut},
		{name: "hard timeout, TERM ignored",
			in:  ExecIn{Command: "trap '' TERM; echo a; sleep 1000; echo b; sleep 1000", HardTimeout: new(0.2)},
			out: "a\n", code: 137, status: timedOut},
		{name: "hard timeout, clean exit", in: ExecIn{Command: "trap 'exit 7' TERM; sleep 1000 & wait",
			HardTimeout: new(0.2)}, code: 7, status: timedOut},
		{name: "within both timeouts", in: ExecIn{Command: "echo a", Timeout: new(30.), HardTimeout: new(30.)}, out: "a\n"},
		{name: "zero is no hard timeout", in: ExecIn{Command: "echo a", HardTimeout: new(0.)}, out: "a\n"},
		{name: "background process", in: ExecIn{Command: "sleep 1000 & echo started"}, out: "started\n"},
		{name: "daemon", in: ExecIn{Command: "setsid -f sleep 1000; echo started >&2"}, errs: "started\n"},
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	s := newService(t, withGuard)
	if err := os.Mkdir(s.Home+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range slices.Concat(outputCases(), processCases(s.Home), excerptCases(), timeoutCases()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := run(t, s, c.in)
			want := ExecResult{
				SessionID: got.SessionID, CommandID: got.CommandID, Command: c.in.Command, Status: completed,
				Stdout: &c.out, Stderr: nonEmpty(c.errs), ExitCode: &c.code, Offset: got.Offset, StderrOffset: got.StderrOffset,
			}
			if c.status != "" {
				want.Status = c.status
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			if got.SessionID == "" || got.CommandID == "" {
				t.Errorf("ids %q %q, want a session ID and a command ID", got.SessionID, got.CommandID)
			}
			rest := output(t, s, OutputIn{SessionID: got.SessionID, Offset: got.Offset,
				StderrOffset: got.StderrOffset, Wait: true, WaitTimeout: 1000})
			if rest.Stdout+rest.Stderr != "" || rest.More {
				t.Errorf("got %+v after the offsets, want no output and no more", rest)
			}
		})
	}
}

func TestRefusedExec(t *testing.T) {
	t.Parallel()
	s := newService(t)
	file := s.Home + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removed := s.Home + "/removed"
	if err := os.Mkdir(removed, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, s, ExecIn{Command: "true", SessionID: new("g"), ExecDir: &removed})
	if err := os.Remove(removed); err != nil {
		t.Fatal(err)
	}
	huge := strings.Repeat("x", 200<<10)
	for _, c := range []struct {
		name string
		in   ExecIn
		code op.Code
		says string
	}{
		{"zero byte", ExecIn{Command: "echo a\x00b"}, op.Invalid, "zero byte"},
		{"no such directory", ExecIn{ExecDir: new("/no/such")}, op.NotFound, `"/no/such" does not exist`},
		{"no directory", ExecIn{ExecDir: &file}, op.Invalid, "is not a directory"},
		{"directory was removed", ExecIn{SessionID: new("g")}, op.NotFound, "send an exec_dir that does"},
		{"empty name", ExecIn{Env: map[string]*string{"": new("a")}}, op.Invalid, "must not be empty"},
		{"name with =", ExecIn{Env: map[string]*string{"a=b": new("a")}}, op.Invalid, `"a=b"`},
		{"value with zero", ExecIn{Env: map[string]*string{"a": new("\x00")}}, op.Invalid, `value of "a"`},
		{"huge value", ExecIn{Env: map[string]*string{"a": &huge}}, op.TooLarge, "too large"},
		{"bad session", ExecIn{SessionID: new("a/b")}, op.Invalid, "no slash"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.Exec(t.Context(), c.in)
			wantError(t, err, c.code, c.says)
		})
	}
	if all, _ := s.Sessions(t.Context(), op.None{}); len(all) != 1 || all[0].CommandCount != 2 || all[0].CurrentCommand != nil {
		t.Errorf("got sessions %+v, want 1 entry, first command count 2 and no first current command", all)
	}
	empty := New(Config{Runner: proc.New(proc.Config{Env: []string{"PATH=/nowhere"}})})
	_, err := empty.Exec(t.Context(), ExecIn{Command: "true"})
	wantError(t, err, op.Unavailable, "install the bash package")
	s.Close()
	_, err = s.Exec(t.Context(), ExecIn{Command: "true"})
	wantError(t, err, op.Unavailable, "stopping")
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var wait sync.WaitGroup
	for i := range 100 {
		wait.Go(func() {
			in := ExecIn{Command: fmt.Sprintf("echo out %d; echo err %d >&2; exit %d", i, i, i)}
			if i%2 == 0 {
				in.SessionID = new("shared")
			}
			got := run(t, s, in)
			if *got.Stdout != fmt.Sprintf("out %d\n", i) || op.Value(got.Stderr) != fmt.Sprintf("err %d\n", i) ||
				*got.ExitCode != i || got.Status != completed {
				t.Errorf("%d: got %q %q %d, want stdout %q, stderr %q, exit code %d and status %q",
					i, *got.Stdout, op.Value(got.Stderr), *got.ExitCode, fmt.Sprintf("out %d\n", i), fmt.Sprintf("err %d\n", i), i, completed)
			}
		})
	}
	wait.Wait()
	if living := s.Runner.Living(); len(living) != 0 {
		t.Errorf("processes remain: %v, want none", living)
	}
	all, err := s.Sessions(t.Context(), op.None{})
	if err != nil || len(all) != 51 {
		t.Errorf("got %d sessions, %v, want 51", len(all), err)
	}
}

// TestCommandOutlivesItsCaller: a command continues after a timeout or a canceled request.
func TestCommandOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	s := newService(t)
	soft := run(t, s, ExecIn{Command: "echo a; read x; echo got $x; exit 6", Timeout: new(0.)})
	if soft.Status != running || soft.ExitCode != nil {
		t.Fatalf("got %+v, want status %q and no exit code", soft, running)
	}
	if _, err := s.Write(t.Context(), WriteIn{SessionID: soft.SessionID, Input: "it\n"}); err != nil {
		t.Fatal(err)
	}
	end := await(t, s, soft.SessionID, soft.CommandID, 16)
	if end.Stdout != "a\ngot it\n" || *end.Command.ExitCode != 6 || end.Command.Status != completed {
		t.Errorf(`got %+v %+v, want stdout "a\ngot it\n", exit code 6 and status %q`, end, end.Command, completed)
	}

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		testenv.Poll(t, "the command runs", func() bool {
			all, _ := s.Sessions(ctx, op.None{})
			return len(all) == 2 && all[1].CurrentCommand != nil
		})
		cancel()
	}()
	_, err := s.Exec(ctx, ExecIn{Command: "read x; echo $x", SessionID: new("mine")})
	wantError(t, err, op.Canceled, "is still running")
	if _, err := s.Write(t.Context(), WriteIn{SessionID: "mine", Input: "still\n"}); err != nil {
		t.Fatal(err)
	}
	if out := output(t, s, OutputIn{SessionID: "mine", Wait: true, WaitTimeout: 30}); out.Stdout != "still\n" {
		t.Errorf(`got %+v, want stdout "still\n"`, out)
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stream := func(in ExecIn, each func(op.Event)) (kinds []string, out, errs string, last ExecEvent) {
		err := s.ExecStream(t.Context(), in, func(e op.Event) error {
			data := e.Data.(ExecEvent)
			kinds = append(kinds, e.Name)
			switch e.Name {
			case "stdout":
				out += data.Data
			case "stderr":
				errs += data.Data
			}
			last = data
			if each != nil {
				each(e)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return kinds, out, errs, last
	}
	// Each line arrives before the next is written: the command waits for input.
	session := ""
	kinds, out, _, last := stream(ExecIn{Command: "for i in 1 2 3; do echo é$i; read x; done; exit 3"}, func(e op.Event) {
		if d := e.Data.(ExecEvent); e.Name == "start" {
			session = d.SessionID
		} else if e.Name == "stdout" {
			if _, err := s.Write(t.Context(), WriteIn{SessionID: session, Input: "\n"}); err != nil {
				t.Error(err)
			}
		}
	})
	if d := cmp.Diff([]string{"start", "stdout", "stdout", "stdout", "exit"}, kinds); d != "" ||
		out != "é1\né2\né3\n" || *last.ExitCode != 3 || last.Status != completed || *last.Offset != 12 {
		t.Errorf("got %s\n%q %+v, want no difference, \"é1\\né2\\né3\\n\", exit code 3, status %q and offset 12", d, out, last, completed)
	}
	kinds, _, errs, last := stream(ExecIn{Command: "echo no >&2; sleep 1000", HardTimeout: new(0.2)}, nil)
	if d := cmp.Diff([]string{"start", "stderr", "exit"}, kinds); d != "" || errs != "no\n" || last.Status != timedOut {
		t.Errorf("got %s\n%q %+v, want no difference, stderr \"no\\n\" and status %q", d, errs, last, timedOut)
	}
	kinds, _, _, last = stream(ExecIn{Command: "sleep 1000", Timeout: new(0.1)}, nil)
	if d := cmp.Diff([]string{"start", "timeout"}, kinds); d != "" || last.Status != running {
		t.Errorf("got %s\n%+v, want no difference and status %q", d, last, running)
	}
	// A daemon that never stops writing does not keep the stream open.
	kinds, out, _, _ = stream(ExecIn{Command: "yes daemon & head -c 100000 /dev/zero"}, nil)
	if kinds[len(kinds)-1] != "exit" || strings.Count(out, "\x00") != 100000 {
		t.Errorf(`got %v, want last event "exit" and 100000 null bytes`, kinds[len(kinds)-1])
	}
	if err := s.ExecStream(t.Context(), ExecIn{Command: "true", ExecDir: new("/no/such")}, nil); err == nil {
		t.Error("got no error, want one")
	}
}

// nonEmpty returns nil for an empty text, as in the replies of the public image.
func nonEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
