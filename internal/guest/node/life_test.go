package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

func TestTimeoutKeepsTheSession(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{
		"loop":                 "while (true) {}",
		"loop after await":     "await null; await new Promise(r => setTimeout(r, 1)); while (true) {}",
		"loop in a timer":      "setTimeout(() => { while (true) {} }, 1); await new Promise(() => {})",
		"loop in a tick":       "process.nextTick(() => { while (true) {} }); await new Promise(() => {})",
		"loop of promises":     "for (;;) await null",
		"loop that prints":     "for (let i = 0; ; i++) console.log(i)",
		"loop that catches":    "for (;;) try { while (true) {} } catch {}",
		"never settles":        "await new Promise(() => {})",
		"waits for its value":  "new Promise(() => {})",
		"waits for a program":  "require('child_process').execSync('sleep 100')",
		"waits for memory":     "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
		"regular expression":   "/(a+)+$/.test('a'.repeat(40) + 'b')",
		"inspection loops":     "({ [Symbol.for('nodejs.util.inspect.custom')]() { while (true) {} } })",
		"interval that blocks": "setInterval(() => { while (true) {} }, 1); await new Promise(() => {})",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			runIn(t, s, "s", "const kept = 1; let n = 0")
			call := &op.Call{}
			out, err := s.Execute(op.WithCall(t.Context(), call), ExecuteIn{Code: code, SessionID: new("s"), Timeout: 1})
			if err != nil || out.Status != "timeout" || out.ExitCode != 124 ||
				!strings.Contains(call.Message, "session and its variables are kept") {
				t.Fatalf(`got %q, %v, %+v, want status "timeout", exit code 124 and message that contains "session and its variables are kept"`,
					call.Message, err, out)
			}
			for i := range 3 { // timers, promises and output work as before
				code := fmt.Sprintf("n = %d; console.log(await new Promise(r => setTimeout(r, 1, kept)))", i)
				if out := runIn(t, s, "s", code); !strings.HasSuffix(out.Stdout, "1\n") || out.Status != "ok" {
					t.Errorf(`got %+v after the timeout, want stdout that ends with "1\n" and status "ok"`, out)
				}
			}
		})
	}
}

// TestErrorAfterTheTimeout: code that timed out continues in the background, and its error is
// reported in a later cell.
func TestErrorAfterTheTimeout(t *testing.T) {
	t.Parallel()
	s := newService(t)
	out := execute(t, s, ExecuteIn{Code: "let fail; await new Promise((r, reject) => { fail = reject })", SessionID: new("s"), Timeout: 1})
	if out.Status != "timeout" {
		t.Fatalf(`got %+v, want status "timeout"`, out)
	}
	out = runIn(t, s, "s", "fail(new Error('late')); await new Promise(r => setTimeout(r, 5)); 'on'")
	if want := "error Error: late\n= 'on'"; summarize(out.Outputs) != want {
		t.Errorf("got %v, want %q", summarize(out.Outputs), want)
	}
}

// TestManyInterrupts interrupts the code at arbitrary points inside of Node.js.
func TestManyInterrupts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	runIn(t, s, "s", "const kept = 1; const { setTimeout: sleep } = require('timers/promises')")
	loops := []string{
		"for (let i = 0; ; i++) console.log('line', { i })",
		"for (;;) { await null; console.error('e') }",
		"Promise.resolve().then(() => { for (;;) process.stdout.write('x') }); await new Promise(() => {})",
		"for (;;) require('fs').readFileSync('/proc/self/stat')",
	}
	for round := range 4 {
		for _, code := range loops {
			ctx, cancel := context.WithCancel(t.Context())
			_, wait := startCell(t, ctx, s, "s", code)
			cancel()
			_, err := wait()
			wantError(t, err, op.Canceled, "interrupted")
			out := runIn(t, s, "s", "console.log('on', await sleep(1, kept)); 'v'")
			if got := summarize(out.Outputs); !strings.Contains(out.Stdout, "on 1\n") || !strings.HasSuffix(got, "= 'v'") {
				t.Fatalf(`round %d, after %s: got %.300s, want stdout that contains "on 1\n" and text that ends with "= 'v'"`, round, code, got)
			}
		}
	}
}

func TestTimeoutOfUninterruptibleCode(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.grace = time.Second
	runIn(t, s, "s", "const lost = 1")
	call := &op.Call{}
	out, err := s.Execute(op.WithCall(t.Context(), call), ExecuteIn{
		Code:      "console.log('before'); require('child_process').execSync('trap \"\" INT; sleep 100 & wait; sleep 100')",
		SessionID: new("s"), Timeout: 1})
	if err != nil || out.Status != "timeout" || out.Stdout != "before\n" || !strings.Contains(call.Message, "variables are lost") {
		t.Fatalf(`got %q, %v, %+v, want status "timeout", stdout "before\n" and message that contains "variables are lost"`,
			call.Message, err, out)
	}
	if out := runIn(t, s, "s", "typeof lost"); summarize(out.Outputs) != "= 'undefined'" || *out.ExecutionCount != 1 {
		t.Errorf(`got %+v, want outputs "= 'undefined'" and execution count 1`, out)
	}
}

