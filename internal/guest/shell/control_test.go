package shell

import (
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// background starts a command and does not wait for it.
func background(t testing.TB, s *Service, id, text string) {
	t.Helper()
	if out := exec(t, s, ExecIn{ID: &id, Command: text, AsyncMode: true, Truncate: true}); out.Status != running || out.ExitCode != nil {
		t.Fatalf("%q: got %s %v, want status %q and no exit code", text, out.Status, out.ExitCode, running)
	}
}

func view(t testing.TB, s *Service, id string) ViewResult {
	t.Helper()
	v, err := s.View(t.Context(), ViewIn{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// waitForOutput waits until the session's output contains a text.
func waitForOutput(t testing.TB, s *Service, id, text string) ViewResult {
	t.Helper()
	var v ViewResult
	defer func() {
		if t.Failed() {
			t.Logf("got output %q, want %q in it", v.Output, text)
		}
	}()
	testenv.Poll(t, "output "+text, func() bool {
		v = view(t, s, id)
		return strings.Contains(v.Output, text)
	})
	return v
}

func write(t testing.TB, s *Service, id, input string, enter bool) {
	t.Helper()
	if _, err := s.Write(t.Context(), WriteIn{ID: id, Input: input, PressEnter: enter}); err != nil {
		t.Fatal(err)
	}
}

func wait(t testing.TB, s *Service, id string) ViewResult {
	t.Helper()
	if st, err := s.Wait(t.Context(), WaitIn{ID: id}); err != nil || st.Status == running {
		t.Fatalf("got %v %v; it shows %q, want status other than %q", st, err, view(t, s, id).Output, running)
	}
	return view(t, s, id)
}

// wantEnd compares the result of an ended command.
func wantEnd(t testing.TB, v ViewResult, output string, code int) {
	t.Helper()
	if v.Output != output || v.Status != completed || v.ExitCode == nil || *v.ExitCode != code {
		t.Errorf("got %q, %s with %v; want %q, %d", v.Output, v.Status, v.ExitCode, output, code)
	}
}

// TestPrograms runs programs that read the terminal. Each step waits for a text and then
// types.
func TestPrograms(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxSessions = 50 })
	type step struct {
		see, input string
		enter      bool
	}
	for _, c := range []struct {
		name, need, run string
		steps           []step
		want            string
		code            int
	}{
		{"read", "", "read -r x; echo got $x", []step{{"", "some thing", true}}, "some thing\ngot some thing", 0},
		{"read with a prompt", "", "read -rp 'name? ' x; echo hello $x", []step{{"name? ", "me", true}}, "name? me\nhello me", 0},
		{"password", "", "read -rsp 'Password: ' x; echo; echo ${#x}", []step{{"Password: ", "hunter2", true}}, "Password: \n7", 0},
		{"cat", "cat", "cat", []step{{"", "one", true}, {"one\none", "two", true}, {"two\ntwo", "\x04", false}}, "one\none\ntwo\ntwo", 0},
		{"cat, interrupted", "cat", "cat; echo not reached", []step{{"", "one", true}, {"one\none", "\x03", false}}, "one\none\n^C", 130},
		{"nested shell", "", "bash --norc", []step{{"bash-", "PS1='in> '; x=5", true},
			{"\nin> ", "echo $((x+1))", true}, {"\n6", "exit 4", true}}, "", 4},
		{"shell instead of a program", "", "env PS1='in> ' bash --norc --noediting",
			[]step{{"in> ", "exit 6", true}}, "in> exit 6\nexit", 6},
		{"python", "python3", "python3 -q", []step{{">>> ", "print(6*7)", true}, {"42", "exit(5)", true}}, "", 5},
		{"getpass", "python3", "python3 -c 'import getpass; print(len(getpass.getpass()))'",
			[]step{{"Password: ", "1234", true}}, "Password: \n4", 0},
		{"vim", "vim", "vim -u NONE -i NONE new.txt", []step{{"~\n~", "ihello from vim\x1b", false}, {"hello from vim", ":wq", true}}, "", 0},
		{"less", "less", "seq 500 | less", []step{{"49\n:", "G", false}, {"500\n(END)", "q", false}}, "", 0},
		{"top", "top", "top -d 1", []step{{"PID", "q", false}}, "", 0},
		{"stopped", "cat", "cat", []step{{"", "go", true}, {"go\ngo", "\x1a", false}}, "go\ngo\n^Z\n[1]+  Stopped                 cat", 148},
		{"erased", "cat", "cat", []step{{"", "äö\x7f\x7fb", true}, {"b\nb", "\x04", false}}, "b\nb", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.need != "" {
				testenv.Need(t, c.need)
			}
			background(t, s, c.name, c.run)
			for _, step := range c.steps {
				v := waitForOutput(t, s, c.name, step.see)
				if v.Status != running {
					t.Fatalf("got status %s with %q before %q, want %v", v.Status, v.Output, step.see, running)
				}
				write(t, s, c.name, step.input, step.enter)
			}
			v := wait(t, s, c.name)
			if c.want == "" {
				v.Output = ""
			}
			wantEnd(t, v, c.want, c.code)
			wantOutput(t, s, c.name, "echo alive", "alive")
		})
	}
}

// TestFullScreen: the screen is returned while a full-screen program runs, and is not part of
// its output afterwards.
func TestFullScreen(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "vim")
	s := newService(t)
	out := exec(t, s, ExecIn{ID: new("v"), Command: "echo before; vim -u NONE -i NONE", Timeout: new(1.0), Truncate: true})
	if out.Status != running || !strings.HasPrefix(waitForOutput(t, s, "v", "~\n~").Output, "\n~\n~") {
		t.Errorf(`%s: got %q, want status %q and output that starts with "\n~\n~"`, out.Status, *out.Output, running)
	}
	if r, err := s.Kill(t.Context(), KillIn{ID: "v"}); err != nil || r.Status != terminated || *r.ExitCode == 0 {
		t.Errorf("got %+v %v, want status %q and a nonzero exit code", r, err, terminated)
	}
	if v := view(t, s, "v"); !strings.HasPrefix(v.Output, "before") || strings.Contains(v.Output, "~\n~") {
		t.Errorf(`got %q, want output that starts with "before", without "~\n~"`, v.Output)
	}
	wantOutput(t, s, "v", "echo alive", "alive")
}

