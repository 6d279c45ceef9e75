package bash

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestSplitCharactersAreHeldBack: characters that are split between writes arrive complete,
// and the offsets exclude incomplete ones.
func TestSplitCharactersAreHeldBack(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := background(t, s, "a", `for b in '\xf0' '\x9f' '\x98' '\x80!' '\xe2\x82'; do printf $b; read x; done`)
	step := func(want string, offset int64, enter bool) {
		t.Helper()
		for _, wait := range []bool{false, true} {
			out := output(t, s, OutputIn{SessionID: "a", CommandID: &id, Wait: wait, WaitTimeout: 0.01})
			if out.Stdout != want || out.Offset != offset || out.More {
				t.Fatalf("got %q up to %d (more %v), want %q up to %d", out.Stdout, out.Offset, out.More, want, offset)
			}
		}
		if enter {
			if _, err := s.Write(t.Context(), WriteIn{SessionID: "a", Input: "\n"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	written := func(n int64) {
		t.Helper()
		c, err := s.target("a", &id)
		if err != nil {
			t.Fatal(err)
		}
		testenv.Poll(t, "bytes written", func() bool { _, total := c.out.extent(); return total == n })
	}
	for n := int64(1); n < 4; n++ {
		written(n)
		step("", 0, true)
	}
	written(5)
	step("😀!", 5, true)
	written(7)
	step("😀!", 5, true)
	end := await(t, s, "a", id, 16)
	if end.Stdout != "😀!\ufffd\ufffd" || end.Offset != 7 {
		t.Errorf(`got %q up to %d at the end, want stdout "😀!��" and offset 7`, end.Stdout, end.Offset)
	}
}

// TestOffsetsNeverLoseOrRepeat: concurrent readers that follow the offsets get all output
// exactly once and without split characters.
func TestOffsetsNeverLoseOrRepeat(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		log := t.TempDir()
		st := newStore(log, newService(t).Log, func() bool { return false })
		st.inline = 1 + rnd.IntN(200)
		st.piece = 64
		if seed%3 == 0 {
			st.disk.max = 0 // all output stays in memory, which must be large enough
			st.inline = 1 << 20
		}
		b := &bell{}
		sp := st.spool(b)
		valid := seed%2 == 0
		whole := randomText(rnd, 1+rnd.IntN(20_000), valid)
		var done atomic.Bool
		var wait sync.WaitGroup
		wait.Go(func() {
			r := rand.New(rand.NewPCG(seed, 8))
			for rest := whole; len(rest) > 0; {
				n := 1 + r.IntN(min(len(rest), 1+r.IntN(700)))
				if _, err := io.WriteString(sp, rest[:n]); err != nil {
					t.Error(err)
				}
				rest = rest[n:]
			}
			done.Store(true)
			b.ring()
		})
		for reader := range uint64(3) {
			wait.Go(func() {
				r := rand.New(rand.NewPCG(seed, reader))
				var got strings.Builder
				for at := int64(0); ; {
					news, final := b.listen(), done.Load()
					text, next, dropped := sp.read(at, 4+r.IntN(300), final)
					raw := whole[at:next]
					if dropped != 0 || clean(raw) != text || valid && unfinished(raw) != 0 {
						t.Errorf("seed %d: read %q for %q, dropped %d, want %q, none dropped and no unfinished "+
							"character", seed, text, raw, dropped, clean(raw))
						return
					}
					got.WriteString(text)
					at = next
					if final && at == int64(len(whole)) {
						break
					}
					if text == "" {
						<-news
					}
				}
				if got.String() != clean(whole) {
					t.Errorf("seed %d: got %q, want %q", seed, got.String(), clean(whole))
				}
			})
		}
		wait.Wait()
		sp.drop()
		if m, d := st.memory.used.Load(), st.disk.used.Load(); m != 0 || d != 0 {
			t.Errorf("seed %d: got %d reserved bytes of memory and %d of disk, want 0", seed, m, d)
		}
		if left, _ := os.ReadDir(log); len(left) != 0 {
			t.Errorf("got files %v, want none", left)
		}
	}
}

func randomText(rnd *rand.Rand, n int, valid bool) string {
	var b strings.Builder
	for b.Len() < n {
		switch rnd.IntN(8) {
		case 0:
			b.WriteString("日本")
		case 1:
			b.WriteString("😀")
		case 2:
			b.WriteString("é\n")
		case 3:
			if !valid {
				b.WriteByte(byte(rnd.IntN(256)))
			}
		default:
			b.WriteString(strconv.Itoa(b.Len()))
		}
	}
	return b.String()
}

// TestOldestPartIsDropped: if more is written than is kept, readers get the newest part at
// its offsets and the number of missing bytes, even during writes.
func TestOldestPartIsDropped(t *testing.T) {
	t.Parallel()
	const line = 10
	for _, c := range []struct {
		name string
		set  func(*store)
		keep int64
	}{
		{"file ring", func(st *store) { st.file = 1000 }, 1000},
		{"shared disk full", func(st *store) { st.disk.max = 128 }, 128},
		{"no disk", func(st *store) { st.disk.max = 0 }, 100},
		{"no folder", func(st *store) { st.dir = "/proc/self/nowhere" }, 100},
		{"disk and memory full", func(st *store) { st.disk.max, st.memory.max = 0, 0 }, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			st := newStore(t.TempDir(), newService(t).Log, func() bool { return false })
			st.inline, st.piece = 100, 64
			c.set(st)
			sp := st.spool(&bell{})
			var wait sync.WaitGroup
			stop := make(chan struct{})
			for range 2 {
				wait.Go(func() {
					for at := int64(0); ; {
						news := sp.bell.listen()
						text, next, dropped := sp.read(at, 333, true)
						if next == at {
							select {
							case <-news:
							case <-stop:
								return
							}
						}
						first := at + dropped
						at = next
						for i, b := range []byte(text) {
							if want := expected(first+int64(i), line); b != want {
								t.Errorf("offset %d holds %q, want %q", first+int64(i), b, want)
								return
							}
						}
					}
				})
			}
			const total = 50_000
			for at := int64(0); at < total; {
				b := make([]byte, min(1+at%57, total-at))
				for i := range b {
					b[i] = expected(at+int64(i), line)
				}
				sp.Write(b)
				at += int64(len(b))
			}
			close(stop)
			wait.Wait()
			text, next, dropped := sp.read(0, 1<<20, true)
			if next != total || dropped != total-c.keep || int64(len(text)) != c.keep {
				t.Errorf("got %d bytes up to %d, %d dropped; want the last %d", len(text), next, dropped, c.keep)
			}
			note, _, cut := sp.excerpt(0, true)
			if !cut || !strings.HasPrefix(note, fmt.Sprintf("[... the first %d bytes were dropped ...]\n", total-c.keep)) {
				t.Errorf("got excerpt %.80q, want a note that the first %d bytes were dropped", note, total-c.keep)
			}
			sp.drop()
			sp.Write([]byte("late"))
			if text, next, dropped := sp.read(total, 100, true); text != "" || next != total+4 || dropped != 4 {
				t.Errorf(`got %q %d %d after drop, want text "", next total+4, dropped 4`, text, next, dropped)
			}
			if m, d := st.memory.used.Load(), st.disk.used.Load(); m != 0 || d != 0 {
				t.Errorf("got %d reserved bytes of memory and %d of disk, want 0", m, d)
			}
		})
	}
}

// expected returns the byte at an offset of an endless numbered text.
func expected(at int64, line int64) byte {
	return fmt.Sprintf("%09d\n", at/line)[at%line]
}

// TestDiskFails: a disk that fails loses the output on it, but does not end the command.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	st := newStore(t.TempDir(), newService(t).Log, func() bool { return false })
	st.inline = 64
	sp := st.spool(&bell{})
	for i := range 100 {
		fmt.Fprintf(sp, "%03d\n", i)
	}
	sp.f.Close()
	for i := 100; i < 200; i++ {
		fmt.Fprintf(sp, "%03d\n", i)
	}
	text, next, dropped := sp.read(0, 1000, true)
	if next != 800 || dropped != 800-64 || !strings.HasPrefix(text, "184\n") || !strings.HasSuffix(text, "199\n") {
		t.Errorf(`got %q %d %d, want next 800, dropped %d and text from "184\n" to "199\n"`,
			text, next, dropped, 800-64)
	}
	sp.drop()
	if m, d := st.memory.used.Load(), st.disk.used.Load(); m != 0 || d != 0 {
		t.Errorf("got %d reserved bytes of memory and %d of disk, want 0", m, d)
	}
}

// TestLargeOutput reads 100 MB in order while memory use stays small.
func TestLargeOutput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const size = 100_000_000
	script := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo done >&2", size)
	id := background(t, s, "big", script)
	limit := 1 << 20
	hash := sha256.New()
	var peak uint64
	last := OutputResult{}
	for n := 0; ; n++ {
		last = output(t, s, OutputIn{SessionID: "big", CommandID: &id, Offset: last.Offset,
			StderrOffset: last.StderrOffset, Wait: true, WaitTimeout: 30, Limit: &limit})
		io.WriteString(hash, last.Stdout)
		if n%16 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
		}
		if last.Command.ExitCode != nil && !last.More {
			break
		}
	}
	want := sha256.New()
	for block, left := strings.Repeat("x", 1<<20), size; left > 0; left -= 1 << 20 {
		io.WriteString(want, block[:min(left, 1<<20)])
	}
	if last.Offset != size || last.StderrOffset != 5 || string(hash.Sum(nil)) != string(want.Sum(nil)) {
		t.Errorf("got %d and %d bytes, want %d and 5, as written", last.Offset, last.StderrOffset, size)
	}
	if peak > 64<<20 {
		t.Errorf("got a heap of %d MB, want at most 64", peak>>20)
	}
	if used := s.store.memory.used.Load(); used > 1<<20 {
		t.Errorf("got %d bytes in memory, want at most 1<<20", used)
	}
	if files, _ := filepath.Glob(s.State + "/bash/*"); len(files) != 0 {
		t.Errorf("got files %v, want none", files)
	}
	if info, err := os.Stat(s.State + "/bash"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v %v, want mode 0700", info, err)
	}
	again := output(t, s, OutputIn{SessionID: "big", CommandID: &id, Offset: size - 10, StderrOffset: 2})
	if again.Stdout != "xxxxxxxxxx" || again.Stderr != "ne\n" {
		t.Errorf(`got %q %q again, want stdout "xxxxxxxxxx" and stderr "ne\n"`, again.Stdout, again.Stderr)
	}
}

