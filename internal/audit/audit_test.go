package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/testenv"

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
	if err := l.Append(context.Background(), e); err != nil {
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
		t.Fatalf("verify: %v", r.Problem)
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

func TestLineHoldsWhatItShould(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	add(t, l, Entry{Tenant: "a", KeyID: "k1", Role: "user", Op: "sandbox_create", Sandbox: "sb-1", Name: "box",
		Status: 200, In: 10, Out: 20, Took: 1500 * time.Microsecond, Durable: true})
	add(t, l, Entry{Tenant: "b\"\\\n\x00\xff", Method: "GET", Path: "/v1/x?token=hunter2#secret", Status: 502, Code: "unavailable", Name: strings.Repeat("é", 1000)})
	shut(t, l)
	got := lines(t, dir, Filter{})
	if len(got) != 2 {
		t.Fatalf("got %d lines", len(got))
	}
	for i := range got {
		if since := time.Since(got[i].Time); since < 0 || since > time.Minute {
			t.Errorf("time of line %d: %v", i, got[i].Time)
		}
		got[i].Time = time.Time{}
	}
	want := []Line{
		{Seq: 1, Prev: genesis.String(), Tenant: "a", KeyID: "k1", Role: "user", Op: "sandbox_create", Sandbox: "sb-1", Name: "box",
			Status: 200, In: 10, Out: 20, TookUS: 1500, Hash: got[0].Hash},
		{Seq: 2, Prev: got[0].Hash, Tenant: "b\"\\\n\x00\uFFFD", Method: "GET", Path: "/v1/x", Status: 502, Code: "unavailable",
			Name: strings.Repeat("é", 255) + "…", Hash: got[1].Hash},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{fileName(1), headName, lockName} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
	b, _ := os.ReadFile(filepath.Join(dir, fileName(1)))
	if strings.Contains(string(b), "hunter2") || strings.Contains(string(b), "secret") {
		t.Error("a query string is in the log")
	}
}

func TestChainGoesOnAfterOpen(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		l := open(t, Config{Dir: dir})
		add(t, l, Entry{Op: "x"})
		if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrLocked) {
			t.Fatalf("second writer: %v", err)
		}
		if r := sound(t, Check{Dir: dir}); !r.Live {
			t.Error("a writer was at work and not seen")
		}
		shut(t, l)
		shut(t, l)
		if err := l.Append(context.Background(), Entry{}); !errors.Is(err, ErrClosed) {
			t.Fatalf("append after close: %v", err)
		}
	}
	if r := sound(t, Check{Dir: dir}); r.Lines != 3 || r.Last.Seq != 3 || r.Synced != 3 || r.Live {
		t.Errorf("%+v", r)
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
		t.Errorf("%+v", r)
	}

	// A crash between the head's word and the removal leaves a file too many.
	files, _ := listFiles(dir)
	old := filepath.Join(dir, fileName(files[0]))
	kept, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	h := edit(t, dir, cfg.Key, func(h *head) {
		l := &Log{cfg: cfg}
		if h.Gone, err = l.before(files[1]); err != nil {
			t.Fatal(err)
		}
	})
	if r := sound(t, Check{Dir: dir, Key: cfg.Key}); r.Files != 3 {
		t.Errorf("%+v", r)
	}
	if err := os.Remove(old); err != nil {
		t.Fatal(err)
	}
	if r := sound(t, Check{Dir: dir, Key: cfg.Key}); r.First != h.Gone.Seq+1 {
		t.Errorf("%+v", r)
	}
	if err := os.WriteFile(old, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	shut(t, open(t, cfg))
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old file is still there: %v", err)
	}
}

// edit changes the head of a closed log the way its writer would.
func edit(t *testing.T, dir string, key []byte, change func(*head)) head {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, headName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := readHead(f, key)
	if err != nil {
		t.Fatal(err)
	}
	hf := headFile{f: f, chain: newChain(key), now: h}
	change(&h)
	if err := hf.write(h); err != nil {
		t.Fatal(err)
	}
	return h
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
				if r.Problem == nil || r.Problem.Seq != 3 || !strings.Contains(r.Problem.Detail, "power cut") {
					t.Errorf("before: %+v", r)
				}
			} else if r.Problem != nil || len(r.Torn) != 1 || r.Torn[0] != (Place{fileName(1), 3, 3}) {
				t.Errorf("before: %+v", r)
			}
			l = open(t, Config{Dir: dir})
			add(t, l, Entry{Op: "c"})
			shut(t, l)
			if r := sound(t, Check{Dir: dir}); len(r.Torn) != 1 || r.Torn[0].Seq != 3 || r.Last.Seq != 4 {
				t.Errorf("after: %+v", r)
			}
			got := lines(t, dir, Filter{})
			if got[2].Kind != KindTorn || got[2].Count != uint64(len(part)) || got[2].Text != part[:min(len(part), maxText)] || got[3].Op != "c" {
				t.Errorf("%+v", got[2:])
			}
			aside, err := os.ReadFile(filepath.Join(dir, asideName(3)))
			if len(part) > maxText && string(aside) != part || len(part) <= maxText && err == nil {
				t.Errorf("moved aside: %d bytes, %v", len(aside), err)
			}
		})
	}
}

