package bash

import (
	"context"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/environ"
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
		t.Errorf(`got %q, want "b\ncc\nä\nend\n"`, end.Stdout)
	}
	empty := background(t, s, "i", "cat; echo end")
	write(t, s, WriteIn{SessionID: "i", EOF: true})
	if end := await(t, s, "i", empty, 100); end.Stdout != "end\n" {
		t.Errorf(`got %q, want "end\n"`, end.Stdout)
	}
	// Input larger than a pipe passes while the command reads.
	large := strings.Repeat("0123456789abcdef", 1<<16)
	count := background(t, s, "i", "wc -c")
	write(t, s, WriteIn{SessionID: "i", Input: large, EOF: true})
	if end := await(t, s, "i", count, 100); strings.TrimSpace(end.Stdout) != "1048576" {
		t.Errorf(`got %q, want stdout "1048576"`, end.Stdout)
	}
}

func TestRefusedInput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ended := run(t, s, ExecIn{Command: "true", SessionID: new("i")})
	closing := background(t, s, "i", "exec <&-; echo closed; sleep 1000")
	waitForOutput(t, s, "i", closing, "closed")
	unread := background(t, s, "i", "sleep 1000")
	cat := background(t, s, "i", "cat")
	write(t, s, WriteIn{SessionID: "i", EOF: true, CommandID: &cat})
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
		{t.Context(), WriteIn{SessionID: "i", CommandID: new("x")}, op.NotFound, `no command "x"`},
		{t.Context(), WriteIn{SessionID: "i", CommandID: &ended.CommandID, Input: "x"}, op.Conflict, "has exited (completed)"},
		{t.Context(), WriteIn{SessionID: "i", CommandID: &closing, Input: "x"}, op.Conflict, "closed its input or exited; wrote 0 of 1 bytes"},
		{t.Context(), WriteIn{SessionID: "i", CommandID: &shut, Input: "x"}, op.Conflict, "is already closed"},
		{t.Context(), WriteIn{SessionID: "i", CommandID: &shut, EOF: true}, op.Conflict, "is already closed"},
		{ctx, WriteIn{SessionID: "i", CommandID: &unread, Input: strings.Repeat("x", 1<<20)}, op.Canceled, "wrote 65536 of 1048576 bytes"},
	} {
		_, err := s.Write(c.ctx, c.in)
		wantError(t, err, c.code, c.says)
	}
	// A command of a new session whose caller waits for the end has an empty input.
	go s.Exec(t.Context(), ExecIn{Command: "exec sleep 1000"})
	var alone string
	testenv.Poll(t, "it runs", func() bool {
		all, _ := s.Sessions(t.Context(), op.None{})
		alone = all[len(all)-1].SessionID
		c, err := s.target(alone, nil)
		return len(all) == 2 && err == nil && c.info().Status == running
	})
	_, err := s.Write(t.Context(), WriteIn{SessionID: alone, Input: "x"})
	wantError(t, err, op.Conflict, "without session_id")
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
		{"trapped, exit code 0", "trap 'kill $!; exit 0' TERM; echo $$; sleep 1000 & wait", "SIGTERM", completed, 0},
		{"trapped with the usual code", "trap 'kill $!; exit 143' TERM; echo $$; sleep 1000 & wait", "SIGTERM", killed, 143},
		{"user signal", "trap 'echo usr; kill $!; exit 5' USR1; echo $$; sleep 1000 & wait", "SIGUSR1", completed, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			id := background(t, s, c.name, c.script)
			pids := strings.Fields(waitForOutput(t, s, c.name, id, "\n"))
			got, err := s.Kill(t.Context(), KillIn{SessionID: c.name, Signal: c.signal})
			if err != nil || got.CommandID != id {
				t.Fatalf("got %+v %v, want command ID %q", got, err, id)
			}
			end := await(t, s, c.name, id, 100)
			if end.Command.Status != c.status || *end.Command.ExitCode != c.code {
				t.Errorf("got %s with %d, want status %q and exit code %d", end.Command.Status, *end.Command.ExitCode, c.status, c.code)
			}
			if c.name == "interrupt" {
				pids = pids[1:] // background jobs of a shell without job control ignore it
			}
			for _, pid := range pids {
				testenv.Poll(t, pid+" ends", func() bool { return !alive(pid) })
			}
		})
	}
}

