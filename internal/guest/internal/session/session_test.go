package session

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// member is a session that may be busy.
type member struct {
	Entry
	busy bool
}

// table is a service that only has sessions.
type table struct {
	mu sync.Mutex
	*Table[*member]
}

func newTable(change ...func(*Config[*member])) *table {
	c := Config[*member]{
		Name: "test", Field: "session_id", List: "GET /list", End: "DELETE /one", Max: 3, Log: slog.New(slog.DiscardHandler),
		Busy:      func(m *member) bool { return m.busy },
		Evictable: func(m *member) bool { return !m.busy },
	}
	for _, f := range change {
		f(&c)
	}
	t := &table{}
	t.Table = NewTable(&t.mu, c)
	return t
}

func (t *table) do(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// open opens a session and expects no error.
func (t *table) open(tb testing.TB, id string) (m *member) {
	tb.Helper()
	t.do(func() {
		var err error
		if m, _, err = t.Open(id, func() *member { return &member{} }); err != nil {
			tb.Errorf("open %q: got error %v, want none", id, err)
		}
	})
	return m
}

// ids lists the sessions.
func (t *table) ids() string {
	var all []string
	t.do(func() {
		for m := range t.All() {
			all = append(all, m.ID)
		}
	})
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (t *table) want(tb testing.TB, when, want string) {
	tb.Helper()
	if got := t.ids(); got != want {
		tb.Errorf("%s: got sessions %q, want %q", when, got, want)
	}
}

// wantError expects an error with a code whose message contains a text.
func wantError(tb testing.TB, err error, code op.Code, text string) {
	tb.Helper()
	if e, ok := op.AsError(err); !ok || e.Code != code || !strings.Contains(e.Msg, text) {
		tb.Errorf("got error %v, want code %s and a message with %q", err, code, text)
	}
}

func TestOpenTwice(t *testing.T) {
	tab := newTable()
	first := tab.open(t, "a")
	tab.do(func() {
		again, created, err := tab.Open("a", func() *member { t.Error("a second session was created"); return &member{} })
		if again != first || created || err != nil {
			t.Errorf("got %p, created %v, error %v; want %p, false, none", again, created, err, first)
		}
		if got, ok := tab.Get("a"); got != first || !ok {
			t.Errorf("Get: got %p, %v, want %p, true", got, ok, first)
		}
		if got, err := tab.Find("a"); got != first || err != nil {
			t.Errorf("Find: got %p, %v, want %p, none", got, err, first)
		}
		_, err = tab.Find("b")
		wantError(t, err, op.NotFound, `no test session "b"; it was never created, was closed, or expired; GET /list lists the sessions`)
	})
	unnamed := tab.open(t, "")
	if len(unnamed.ID) != 16 || !unnamed.Auto || first.Auto {
		t.Errorf("got id %q, Auto %v and %v; want 16 characters, true and false", unnamed.ID, unnamed.Auto, first.Auto)
	}
	tab.Close()
}

func TestIDs(t *testing.T) {
	tab := newTable()
	tab.do(func() {
		for _, id := range []string{"a/b", "a\n", "\x00", "\u202e", strings.Repeat("x", 129)} {
			_, _, err := tab.Open(id, func() *member { return &member{} })
			wantError(t, err, op.Invalid, "invalid session_id: use at most 128 printable characters and no slash")
		}
	})
	tab.open(t, strings.Repeat("x", 128))
	tab.open(t, "ä b:1")
	tab.Close()
}

func TestLimit(t *testing.T) {
	tab := newTable()
	auto := tab.open(t, "")
	working := tab.open(t, "")
	tab.do(func() {
		auto.used = auto.used.Add(-time.Hour)
		working.used = working.used.Add(-2 * time.Hour)
		working.Enter()
	})
	tab.open(t, "a")
	tab.open(t, "b") // evicts the session without an ID and without calls
	tab.do(func() {
		if !auto.Removed() || working.Removed() {
			t.Errorf("got removed %v and %v, want true and false", auto.Removed(), working.Removed())
		}
		_, _, err := tab.Open("c", func() *member { return &member{} })
		wantError(t, err, op.Exhausted,
			"test session limit reached (3); reuse a session by its session_id (GET /list lists them), or end one with DELETE /one")
		if tab.Len() != 3 {
			t.Errorf("got %d sessions after a refusal, want 3", tab.Len())
		}
		working.Leave()
		working.busy = true
		_, _, err = tab.Open("c", func() *member { return &member{} })
		wantError(t, err, op.Exhausted, "limit reached")
		<-tab.Remove(working)
	})
	tab.open(t, "c")
	tab.want(t, "at the end", "a b c")
	tab.Close()
}

func TestReserved(t *testing.T) {
	tab := newTable()
	var all []*member
	reserve := func(id string) {
		tab.do(func() {
			m, created, err := tab.Reserve(id, func() *member { return &member{} })
			if err != nil || !created {
				t.Errorf("reserve %q: got created %v, error %v; want true, none", id, created, err)
			}
			m.used = m.used.Add(time.Duration(len(all)) * time.Second)
			all = append(all, m)
		})
	}
	for _, id := range []string{"a", "b", "c"} {
		reserve(id)
	}
	tab.do(func() {
		all[0].busy = true
		for _, m := range all {
			if err := tab.Admit(m); err != nil {
				t.Errorf("admit %s: got %v, want no error", m.ID, err)
			}
		}
	})
	for _, id := range []string{"d", "e", "f"} {
		reserve(id)
	}
	tab.want(t, "as many dormant as live", "a b c d e f")
	tab.do(func() {
		wantError(t, tab.Admit(all[3]), op.Exhausted, "limit reached (3)")
		tab.Release(all[0])
		tab.Release(all[1])
		if err := tab.Admit(all[3]); err != nil {
			t.Errorf("after a release: got %v, want no error", err)
		}
	})
	reserve("g") // evicts "b", because "a" is busy
	tab.want(t, "with one dormant too many", "a c d e f g")
	tab.do(func() {
		wantError(t, tab.Admit(all[1]), op.Conflict, `"b" was closed during the call`)
		if all[1].Live() || !all[3].Live() {
			t.Errorf("got live %v and %v, want false and true", all[1].Live(), all[3].Live())
		}
	})
	tab.Close()
}

// pass advances the time of a synctest bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(func(c *Config[*member]) { c.Idle, c.Max = time.Hour, 10 })
		tab.open(t, "a")
		pass(30 * time.Minute)
		b, called, busy, brief := tab.open(t, "b"), tab.open(t, "called"), tab.open(t, "busy"), tab.open(t, "brief")
		tab.do(func() {
			called.Enter()
			busy.busy = true
			tab.SetIdle(brief, 10*time.Minute)
			if brief.Idle() != 10*time.Minute || b.Idle() != time.Hour {
				t.Errorf("got idle times %v and %v, want 10m and 1h", brief.Idle(), b.Idle())
			}
		})
		pass(9 * time.Minute)
		tab.want(t, "after 39 minutes", "a b brief busy called")
		pass(2 * time.Minute)
		tab.want(t, "after 41 minutes", "a b busy called")
		pass(20 * time.Minute)
		tab.want(t, "after 61 minutes", "b busy called")
		b.Touch()
		pass(59 * time.Minute)
		tab.want(t, "after 120 minutes", "b busy called")
		pass(2 * time.Minute)
		tab.want(t, "after 122 minutes", "busy called")
		tab.do(func() {
			called.Leave()
			busy.busy = false
			busy.Touch()
		})
		pass(59 * time.Minute)
		tab.want(t, "an hour less a minute after the calls", "busy called")
		pass(time.Hour + 2*time.Minute)
		tab.want(t, "at the end", "")
		tab.open(t, "c")
		tab.Close()
		tab.want(t, "after Close", "")
	})
}

func TestNothingExpiresWithoutALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable()
		m := tab.open(t, "a")
		pass(1000 * time.Hour)
		tab.want(t, "after 1000 hours", "a")
		tab.do(func() { tab.SetIdle(m, time.Hour) })
		pass(time.Second)
		tab.want(t, "after an expired timeout", "")
		tab.Close()
	})
}

// TestCloseWhileCreating: a session that still starts during Close is removed, and Close waits
// until all sessions have ended.
func TestCloseWhileCreating(t *testing.T) {
	var mu sync.Mutex
	ended := 0
	tab := newTable(func(c *Config[*member]) {
		c.OnEnd = func(*member) func() {
			return func() {
				mu.Lock()
				defer mu.Unlock()
				ended++
			}
		}
	})
	starting := tab.open(t, "a")
	tab.open(t, "b")
	tab.do(starting.Enter)
	tab.Close()
	if mu.Lock(); ended != 2 {
		t.Errorf("got %d ends when Close returned, want 2", ended)
	}
	mu.Unlock()
	tab.do(func() {
		if !starting.Removed() || !tab.Closed() {
			t.Errorf("got removed %v, closed %v; want true, true", starting.Removed(), tab.Closed())
		}
		starting.Leave()
		wantError(t, tab.Admit(starting), op.Unavailable, "the sandbox is stopping")
		_, _, err := tab.Open("c", func() *member { t.Error("a session was created"); return &member{} })
		wantError(t, err, op.Unavailable, "the sandbox is stopping")
		<-tab.Remove(starting) // a no-op
	})
	tab.Close()
	if ended != 2 {
		t.Errorf("got %d ends, want 2", ended)
	}
}

