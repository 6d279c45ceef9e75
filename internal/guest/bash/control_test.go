package bash

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/op"
)

func write(t testing.TB, s *Service, in WriteIn) WriteResult {
	t.Helper()
	out, err := s.Write(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestInput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := background(t, s, "i", "sort; echo end")
	write(t, s, WriteIn{SessionID: "i", Input: "b\nc"})
	write(t, s, WriteIn{SessionID: "i", CommandID: &id, Input: "c\n"})
	last := write(t, s, WriteIn{SessionID: "i", Input: "ä\n", EOF: true})
	if d := cmp.Diff(WriteResult{SessionID: "i", CommandID: id, Written: 3, Closed: true}, last); d != "" {
		t.Error(d)
	}
	if end := await(t, s, "i", id, 100); end.Stdout != "b\ncc\nä\nend\n" {
		t.Errorf("%q", end.Stdout)
	}
	empty := background(t, s, "i", "cat; echo end")
	write(t, s, WriteIn{SessionID: "i", EOF: true})
	if end := await(t, s, "i", empty, 100); end.Stdout != "end\n" {
		t.Errorf("%q", end.Stdout)
	}
	// More than a pipe holds passes while the command reads.
	large := strings.Repeat("0123456789abcdef", 1<<16)
	count := background(t, s, "i", "wc -c")
	write(t, s, WriteIn{SessionID: "i", Input: large, EOF: true})
	if end := await(t, s, "i", count, 100); strings.TrimSpace(end.Stdout) != "1048576" {
		t.Errorf("%q", end.Stdout)
	}
}

func TestRefusedInput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ended := run(t, s, ExecIn{Command: "true", SessionID: new("i")})
	closing := background(t, s, "i", "exec <&-; echo closed; sleep 1000")
	waitFor(t, s, "i", closing, "closed")
	deaf := background(t, s, "i", "sleep 1000")
	ended2 := background(t, s, "i", "cat")
	write(t, s, WriteIn{SessionID: "i", EOF: true, CommandID: &ended2})
	shut := background(t, s, "i", "cat >/dev/null; sleep 1000")
	write(t, s, WriteIn{SessionID: "i", EOF: true, CommandID: &shut})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for _, c := range []struct {
		ctx  context.Context
		in   WriteIn
		code op.Code
		says string
	}{
		{t.Context(), WriteIn{SessionID: "none"}, op.NotFound, "no bash session"},
		{t.Context(), WriteIn{SessionID: "i", CommandID: new("x")}, op.NotFound, "knows no command"},
		{t.Context(), WriteIn{SessionID: "i", CommandID: &ended.CommandID, Input: "x"}, op.Conflict, "has ended (completed)"},
		{t.Context(), WriteIn{SessionID: "i", CommandID: &closing, Input: "x"}, op.Conflict, "closed its input or has ended; 0 of 1 bytes"},
		{t.Context(), WriteIn{SessionID: "i", CommandID: &shut, Input: "x"}, op.Conflict, "was closed before"},
		{t.Context(), WriteIn{SessionID: "i", CommandID: &shut, EOF: true}, op.Conflict, "was closed before"},
		{ctx, WriteIn{SessionID: "i", CommandID: &deaf, Input: strings.Repeat("x", 1<<20)}, op.Canceled, "65536 of 1048576 bytes were written"},
	} {
		_, err := s.Write(c.ctx, c.in)
		refused(t, err, c.code, c.says)
	}
	// A caller who waits for the end and is unknown to others gets no input at all.
	go s.Exec(t.Context(), ExecIn{Command: "exec sleep 1000"})
	var alone string
	eventually(t, "it runs", func() bool {
		all, _ := s.Sessions(t.Context(), None{})
		alone = all[len(all)-1].SessionID
		c, err := s.target(alone, nil)
		return len(all) == 2 && err == nil && c.info().Status == running
	})
	_, err := s.Write(t.Context(), WriteIn{SessionID: alone, Input: "x"})
	refused(t, err, op.Conflict, "run it with a session_id")
}