func TestKillChooses(t *testing.T) {
	t.Parallel()
	s := newService(t)
	first := background(t, s, "k", "echo up; exec sleep 1000")
	second := background(t, s, "k", "trap '' TERM; echo up; while :; do sleep 1000; done")
	waitForOutput(t, s, "k", first, "up")
	waitForOutput(t, s, "k", second, "up")
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
		t.Errorf("got %+v, want command ID %q, status %q and no exit code", got, second, running)
	}
	kill(KillIn{Signal: "STOP", CommandID: &first})
	kill(KillIn{Signal: "CONT", CommandID: &first})
	if got := kill(KillIn{Signal: "KILL"}); got.CommandID != second {
		t.Errorf("got %+v, want command ID %q", got, second)
	}
	await(t, s, "k", second, 100)
	kill(KillIn{Signal: "KILL"})
	if end := await(t, s, "k", first, 100); end.Command.Status != killed {
		t.Errorf("got %+v, want status %q", end.Command, killed)
	}
	// The background processes of an ended command are reached by its ID.
	ran := run(t, s, ExecIn{Command: "sleep 1000 & echo $!", SessionID: new("k")})
	kill(KillIn{CommandID: &ran.CommandID, Signal: "SIGTERM"})
	testenv.Poll(t, "the background process ends", func() bool { return !alive(*ran.Stdout) })
	if got := output(t, s, OutputIn{SessionID: "k"}); got.Command.Status != completed {
		t.Errorf("got %+v, want status %q", got.Command, completed)
	}
	for _, c := range []struct {
		in   KillIn
		code op.Code
		says string
	}{
		{KillIn{SessionID: "none", Signal: "TERM"}, op.NotFound, "no bash session"},
		{KillIn{SessionID: "k", Signal: "TERM"}, op.Conflict, "no command is running"},
		{KillIn{SessionID: "k", Signal: "TERM", CommandID: &first}, op.Conflict, "no process of its group is left"},
		{KillIn{SessionID: "k", Signal: "SIGNONE"}, op.Invalid, `no such signal: "SIGNONE"`},
		{KillIn{SessionID: "k", Signal: "0"}, op.Invalid, `no such signal: "0"`},
		{KillIn{SessionID: "k", Signal: "-9"}, op.Invalid, "no such signal"},
		{KillIn{SessionID: "k", Signal: ""}, op.Invalid, "no such signal"},
	} {
		_, err := s.Kill(t.Context(), c.in)
		wantError(t, err, c.code, c.says)
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
	want := SessionInfo{SessionID: "one", Status: "ready", WorkingDir: s.Home + "/sub", CreatedAt: created.CreatedAt,
		LastUsedAt: created.CreatedAt}
	if d := cmp.Diff(want, created); d != "" || created.CreatedAt.IsZero() {
		t.Error(d)
	}
	// cd affects only the command; exec_dir also affects later commands of the session.
	for _, c := range []struct{ in, want string }{{"cd /; pwd", "/"}, {"pwd", s.Home + "/sub"},
		{"export X=1; echo ${X-none}", "1"}, {"echo ${X-none}", "none"}} {
		if got := run(t, s, ExecIn{Command: c.in, SessionID: new("one")}); strings.TrimSpace(*got.Stdout) != c.want || got.SessionID != "one" {
			t.Errorf(`%s: got %q, want stdout %q and session ID "one"`, c.in, *got.Stdout, c.want)
		}
	}
	run(t, s, ExecIn{Command: "true", SessionID: new("one"), ExecDir: new("/")})
	id := background(t, s, "one", "pwd; sleep 1000")
	waitForOutput(t, s, "one", id, "/\n")
	auto, err := s.CreateSession(t.Context(), CreateSessionIn{})
	if err != nil || auto.SessionID == "" || auto.WorkingDir != s.Home {
		t.Errorf("got %+v %v, want a session ID and working directory %q", auto, err, s.Home)
	}
	all, err := s.Sessions(t.Context(), op.None{})
	if err != nil || len(all) != 2 || all[0].SessionID != "one" || *all[0].CurrentCommand != "pwd; sleep 1000" ||
		all[0].CommandCount != 6 || all[1].CurrentCommand != nil {
		t.Errorf("got %+v %v, "+
			`want 2 entries, first session ID "one", first current command "pwd; sleep 1000", first command count 6 and no second current command`,
			all, err)
	}
	again, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("one"), ExecDir: new("/tmp")})
	if err != nil || again.CreatedAt != created.CreatedAt || again.WorkingDir != "/tmp" {
		t.Errorf(`got %+v %v, want creation time %+v and working directory "/tmp"`, again, err, created.CreatedAt)
	}
	_, err = s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("a\nb")})
	wantError(t, err, op.Invalid, "printable")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{ExecDir: new("/no/such")})
	wantError(t, err, op.NotFound, "does not exist")
}

