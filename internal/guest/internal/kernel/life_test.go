package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// begin runs a cell and returns when it reaches the line "BEGIN", by default its first.
func begin(t testing.TB, ctx context.Context, k *Kernel, req Request) (wait func() (Reply, []Output, error)) {
	t.Helper()
	var reply Reply
	var outputs []Output
	var err error
	done := make(chan struct{})
	mark := filepath.Join(t.TempDir(), "began")
	if !strings.Contains(req.Code, "BEGIN") {
		req.Code = "BEGIN\n" + req.Code
	}
	req.Code = strings.Replace(req.Code, "BEGIN", fmt.Sprintf("open(%q, 'w').close()", mark), 1)
	go func() {
		defer close(done)
		reply, err = k.Execute(ctx, req, func(o Output) error {
			outputs = append(outputs, o)
			return nil
		})
	}()
	testenv.Poll(t, "the cell begins", func() bool { return exists(mark) })
	return func() (Reply, []Output, error) {
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("the cell did not end within 30 seconds")
		}
		return reply, Fold(outputs), err
	}
}

func TestCancelInterruptsTheCellAndKeepsTheKernel(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"signal", "message"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			k := start(t, func(c *Config) { c.Spec.InterruptMode = mode })
			run(t, k, "x = 1\nimport asyncio, os, subprocess, time")
			for _, code := range []string{
				"while True: pass",
				"time.sleep(100)",
				"if os.system('sleep 100'): raise KeyboardInterrupt",
				"subprocess.run(['sleep', '100'])",
				"await asyncio.sleep(100)",
				"for i in range(10**9): print(i)",
			} {
				ctx, cancel := context.WithCancelCause(t.Context())
				wait := begin(t, ctx, k, Request{Code: code})
				cause := errors.New("time is up")
				cancel(cause)
				reply, outputs, err := wait()
				if !errors.Is(err, cause) || errors.Is(err, ErrUnresponsive) {
					t.Fatalf("%s: got %v, want %v and not ErrUnresponsive", code, err, cause)
				}
				if reply.Status != "error" || reply.EName != "KeyboardInterrupt" && reply.EName != "CancelledError" {
					t.Errorf("%s: got reply %+v, want an error with KeyboardInterrupt or CancelledError", code, reply)
				}
				if len(outputs) == 0 || outputs[len(outputs)-1].Type != Error {
					t.Errorf("%s: got outputs %.300s, want at least 1 output and last type %q", code, brief(outputs), Error)
				}
			}
			if _, outputs := run(t, k, "x"); brief(outputs) != "execute_result 1" {
				t.Errorf(`got %s after interrupts, want "execute_result 1"`, brief(outputs))
			}
		})
	}
}

// TestCancelDuringASlowReader: a cell that ends before its cancellation is handled counts as
// interrupted.
func TestCancelDuringASlowReader(t *testing.T) {
	t.Parallel()
	k := start(t)
	for range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause, canceled := errors.New("time is up"), false
		reply, err := k.Execute(ctx, Request{Code: "import time\nprint(1, flush=True)\ntime.sleep(100)"}, func(o Output) error {
			if canceled || o.Type != Stream {
				return nil
			}
			canceled = true
			cell := k.runningCell()
			cancel(cause)
			<-cell.idle
			testenv.Poll(t, "the reply", func() bool { return len(cell.reply) == 1 })
			return nil
		})
		if !errors.Is(err, cause) || reply.EName != "KeyboardInterrupt" {
			t.Fatalf("got %v and reply %+v, want %q and KeyboardInterrupt", err, reply, cause)
		}
	}
}

// TestLostInterruptDuringASlowReader: an interrupt is repeated, even if no client reads the output.
func TestLostInterruptDuringASlowReader(t *testing.T) {
	t.Parallel()
	k := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	const code = "import threading\nforever = threading.Event()\ntry:\n  print(1, flush=True)\n  forever.wait()\n" +
		"except KeyboardInterrupt:\n  forever.wait()"
	reply, err := k.Execute(ctx, Request{Code: code, Grace: time.Second}, func(o Output) error {
		if ctx.Err() == nil {
			cell := k.runningCell()
			cancel()
			<-cell.idle
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || reply.EName != "KeyboardInterrupt" {
		t.Errorf("got %v and reply %+v, want canceled and KeyboardInterrupt", err, reply)
	}
}

func (k *Kernel) runningCell() *pending {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pending {
		if p.sink != nil {
			return p
		}
	}
	return nil
}

func TestShellCommandIsInterrupted(t *testing.T) {
	t.Parallel()
	k := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	wait := begin(t, ctx, k, Request{Code: "!sleep 100"})
	cancel()
	if _, _, err := wait(); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnresponsive) {
		t.Error(err)
	}
}

func TestCellThatIgnoresInterrupts(t *testing.T) {
	t.Parallel()
	k := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	wait := begin(t, ctx, k, Request{
		Code:  "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nBEGIN\ntime.sleep(100)",
		Grace: 100 * time.Millisecond,
	})
	cancel()
	reply, _, err := wait()
	if !errors.Is(err, ErrUnresponsive) || !errors.Is(err, context.Canceled) || reply.Status != "" {
		t.Errorf("got %+v, %v, want ErrUnresponsive, context.Canceled and no status", reply, err)
	}
}

func TestInterruptBeforeTheCellStarts(t *testing.T) {
	t.Parallel()
	k := start(t)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := k.Execute(ctx, Request{Code: "while True: pass"}, nil)
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnresponsive) {
			t.Fatal(err)
		}
	}
	run(t, k, "1")
}