func TestKill(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxSessions = 50 })
	for _, c := range []struct {
		name, run string
		code      int
		fresh     bool // another shell
	}{
		{"program", "echo go; sleep 300", 130, false},
		{"list", "echo go; sleep 300; echo not reached", 130, false},
		{"loop of programs", "echo go; for i in 1 2 3 4 5 6; do sleep 300; done", 130, false},
		{"pipeline", "echo go; sleep 300 | cat", 130, false},
		{"busy shell", "echo go; while :; do :; done", 130, false},
		{"read", "echo go; read x", 130, false},
		{"substitution", "echo go; x=$(sleep 300)", 130, false},
		{"wait", "sleep 300 & echo go; wait", 130, false},
		{"ignores INT", "echo go; sh -c 'trap : INT; while :; do sleep 1; done'", -1, false},
		{"ignores INT and TERM", `echo go; sh -c 'trap "" INT TERM; while :; do sleep 1; done'`, -1, false},
		{"loop ignores INT and TERM", `echo go; for i in 1 2; do sh -c 'trap "" INT TERM; while :; do sleep 1; done'; done`, -1, false},
		{"stopped shell", "echo go; kill -STOP $$; while :; do :; done", -1, false},
		{"raw terminal", "echo go; stty raw; cat", -1, false},
		{"shell ignores INT", "trap '' INT; echo go; while :; do :; done", 137, true},
		{"shell replaced by a shell", "exec env PS1=go bash --norc", 137, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run(t, s, c.name, "kept=yes")
			background(t, s, c.name, c.run)
			waitForOutput(t, s, c.name, "go")
			r, err := s.Kill(t.Context(), KillIn{ID: c.name})
			if err != nil || r.Status != terminated || r.ExitCode == nil || c.code >= 0 && *r.ExitCode != c.code || *r.ReturnCode != *r.ExitCode {
				t.Errorf("got %+v %v with code %v, want status %q and the same exit and return code (%d; any if negative)",
					r, err, *r.ExitCode, terminated, c.code)
			}
			v := view(t, s, c.name)
			if v.Status != terminated || strings.Contains(v.Output, "not reached") {
				t.Errorf(`got %s %q, want status %q and output without "not reached"`, v.Status, v.Output, terminated)
			}
			want := "yes"
			if c.fresh {
				want = ""
			}
			wantOutput(t, s, c.name, "echo $kept", want)
			if r, err := s.Kill(t.Context(), KillIn{ID: c.name}); err != nil || r.Status != completed || *r.ExitCode != 0 {
				t.Errorf("got %+v %v of the second kill, want status %q and exit code 0", r, err, completed)
			}
		})
	}
}

