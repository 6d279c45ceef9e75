package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("COVE_TEST_AUDIT"); dir != "" {
		crash(dir)
		return
	}
	testenv.Main(m)
}

func open(t testing.TB, cfg Config) *Log {
	t.Helper()
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func add(t testing.TB, l *Log, e Entry) {
	t.Helper()
	if err := l.Append(e); err != nil {
		t.Fatal(err)
	}
}

func shut(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, c Check) Report {
	t.Helper()
	r, err := Verify(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sound(t testing.TB, c Check) Report {
	t.Helper()
	r := verify(t, c)
	if r.Problem != nil {
		t.Fatalf("verify: got %v, want no problem", r.Problem)
	}
	return r
}

func lines(t testing.TB, dir string, f Filter) []Line {
	t.Helper()
	var got []Line
	err := Tail(context.Background(), dir, f, func(l Line) error { got = append(got, l); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestLineContent(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	add(t, l, Entry{Tenant: "a", KeyID: "k1", Role: "user", Op: "sandbox_create", Sandbox: "sb-1", Name: "box",
		Status: 200, In: 10, Out: 20, TookUS: 1500})
	add(t, l, Entry{Tenant: "b\"\\\n\x00\xff", Method: "GET", Path: "/v1/x?token=hunter2#secret", Status: 502,
		Code: "unavailable", Name: strings.Repeat("é", 1000), In: -1, Out: -1})
	shut(t, l)
	got := lines(t, dir, Filter{})
	if len(got) != 2 {
		t.Fatalf("got %d lines, want 2", len(got))
	}
	for i := range got {
		if since := time.Since(got[i].Time); since < 0 || since > time.Minute {
			t.Errorf("time of line %d: got %v, want within the last minute", i, got[i].Time)
		}
		got[i].Time = time.Time{}
	}
	want := []Line{
		{Seq: 1, Prev: genesis, Hash: got[0].Hash, Entry: Entry{Tenant: "a", KeyID: "k1", Role: "user", Op: "sandbox_create",
			Sandbox: "sb-1", Name: "box", Status: 200, In: 10, Out: 20, TookUS: 1500}},
		{Seq: 2, Prev: got[0].Hash, Hash: got[1].Hash, Entry: Entry{Tenant: "b\"\\\n\x00\uFFFD", Method: "GET", Path: "/v1/x", Status: 502,
			Code: "unavailable", Name: strings.Repeat("é", 254) + "…"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	for _, name := range []string{fileName(1), headName, lockName} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v, want mode 0600", name, info, err)
		}
	}
	b, _ := os.ReadFile(filepath.Join(dir, fileName(1)))
	if strings.Contains(string(b), "hunter2") || strings.Contains(string(b), "secret") {
		t.Errorf("got a query string in the log, want none: %s", b)
	}
}

func TestChainContinuesAfterOpen(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		l := open(t, Config{Dir: dir})
		add(t, l, Entry{Op: "x"})
		if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) {
			t.Fatalf("second writer: got %v, want %v", err, ErrLocked)
		}
		if r := sound(t, Check{Dir: dir}); !r.Live {
			t.Error("got live=false from an open log, want true")
		}
		shut(t, l)
		shut(t, l)
		if err := l.Append(Entry{}); !errors.Is(err, ErrClosed) {
			t.Fatalf("append after close: got %v, want %v", err, ErrClosed)
		}
	}
	if r := sound(t, Check{Dir: dir}); r.Lines != 3 || r.Last.Seq != 3 || r.Synced != 3 || r.Live {
		t.Errorf("got %+v, want 3 lines, all synced, not live", r)
	}
}

func TestRotationKeepsTheChain(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir, MaxBytes: 2000, Keep: 3, Key: []byte("k")}
	for range 2 {
		l := open(t, cfg)
		for i := range 100 {
			add(t, l, Entry{Op: "x", Status: i})
		}
		shut(t, l)
	}
	r := sound(t, Check{Dir: dir, Key: cfg.Key})
	if r.Files != 3 || r.Last.Seq != 200 || r.First < 150 || r.Lines != 200-r.First+1 {
		t.Errorf("got %+v, want 3 files that end with line 200", r)
	}

	// A crash after the head was written and before the removal leaves one extra file.
	files, _ := listFiles(dir)
	old := filepath.Join(dir, fileName(files[0]))
	kept, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	gone := files[1] - 1
	setGone(t, dir, cfg.Key, gone)
	if r := sound(t, Check{Dir: dir, Key: cfg.Key}); r.Files != 3 {
		t.Errorf("got %+v, want 3 files", r)
	}
	if err := os.Remove(old); err != nil {
		t.Fatal(err)
	}
	if r := sound(t, Check{Dir: dir, Key: cfg.Key}); r.First != gone+1 {
		t.Errorf("got %+v, want first %d", r, gone+1)
	}
	if err := os.WriteFile(old, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	shut(t, open(t, cfg))
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pruned file: got %v, want %v", err, os.ErrNotExist)
	}
}

// setGone records pruned lines in the head of a closed log.
func setGone(t *testing.T, dir string, k key, gone uint64) {
	t.Helper()
	h, err := readHead(dir, k)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, headName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hf := headFile{file: f, key: k, now: h}
	if err := hf.write(h.position, Mark{Seq: gone}); err != nil {
		t.Fatal(err)
	}
}

// encode returns a line that follows a position, and moves the position after it.
func encode(k key, at *position, line Line) string {
	var buf bytes.Buffer
	*at = k.appendLine(&buf, *at, line.Time, line)
	return buf.String()
}

func TestTornLine(t *testing.T) {
	for name, part := range map[string]string{
		"half a line": `{"seq":3,"prev":"0000`, "zeros": "\x00\x00\x00\x00", "garbage of several lines": "x\ny\nz",
		"much": strings.Repeat("z", 3*maxText),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, Config{Dir: dir})
			add(t, l, Entry{Op: "a"})
			add(t, l, Entry{Op: "b"})
			shut(t, l)
			path := filepath.Join(dir, fileName(1))
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString(part); err != nil {
				t.Fatal(err)
			}
			f.Close()
			r := verify(t, Check{Dir: dir})
			if strings.Contains(part, "\n") {
				if r.Problem == nil || r.Problem.Seq != 3 || !strings.Contains(r.Problem.Detail, "power failure") {
					t.Errorf("before: got %+v, want a problem with line 3", r)
				}
			} else if r.Problem != nil || len(r.Torn) != 1 || r.Torn[0] != (Place{fileName(1), 3, 3}) {
				t.Errorf("before: got %+v, want line 3 torn", r)
			}
			l = open(t, Config{Dir: dir})
			add(t, l, Entry{Op: "c"})
			shut(t, l)
			if r := sound(t, Check{Dir: dir}); len(r.Torn) != 1 || r.Torn[0].Seq != 3 || r.Last.Seq != 4 {
				t.Errorf("after: got %+v, want 4 lines, the third about the torn line", r)
			}
			got := lines(t, dir, Filter{})
			if got[2].Kind != KindTorn || got[2].Count != uint64(len(part)) || got[2].Text != part[:min(len(part), maxText)] || got[3].Op != "c" {
				t.Errorf("got %+v, want the torn bytes, then c", got[2:])
			}
			aside, err := os.ReadFile(filepath.Join(dir, tornName(3)))
			if len(part) > maxText && string(aside) != part || len(part) <= maxText && err == nil {
				t.Errorf("%s: got %d bytes, %v, want the part if it has more than %d bytes (%d)", tornName(3), len(aside), err, maxText, len(part))
			}
		})
	}
}

// TestLineWithoutItsNewline: a line is torn even if only its last byte is missing.
func TestLineWithoutItsNewline(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	add(t, l, Entry{Op: "a"})
	shut(t, l)
	path := filepath.Join(dir, fileName(1))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := position{Mark: Mark{1, lines(t, dir, Filter{})[0].Hash}}
	b = append(b, encode(key(nil), &at, Line{Entry: Entry{Op: "b"}, Time: time.Now()})...)
	if err := os.WriteFile(path, b[:len(b)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	l = open(t, Config{Dir: dir})
	add(t, l, Entry{Op: "c"})
	shut(t, l)
	if r := sound(t, Check{Dir: dir}); len(r.Torn) != 1 || r.Last.Seq != 3 {
		t.Errorf("got %+v, want 3 lines, one of them torn", r)
	}
}

// TestOneRecordOfTheHead: one valid record is enough, and the log reports the other.
func TestOneRecordOfTheHead(t *testing.T) {
	for i := range 2 {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir})
		add(t, l, Entry{Op: "a"})
		add(t, l, Entry{Op: "b"})
		shut(t, l)
		f, err := os.OpenFile(filepath.Join(dir, headName), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("torn"), int64(i)*recordSize); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if r := verify(t, Check{Dir: dir}); r.Problem == nil || r.Problem.File != headName {
			t.Errorf("before: got %+v, want a problem with the head", r)
		}
		l = open(t, Config{Dir: dir})
		add(t, l, Entry{Op: "c"})
		shut(t, l)
		if r := sound(t, Check{Dir: dir}); len(r.Torn) != 1 || r.Last.Seq != 4 {
			t.Errorf("after: got %+v, want 4 lines, one of them about the head record", r)
		}
	}
}

func TestOpenRefusesADamagedLog(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string) error
		key    string
		want   error
	}{
		"cut below the head": {damage: func(t *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, fileName(1)), 300) }},
		"file gone":          {damage: func(t *testing.T, dir string) error { return os.Remove(filepath.Join(dir, fileName(1))) }},
		"head gone":          {damage: func(t *testing.T, dir string) error { return os.Remove(filepath.Join(dir, headName)) }},
		"head empty":         {damage: func(t *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, headName), 0) }},
		"last line changed": {damage: func(t *testing.T, dir string) error {
			path := filepath.Join(dir, fileName(1))
			b, err := os.ReadFile(path)
			b[len(b)-100] ^= 1
			return errors.Join(err, os.WriteFile(path, b, 0o600))
		}},
		"a file from elsewhere": {damage: func(t *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, fileName(9)), []byte("x\n"), 0o600)
		}},
		"other key": {key: "other"},
		"no key":    {key: "-", want: ErrKey},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Dir: t.TempDir(), Key: []byte("key")}
			l := open(t, cfg)
			for range 3 {
				add(t, l, Entry{Op: "x"})
			}
			shut(t, l)
			if c.damage != nil {
				if err := c.damage(t, cfg.Dir); err != nil {
					t.Fatal(err)
				}
			}
			switch c.key {
			case "":
			case "-":
				cfg.Key = nil
			default:
				cfg.Key = []byte(c.key)
			}
			want := c.want
			if want == nil {
				want = ErrDamaged
			}
			if l, err := Open(cfg); !errors.Is(err, want) {
				if err == nil {
					l.Close()
				}
				t.Errorf("open: got %v, want %v", err, want)
			}
		})
	}
}

