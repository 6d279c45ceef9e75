package jupyter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func timeoutKeepsTheKernel(t *testing.T, s *Service, id string) {
	runIn(t, s, id, "kept = 1\nimport asyncio, os, subprocess, time")
	for _, code := range []string{
		"print('before')\nwhile True: pass",
		"print('before')\nsubprocess.run(['sleep', '100'])",
		"print('before')\nawait asyncio.sleep(100)",
	} {
		call := &op.Call{}
		out, err := s.Execute(op.WithCall(t.Context(), call), ExecuteIn{Code: code, SessionID: &id, Timeout: 1})
		if err != nil || out.Status != "timeout" || !strings.HasPrefix(summarize(out.Outputs), "stdout before⏎") ||
			!strings.Contains(call.Message, "longer than 1 second and was interrupted; the kernel and its variables are kept") {
			t.Fatalf("%s: got %q, %v, %s, "+
				`want status "timeout", outputs that start with "stdout before⏎" and message that contains "longer `+
				`than 1 second and was interrupted; the kernel and its variables are kept"`,
				code, call.Message, err, summarize(out.Outputs))
		}
	}
	if out := runIn(t, s, id, "kept"); summarize(out.Outputs) != "= 1" {
		t.Errorf(`got %v, want "= 1"`, summarize(out.Outputs))
	}
}

func timeoutOfUninterruptibleCell(t *testing.T, s *Service, id string) {
	runIn(t, s, id, "lost = 1\nimport signal, time")
	call := &op.Call{}
	out, err := s.Execute(op.WithCall(t.Context(), call),
		ExecuteIn{Code: "signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('before', flush=True)\ntime.sleep(100)", SessionID: &id, Timeout: 1})
	if err != nil || out.Status != "timeout" || summarize(out.Outputs) != "stdout before⏎" ||
		!strings.Contains(call.Message, "variables are lost") {
		t.Fatalf(`got %q, %v, %+v, want status "timeout", outputs "stdout before⏎" and message that contains "variables are lost"`,
			call.Message, err, out)
	}
	if out := runIn(t, s, id, "lost"); summarize(out.Outputs) != "error NameError: name 'lost' is not defined" {
		t.Errorf(`got %v, want "error NameError: name 'lost' is not defined"`, summarize(out.Outputs))
	}
}

func TestDeath(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, c := range []struct{ code, want, says string }{
		{"import os; os._exit(3)", "error DeadKernelError: the kernel died: it exited with code 3", "died while the cell ran"},
		{"exit()", "", "made the kernel exit"},
	} {
		runIn(t, s, "s", "x = 1")
		call := &op.Call{}
		out, err := s.Execute(op.WithCall(t.Context(), call), ExecuteIn{Code: c.code, SessionID: new("s"), Timeout: 60})
		if err != nil || summarize(out.Outputs) != c.want || (out.Status == "error") != (c.want != "") ||
			!strings.Contains(call.Message, c.says) || !strings.Contains(call.Message, "variables are lost") {
			t.Errorf(`%s: got %q, %v, %+v %s, want outputs %q, an error if there are any, and a message that contains %q and "variables are lost"`,
				c.code, call.Message, err, out, summarize(out.Outputs), c.want, c.says)
		}
		if out := runIn(t, s, "s", "x"); summarize(out.Outputs) != "error NameError: name 'x' is not defined" {
			t.Errorf(`got %s after %s, want "error NameError: name 'x' is not defined"`, summarize(out.Outputs), c.code)
		}
	}
	// The next cell reports a death between cells.
	pid, err := strconv.Atoi(strings.TrimPrefix(summarize(runIn(t, s, "s", "import os; os.getpid()").Outputs), "= "))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the kernel ends", func() bool {
		list, err := s.ListSessions(t.Context(), op.None{})
		return err == nil && list.Sessions["s"].State == "stopped"
	})
	call := &op.Call{}
	out, err := s.Execute(op.WithCall(t.Context(), call), ExecuteIn{Code: "1", SessionID: new("s")})
	if err != nil || summarize(out.Outputs) != "= 1" || !strings.Contains(call.Hint, "new kernel") || !strings.Contains(call.Hint, "SIGKILL") {
		t.Errorf(`got %q, %v, %+v, want outputs "= 1", hint that contains "new kernel" and "SIGKILL"`, call.Hint, err, out)
	}
}