func TestKill(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const family = `bash -c 'sleep 1000; :' & sleep 1000 & jobs -p; echo $$; wait`
	for _, c := range []struct {
		name, script, signal string
		status               string
		code                 int
	}{
		{"default", family, "SIGTERM", killed, 143},
		{"short name", family, "TERM", killed, 143},
		{"lower case", family, "sigkill", killed, 137},
		{"number", family, "9", killed, 137},
		{"hangup", family, "HUP", killed, 129},
		{"interrupt", "sleep 1000 & echo $!; echo $$; trap - INT; exec sleep 1000", "SIGINT", killed, 130},
		{"trapped and obeyed", "trap 'kill $!; exit 0' TERM; echo $$; sleep 1000 & wait", "SIGTERM", completed, 0},
		{"trapped with the usual code", "trap 'kill $!; exit 143' TERM; echo $$; sleep 1000 & wait", "SIGTERM", killed, 143},
		{"user signal", "trap 'echo usr; kill $!; exit 5' USR1; echo $$; sleep 1000 & wait", "SIGUSR1", completed, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			id := background(t, s, c.name, c.script)
			pids := strings.Fields(waitFor(t, s, c.name, id, "\n"))
			got, err := s.Kill(t.Context(), KillIn{SessionID: c.name, Signal: c.signal})
			if err != nil || got.CommandID != id {
				t.Fatalf("%+v %v", got, err)
			}
			end := await(t, s, c.name, id, 100)
			if end.Command.Status != c.status || *end.Command.ExitCode != c.code {
				t.Errorf("%s with %d", end.Command.Status, *end.Command.ExitCode)
			}
			if c.name == "interrupt" {
				pids = pids[1:] // background jobs of a shell without job control ignore it
			}
			for _, pid := range pids {
				eventually(t, pid+" ends", func() bool { return !alive(pid) })
			}
		})
	}
}