func TestConcurrentCreatesAndDeletes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, Config{Dir: dir, MaxBytes: 20000, Keep: 1000, Sync: 5 * time.Millisecond, Patience: time.Minute})
	ctx, stop := context.WithCancel(context.Background())
	var watch, work sync.WaitGroup
	followed := make(chan Line, 10000)
	watch.Go(func() {
		if err := Tail(ctx, dir, Filter{Follow: true}, func(l Line) error { followed <- l; return nil }); err != nil {
			t.Errorf("tail: got %v, want no error", err)
		}
	})
	watch.Go(func() {
		for ctx.Err() == nil {
			if r, err := Verify(ctx, Check{Dir: dir}); err == nil && r.Problem != nil {
				t.Errorf("verify while writing: got %v, want no problem", r.Problem)
			}
		}
	})
	const writers, each = 8, 200
	for w := range writers {
		work.Go(func() {
			for i := range each {
				e := Entry{Tenant: fmt.Sprint(w), Status: i + 1}
				if i%3 == 0 {
					l.Note(e)
				} else {
					add(t, l, e)
				}
			}
		})
	}
	work.Wait()
	testenv.Poll(t, "all lines followed", func() bool { return len(followed) == writers*each })
	stop()
	watch.Wait()
	if lost := l.Lost(); lost != 0 {
		t.Errorf("lost %d entries, want none", lost)
	}
	shut(t, l)
	if r := sound(t, Check{Dir: dir}); r.Lines != writers*each || r.Files < 10 {
		t.Errorf("got %+v, want %d lines in at least 10 files", r, writers*each)
	}
	close(followed)
	next, at := map[string]int{}, uint64(0)
	for l := range followed {
		if at++; l.Seq != at {
			t.Fatalf("followed: got line %d, want %d", l.Seq, at)
		}
		if next[l.Tenant]++; l.Status != next[l.Tenant] {
			t.Fatalf("tenant %s: got entry %d, want %d", l.Tenant, l.Status, next[l.Tenant])
		}
	}
}