// startCell runs code in a session and returns when it prints. wait returns its result.
func startCell(t testing.TB, ctx context.Context, s *Service, session, code string) (pid int, wait func() (ExecuteOut, error)) {
	t.Helper()
	var out ExecuteOut
	var failure error
	first, done := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		failure = s.ExecuteStream(ctx, ExecuteIn{Code: "import os, time; print(os.getpid(), flush=True)\n" + code,
			SessionID: &session, Timeout: 100}, func(e op.Event) error {
			switch ev := e.Data.(ExecuteEvent); {
			case ev.Result != nil:
				out = *ev.Result
			case ev.Output.Text != nil:
				select {
				case first <- *ev.Output.Text:
				default:
				}
			}
			return nil
		})
	}()
	select {
	case text := <-first:
		var err error
		if pid, err = strconv.Atoi(strings.TrimSpace(text)); err != nil {
			t.Fatal(err)
		}
	case <-done:
		t.Fatalf("the cell ended with %v, %+v before it printed", failure, out)
	}
	return pid, func() (ExecuteOut, error) {
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("the cell did not end within 30 seconds")
		}
		return out, failure
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func killedFromOutside(t *testing.T, s *Service, id string) {
	pid, wait := startCell(t, t.Context(), s, id, "time.sleep(100)")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out, err := wait()
	if err != nil || out.Status != "error" || !strings.Contains(summarize(out.Outputs), "DeadKernelError") {
		t.Errorf(`got %v, %+v, want status "error" and outputs that contain "DeadKernelError"`, err, out)
	}
}

func deleteDuringACell(t *testing.T, s *Service, id string) {
	pid, wait := startCell(t, t.Context(), s, id, "time.sleep(100)")
	var second error
	var queued sync.WaitGroup
	queued.Go(func() { _, second = s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: &id, Timeout: 60}) })
	testenv.Poll(t, "a call is queued", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		ss, ok := s.sessions.Get(id)
		return ok && ss.Calls() == 2
	})
	if out, err := s.DeleteSession(t.Context(), SessionIn{SessionID: id}); err != nil || len(out.Deleted) != 1 || alive(pid) {
		t.Errorf("got %v, %+v, alive: %v, want 1 deleted and process %d ended", err, out, alive(pid), pid)
	}
	_, err := wait()
	wantError(t, err, op.Conflict, "was deleted while a cell ran in it")
	queued.Wait()
	wantError(t, second, op.Conflict, "was deleted")
	_, err = s.DeleteSession(t.Context(), SessionIn{SessionID: id})
	wantError(t, err, op.NotFound, "no Jupyter session")
}

func TestCloseDuringCells(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Warm = 1 })
	pid, wait := startCell(t, t.Context(), s, "s", "time.sleep(100)")
	alone := make(chan error, 1)
	go func() {
		_, err := s.Execute(t.Context(), ExecuteIn{Code: "import time; time.sleep(100)", Timeout: 100})
		alone <- err
	}()
	testenv.Poll(t, "the other cell has its kernel", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.oneShot) == 1
	})
	s.Close()
	if left := s.Runner.Living(); len(left) > 0 || alive(pid) {
		t.Errorf("processes remain: %v, want none and process %d ended", left, pid)
	}
	_, err := wait()
	wantError(t, err, op.Unavailable, "stopping")
	wantError(t, <-alone, op.Unavailable, "stopping")
	_, err = s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: new("s")})
	wantError(t, err, op.Unavailable, "stopping")
	_, err = s.Execute(t.Context(), ExecuteIn{Code: "1"})
	wantError(t, err, op.Unavailable, "stopping")
}

func clientDisconnects(t *testing.T, s *Service, id string) {
	runIn(t, s, id, "x = 1")
	ctx, cancel := context.WithCancel(t.Context())
	_, wait := startCell(t, ctx, s, id, "time.sleep(100)")
	cancel()
	_, err := wait()
	wantError(t, err, op.Canceled, "was interrupted")
	closed := errors.New("connection closed")
	calls := 0
	err = s.ExecuteStream(t.Context(), ExecuteIn{Code: "while True: print(1, flush=True); time.sleep(0.01)", SessionID: &id, Timeout: 60},
		func(op.Event) error { calls++; return closed })
	if err == nil || calls != 1 {
		t.Errorf("got %v after %d calls, want an error after 1 call", err, calls)
	}
	if out := runIn(t, s, id, "x"); summarize(out.Outputs) != "= 1" {
		t.Errorf(`got %v, want "= 1"`, summarize(out.Outputs))
	}
}