func TestKillChooses(t *testing.T) {
	t.Parallel()
	s := newService(t)
	first := background(t, s, "k", "echo up; exec sleep 1000")
	second := background(t, s, "k", "trap '' TERM; echo up; while :; do sleep 1000; done")
	waitFor(t, s, "k", first, "up")
	waitFor(t, s, "k", second, "up")
	kill := func(in KillIn) KillResult {
		t.Helper()
		in.SessionID = "k"
		got, err := s.Kill(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := kill(KillIn{Signal: "TERM"}); got.CommandID != second || got.Status != running || got.ExitCode != nil {
		t.Errorf("%+v", got)
	}
	kill(KillIn{Signal: "STOP", CommandID: &first})
	kill(KillIn{Signal: "CONT", CommandID: &first})
	if got := kill(KillIn{Signal: "KILL"}); got.CommandID != second {
		t.Errorf("%+v", got)
	}
	await(t, s, "k", second, 100)
	kill(KillIn{Signal: "KILL"})
	if end := await(t, s, "k", first, 100); end.Command.Status != killed {
		t.Errorf("%+v", end.Command)
	}
	// What a finished command left behind is reached by its name.
	ran := run(t, s, ExecIn{Command: "sleep 1000 & echo $!", SessionID: new("k")})
	kill(KillIn{CommandID: &ran.CommandID, Signal: "SIGTERM"})
	eventually(t, "the rest ends", func() bool { return !alive(*ran.Stdout) })
	if got := output(t, s, OutputIn{SessionID: "k"}); got.Command.Status != completed {
		t.Errorf("%+v", got.Command)
	}
	for _, c := range []struct {
		in   KillIn
		code op.Code
		says string
	}{
		{KillIn{SessionID: "none", Signal: "TERM"}, op.NotFound, "no bash session"},
		{KillIn{SessionID: "k", Signal: "TERM"}, op.Conflict, "no command runs"},
		{KillIn{SessionID: "k", Signal: "TERM", CommandID: &first}, op.Conflict, "nothing is left"},
		{KillIn{SessionID: "k", Signal: "SIGNONE"}, op.Invalid, `no signal "SIGNONE"`},
		{KillIn{SessionID: "k", Signal: "0"}, op.Invalid, `no signal "0"`},
		{KillIn{SessionID: "k", Signal: "-9"}, op.Invalid, "no signal"},
		{KillIn{SessionID: "k", Signal: ""}, op.Invalid, "no signal"},
	} {
		_, err := s.Kill(t.Context(), c.in)
		refused(t, err, c.code, c.says)
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if err := os.Mkdir(s.Home+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	created, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("one"), ExecDir: new("sub")})
	if err != nil {
		t.Fatal(err)
	}
	want := SessionInfo{SessionID: "one", Status: "ready", WorkingDir: s.Home + "/sub", CreatedAt: created.CreatedAt, LastUsedAt: created.CreatedAt}
	if d := cmp.Diff(want, created); d != "" || created.CreatedAt.IsZero() {
		t.Error(d)
	}
	// cd is the command's own; exec_dir is the session's from then on.
	for _, c := range []struct{ in, want string }{{"cd /; pwd", "/"}, {"pwd", s.Home + "/sub"}, {"export X=1; echo ${X-none}", "1"}, {"echo ${X-none}", "none"}} {
		if got := run(t, s, ExecIn{Command: c.in, SessionID: new("one")}); strings.TrimSpace(*got.Stdout) != c.want || got.SessionID != "one" {
			t.Errorf("%s: %q", c.in, *got.Stdout)
		}
	}
	run(t, s, ExecIn{Command: "true", SessionID: new("one"), ExecDir: new("/")})
	id := background(t, s, "one", "pwd; sleep 1000")
	waitFor(t, s, "one", id, "/\n")
	auto, err := s.CreateSession(t.Context(), CreateSessionIn{})
	if err != nil || auto.SessionID == "" || auto.WorkingDir != s.Home {
		t.Errorf("%+v %v", auto, err)
	}
	all, err := s.Sessions(t.Context(), None{})
	if err != nil || len(all) != 2 || all[0].SessionID != "one" || *all[0].CurrentCommand != "pwd; sleep 1000" || all[0].CommandCount != 6 || all[1].CurrentCommand != nil {
		t.Errorf("%+v %v", all, err)
	}
	again, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("one"), ExecDir: new("/tmp")})
	if err != nil || again.CreatedAt != created.CreatedAt || again.WorkingDir != "/tmp" {
		t.Errorf("%+v %v", again, err)
	}
	_, err = s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("a\nb")})
	refused(t, err, op.Invalid, "printable")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{ExecDir: new("/no/such")})
	refused(t, err, op.NotFound, "does not exist")
}

// Closing a session ends what runs in it; who waits for it is answered, with the
// output.
func TestCloseSession(t *testing.T) {
	t.Parallel()
	s := newService(t)
	result := make(chan ExecResult, 1)
	go func() {
		result <- run(t, s, ExecIn{Command: "echo out; sleep 1000 & echo $!; wait", SessionID: new("c")})
	}()
	poll := make(chan OutputResult, 1)
	var c *command
	eventually(t, "it runs", func() bool {
		var err error
		c, err = s.target("c", nil)
		if err != nil {
			return false
		}
		out, _ := s.Output(t.Context(), OutputIn{SessionID: "c"})
		return strings.Count(out.Stdout, "\n") == 2
	})
	_, total := c.out.extent()
	go func() { poll <- output(t, s, OutputIn{SessionID: "c", Offset: total, Wait: true, WaitTimeout: 1000}) }()
	eventually(t, "someone polls", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return c.holders == 2 })
	stubborn := background(t, s, "c", "trap '' TERM; echo up; while :; do sleep 1000; done")
	waitFor(t, s, "c", stubborn, "up")
	got, err := s.CloseSession(t.Context(), CloseSessionIn{"c"})
	if d := cmp.Diff(Closed{SessionID: "c", Status: "closed", Killed: 2}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	ended := <-result
	lines := strings.Fields(*ended.Stdout)
	if ended.Status != killed || *ended.ExitCode != 143 || len(lines) != 2 || alive(lines[1]) {
		t.Errorf("%+v %v", ended, lines)
	}
	if out := <-poll; out.Command.Status != killed {
		t.Errorf("%+v", out.Command)
	}
	if living := s.Runner.Living(); len(living) != 0 {
		t.Errorf("still there: %v", living)
	}
	_, err = s.CloseSession(t.Context(), CloseSessionIn{"c"})
	refused(t, err, op.NotFound, "no bash session")
}