func TestTailFilters(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir, MaxBytes: 1000})
	for i := range 20 {
		add(t, l, Entry{Tenant: fmt.Sprint("t", i%2), Sandbox: fmt.Sprint("sb-", i%5), Name: fmt.Sprint("n", i%5), Status: i + 1})
	}
	shut(t, l)
	all := lines(t, dir, Filter{})
	for _, c := range []struct {
		f    Filter
		want int
	}{
		{Filter{}, 20}, {Filter{Tenant: "t1"}, 10}, {Filter{Sandbox: "sb-3"}, 4}, {Filter{Sandbox: "n3"}, 4},
		{Filter{Sandbox: "sb-3", Tenant: "t0"}, 2}, {Filter{Since: all[12].Time}, 8}, {Filter{Since: time.Now().Add(2 * time.Hour)}, 0},
	} {
		if got := lines(t, dir, c.f); len(got) != c.want {
			t.Errorf("%+v: got %d lines, want %d", c.f, len(got), c.want)
		}
	}
	enough := errors.New("enough")
	if err := Tail(context.Background(), dir, Filter{}, func(Line) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("got %v, want %v", err, enough)
	}
	files, _ := listFiles(dir)
	if err := os.Remove(filepath.Join(dir, fileName(files[2]))); err != nil {
		t.Fatal(err)
	}
	if err := Tail(context.Background(), dir, Filter{}, func(Line) error { return nil }); err == nil {
		t.Error("missing file: got no error, want one")
	}
	if err := Tail(context.Background(), t.TempDir(), Filter{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no log: got %v, want %v", err, os.ErrNotExist)
	}
}