// TestSessions shares one service with 20 kernels among several tests, because they are
// expensive.
func TestSessions(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := newService(t, func(c *Config) { c.MaxSessions = 20 })
	s.limit = 1 << 20
	areIsolated(t, s)
	if t.Failed() {
		return
	}
	t.Run("each", func(t *testing.T) {
		for i, run := range []func(*testing.T, *Service, string){
			cellTable, figureIsPNG, timeoutKeepsTheKernel, timeoutOfUninterruptibleCell, killedFromOutside, deleteDuringACell,
			clientDisconnects, cellsAreSerialized, outputsArriveWhileTheCellRuns, outputIsLimited,
		} {
			name := runtime.FuncForPC(reflect.ValueOf(run).Pointer()).Name()
			t.Run(name[strings.LastIndexByte(name, '.')+1:], func(t *testing.T) {
				t.Parallel()
				run(t, s, strconv.Itoa(i))
			})
		}
	})
	if out, err := s.DeleteSessions(t.Context(), op.None{}); err != nil || len(out.Deleted) != 19 || len(s.Runner.Living()) > 0 {
		t.Errorf("got %v, %+v, %v, want 19 deleted and no processes", err, out, s.Runner.Living())
	}
}

func areIsolated(t *testing.T, s *Service) {
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			name := strconv.Itoa(i)
			for round := range 3 {
				code := fmt.Sprintf("mine = globals().get('mine', %d) + 1\nprint(mine)\nmine", i*100)
				out, err := s.Execute(t.Context(), ExecuteIn{Code: code, SessionID: &name, Timeout: 120})
				n := i*100 + round + 1
				if want := fmt.Sprintf("stdout %d⏎\n= %d", n, n); err != nil || summarize(out.Outputs) != want {
					t.Errorf("session %d: got %v, %s, want %s", i, err, summarize(out.Outputs), want)
					return
				}
			}
		})
	}
	all.Wait()
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: new("one more")})
	wantError(t, err, op.Exhausted, "Jupyter session limit reached (20)")
}

func cellsAreSerialized(t *testing.T, s *Service, id string) {
	runIn(t, s, id, "n = 0\nimport time")
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { runIn(t, s, id, "m = n; time.sleep(0.002); n = m + 1") })
	}
	all.Wait()
	if out := runIn(t, s, id, "n"); summarize(out.Outputs) != "= 10" {
		t.Errorf(`got %v, want "= 10"`, summarize(out.Outputs))
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, wait := startCell(t, ctx, s, id, "time.sleep(100)")
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: &id, Timeout: 1})
	wantError(t, err, op.Conflict, "busy with other cells for 1 second")
	cancel()
	_, _ = wait()
}

func TestCallsWithoutASessionShareNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Warm = 1 })
	pids := map[string]bool{}
	for range 2 {
		out := execute(t, s, ExecuteIn{Code: "import os, sys, builtins\n" +
			"f = open('unclosed', 'w'); _ = f.write('text')\n" +
			"seen = [n for n in ('x',) if n in globals()] + [m for m in (sys, builtins, os) if hasattr(m, 'mark')]\n" +
			"x = sys.mark = builtins.mark = os.mark = os.environ['MARK'] = '1'; os.chdir('/')\n" +
			"print(os.getpid(), seen)"})
		pid, seen, _ := strings.Cut(strings.TrimPrefix(summarize(out.Outputs), "stdout "), " ")
		if pids[pid] || seen != "[]⏎" || out.Status != "ok" {
			t.Errorf(`got %+v %s, want another process, "[]⏎" and status "ok"`, out, summarize(out.Outputs))
		}
		pids[pid] = true
		path := filepath.Join(s.Workspace, "unclosed")
		if b, err := os.ReadFile(path); err != nil || string(b) != "text" {
			t.Errorf(`got %q, %v in an unclosed file, want "text"`, b, err)
		}
		os.Remove(path)
	}
}

func TestConcurrentCallsWithoutASession(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxSessions = 1 }) // two at a time
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			if out := execute(t, s, ExecuteIn{Code: fmt.Sprintf("x = globals().get('x', %d); x",
				i)}); summarize(out.Outputs) != fmt.Sprintf("= %d", i) {
				t.Errorf("got %v, want outputs %q", summarize(out.Outputs), fmt.Sprintf("= %d", i))
			}
		})
	}
	all.Wait()
}