// TestCloseSession: closing a session ends its commands. Pending requests return with the output.
func TestCloseSession(t *testing.T) {
	t.Parallel()
	s := newService(t)
	result := make(chan ExecResult, 1)
	go func() {
		result <- run(t, s, ExecIn{Command: "echo out; sleep 1000 & echo $!; wait", SessionID: new("c")})
	}()
	poll := make(chan OutputResult, 1)
	var c *command
	testenv.Poll(t, "it runs", func() bool {
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
	testenv.Poll(t, "a request polls", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return c.holders == 2 })
	stubborn := background(t, s, "c", "trap '' TERM; echo up; while :; do sleep 1000; done")
	waitForOutput(t, s, "c", stubborn, "up")
	got, err := s.CloseSession(t.Context(), CloseSessionIn{"c"})
	if d := cmp.Diff(Closed{SessionID: "c", Status: "closed", Killed: 2}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	ended := <-result
	lines := strings.Fields(*ended.Stdout)
	if ended.Status != killed || *ended.ExitCode != 143 || len(lines) != 2 || alive(lines[1]) {
		t.Errorf("got %+v %v, want status %q, exit code 143, and 2 lines, the second the PID of an ended process", ended, lines, killed)
	}
	if out := <-poll; out.Command.Status != killed {
		t.Errorf("got %+v, want status %q", out.Command, killed)
	}
	if living := s.Runner.Living(); len(living) != 0 {
		t.Errorf("processes remain: %v, want none", living)
	}
	_, err = s.CloseSession(t.Context(), CloseSessionIn{"c"})
	wantError(t, err, op.NotFound, "no bash session")
}

func TestSessionLimit(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxSessions = 3 })
	for _, id := range []string{"a", "b"} {
		if _, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: &id}); err != nil {
			t.Fatal(err)
		}
	}
	// Sessions with generated IDs are evicted for new ones.
	var last ExecResult
	for range 5 {
		last = run(t, s, ExecIn{Command: "true"})
	}
	if all, _ := s.Sessions(t.Context(), op.None{}); len(all) != 3 || all[2].SessionID != last.SessionID {
		t.Errorf("got %+v, want 3 entries and third session ID %q", all, last.SessionID)
	}
	long := run(t, s, ExecIn{Command: "sleep 1000", AsyncMode: true})
	_, err := s.Exec(t.Context(), ExecIn{Command: "true"})
	wantError(t, err, op.Exhausted, "bash session limit reached (3)")
	_, err = s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("c")})
	wantError(t, err, op.Exhausted, "/close")
	if _, err := s.Kill(t.Context(), KillIn{SessionID: long.SessionID, Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	await(t, s, long.SessionID, long.CommandID, 100)
	run(t, s, ExecIn{Command: "true"})
	// The number of running commands in a session is limited.
	for range maxRecords {
		background(t, s, "a", "read x")
	}
	_, err = s.Exec(t.Context(), ExecIn{Command: "true", SessionID: new("a")})
	wantError(t, err, op.Exhausted, "command limit of session \"a\" reached (100 running)")
}

func TestIdleSessionsExpire(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Idle = 100 * time.Millisecond })
	run(t, s, ExecIn{SessionID: new("idle"), Command: "echo kept in memory"})
	long := background(t, s, "busy", "read x")
	ids := func() (ids []string) {
		all, _ := s.Sessions(t.Context(), op.None{})
		for _, i := range all {
			ids = append(ids, i.SessionID)
		}
		return ids
	}
	testenv.Poll(t, "the idle session expires", func() bool { return !slices.Contains(ids(), "idle") })
	if got := ids(); !slices.Equal(got, []string{"busy"}) {
		t.Errorf("got sessions %q, want the one in which a command runs", got)
	}
	if _, err := s.Kill(t.Context(), KillIn{SessionID: "busy", CommandID: &long, Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the other one expires when its command has ended", func() bool { return len(ids()) == 0 })
}

// writeScript writes a snapshot script into the home directory.
func writeScript(t testing.TB, s *Service, name, text string) *string {
	t.Helper()
	path := s.Home + "/" + name
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &path
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	s := newService(t)
	count := s.Home + "/count"
	full := writeScript(t, s, "full", `shopt -s expand_aliases extglob
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
	if err != nil || created.WorkingDir != s.Home || call.Hint != "Output of the snapshot: noise" {
		t.Fatalf(`got %+v %v %q, want working directory %q and hint "Output of the snapshot: noise"`, created, err, call.Hint, s.Home)
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
		if *got.Stdout != c.want || got.Stderr != nil {
			t.Errorf("%.50s: got %q %q, want stdout %q and no stderr", c.command, *got.Stdout, op.Value(got.Stderr), c.want)
		}
	}
	if b, _ := os.ReadFile(count); string(b) != "x\n" {
		t.Errorf("the script was sourced %d times, want once", len(b)/2)
	}
	plain := run(t, s, ExecIn{Command: "greet; hi", SessionID: new("other")})
	if *plain.ExitCode != 127 {
		t.Errorf("another session printed %q, want exit code 127", *plain.Stdout)
	}
}

func TestRefusedSnapshot(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, c := range []struct {
		name string
		path *string
		code op.Code
		says string
	}{
		{"missing", new("/no/such"), op.NotFound, "no such file"},
		{"folder", &s.Home, op.Invalid, "not a regular file"},
		{"exits", writeScript(t, s, "exits", "echo why; exit 3"), op.Invalid,
			"exited (code 3) before its environment could be read; it must not call exit. Its output: why"},
		{"fails with -e", writeScript(t, s, "fails", "set -e\nls /no/such/thing\n"), op.Invalid, "No such file"},
		{"too large", writeScript(t, s, "large", "export A=$(printf '%0100000d' 1) B=$A; for i in {1..30}; do eval \"f$i() { : "+
			"$(printf '%0100000d' 1); }\"; done"), op.TooLarge, "make it smaller"},
		{"zero byte", new("a\x00b"), op.Invalid, "snapshot_path"},
	} {
		_, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("bad"), SnapshotPath: c.path})
		wantError(t, err, c.code, c.says)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.CreateSession(ctx, CreateSessionIn{SessionID: new("bad"), SnapshotPath: writeScript(t, s, "hangs", "sleep 1000")})
	wantError(t, err, op.Canceled, "no session was created")
}

func TestSnapshotWithSyntaxError(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if _, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("half"),
		SnapshotPath: writeScript(t, s, "half", "export A=1\nsyntax(\n")}); err != nil {
		t.Error(err)
	}
	if got := run(t, s, ExecIn{Command: "echo $A", SessionID: new("half")}); *got.Stdout != "1\n" {
		t.Errorf(`got %q, want "1\n"`, *got.Stdout)
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
			if v, ok := environ.Lookup(shot.env, "PWD"); !ok || v != "/" {
				t.Errorf(`got PWD %q, want "/"`, v)
			}
		}
	})
}

func TestSignalNames(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"SIGTERM": 15, "term": 15, " INT ": 2, "10": 10, "SigUsr2": 12, "SIGWINCH": 28} {
		if got, err := signalOf(name); err != nil || got != want {
			t.Errorf("%q: got %v %v, want %v", name, got, err, want)
		}
	}
}