func TestTimeoutWithoutSession(t *testing.T) {
	t.Parallel()
	s := newService(t)
	call := &op.Call{}
	out, err := s.Execute(op.WithCall(t.Context(), call), ExecuteIn{Code: "console.log('a'); while (true) {}", Timeout: 1})
	if err != nil || out.Status != "timeout" || out.ExitCode != 124 || out.Stdout != "a\n" ||
		!strings.Contains(call.Message, "longer than 1 second") {
		t.Errorf(`got %q, %v, %+v, want status "timeout", exit code 124, stdout "a\n" and message that contains "longer than 1 second"`,
			call.Message, err, out)
	}
}

func TestDeathInASession(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, c := range []struct {
		code, want, status string
		exit               int
		says               string
	}{
		{"console.log('a'); process.exit(0)", "stdout a⏎", "ok", 0, "exited with code 0"},
		{"console.log('a'); process.exit(7)", "stdout a⏎", "error", 7, "exited with code 7"},
		{"setTimeout(() => process.exit(2), 5); await new Promise(() => {})", "", "error", 2, "exited with code 2"},
		{"process.kill(process.pid, 'SIGKILL'); while (true) {}",
			"error ProcessDied: the process was killed by SIGKILL; unless it was sent deliberately, the process ran out of memory",
			"error", 137, "SIGKILL"},
		{"process.abort()", "error ProcessDied: the process was killed by SIGABRT", "error", 134, "SIGABRT"},
	} {
		runIn(t, s, "s", "var x = 1")
		call := &op.Call{}
		out, err := s.Execute(op.WithCall(t.Context(), call), ExecuteIn{Code: c.code, SessionID: new("s"), Timeout: 30})
		if err != nil || summarize(out.Outputs) != c.want && c.exit != 134 || out.Status != c.status ||
			out.ExitCode != c.exit || !strings.Contains(call.Message, c.says) || !strings.Contains(call.Message, "variables are lost") {
			t.Errorf(`%s: got %q, %v, %+v, want output %q, status %s, exit code %d, a message with %q and `+
				`"variables are lost"`, c.code, call.Message, err, out, c.want, c.status, c.exit, c.says)
		}
		if out := runIn(t, s, "s", "typeof x"); summarize(out.Outputs) != "= 'undefined'" {
			t.Errorf(`got %+v after %s, want outputs "= 'undefined'"`, out, c.code)
		}
	}
}

func TestDeathBetweenCells(t *testing.T) {
	t.Parallel()
	s := newService(t)
	pid, err := strconv.Atoi(strings.TrimPrefix(summarize(runIn(t, s, "s", "process.on('SIGUSR2', () => { "+
		"console.log('last words'); process.exit(5) }); process.pid").Outputs), "= "))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the session stops", func() bool {
		i, err := s.GetSession(t.Context(), SessionIn{SessionID: "s"})
		return err == nil && !i.Session.Alive
	})
	call := &op.Call{}
	out, err := s.Execute(op.WithCall(t.Context(), call), ExecuteIn{Code: "1", SessionID: new("s")})
	if err != nil || summarize(out.Outputs) != "stdout last words⏎\n= 1" || !strings.Contains(call.Hint, "exited with code 5") {
		t.Errorf(`got %q, %v, %+v, want outputs "stdout last words⏎\n= 1" and hint that contains "exited with code 5"`, call.Hint, err, out)
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
		failure = s.ExecuteStream(ctx, ExecuteIn{Code: "console.log(process.pid);" + code, SessionID: &session,
			Timeout: 60}, func(e op.Event) error {
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
		line, _, _ := strings.Cut(text, "\n")
		var err error
		if pid, err = strconv.Atoi(line); err != nil {
			t.Fatal(err)
		}
	case <-done:
		t.Fatalf("the code ended with %v, %+v before it printed", failure, out)
	}
	return pid, func() (ExecuteOut, error) {
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("the code did not end within 30 seconds")
		}
		return out, failure
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestKilledFromOutside(t *testing.T) {
	t.Parallel()
	s := newService(t)
	pid, wait := startCell(t, t.Context(), s, "s", "require('child_process').execSync('sleep 100')")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	out, err := wait()
	if err != nil || out.Status != "error" || out.ExitCode != 137 || !strings.Contains(summarize(out.Outputs), "ProcessDied") {
		t.Errorf(`got %v, %+v, want status "error", exit code 137 and outputs that contain "ProcessDied"`, err, out)
	}
}

func TestDeleteDuringACell(t *testing.T) {
	t.Parallel()
	s := newService(t)
	pid, wait := startCell(t, t.Context(), s, "s", "while (true) {}")
	var second error
	var queued sync.WaitGroup
	queued.Go(func() { _, second = s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: new("s"), Timeout: 60}) })
	testenv.Poll(t, "a call is queued", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		ss, ok := s.sessions.Get("s")
		return ok && ss.Calls() == 2
	})
	if out, err := s.DeleteSession(t.Context(), SessionIn{SessionID: "s"}); err != nil || !out.Deleted || alive(pid) {
		t.Errorf("got %v, %+v, alive: %v, want deleted and process %d ended", err, out, alive(pid), pid)
	}
	_, err := wait()
	wantError(t, err, op.Conflict, "was deleted while code ran in it")
	queued.Wait()
	wantError(t, second, op.Conflict, "was deleted")
	_, err = s.DeleteSession(t.Context(), SessionIn{SessionID: "s"})
	wantError(t, err, op.NotFound, "no Node.js session")
}