// lastSeq returns the sequence number of the last line of an open log.
func lastSeq(l *Log) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written.Seq
}

// TestNote: notes are written in the background, in batches, and in order with appended entries.
func TestNote(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	l.Note(Entry{Op: "a"})
	testenv.Poll(t, "the note is written", func() bool { return lastSeq(l) == 1 })
	l.Note(Entry{Op: "b"})
	l.Note(Entry{Op: "c"})
	add(t, l, Entry{Op: "d"})
	l.Note(Entry{Op: "e"})
	shut(t, l)
	l.Note(Entry{Op: "f"})
	var got string
	for _, line := range lines(t, dir, Filter{}) {
		got += line.Op
	}
	if want := "abcde"; got != want {
		t.Errorf("got operations %q, want %q", got, want)
	}
}

// TestSlowSync: neither Append nor Note waits for a sync.
func TestSlowSync(t *testing.T) {
	l := open(t, Config{Dir: t.TempDir(), Patience: time.Minute})
	l.syncing.Lock() // a sync that hangs
	for range 3 {
		add(t, l, Entry{Op: "x"})
	}
	l.syncing.Unlock()
}

func TestSlowDisk(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir, Queue: 2, Patience: time.Minute, MaxBytes: 1})
	add(t, l, Entry{Op: "first"})
	l.syncing.Lock() // a rotation that hangs
	l.cfg.Patience = time.Millisecond
	if err := l.Append(Entry{Op: "slow"}); !errors.Is(err, ErrPending) {
		t.Errorf("hanging disk: got %v, want %v", err, ErrPending)
	}
	l.cfg.Patience = time.Minute
	testenv.Poll(t, "the writer hangs", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.batch.lines) == 0
	})
	l.Note(Entry{Op: "queued"})
	l.Note(Entry{Op: "queued"})
	for range 2 {
		if err := l.Append(Entry{Op: "lost"}); !errors.Is(err, ErrLost) {
			t.Errorf("full queue: got %v, want %v", err, ErrLost)
		}
	}
	l.Note(Entry{Op: "lost"})
	if got := l.Lost(); got != 3 {
		t.Errorf("got %d lost entries, want 3", got)
	}
	l.syncing.Unlock()
	testenv.Poll(t, "the loss is reported", func() bool { return lastSeq(l) == 5 })
	add(t, l, Entry{Op: "after"})
	shut(t, l)
	if r := sound(t, Check{Dir: dir}); r.Lost != 3 || r.Lines != 6 {
		t.Errorf("got %+v, want 3 lost entries in 6 lines", r)
	}
}