func TestEmitErrorStopsTheCell(t *testing.T) {
	t.Parallel()
	k := start(t)
	closed := errors.New("connection closed")
	calls := 0
	_, err := k.Execute(t.Context(), Request{Code: "import time\nfor i in range(10**9): print(i, flush=True); time.sleep(0.01)"},
		func(Output) error { calls++; return closed })
	if !errors.Is(err, closed) || calls != 1 {
		t.Errorf("got %v after %d calls, want %v and 1 call", err, calls, closed)
	}
	run(t, k, "1")
}

func TestOutputsArriveWhileTheCellRuns(t *testing.T) {
	t.Parallel()
	k := start(t)
	mark := filepath.Join(t.TempDir(), "seen")
	code := fmt.Sprintf("import os, time\nprint('first', flush=True)\nwhile not os.path.exists(%q): time.sleep(0.01)", mark)
	_, err := k.Execute(t.Context(), Request{Code: code}, func(o Output) error {
		return os.WriteFile(mark, []byte(o.Text), 0o600)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDeathIsReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code string
		want proc.Exit
		says string
	}{
		"exit": {"os._exit(3)", proc.Exit{Code: 3}, "exited with code 3"},
		"killed": {"os.kill(os.getpid(), 9)", proc.Exit{Code: 137, Signal: syscall.SIGKILL},
			"SIGKILL; unless it was sent deliberately, the process ran out of memory"},
		"segfault":     {"import ctypes; ctypes.string_at(0)", proc.Exit{Code: 139, Signal: syscall.SIGSEGV}, "SIGSEGV"},
		"disconnected": {"os.closerange(3, 2000); time.sleep(100)", proc.Exit{}, "the kernel"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := start(t)
			_, outputs, err := begin(t, t.Context(), k,
				Request{Code: "import os, time\nprint('last words', flush=True); time.sleep(0.3)\n" + c.code})()
			if brief(outputs) != "stdout last words⏎" {
				t.Errorf(`got outputs %s, want "stdout last words⏎"`, brief(outputs))
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that contains %q", err, c.says)
			}
			death, ok := errors.AsType[*ExitError](err)
			if name != "disconnected" && (!ok || death.Exit != c.want) {
				t.Errorf("%s: got %+v, want exit %+v", name, death, c.want)
			}
			if name == "segfault" && !strings.Contains(death.Report, "Segmentation fault") {
				t.Errorf("got report %q, want Segmentation fault in it", death.Report)
			}
			if _, again := k.Execute(t.Context(), Request{Code: "1"}, nil); again == nil || k.Err() == nil || k.Ping(t.Context()) == nil {
				t.Errorf("got %v, %v of a dead kernel, want errors of Execute, Err and Ping", again, k.Err())
			}
		})
	}
}

