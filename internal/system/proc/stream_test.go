package proc

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func mkfifo(t testing.TB) string {
	t.Helper()
	path := t.TempDir() + "/fifo"
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDaemonKeepsThePipe: a daemon that keeps the pipe open neither delays Done nor loses output, and
// its later output arrives until Stop.
func TestDaemonKeepsThePipe(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash", "setsid")
	for _, session := range []string{"", "setsid"} {
		t.Run("daemon "+session, func(t *testing.T) {
			t.Parallel()
			r := newRunner(t, Config{Guard: guardArgv()})
			up, next := mkfifo(t), mkfifo(t)
			out := NewCapture(1<<20, 0)
			c := bash(session+` bash -c 'echo >$1; read <$2; echo later; exec sleep 1h' bash $1 $2 & head -c 60000 `+
				`/dev/zero; read <$1; echo last`, up, next)
			c.Stdout = out
			p := start(t, r, c)
			if exit := wait(t, p); exit.Code != 0 {
				t.Fatalf("it %v: %q, want Code 0", exit, out.String())
			}
			if got := out.String(); len(got) != 60005 || !strings.HasSuffix(got, "last\n") {
				t.Errorf("at the end %d bytes, want 60005 with \"last\" at the end", len(got))
			}
			if err := os.WriteFile(next, []byte("\n"), 0); err != nil {
				t.Fatal(err)
			}
			testenv.Poll(t, "later output", func() bool { return strings.HasSuffix(out.String(), "last\nlater\n") })
			p.Stop()
			if !p.outs[0].hasEnded() {
				t.Error("still copying after Stop")
			}
		})
	}
}

func TestRunKeepsADaemon(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	res, err := r.Run(t.Context(), bash("sleep 1000 & echo $!"))
	if err != nil {
		t.Fatal(err)
	}
	living := r.Living()
	if len(living) != 1 || !living[0].Background || len(res.Stdout) == 0 {
		t.Errorf("living %+v, output %q, want one in the background and some output", living, res.Stdout)
	}
}

// stuck is a writer that blocks until it is released.
type stuck struct {
	entered, free chan struct{}
	once          sync.Once
}

func newStuck() *stuck { return &stuck{entered: make(chan struct{}), free: make(chan struct{})} }

func (s *stuck) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.entered) })
	<-s.free
	return len(b), nil
}

func TestBlockedWriterBlocksNothingElse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		end          func(*Process)
	}{
		{"it ends by itself", "echo x", func(*Process) {}},
		{"stopped", "yes", func(p *Process) { p.Stop() }},
		{"killed", "yes", func(p *Process) { p.Kill() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRunner(t, Config{})
			w := newStuck()
			defer close(w.free)
			cmd := bash(c.script)
			cmd.Stdout = w
			p := start(t, r, cmd)
			<-w.entered
			c.end(p)
			wait(t, p)
			p.Stop()
			if living := r.Living(); len(living) != 0 {
				t.Errorf("living: %v, want no living", living)
			}
		})
	}
}

// slow accepts one write at a time, on request.
type slow struct {
	next chan struct{}
	got  Capture
}

func (s *slow) Write(b []byte) (int, error) {
	<-s.next
	return s.got.Write(b)
}

func TestSlowWriterGetsEverythingBeforeDone(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	w := &slow{next: make(chan struct{}), got: Capture{headMax: 1 << 20}}
	cmd := bash("head -c 100000 /dev/zero")
	cmd.Stdout = w
	p := start(t, r, cmd)
	for taken := false; !taken; {
		select {
		case w.next <- struct{}{}:
		case <-p.Done():
			taken = true
		}
	}
	if n := w.got.Total(); n != 100000 {
		t.Errorf("got %d bytes, want 100000", n)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no") }

type short struct{}

func (short) Write(b []byte) (int, error) { return len(b) - 1, nil }

func TestFailingWriterDoesNotDisturbTheChild(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	for _, w := range []io.Writer{failing{}, short{}} {
		c := bash("head -c 1000000 /dev/zero && exit 4")
		c.Stdout = w
		if res, err := r.Run(t.Context(), c); err != nil || res.Exit.Code != 4 {
			t.Errorf("%T: got %v, %v, want Code 4", w, res.Exit, err)
		}
	}
}

// incomparable panics when compared with ==.
type incomparable struct {
	*Capture
	_ []int
}

func TestWritersThatCannotBeCompared(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	out := NewCapture(100, 0)
	c := bash("echo a; echo b >&2")
	c.Stdout, c.Stderr = incomparable{Capture: out}, incomparable{Capture: out}
	if _, err := r.Run(t.Context(), c); err != nil || out.Total() != 4 {
		t.Errorf("%q, %v, want Total 4", out.String(), err)
	}
}

func TestInputThatNeverComesDelaysNothing(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	pr, pw := io.Pipe()
	c := bash("exit 6")
	c.Stdin = pr
	p := start(t, r, c)
	if exit := wait(t, p); exit.Code != 6 {
		t.Errorf("it %v, want Code 6", exit)
	}
	pw.Close() // ends the copying goroutine
}

func TestFilesAreInherited(t *testing.T) {
	t.Parallel()
	r := newRunner(t, Config{})
	f, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := bash("readlink /proc/self/fd/1")
	c.Stdout = f
	p := start(t, r, c)
	wait(t, p)
	if len(p.outs) != 0 {
		t.Error("a file is copied")
	}
	if got, _ := os.ReadFile(f.Name()); strings.TrimSpace(string(got)) != f.Name() {
		t.Errorf("stdout was %q, want %q", got, f.Name())
	}
}