func TestFullDisk(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 128<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	l := open(t, Config{Dir: filepath.Join(dir, "log"), Sync: 5 * time.Millisecond})
	good, bad := uint64(0), uint64(0)
	for bad < 10 {
		err := l.Append(Entry{Op: "x"})
		switch {
		case err == nil:
			good++
		case errors.Is(err, ErrLost) && errors.Is(err, unix.ENOSPC):
			bad++
		default:
			t.Fatal(err)
		}
	}
	if lost := l.Lost(); lost != bad || good < 100 {
		t.Errorf("got %d lost and %d good entries, want %d lost and at least 100 good", lost, good, bad)
	}
	files, _ := listFiles(filepath.Join(dir, "log"))
	if b, err := os.ReadFile(filepath.Join(dir, "log", fileName(files[0]))); err != nil || b[len(b)-1] != '\n' {
		t.Errorf("got %d bytes, %v, want a file that ends with a newline", len(b), err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the loss is reported", func() bool { return lastSeq(l) == good+1 })
	add(t, l, Entry{Op: "x"})
	shut(t, l)
	if r := sound(t, Check{Dir: filepath.Join(dir, "log")}); r.Lost != bad || r.Lines != good+2 || len(r.Torn) != 0 {
		t.Errorf("got %+v, want %d lost and %d lines, none torn", r, bad, good+2)
	}
}

// TestSyncThatFailed: the kernel may drop data that it could not write, and reports the error only once.
func TestSyncThatFailed(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	add(t, l, Entry{Op: "a"})
	if err := l.sync(); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	l.syncing.Lock()
	add(t, l, Entry{Op: "b"})
	file := l.file
	l.file = w // a pipe cannot be synced
	l.syncing.Unlock()
	if err := l.sync(); err == nil {
		t.Fatal("sync: got no error, want one")
	}
	l.syncing.Lock()
	if err := file.Truncate(l.head.now.Offset); err != nil {
		t.Fatal(err)
	}
	l.file = file
	l.syncing.Unlock()
	add(t, l, Entry{Op: "c"})
	shut(t, l)
	if r := sound(t, Check{Dir: dir}); r.Lines != 3 || r.Synced != 3 {
		t.Errorf("got %+v, want 3 lines, all synced", r)
	}
}

func BenchmarkLog(b *testing.B) {
	e := Entry{Tenant: "tenant", KeyID: "key-1", Role: "user", Method: "POST", Path: "/v1/shell/exec", Sandbox: "sb-0123456789", Name: "box",
		Status: 200, In: 120, Out: 340, TookUS: 1000}
	for _, c := range []struct {
		name string
		key  []byte
		note bool
	}{{"append", nil, false}, {"append keyed", []byte("key"), false}, {"note", nil, true}} {
		b.Run(c.name, func(b *testing.B) {
			l := open(b, Config{Dir: b.TempDir(), Key: c.key, Queue: 1 << 30})
			defer l.Close()
			b.ReportAllocs()
			for b.Loop() {
				if c.note {
					l.Note(e)
				} else {
					add(b, l, e)
				}
			}
		})
	}
}

func FuzzLine(f *testing.F) {
	f.Add([]byte("a\nb\n"), int64(0))
	f.Add([]byte(`{"seq":1,"prev":"`+genesis+`","hash":"`+genesis+`"}`+"\n"), int64(0))
	f.Add([]byte(strings.Repeat("x", maxLine+3)), int64(1))
	f.Fuzz(func(t *testing.T, data []byte, from int64) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName(1)), data, 0o600); err != nil {
			t.Fatal(err)
		}
		rest, err := eachLine(dir, 1, max(from, 0), func(line []byte, end int64) error {
			if data[end-1] != '\n' || bytes.ContainsRune(line, '\n') {
				t.Errorf("got line %q before %d, want one up to its newline", line, end)
			}
			_, _ = key(nil).check(line)
			_, _ = parse(line)
			return nil
		})
		if err != nil || len(rest) > maxLine {
			t.Errorf("got %d bytes after the last line, %v, want at most %d", len(rest), err, maxLine)
		}
		_, _ = parseHead(data, nil)
	})
}