func TestWarmKernel(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Warm, c.Idle = 1, time.Hour })
	warm := func() int {
		i, err := s.Info(t.Context(), op.None{})
		if err != nil {
			t.Fatal(err)
		}
		return i.WarmKernels
	}
	if warm() != 0 || len(s.Runner.Living()) != 0 {
		t.Errorf("got %d warm kernels and %v before the first use, want none", warm(), s.Runner.Living())
	}
	runIn(t, s, "a", "1")
	testenv.Poll(t, "a kernel is warm", func() bool { return warm() == 1 })
	s.pool.mu.Lock()
	pid := s.pool.idle[0].PID()
	s.pool.mu.Unlock()
	dir := filepath.Join(s.Workspace, "it's \"sub\" ä")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out := execute(t, s, ExecuteIn{Code: "import os; print(os.getpid()); print(os.getcwd())", SessionID: new("b"), Cwd: &dir})
	if want := fmt.Sprintf("stdout %d⏎%s⏎", pid, dir); summarize(out.Outputs) != want || *out.ExecutionCount != 1 {
		t.Errorf("got %s, want %s", summarize(out.Outputs), want)
	}
	testenv.Poll(t, "another kernel is warm", func() bool { return warm() == 1 })
	// A warm kernel that has died is not used.
	s.pool.mu.Lock()
	k := s.pool.idle[0]
	s.pool.mu.Unlock()
	if err := syscall.Kill(k.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-k.Done()
	if out := runIn(t, s, "c", "1"); summarize(out.Outputs) != "= 1" {
		t.Errorf(`got %v, want "= 1"`, summarize(out.Outputs))
	}
	testenv.Poll(t, "a third kernel is warm", func() bool { return warm() == 1 })
	// A warm kernel expires.
	if _, err := s.DeleteSessions(t.Context(), op.None{}); err != nil {
		t.Fatal(err)
	}
	s.pool.mu.Lock()
	s.pool.keepFor = time.Millisecond
	s.pool.mu.Unlock()
	s.pool.touch()
	testenv.Poll(t, "the warm kernel ends", func() bool { return len(s.Runner.Living()) == 0 })
}

func TestDisabledStartsNoWarmKernel(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Warm, c.Disabled = 3, true })
	runIn(t, s, "a", "1")
	if s.pool.warm != 0 || len(s.Runner.Living()) != 1 {
		t.Errorf("got %d, %v, want warm 0 and 1 process", s.pool.warm, s.Runner.Living())
	}
}

func outputsArriveWhileTheCellRuns(t *testing.T, s *Service, id string) {
	mark := filepath.Join(t.TempDir(), "seen")
	code := fmt.Sprintf("import os, time\nprint('first', flush=True)\nwhile not os.path.exists(%q): time.sleep(0.01)\n"+
		"h = display('a', display_id='d'); h.update('b')\nfrom IPython.display import clear_output\nclear_output(wait=True)\n'end'", mark)
	var events []string
	err := s.ExecuteStream(t.Context(), ExecuteIn{Code: code, SessionID: &id, Timeout: 60}, func(e op.Event) error {
		ev := e.Data.(ExecuteEvent)
		if ev.Result != nil {
			if got := summarize(ev.Result.Outputs); got != "= 'end'" || ev.Result.Status != "ok" {
				t.Errorf(`got result %s, want "= 'end'" and status "ok"`, got)
			}
			events = append(events, "result")
			return nil
		}
		events = append(events, ev.Output.Type)
		if ev.Output.Type == "display_data" && (*ev.Output.Transient)["display_id"] != "d" ||
			ev.Output.Type == "clear_output" && !*ev.Output.Wait {
			t.Errorf(`got %+v, want the display id "d", and wait of clear_output`, ev.Output)
		}
		return os.WriteFile(mark, nil, 0o600)
	})
	if got := strings.Join(events, " "); err != nil || got != "stream display_data update_display_data clear_output execute_result result" {
		t.Errorf(`got %v, %s, want "stream display_data update_display_data clear_output execute_result result"`, err, got)
	}
}

func outputIsLimited(t *testing.T, s *Service, id string) {
	out := runIn(t, s, id, "for i in range(30): print('x' * 100_000)\nprint('last')")
	text := *out.Outputs[0].Text
	if len(text) > 1<<20+1000 || !strings.Contains(text, "omitted") || !strings.HasSuffix(text, "last\n") {
		t.Errorf(`got %d bytes, want at most %d bytes, "omitted" in it and text that ends with "last\n"`, len(text), 1<<20+1000)
	}
}