// TestLineWithoutItsNewline: a line was torn even when all but its last byte is there.
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
	c := newChain(nil)
	b, _ = c.appendLine(b, 2, digest([]byte(lines(t, dir, Filter{})[0].Hash)), time.Now(), Entry{Op: "b"}.appendTo(nil))
	if err := os.WriteFile(path, b[:len(b)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	l = open(t, Config{Dir: dir})
	add(t, l, Entry{Op: "c"})
	shut(t, l)
	if r := sound(t, Check{Dir: dir}); len(r.Torn) != 1 || r.Last.Seq != 3 {
		t.Errorf("%+v", r)
	}
}

// TestOneRecordOfTheHead: one good record is enough to go on, and the log tells of the other.
func TestOneRecordOfTheHead(t *testing.T) {
	for i := range 2 {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir})
		add(t, l, Entry{Op: "a", Durable: true})
		add(t, l, Entry{Op: "b", Durable: true})
		shut(t, l)
		f, err := os.OpenFile(filepath.Join(dir, headName), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("torn"), int64(i)*slot); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if r := verify(t, Check{Dir: dir}); r.Problem == nil || r.Problem.File != headName {
			t.Errorf("before: %+v", r)
		}
		l = open(t, Config{Dir: dir})
		add(t, l, Entry{Op: "c"})
		shut(t, l)
		if r := sound(t, Check{Dir: dir}); len(r.Torn) != 1 || r.Last.Seq != 4 {
			t.Errorf("after: %+v", r)
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
				t.Errorf("open: %v, want %v", err, want)
			}
		})
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, Config{Dir: dir, MaxBytes: 20000, Keep: 1000, Sync: 5 * time.Millisecond})
	ctx, stop := context.WithCancel(context.Background())
	var watch, work sync.WaitGroup
	followed := make(chan Line, 10000)
	watch.Go(func() {
		if err := Tail(ctx, dir, Filter{Follow: true}, func(l Line) error { followed <- l; return nil }); err != nil {
			t.Error(err)
		}
	})
	watch.Go(func() {
		for ctx.Err() == nil {
			if r, err := Verify(ctx, Check{Dir: dir}); err == nil && r.Problem != nil {
				t.Errorf("verify while writing: %v", r.Problem)
			}
		}
	})
	const writers, each = 8, 200
	for w := range writers {
		work.Go(func() {
			for i := range each {
				add(t, l, Entry{Tenant: fmt.Sprint(w), Status: i + 1, Durable: i%10 == 0})
			}
		})
	}
	work.Wait()
	testenv.Poll(t, "all lines followed", func() bool { return len(followed) == writers*each })
	stop()
	watch.Wait()
	if s := l.Stats(); s.Seq != writers*each || s.Lost != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	shut(t, l)
	if r := sound(t, Check{Dir: dir}); r.Lines != writers*each || r.Files < 10 {
		t.Errorf("%+v", r)
	}
	close(followed)
	next, at := map[string]int{}, uint64(0)
	for l := range followed {
		if at++; l.Seq != at {
			t.Fatalf("followed %d instead of %d", l.Seq, at)
		}
		if next[l.Tenant]++; l.Status != next[l.Tenant] {
			t.Fatalf("order of tenant %s", l.Tenant)
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
			t.Errorf("%+v: %d lines, want %d", c.f, len(got), c.want)
		}
	}
	enough := errors.New("enough")
	if err := Tail(context.Background(), dir, Filter{}, func(Line) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	files, _ := listFiles(dir)
	if err := os.Remove(filepath.Join(dir, fileName(files[2]))); err != nil {
		t.Fatal(err)
	}
	if err := Tail(context.Background(), dir, Filter{}, func(Line) error { return nil }); err == nil {
		t.Error("a missing file was passed over")
	}
	if err := Tail(context.Background(), t.TempDir(), Filter{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
}

func TestSlowDisk(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir, Queue: 2, Patience: 50 * time.Millisecond})
	l.syncing.Lock() // a sync that hangs
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		want error
	}{{ctx, context.Canceled}, {context.Background(), ErrUnsure}} {
		if err := l.Append(c.ctx, Entry{Op: "slow", Durable: true}); !errors.Is(err, c.want) || !errors.Is(err, ErrUnsure) {
			t.Errorf("got %v, want %v", err, c.want)
		}
	}
	testenv.Poll(t, "both wait", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.waiters) == 2 })
	for _, durable := range []bool{true, false, false} {
		if err := l.Append(context.Background(), Entry{Op: "lost", Durable: durable}); !errors.Is(err, ErrLost) {
			t.Errorf("full queue: %v", err)
		}
	}
	l.syncing.Unlock()
	testenv.Poll(t, "the loss is told", func() bool { return l.Stats().Seq == 3 })
	add(t, l, Entry{Op: "after", Durable: true})
	shut(t, l)
	if r := sound(t, Check{Dir: dir}); r.Lost != 3 || r.Lines != 4 {
		t.Errorf("%+v", r)
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
		err := l.Append(context.Background(), Entry{Op: "x", Durable: bad%2 == 1})
		switch {
		case err == nil:
			good++
		case errors.Is(err, ErrLost) && errors.Is(err, unix.ENOSPC):
			bad++
		default:
			t.Fatal(err)
		}
	}
	if s := l.Stats(); s.Lost != bad || good < 100 {
		t.Errorf("%+v, good %d, bad %d", s, good, bad)
	}
	files, _ := listFiles(filepath.Join(dir, "log"))
	if b, err := os.ReadFile(filepath.Join(dir, "log", fileName(files[0]))); err != nil || b[len(b)-1] != '\n' {
		t.Errorf("half a line is left: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the loss is told", func() bool { return l.Stats().Seq == good+1 })
	add(t, l, Entry{Op: "x", Durable: true})
	shut(t, l)
	if r := sound(t, Check{Dir: filepath.Join(dir, "log")}); r.Lost != bad || r.Lines != good+2 || len(r.Torn) != 0 {
		t.Errorf("%+v, good %d, bad %d", r, good, bad)
	}
}