// TestKillInBackground: a program that the shell waits for is ended even if the shell has the
// terminal. Background processes of earlier commands continue.
func TestKillInBackground(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "python3")
	s := newService(t)
	for _, c := range []struct{ name, run string }{
		{"program", "python3 -c 'import os, signal; os.tcsetpgrp(0, os.getppid()); print(\"go\", flush=True); signal.pause()'"},
		{"ignores TERM", "python3 -c 'import os, signal; signal.signal(15, signal.SIG_IGN); os.tcsetpgrp(0, " +
			"os.getppid()); print(\"go\", flush=True)\nwhile True: signal.pause()'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run(t, s, c.name, "kept=yes; sleep 300 & earlier=$!; sleep 0.1") // longer than a tick of the process table
			background(t, s, c.name, c.run)
			waitForOutput(t, s, c.name, "go")
			if r, err := s.Kill(t.Context(), KillIn{ID: c.name}); err != nil || r.Status != terminated {
				t.Errorf("got %+v %v, want status %q", r, err, terminated)
			}
			wantOutput(t, s, c.name, "kill -0 $earlier && echo $kept", "yes")
		})
	}
}

func TestBusy(t *testing.T) {
	t.Parallel()
	s := newService(t)
	background(t, s, "a", "read x; echo got $x")
	_, err := s.Exec(t.Context(), ExecIn{ID: new("a"), Command: "echo second"})
	wantError(t, err, op.Conflict, `"read x; echo got $x" is still running`)
	if v := view(t, s, "a"); v.Status != running || *v.Command != "read x; echo got $x" || v.ExitCode != nil || len(v.Console) != 1 {
		t.Errorf(`got %+v, want status %q, command "read x; echo got $x", no exit code and 1 record`, v, running)
	}
	if st, err := s.Wait(t.Context(), WaitIn{ID: "a", Seconds: new(0)}); err != nil || st.Status != running {
		t.Errorf("got %v %v, want status %q", st, err, running)
	}
	if st, err := s.Wait(t.Context(), WaitIn{ID: "a", Seconds: new(300), MaxWaitSeconds: new(0)}); err != nil || st.Status != running {
		t.Errorf("got %v %v, want status %q", st, err, running)
	}
	write(t, s, "a", "it", true)
	wantEnd(t, wait(t, s, "a"), "it\ngot it", 0)
	_, err = s.Write(t.Context(), WriteIn{ID: "a", Input: "x"})
	wantError(t, err, op.Conflict, "no command is running")
	wantOutput(t, s, "a", "echo third", "third")
	v := view(t, s, "a")
	if len(v.Console) != 2 || v.Console[0] != (Record{">", "read x; echo got $x", "it\ngot it"}) ||
		v.Console[1] != (Record{">", "echo third", "third"}) {
		t.Errorf("got %+v, want 2 records, first record %+v and second record %+v",
			v.Console, Record{">", "read x; echo got $x", "it\ngot it"}, Record{">", "echo third", "third"})
	}
}

func TestUnknownSession(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ctx := t.Context()
	for name, f := range map[string]func() error{
		"view":    func() error { _, err := s.View(ctx, ViewIn{ID: "x"}); return err },
		"wait":    func() error { _, err := s.Wait(ctx, WaitIn{ID: "x"}); return err },
		"write":   func() error { _, err := s.Write(ctx, WriteIn{ID: "x"}); return err },
		"kill":    func() error { _, err := s.Kill(ctx, KillIn{ID: "x"}); return err },
		"update":  func() error { _, err := s.UpdateSession(ctx, UpdateSessionIn{ID: "x"}); return err },
		"cleanup": func() error { _, err := s.Cleanup(ctx, CleanupIn{SessionID: "x"}); return err },
	} {
		t.Run(name, func(t *testing.T) { wantError(t, f(), op.NotFound, `no shell session "x"`) })
	}
}