func TestCloseDuringCells(t *testing.T) {
	t.Parallel()
	s := newService(t)
	pid, wait := startCell(t, t.Context(), s, "s", "while (true) {}")
	alone := make(chan error, 1)
	go func() {
		_, err := s.Execute(t.Context(), ExecuteIn{Code: "while (true) {}", Timeout: 60})
		alone <- err
	}()
	testenv.Poll(t, "the other call runs", func() bool {
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

func TestClientDisconnects(t *testing.T) {
	t.Parallel()
	s := newService(t)
	runIn(t, s, "s", "var x = 1")
	ctx, cancel := context.WithCancel(t.Context())
	_, wait := startCell(t, ctx, s, "s", "while (true) {}")
	cancel()
	_, err := wait()
	wantError(t, err, op.Canceled, "was interrupted")
	closed := errors.New("connection closed")
	calls := 0
	err = s.ExecuteStream(t.Context(),
		ExecuteIn{Code: "for (;;) { console.log(1); await new Promise(r => setTimeout(r, 1)) }", SessionID: new("s"), Timeout: 60},
		func(op.Event) error { calls++; return closed })
	if err == nil || calls > 2 {
		t.Errorf("got %v after %d calls, want an error after at most 2 calls", err, calls)
	}
	if out := runIn(t, s, "s", "x"); !strings.Contains(summarize(out.Outputs), "= 1") {
		t.Errorf(`got %+v, want outputs that contain "= 1"`, out)
	}
}

func TestSessionsAreIsolated(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxSessions = 20 })
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			name := strconv.Itoa(i)
			for round := range 5 {
				code := fmt.Sprintf("var mine = (globalThis.mine ?? %d * 100) + 1; console.log(mine); mine", i)
				out, err := s.Execute(t.Context(), ExecuteIn{Code: code, SessionID: &name, Timeout: 120})
				n := i*100 + round + 1
				if want := fmt.Sprintf("stdout %d⏎\n= %d", n, n); err != nil || summarize(out.Outputs) != want {
					t.Errorf("session %d: got %v, %s, want %s", i, err, summarize(out.Outputs), want)
				}
			}
		})
	}
	all.Wait()
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: new("one more")})
	wantError(t, err, op.Exhausted, "Node.js session limit reached (20)")
}