// TestRaces opens, uses, changes and removes the same sessions concurrently while others
// expire.
func TestRaces(t *testing.T) {
	var mu sync.Mutex
	ends := map[*member]int{}
	tab := newTable(func(c *Config[*member]) {
		c.Max, c.Idle = 5, time.Microsecond
		c.OnEnd = func(m *member) func() {
			return func() {
				mu.Lock()
				defer mu.Unlock()
				ends[m]++
			}
		}
	})
	created := map[*member]bool{} // guarded by the table's lock
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for j := range 200 {
				var m *member
				var err error
				id := ""
				if j%3 > 0 {
					id = fmt.Sprint((i + j) % 7)
				}
				tab.do(func() {
					m, _, err = tab.Open(id, func() *member { return &member{} })
					if err == nil {
						created[m] = true
						m.Enter()
						tab.SetIdle(m, time.Duration(j%3)*time.Microsecond)
					}
				})
				if err != nil {
					continue
				}
				m.Touch()
				tab.do(m.Leave)
				if j%5 == 0 {
					var done <-chan struct{}
					tab.do(func() { done = tab.Remove(m) })
					<-done
				}
			}
		})
	}
	callers.Go(func() {
		for range 100 {
			tab.ids()
		}
	})
	callers.Wait()
	tab.Close()
	tab.want(t, "after Close", "")
	if len(ends) != len(created) {
		t.Errorf("got %d sessions that ended, want the %d that were created", len(ends), len(created))
	}
	for m, n := range ends {
		if n != 1 {
			t.Errorf("session %s: got %d ends, want 1", m.ID, n)
		}
	}
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	base := pathname.Base{Home: dir, Workspace: dir}
	if err := os.Mkdir(dir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path *string
		want string
	}{{nil, ""}, {new(""), ""}, {new("sub"), dir + "/sub"}, {new("~"), dir}, {new("/"), "/"}} {
		if got, err := Directory(base, "cwd", c.path); got != c.want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", op.Value(c.path), got, err, c.want)
		}
	}
	for path, c := range map[string]struct {
		code op.Code
		text string
	}{
		"none":   {op.NotFound, fmt.Sprintf("cwd %q does not exist; create it first, or omit cwd", dir+"/none")},
		"file":   {op.Invalid, fmt.Sprintf("cwd %q is not a directory", dir+"/file")},
		"file/x": {op.Denied, "is not accessible"},
		"a\x00":  {op.Invalid, "cwd: resolve"},
	} {
		_, err := Directory(base, "cwd", &path)
		wantError(t, err, c.code, c.text)
	}
}