// TestLongPoll: a wait ends with new output, the end of the command, or its timeout.
func TestLongPoll(t *testing.T) {
	t.Parallel()
	s := newService(t)
	id := background(t, s, "p", "read x; echo $x; read x; echo $x >&2; read x")
	poll := func(offset, stderrOffset int64) (<-chan OutputResult, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		ch := make(chan OutputResult, 1)
		go func() {
			out, _ := s.Output(ctx, OutputIn{SessionID: "p", Offset: offset, StderrOffset: stderrOffset, Wait: true, WaitTimeout: 1000})
			ch <- out
		}()
		return ch, cancel
	}
	answer := func(text string) {
		t.Helper()
		if _, err := s.Write(t.Context(), WriteIn{SessionID: "p", CommandID: &id, Input: text}); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := poll(0, 0)
	canceled, cancel := poll(0, 0)
	cancel()
	if out := <-canceled; out.Command != nil {
		t.Errorf("a canceled request got %+v, want no command", out)
	}
	answer("one\n")
	if out := <-first; out.Stdout != "one\n" || out.Command.Status != running {
		t.Errorf(`got %+v, want stdout "one\n" and status %q`, out, running)
	}
	second, _ := poll(4, 0)
	answer("two\n")
	if out := <-second; out.Stderr != "two\n" || out.StderrOffset != 4 || out.Offset != 4 {
		t.Errorf(`got %+v, want stderr "two\n", stderr offset 4 and offset 4`, out)
	}
	third, _ := poll(4, 4)
	answer("\n")
	if out := <-third; out.Stdout+out.Stderr != "" || out.Command.Status != completed || *out.Command.ExitCode != 0 {
		t.Errorf("got %+v, want no output, status %q and exit code 0", out, completed)
	}
	short := background(t, s, "p", "sleep 1000")
	if out := output(t, s, OutputIn{SessionID: "p", Wait: true, WaitTimeout: 0.01}); out.Command.CommandID != short ||
		out.Command.Status != running {
		t.Errorf("got %+v, want command ID %q and status %q", out, short, running)
	}
}

func TestRefusedOutput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	if _, err := s.CreateSession(t.Context(), CreateSessionIn{SessionID: new("new")}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(OutputResult{SessionID: "new"}, output(t, s, OutputIn{SessionID: "new", Wait: true, WaitTimeout: 1000})); d != "" {
		t.Error(d)
	}
	ran := run(t, s, ExecIn{Command: "echo abc", SessionID: new("new")})
	for _, c := range []struct {
		in   OutputIn
		code op.Code
		says string
	}{
		{OutputIn{SessionID: "none"}, op.NotFound, `no bash session "none"`},
		{OutputIn{SessionID: "new", CommandID: new("x")}, op.NotFound, `no command "x" in session "new"`},
		{OutputIn{SessionID: "new", Offset: -1}, op.Invalid, "negative"},
		{OutputIn{SessionID: "new", Offset: 5}, op.Invalid, "offset 5 is past the end of stdout (4 bytes) of command " + ran.CommandID},
		{OutputIn{SessionID: "new", StderrOffset: 1}, op.Invalid, "stderr_offset 1"},
	} {
		_, err := s.Output(t.Context(), c.in)
		wantError(t, err, c.code, c.says)
	}
}

// TestOldCommandsAreDiscarded: if the shared limits are reached, the commands that ended
// first are discarded.
func TestOldCommandsAreDiscarded(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.store.memory.max = 2000
	s.store.inline = 1000
	s.store.disk.max, s.store.piece = 64<<10, 32<<10
	var ids []string
	for range 5 {
		ids = append(ids, run(t, s, ExecIn{Command: "printf '%0600d' 1", SessionID: new("m")}).CommandID)
	}
	known := func(id string) bool {
		_, err := s.Output(t.Context(), OutputIn{SessionID: "m", CommandID: &id})
		if err != nil {
			wantError(t, err, op.NotFound, "was discarded")
		}
		return err == nil
	}
	for i, id := range ids {
		if known(id) != (i >= 2) {
			t.Errorf("command %d: known %v, want %v", i, known(id), i >= 2)
		}
	}
	for range 4 {
		ids = append(ids, run(t, s, ExecIn{Command: "printf '%01100d' 1", SessionID: new("m")}).CommandID)
	}
	if n := s.store.disk.used.Load(); n != 64<<10 {
		t.Errorf("got %d reserved bytes of disk, want 64<<10", n)
	}
	last := len(ids) - 1
	if known(ids[last-2]) || !known(ids[last-1]) || !known(ids[last]) {
		t.Error("a newer file was discarded, want the last two commands kept and the one before discarded")
	}
	for range maxRecords + 3 {
		run(t, s, ExecIn{Command: ":", SessionID: new("r")})
	}
	all, _ := s.Sessions(t.Context(), op.None{})
	if ss, _ := s.sessions.Get("r"); len(ss.order) > maxRecords || all[1].CommandCount != maxRecords+3 {
		t.Errorf("got %d kept commands of %d, want at most %d commands kept and command count %d",
			len(ss.order), all[1].CommandCount, maxRecords, maxRecords+3)
	}
}

// TestDaemonContinues: the output of a daemon is readable after its command has ended. The
// daemon continues after the session was closed.
func TestDaemonContinues(t *testing.T) {
	t.Parallel()
	s := newService(t)
	fifo := s.Home + "/fifo"
	script := `mkfifo fifo; bash -c 'while :; do read x <fifo && echo "$x" && echo "$x" >>log; done' & echo $!`
	ran := run(t, s, ExecIn{Command: script, SessionID: new("d")})
	if ran.Status != completed || *ran.ExitCode != 0 {
		t.Fatalf("got %+v, want status %q and exit code 0", ran, completed)
	}
	say := func(text string) {
		if err := os.WriteFile(fifo, []byte(text+"\n"), 0); err != nil {
			t.Error(err)
		}
	}
	say("later")
	testenv.Poll(t, "later output", func() bool {
		return output(t, s, OutputIn{SessionID: "d", Offset: ran.Offset}).Stdout == "later\n"
	})
	closed, err := s.CloseSession(t.Context(), CloseSessionIn{"d"})
	if err != nil || closed.Killed != 0 {
		t.Fatalf("got %+v %v, want killed 0", closed, err)
	}
	pid := strings.TrimSpace(*ran.Stdout)
	if !alive(pid) {
		t.Fatalf("the daemon ended with the session, want process %q alive", pid)
	}
	say("unread")
	testenv.Poll(t, "the daemon continues", func() bool {
		b, _ := os.ReadFile(s.Home + "/log")
		return string(b) == "later\nunread\n"
	})
}