func TestKilledFromOutside(t *testing.T) {
	t.Parallel()
	k := start(t)
	wait := begin(t, t.Context(), k, Request{Code: "import subprocess\nchild = subprocess.Popen(['sleep', '100'])\nchild.wait()"})
	if err := syscall.Kill(k.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, _, err := wait()
	if _, ok := errors.AsType[*ExitError](err); !ok {
		t.Errorf("got %v, want an ExitError", err)
	}
}

func TestExitIsReported(t *testing.T) {
	t.Parallel()
	k := start(t)
	if reply, _ := run(t, k, "exit()"); !reply.Exit || reply.Status != "ok" {
		t.Errorf(`got reply %+v, want exit and status "ok"`, reply)
	}
	select {
	case <-k.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the kernel runs 30 seconds after exit(), want it to end")
	}
}

func TestCloseDuringACell(t *testing.T) {
	t.Parallel()
	k := start(t)
	wait := begin(t, t.Context(), k, Request{Code: "import time\ntime.sleep(100)"})
	var closers sync.WaitGroup
	for range 3 {
		closers.Go(func() { k.Close() })
	}
	if _, _, err := wait(); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	closers.Wait()
	if syscall.Kill(k.PID(), 0) == nil || exists(k.conn.dir) {
		t.Errorf("process %d or its folder %s remains, want neither", k.PID(), k.conn.dir)
	}
	if _, err := k.Execute(t.Context(), Request{Code: "1"}, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v after Close, want ErrClosed", err)
	}
}

func TestShutdownRunsExitHandlers(t *testing.T) {
	t.Parallel()
	k := start(t)
	mark := filepath.Join(t.TempDir(), "bye")
	run(t, k, fmt.Sprintf("import atexit\n_ = atexit.register(lambda: open(%q, 'w').close())", mark))
	if err := k.Shutdown(t.Context()); err != nil || !exists(mark) {
		t.Errorf("got %v and no file %s, want the exit handler to write it", err, mark)
	}
}

func TestOutputIsLimited(t *testing.T) {
	t.Parallel()
	const limit = 2 << 20
	k := start(t, func(c *Config) { c.OutputLimit = limit })
	for name, c := range map[string]struct {
		code  string
		least int64 // bytes printed
	}{
		"many lines":   {"for i in range(10): print('x' * 10**6)", 10e6},
		"one string":   {"print('x' * 10**7)", 10e6},
		"a program":    {"import os\n_ = os.system('head -c 10000000 /dev/zero | tr \"\\\\0\" x')", 10e6},
		"many outputs": {"from IPython.display import display\nfor i in range(2000): display('x' * 5000)", 2000 * 5000},
		"one picture":  {"display({'text/plain': 'x', 'image/png': 'A' * (2 * 10**7)}, raw=True)", 20e6},
	} {
		// They share one kernel.
		kept := int64(0)
		var outputs []Output
		reply, err := k.Execute(t.Context(), Request{Code: "print('first', flush=True)\n" + c.code + "\nprint('last')"}, func(o Output) error {
			kept += int64(len(o.Text))
			outputs = append(outputs, o)
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// Of a message that is too large both ends are kept in addition.
		if kept > limit+2*keepFrame || reply.Dropped < c.least-limit-2*keepFrame || reply.Dropped > c.least*11/10+limit {
			t.Errorf("%s: got %d kept, %d dropped, want kept at most %d, dropped at least %d and dropped at most %d",
				name, kept, reply.Dropped, limit+2*keepFrame, c.least-limit-2*keepFrame, c.least*11/10+limit)
		}
		shown := Fold(outputs)
		if len(shown) == 0 || !strings.HasPrefix(shown[0].Text, "first\n") || !strings.HasSuffix(shown[len(shown)-1].Text, "last\n") {
			t.Errorf(`%s: got output without its ends, want it from "first\n" to "last\n"`, name)
		}
	}
	if _, outputs := run(t, k, "'alive'"); brief(outputs) != "execute_result 'alive'" {
		t.Errorf(`got %s, want "execute_result 'alive'"`, brief(outputs))
	}
}

func TestLateOutputOfAThread(t *testing.T) {
	t.Parallel()
	k := start(t)
	run(t, k, "import threading, time\ngo = threading.Event(); done = threading.Event()\n"+
		"def late(): go.wait(); print('late', flush=True); done.set()\nthreading.Thread(target=late).start()")
	_, outputs := run(t, k, "go.set(); done.wait(); print('mine')")
	// Only ipykernel 7 and later report the cell of a thread.
	if got := brief(outputs); got != "stdout mine⏎" && got != "stdout late⏎mine⏎" {
		t.Errorf("got %q, want mine, with or without late before it", got)
	}
}

func TestCellsOfAKernelAreSerialized(t *testing.T) {
	t.Parallel()
	k := start(t)
	run(t, k, "n = 0")
	var cells sync.WaitGroup
	for range 10 {
		cells.Go(func() {
			reply, err := k.Execute(t.Context(), Request{Code: "m = n\nimport time; time.sleep(0.002)\nn = m + 1"}, nil)
			if err != nil || reply.Status != "ok" {
				t.Errorf(`got %+v, %v, want status "ok"`, reply, err)
			}
		})
	}
	cells.Wait()
	if _, outputs := run(t, k, "n"); brief(outputs) != "execute_result 10" {
		t.Errorf(`got %s, want "execute_result 10"`, brief(outputs))
	}

	ctx, cancel := context.WithCancel(t.Context())
	wait := begin(t, ctx, k, Request{Code: "time.sleep(100)"})
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := k.Execute(short, Request{Code: "1"}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v of a queued cell, want context.DeadlineExceeded", err)
	}
	cancel()
	wait()
}

func TestKernelsAreIsolated(t *testing.T) {
	t.Parallel()
	var kernels sync.WaitGroup
	runner, dir := newRunner(t), runtimeDir(t)
	for i := range 6 {
		kernels.Go(func() {
			k, err := Start(t.Context(), Config{Runner: runner, Spec: pythonSpec(t), Dir: "/", RuntimeDir: dir})
			if err != nil {
				t.Error(err)
				return
			}
			defer k.Close()
			run(t, k, fmt.Sprintf("mine = %d", i))
			for range 10 {
				if _, outputs := run(t, k, "print(mine)\nmine"); brief(outputs) != fmt.Sprintf("stdout %d⏎\nexecute_result %d", i, i) {
					t.Errorf("kernel %d: got %s, want outputs %q", i, brief(outputs), fmt.Sprintf("stdout %d⏎\nexecute_result %d", i, i))
				}
			}
		})
	}
	kernels.Wait()
}

func TestSilentAndHistory(t *testing.T) {
	t.Parallel()
	k := start(t)
	for _, c := range []struct {
		req   Request
		count int
		want  string
	}{
		{Request{Code: "1"}, 1, "execute_result 1"},
		{Request{Code: "2", NoHistory: true}, 1, "execute_result 2"},
		{Request{Code: "3", Silent: true}, 1, ""},
		{Request{Code: "4"}, 2, "execute_result 4"},
	} {
		var outputs []Output
		reply, err := k.Execute(t.Context(), c.req, func(o Output) error { outputs = append(outputs, o); return nil })
		if err != nil || reply.ExecutionCount != c.count || brief(outputs) != c.want {
			t.Errorf("%+v: got %+v, %v, %s, want execution count %d and outputs %q", c.req, reply, err, brief(outputs), c.count, c.want)
		}
	}
	const names = "execute_result ['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']"
	if _, outputs := run(t, k, "sorted(n for n in globals() if not n.startswith('_'))"); brief(outputs) != names {
		t.Errorf("got names %s in a new kernel, want %s", brief(outputs), names)
	}
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	k := start(t)
	if err := k.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	wait := begin(t, ctx, k, Request{Code: "while True: pass"})
	if err := k.Ping(t.Context()); err != nil {
		t.Errorf("got %v while a cell runs, want no error", err)
	}
	cancel()
	wait()
	syscall.Kill(k.PID(), syscall.SIGSTOP)
	testenv.Poll(t, "no heartbeat from a stopped process", func() bool { // it may take a moment to stop
		short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer stop()
		return errors.Is(k.Ping(short), context.DeadlineExceeded)
	})
	if n := k.heart.check(k.heart.check(0)); n != 2 {
		t.Errorf("got %d misses, want 2", n)
	}
	syscall.Kill(k.PID(), syscall.SIGCONT)
	if err := k.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if n := k.heart.check(2); n != 0 {
		t.Errorf("got %d misses after an echo, want 0", n)
	}
}

func TestFailedStartReleasesAll(t *testing.T) {
	t.Parallel()
	python := pythonSpec(t).Argv[0]
	for name, c := range map[string]struct {
		argv []string
		dir  string
		says string
	}{
		"no module":      {[]string{python, "-m", "no_such_kernel", connectionFile}, "/", "No module named no_such_kernel"},
		"no program":     {[]string{"/no/such/program", connectionFile}, "/", "/no/such/program"},
		"no directory":   {[]string{python, "-m", "ipykernel_launcher", "-f", connectionFile}, "/no/such/dir", "/no/such/dir"},
		"never responds": {[]string{"sleep", "100"}, "/", "deadline exceeded"},
		"no argv":        {nil, "/", "names no program"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if name == "never responds" {
				ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			}
			defer cancel()
			dir, runner := runtimeDir(t), newRunner(t)
			_, err := Start(ctx, Config{Runner: runner, Spec: Spec{Name: "x", Argv: c.argv}, Dir: c.dir, RuntimeDir: dir})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that contains %q", err, c.says)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 || len(runner.Living()) > 0 {
				t.Errorf("got files %v and processes %v, want none", left, runner.Living())
			}
		})
	}
}

func TestConnectionIsPrivate(t *testing.T) {
	t.Parallel()
	p, err := newConnection(t.TempDir(), "python3")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{p.dir: 0o700 | os.ModeDir, p.file(): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := newConnection(long, "x"); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Errorf(`got %v, want an error with "shorter path"`, err)
	}
	if left, _ := os.ReadDir(long); len(left) > 0 {
		t.Errorf("got files %v, want none", left)
	}
}
