package proc

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestRun(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	dir := t.TempDir()
	for _, c := range []struct {
		name        string
		command     Command
		exit        Exit
		out, errOut string
	}{
		{"code", bash("echo out; echo err >&2; exit 3"), Exit{Code: 3}, "out\n", "err\n"},
		{"signal", bash("kill -USR1 $$"), Exit{Code: 128 + 10, Signal: syscall.SIGUSR1}, "", ""},
		{"arguments", bash(`printf '<%s>' "$@"`, "a b", "", "*", "$x\n"), Exit{}, "<a b><><*><$x\n>", ""},
		{"directory", Command{Path: "bash", Args: []string{"-c", "pwd"}, Dir: dir}, Exit{}, dir + "\n", ""},
		{"argv0", Command{Path: "bash", Argv0: "-odd", Args: []string{"-c", "echo $0"}}, Exit{}, "-odd\n", ""},
		{"stdin", Command{Path: "bash", Args: []string{"-c", "cat"}, Stdin: strings.NewReader("in")}, Exit{}, "in", ""},
		{"stdin not read", Command{Path: "bash", Args: []string{"-c", ":"}, Stdin: bytes.NewReader(make([]byte, 1<<20))}, Exit{}, "", ""},
		{"environment without PATH", Command{Path: "bash", Args: []string{"-c", "echo $A"}, Env: []string{"A=1"}}, Exit{}, "1\n", ""},
		{"no stdin", bash("cat"), Exit{}, "", ""},
		{"bounded", Command{Path: "bash", Args: []string{"-c", "printf 0123456789; printf abc >&2"}, Limit: 4},
			Exit{}, "01" + Marker(6) + "89", "abc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRunner(t, Config{})
			res, err := r.Run(t.Context(), c.command)
			if err != nil {
				t.Fatal(err)
			}
			if res.Exit != c.exit || string(res.Stdout) != c.out || string(res.Stderr) != c.errOut {
				t.Errorf("got %v %q %q, want exit %+v, stdout %q and stderr %q", res.Exit, res.Stdout, res.Stderr, c.exit, c.out, c.errOut)
			}
			if c.name == "bounded" && (res.DroppedStdout != 6 || res.DroppedStderr != 0) {
				t.Errorf("dropped %d and %d, want 6 and 0", res.DroppedStdout, res.DroppedStderr)
			}
		})
	}
}

func TestOneWriterForBothStreamsKeepsTheOrder(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	both := NewCapture(1<<10, 0)
	c := bash("for i in 1 2 3; do echo $i; echo -$i >&2; done")
	c.Stdout, c.Stderr = both, both
	if _, err := r.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if got := both.String(); got != "1\n-1\n2\n-2\n3\n-3\n" {
		t.Errorf("got %q, want %q", got, "1\n-1\n2\n-2\n3\n-3\n")
	}
}

func TestEnvironmentIsExactlyWhatWasGiven(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "x")
	guarded := newRunner(t, Config{Env: []string{"PATH=" + defaultPath, "BASE=1"}, Guard: guardArgv()})
	mark := markName + "=" + guarded.guard.nonce
	path := "PATH=" + defaultPath
	for _, c := range []struct {
		name string
		r    *Runner
		env  []string
		want []string
	}{
		{"nothing", newRunner(t, Config{}), nil, []string{path}},
		{"base", guarded, nil, []string{mark, "BASE=1", path}},
		{"own", guarded, []string{"A=1"}, []string{"A=1", mark}},
		{"empty", guarded, []string{}, []string{mark}},
		{"mark of another", guarded, []string{markName + "=other"}, []string{mark}},
		{"no guard", newRunner(t, Config{Env: []string{}}), nil, nil},
	} {
		res, err := c.r.Run(t.Context(), Command{Path: "/usr/bin/env", Env: c.env})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Fields(string(res.Stdout))
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	if env := guarded.Environ(); !slices.Equal(env, []string{path, "BASE=1"}) {
		t.Errorf("Environ: %q, want env %v", env, []string{path, "BASE=1"})
	}
}

func TestContextKillsTheGroup(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	out := NewCapture(100, 0)
	c := bash("trap '' TERM; (trap '' TERM; sleep 1000) & echo $!; wait")
	c.Stdout = out
	why := errors.New("client went away")
	var grandchild int
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel(why)
		grandchild = number(t, out)
	})
	res, err := r.Run(ctx, c)
	wg.Wait()
	if !errors.Is(err, why) || res.Exit.Signal != syscall.SIGKILL {
		t.Errorf("got %v, %v, want %v and signal SIGKILL", res.Exit, err, why)
	}
	if alive(grandchild) {
		t.Error("the grandchild is running")
	}
	if _, err := r.Run(ctx, bash("true")); !errors.Is(err, why) {
		t.Errorf("with an ended context: %v, want %v", err, why)
	}
}

func TestFailedStartsReportTheReasonAndLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	testenv.WriteProgram(t, script, []byte("#!/no/such/interpreter\n"))
	closed, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	r := newRunner(t, Config{})
	if _, err := r.Run(t.Context(), Command{Path: "/bin/true"}); err != nil {
		t.Fatal(err) // so that what a runner opens once is open
	}
	before := openFiles(t)
	for _, c := range []struct {
		name     string
		command  Command
		is       error
		contains string
	}{
		{"not in PATH", Command{Path: "no-such-program"}, ErrNotFound, `"no-such-program"`},
		{"nothing", Command{}, ErrNotFound, "not found"},
		{"no file", Command{Path: "/no/such/program"}, ErrNotFound, `"/no/such/program"`},
		{"no directory", Command{Path: "/bin/true", Dir: "/no/such/dir"}, fs.ErrNotExist, "working directory: stat /no/such/dir"},
		{"no interpreter", Command{Path: script}, fs.ErrNotExist, "interpreter"},
		{"not executable", Command{Path: "/etc/passwd"}, fs.ErrPermission, "/etc/passwd"},
		{"closed file", Command{Path: "/bin/true", Stdout: closed}, os.ErrClosed, "stdout"},
		{"closed extra file", Command{Path: "/bin/true", ExtraFiles: []*os.File{closed}}, os.ErrClosed, "extra file 0"},
		{"tty and more", Command{Path: "/bin/true", TTY: os.Stdin}, nil, "TTY"},
	} {
		c.command.Stdin = strings.NewReader("in")
		if c.command.Stdout == nil {
			c.command.Stdout = NewCapture(1, 1)
		}
		p, err := r.Start(c.command)
		if err == nil {
			p.Kill()
			t.Errorf("%s: started", c.name)
			continue
		}
		if c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.contains) {
			t.Errorf("%s: %v, want %v containing %q", c.name, err, c.is, c.contains)
		}
	}
	testenv.Poll(t, "no file more is open than before", func() bool { return openFiles(t) <= before })
	if living := r.Living(); len(living) != 0 {
		t.Errorf("living: %v, want no living", living)
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"tool": 0o755, "text": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join(dir, "tool")
	for _, c := range []struct {
		path  string
		names []string
		want  string
	}{
		{dir, []string{"tool"}, tool},
		{"/nowhere::" + dir, []string{"none", "tool"}, tool},
		{dir, []string{"text"}, ""},
		{dir, []string{"folder", ""}, ""},
		{dir, nil, ""},
		{"", []string{"sh"}, ""},
		{"", []string{tool}, tool},
	} {
		r := New(Config{Env: []string{"PATH=/overridden", "PATH=" + c.path}})
		if got, ok := r.Look(c.names...); ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%v in %q: got %q, %v, want %q", c.names, c.path, got, ok, c.want)
		}
	}
}

func TestUser(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	testenv.Need(t, "id")
	r := newRunner(t, Config{User: &User{UID: 4242, GID: 4243, Groups: []uint32{4244}}})
	for _, c := range []struct {
		user *User
		want string
	}{
		{nil, "4242 4243 4243 4244"},
		{&User{UID: 7, GID: 8}, "7 8 8"},
	} {
		cmd := bash("echo $(id -u) $(id -g) $(id -G)")
		cmd.User = c.user
		res, err := r.Run(t.Context(), cmd)
		if got := strings.TrimSpace(string(res.Stdout)); err != nil || got != c.want {
			t.Errorf("%+v: got %q, %v, want %v", c.user, got, err, c.want)
		}
	}
}

func TestLookupUser(t *testing.T) {
	t.Parallel()
	byName, err := LookupUser("root")
	if err != nil || byName.UID != 0 || byName.Name != "root" || byName.Home == "" {
		t.Errorf(`root: %+v, %v, want UID 0, name "root" and a home`, byName, err)
	}
	if byNumber, err := LookupUser("0"); err != nil || byNumber.Name != "root" {
		t.Errorf("0: %+v, %v, want Name \"root\"", byNumber, err)
	}
	for _, name := range []string{"no-such-user", "4294967294", ""} {
		if u, err := LookupUser(name); err == nil {
			t.Errorf("%q: %+v, want an error", name, u)
		}
	}
}

func TestExitString(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		exit Exit
		want string
	}{
		{Exit{}, "ended normally"},
		{Exit{Code: 2}, "ended with code 2"},
		{Exit{Code: 137, Signal: syscall.SIGKILL}, "ended by SIGKILL"},
		{Exit{Code: 128 + 60, Signal: 60}, "ended by signal 60"},
		{notEnded, "still running"},
	} {
		if got := c.exit.String(); got != c.want {
			t.Errorf("%+v: got %q, want %v", c.exit, got, c.want)
		}
	}
}