func TestSessionLimit(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxSessions = 3 })
	for _, id := range []string{"a", "b"} {
		if _, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: &id}); err != nil {
			t.Fatal(err)
		}
	}
	// Those that nobody named make room for each other.
	var last ExecResult
	for range 5 {
		last = run(t, s, ExecIn{Command: "true"})
	}
	if all, _ := s.Sessions(t.Context(), None{}); len(all) != 3 || all[2].SessionID != last.SessionID {
		t.Errorf("%+v", all)
	}
	long := run(t, s, ExecIn{Command: "sleep 1000", AsyncMode: true})
	_, err := s.Exec(t.Context(), ExecIn{Command: "true"})
	refused(t, err, op.Exhausted, "already 3 bash sessions")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("c")})
	refused(t, err, op.Exhausted, "close one")
	if _, err := s.Kill(t.Context(), KillIn{SessionID: long.SessionID, Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	await(t, s, long.SessionID, long.CommandID, 100)
	run(t, s, ExecIn{Command: "true"})
	// A session takes only so many commands at a time.
	for range maxRecords {
		background(t, s, "a", "read x")
	}
	_, err = s.Exec(t.Context(), ExecIn{Command: "true", SessionID: new("a")})
	refused(t, err, op.Exhausted, "100 commands run in session")
}

func TestIdleSessionsExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Workspace: "/", Idle: time.Hour})
		open := func(id string) {
			t.Helper()
			if _, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: &id}); err != nil {
				t.Fatal(err)
			}
		}
		ids := func() string {
			all, _ := s.Sessions(t.Context(), None{})
			var b strings.Builder
			for _, i := range all {
				b.WriteString(i.SessionID)
			}
			return b.String()
		}
		open("a")
		time.Sleep(30 * time.Minute)
		open("b")
		open("r")
		run := func(n int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.sessions["r"].running += n
		}
		run(1) // as long as something runs it stays
		time.Sleep(31 * time.Minute)
		if got := ids(); got != "br" {
			t.Errorf("after an hour %q", got)
		}
		open("b") // used again
		time.Sleep(59 * time.Minute)
		if got := ids(); got != "br" {
			t.Errorf("after two hours %q", got)
		}
		time.Sleep(2 * time.Minute)
		if got := ids(); got != "r" {
			t.Errorf("at last %q", got)
		}
		run(-1)
		time.Sleep(2 * time.Hour)
		if got := ids(); got != "" {
			t.Errorf("at the end %q", got)
		}
		open("c")
		s.Close()
	})
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	s := newService(t)
	file := func(name, text string) *string {
		path := s.Home + "/" + name
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return &path
	}
	count := s.Home + "/count"
	full := file("full", `shopt -s expand_aliases extglob
echo x >>`+count+`
export GREETING=$'hello\nworld' PATH=$PATH:/extra
unset LANG
local_only=1
greet() { echo "greet $1: $GREETING"; }
case_of() { case $1 in @(a|b)) echo ab;; *) echo other;; esac; }
alias hi='greet alias'
alias -- -='echo dash'
set -u
cd /
echo noise`)
	call := &op.Call{}
	created, err := s.CreateSession(op.WithCall(t.Context(), call), CreateSessionIn{SessionID: new("s"), SnapshotPath: full})
	if err != nil || created.WorkingDir != s.Home || call.Hint != "The snapshot wrote: noise" {
		t.Fatalf("%+v %v %q", created, err, call.Hint)
	}
	for _, c := range []struct {
		command, want string
		env           map[string]*string
	}{
		{"greet you", "greet you: hello\nworld\n", nil},
		{"hi", "greet alias: hello\nworld\n", nil},
		{"case_of b", "ab\n", nil},
		{`echo "${LANG-none} ${local_only-none} ${BASH_ENV-none} $SHLVL ${PATH##*:}"`, "none none none 1 /extra\n", nil},
		{`pwd; [ -e /proc/$$/fd/3 ] || echo closed`, s.Home + "\nclosed\n", nil},
		{"greet me", "greet me: other\n", map[string]*string{"GREETING": new("other")}},
		{"bash -c 'type greet' 2>/dev/null || echo not passed on", "not passed on\n", nil},
		{": " + strings.Repeat("x", 200<<10) + "\ngreet long; [ -e /proc/$$/fd/4 ] || echo closed", "greet long: hello\nworld\nclosed\n", nil},
	} {
		got := run(t, s, ExecIn{Command: c.command, SessionID: new("s"), Env: c.env})
		if *got.Stdout != c.want || *got.Stderr != "" {
			t.Errorf("%.50s: %q %q", c.command, *got.Stdout, *got.Stderr)
		}
	}
	if b, _ := os.ReadFile(count); string(b) != "x\n" {
		t.Errorf("it was sourced %d times", len(b)/2)
	}
	plain := run(t, s, ExecIn{Command: "greet; hi", SessionID: new("other")})
	if *plain.ExitCode != 127 {
		t.Errorf("it reached another session: %+v", *plain.Stdout)
	}
	for _, c := range []struct {
		name string
		path *string
		code op.Code
		says string
	}{
		{"missing", new("/no/such"), op.NotFound, "no such file"},
		{"folder", &s.Home, op.Invalid, "not a regular file"},
		{"exits", file("exits", "echo why; exit 3"), op.Invalid, "(exit code 3) before its environment could be read; it must not call exit. It wrote: why"},
		{"fails with -e", file("fails", "set -e\nls /no/such/thing\n"), op.Invalid, "No such file"},
		{"too large", file("large", "export A=$(printf '%0100000d' 1) B=$A; for i in {1..30}; do eval \"f$i() { : $(printf '%0100000d' 1); }\"; done"), op.TooLarge, "make it smaller"},
		{"zero byte", new("a\x00b"), op.Invalid, "snapshot_path"},
	} {
		_, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("bad"), SnapshotPath: c.path})
		refused(t, err, c.code, c.says)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = s.CreateSession(ctx, CreateSessionIn{SessionID: new("bad"), SnapshotPath: file("hangs", "sleep 1000")})
	refused(t, err, op.Canceled, "no session was made")
	if _, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("half"), SnapshotPath: file("half", "export A=1\nsyntax(\n")}); err != nil {
		t.Error(err)
	}
	if got := run(t, s, ExecIn{Command: "echo $A", SessionID: new("half")}); *got.Stdout != "1\n" {
		t.Errorf("%q", *got.Stdout)
	}
}

func FuzzSnapshot(f *testing.F) {
	f.Add("shopt -u a\n\x00shopt -s a\n\x00f () {\n:\n}\n\x00alias x='y'\n\x00A=1\x00B=2\x00")
	f.Add("\x00\x00\x00\x00\x00")
	f.Add("")
	f.Fuzz(func(t *testing.T, out string) {
		shot, err := parseSnapshot(out)
		if err == nil {
			shot.restore([]string{"PWD=/"})
			if v, ok := lookup(shot.env, "PWD"); !ok || v != "/" {
				t.Error("PWD is not restored")
			}
		}
	})
}

func TestSignalNames(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"SIGTERM": 15, "term": 15, " INT ": 2, "10": 10, "SigUsr2": 12, "SIGWINCH": 28} {
		if got, err := signalOf(name); err != nil || got != want {
			t.Errorf("%q: %v %v", name, got, err)
		}
	}
}