// TestSyncThatFailed: the kernel may drop what it could not write and say so once only.
func TestSyncThatFailed(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir})
	add(t, l, Entry{Op: "a", Durable: true})
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
	if err := l.flush(false); !errors.Is(err, ErrUnsure) {
		t.Fatalf("got %v", err)
	}
	l.syncing.Lock()
	if err := file.Truncate(l.synced.offset); err != nil {
		t.Fatal(err)
	}
	l.file = file
	l.syncing.Unlock()
	add(t, l, Entry{Op: "c", Durable: true})
	shut(t, l)
	if r := sound(t, Check{Dir: dir}); r.Lines != 3 || r.Synced != 3 {
		t.Errorf("%+v", r)
	}
}

func BenchmarkAppend(b *testing.B) {
	e := Entry{Tenant: "tenant", KeyID: "key-1", Role: "user", Method: "POST", Path: "/v1/shell/exec", Sandbox: "sb-0123456789", Name: "box",
		Status: 200, In: 120, Out: 340, Took: time.Millisecond}
	for _, c := range []struct {
		name string
		key  []byte
		par  bool
	}{{"one", nil, false}, {"one keyed", []byte("key"), false}, {"many", nil, true}} {
		b.Run(c.name, func(b *testing.B) {
			l := open(b, Config{Dir: b.TempDir(), Key: c.key})
			defer l.Close()
			b.ReportAllocs()
			if c.par {
				b.SetParallelism(16)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						add(b, l, e)
					}
				})
				return
			}
			for b.Loop() {
				add(b, l, e)
			}
		})
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte("a\nb\n"), int64(0))
	f.Add([]byte(`{"seq":1,"prev":"`+genesis.String()+`","hash":"`+genesis.String()+`"}`+"\n"), int64(0))
	f.Add([]byte(strings.Repeat("x", maxLine+3)), int64(1))
	f.Fuzz(func(t *testing.T, data []byte, from int64) {
		c := newChain(nil)
		s := newScanner(strings.NewReader(string(data)), max(from, 0))
		for {
			line, whole, err := s.next()
			if errors.Is(err, io.EOF) || !whole {
				break
			}
			_, _ = c.open(line)
			_, _ = parse(line)
		}
	})
}