func TestCellsOfASessionAreSerialized(t *testing.T) {
	t.Parallel()
	s := newService(t)
	runIn(t, s, "s", "let n = 0")
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			runIn(t, s, "s", "{ const m = n; await new Promise(r => setTimeout(r, 1)); n = m + 1 }")
		})
	}
	all.Wait()
	if out := runIn(t, s, "s", "n"); summarize(out.Outputs) != "= 10" {
		t.Errorf(`got %+v, want outputs "= 10"`, out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, wait := startCell(t, ctx, s, "s", "await new Promise(() => {})")
	_, err := s.Execute(t.Context(), ExecuteIn{Code: "1", SessionID: new("s"), Timeout: 1})
	wantError(t, err, op.Conflict, "busy with other code for 1 second")
	cancel()
	_, _ = wait()
}

func TestOutputIsLimited(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	s := newService(t)
	s.limit = limit
	for name, code := range map[string]string{
		"many lines": "for (let i = 0; i < 50; i++) console.log('x'.repeat(100_000))",
		"one text":   "console.log('x'.repeat(5_000_000))",
		"a program":  "require('child_process').execSync('head -c 5000000 /dev/zero | tr \"\\\\0\" x; echo', { stdio: 'inherit' })",
		"short ones": "for (let i = 0; i < 20_000; i++) { console.log('xxxxx'); console.error('x') }",
	} {
		for _, session := range []string{"", "s"} {
			out := execute(t, s, ExecuteIn{Code: "console.log('first');" + code + "\nconsole.log('last'); 'value'",
				SessionID: &session, Timeout: 120})
			if reply, err := json.Marshal(out); err != nil || len(reply) > limit+10_000 {
				t.Errorf("%s: got a reply of %d bytes, %v, want at most %d", name, len(reply), err, limit+10_000)
			}
			got := out.Stdout
			if out.Status != "ok" || len(got) > limit+1000 || !strings.HasPrefix(got, "first\n") ||
				!strings.HasSuffix(got, "last\n") || !strings.Contains(got, "bytes of output omitted") {
				t.Errorf("%s: got %s, %d bytes: %.30q … %q, "+
					`want status "ok", at most %d bytes, from "first\n" to "last\n" and "bytes of output omitted" in it`,
					name, out.Status, len(got), got, got[max(0, len(got)-30):], limit+1000)
			}
			if last := out.Outputs[len(out.Outputs)-1]; last.Data == nil {
				t.Errorf("%s: got no value, want data", name)
			}
		}
	}
	if out := runIn(t, s, "s", "'v'.repeat(10_000_000)"); len((*out.Outputs[0].Data)["text/plain"].(string)) > maxMessage+100 {
		t.Errorf("got a longer value, want at most %d bytes of text/plain", maxMessage+100)
	}
}

func TestOutputsArriveWhileTheCodeRuns(t *testing.T) {
	t.Parallel()
	s := newService(t)
	mark := filepath.Join(t.TempDir(), "seen")
	code := fmt.Sprintf("console.log('first'); while (!require('fs').existsSync(%q)) await new Promise(r => setTimeout(r, 5)); 'end'", mark)
	for _, session := range []string{"", "s"} {
		var events []string
		err := s.ExecuteStream(t.Context(), ExecuteIn{Code: code, SessionID: &session, Timeout: 60}, func(e op.Event) error {
			events = append(events, e.Name)
			if ev := e.Data.(ExecuteEvent); ev.Result != nil {
				if got := summarize(ev.Result.Outputs); got != "stdout first⏎\n= 'end'" {
					t.Errorf(`got result %s, want "stdout first⏎\n= 'end'"`, got)
				}
				return nil
			}
			return os.WriteFile(mark, nil, 0o600)
		})
		if got := strings.Join(events, " "); err != nil || got != "output output result" {
			t.Errorf(`got %v, %s, want "output output result"`, err, got)
		}
		if err := os.Remove(mark); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzFrames(f *testing.F) {
	marker := append([]byte{0xff}, strings.Repeat("s", markerSize-1)...)
	frame := func(kind, flags byte, text string) string {
		return string(binary.BigEndian.AppendUint16(append(slices.Clone(marker), kind, flags), uint16(len(text)))) + text
	}
	f.Add("raw "+frame('o', 3, "text")+" raw", 5)
	f.Add(frame('v', 1, "a")+"raw"+frame('v', 2, "b"), 1)
	f.Add(frame('x', 3, `{"ename":"E","traceback":["t"]}`)+frame('x', 3, `{`), 7)
	f.Add(frame('d', 3, `{"id":1}`)+frame('i', 3, "")+frame('r', 3, "20.0.0"), 9)
	f.Add(frame('e', 3, "cut short")[:25], 25)
	f.Add(string(marker[:9])+"no frame", 3)
	f.Fuzz(func(t *testing.T, text string, piece int) {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		defer write.Close()
		p := &process{version: make(chan string, 1), ended: make(chan cellEnd, 1), terminated: make(chan struct{}, 1),
			out: newTranscript(1 << 20)}
		if p.stderr, err = newTap(read, func([]byte) {}); err != nil {
			t.Fatal(err)
		}
		var raw []byte
		p.frames = parser{marker: marker, raw: func(b []byte) { raw = append(raw, b...) }, frame: p.handleFrame}
		for b := range slices.Chunk([]byte(text), max(1, piece)) {
			p.frames.feed(b)
		}
		p.frames.flush()
		if !bytes.Contains([]byte(text), marker) && string(raw) != text {
			t.Errorf("got %q, want the text %q unchanged", raw, text)
		}
		if stdout, stderr := kernel.Streams(fold(p.nextTranscript().finish()), true); len(stdout)+len(stderr) > 3*len(text)+1000 {
			t.Errorf("got %d bytes from %d, want at most %d", len(stdout)+len(stderr), len(text), 3*len(text)+1000)
		}
	})
}
