package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/filesystem/inotify"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newService(t testing.TB, change ...func(*Config)) *Service {
	t.Helper()
	c := Config{Home: t.TempDir(), Workspace: t.TempDir()}
	for _, f := range change {
		f(&c)
	}
	s := New(c)
	t.Cleanup(func() {
		must(t, s.Close())
		must(t, s.Close())
	})
	return s
}

// call runs an operation as a surface does.
func call[Out any](t testing.TB, s *Service, name string, in map[string]any) (Out, error) {
	t.Helper()
	var none Out
	for _, o := range s.Ops() {
		if o.Name != name {
			continue
		}
		b, err := json.Marshal(in)
		must(t, err)
		bound, err := o.Bind(op.Input{JSON: b, Flat: true})
		if err != nil {
			return none, err
		}
		out, err := o.Call(t.Context(), bound)
		if err != nil {
			return none, err
		}
		return out.(Out), nil
	}
	t.Fatal("no operation ", name)
	return none, nil
}

type m = map[string]any

// longEnough limits the wait for events. It is generous, so that a busy machine does not fail a test.
const longEnough = time.Minute

// observer follows a watcher by polling.
type observer struct {
	t      testing.TB
	s      *Service
	id     string
	dir    string
	cursor int64
}

func observe(t testing.TB, s *Service, dir string, in m) *observer {
	t.Helper()
	all := m{"path": dir, "debounce": 50}
	for k, v := range in {
		all[k] = v
	}
	info, err := call[Created](t, s, "watch_create", all)
	must(t, err)
	return &observer{t, s, info.WatcherID, dir, 0}
}

// until polls until all the wanted events have arrived in this order, possibly with others between
// them, and returns all events. An event is "kind path" below the folder.
func (o *observer) until(want ...string) []string {
	o.t.Helper()
	var got []string
	missing := want
	deadline := time.Now().Add(longEnough)
	for len(missing) > 0 {
		out, err := call[PollOut](o.t, o.s, "watch_poll", m{"watcher_id": o.id, "cursor": o.cursor, "timeout": 1})
		must(o.t, err)
		o.cursor = out.Cursor
		for _, e := range out.Events {
			text := o.brief(e)
			got = append(got, text)
			if len(missing) > 0 && text == missing[0] {
				missing = missing[1:]
			}
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("got %q until the deadline, want %q", got, missing)
		}
	}
	return got
}

func (o *observer) brief(e Event) string {
	rel := func(p string) string { return strings.TrimPrefix(strings.TrimPrefix(p, o.dir), "/") }
	text := e.Type + " " + rel(e.Path)
	if e.OldPath != nil {
		text += " from " + rel(*e.OldPath)
	}
	return text
}

// atOnce pauses the watcher during do: on a busy machine, the steps of one change may otherwise
// exceed the debounce time.
func (o *observer) atOnce(do func()) {
	o.t.Helper()
	o.s.mu.Lock()
	w := o.s.watchers[o.id]
	o.s.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

func (o *observer) write(name, content string) {
	o.t.Helper()
	must(o.t, os.WriteFile(filepath.Join(o.dir, name), []byte(content), 0o644))
}

func (o *observer) replace(name, content string) {
	o.t.Helper()
	must(o.t, atomicfile.Replace(filepath.Join(o.dir, name), atomicfile.Options{}, func(f *os.File) error {
		_, err := f.WriteString(content)
		return err
	}))
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := newService(t)
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/old", []byte("x"), 0o644))
	o := observe(t, s, dir, nil)
	exact := func(want ...string) {
		t.Helper()
		// When the last file is reported, everything before it has been reported.
		name := fmt.Sprint("mark", o.cursor)
		o.until(want...)
		o.write(name, "")
		if got := o.until("create " + name); len(got) != 1 {
			t.Errorf("besides %q: got %q, want 1 entry", want, got)
		}
	}
	o.atOnce(func() { o.write("new", "content") })
	exact("create new")
	o.atOnce(func() { o.write("old", "longer content") })
	exact("write old")
	must(t, os.Chmod(dir+"/old", 0o600))
	exact("chmod old")
	o.atOnce(func() { o.replace("old", "as a whole") })
	exact("write old")
	o.atOnce(func() { o.replace("fresh", "as a whole") })
	exact("create fresh")
	must(t, os.Rename(dir+"/fresh", dir+"/renamed"))
	exact("rename renamed from fresh")
	must(t, os.Remove(dir+"/renamed"))
	exact("remove renamed")
	// A file that is created and removed quickly is not reported.
	o.atOnce(func() {
		o.write("brief", "")
		must(t, os.Remove(dir+"/brief"))
	})
	exact()
	// The different ways in which editors save.
	o.atOnce(func() {
		must(t, os.Rename(dir+"/old", dir+"/old~"))
		o.write("old", "saved")
		must(t, os.Remove(dir+"/old~"))
	})
	o.until("rename old~ from old", "create old")
	o.atOnce(func() {
		o.write("sedABC", "by sed")
		must(t, os.Rename(dir+"/sedABC", dir+"/old"))
	})
	o.until("write old")
	// Moves out of the tree and into it.
	outside := t.TempDir()
	must(t, os.Rename(dir+"/new", outside+"/new"))
	exact("remove new")
	must(t, os.Rename(outside+"/new", dir+"/back"))
	exact("create back")
}

func TestFoldersThatAppearLater(t *testing.T) {
	t.Parallel()
	s := newService(t)
	dir := t.TempDir()
	o := observe(t, s, dir, nil)
	must(t, os.MkdirAll(dir+"/a/b/c", 0o755))
	o.write("a/b/c/f", "x")
	o.until("create a", "create a/b", "create a/b/c", "create a/b/c/f")
	o.write("a/b/c/f", "more")
	o.until("write a/b/c/f")
	must(t, os.Rename(dir+"/a/b", dir+"/moved"))
	o.until("rename moved from a/b")
	o.write("moved/c/f", "even more")
	o.until("write moved/c/f")
	must(t, os.RemoveAll(dir+"/moved"))
	o.until("remove moved")
	outside := t.TempDir()
	must(t, os.MkdirAll(outside+"/in/deep", 0o755))
	must(t, os.WriteFile(outside+"/in/deep/g", nil, 0o644))
	must(t, os.Rename(outside+"/in", dir+"/in"))
	o.until("create in/deep/g")
	o.write("in/deep/g", "x")
	o.until("write in/deep/g")
	must(t, os.Rename(dir+"/in", outside+"/out"))
	o.until("remove in")
	deadline := time.Now().Add(longEnough)
	for {
		list, err := call[ListOut](t, s, "watch_list", nil)
		must(t, err)
		if w := list.Watchers[0]; w.Folders == 2 && w.Status == "active" && w.Kept > 0 && list.Count == 1 {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("got %+v until the deadline, want 1 active watcher of 2 folders with events", list)
		}
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	s := newService(t)
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/src", 0o755))
	must(t, os.MkdirAll(dir+"/node_modules/m", 0o755))
	o := observe(t, s, dir, nil)
	o.write("node_modules/m/f", "")
	o.write("src/cache.pyc", "")
	must(t, os.MkdirAll(dir+"/.git/objects", 0o755))
	o.write(".git/objects/x", "")
	o.write("src/f.py", "")
	if got := o.until("create src/f.py"); len(got) != 1 {
		t.Errorf("got %q, want 1 entry", got)
	}
	only := observe(t, s, dir, m{"include_patterns": []string{"*.go", "docs/**"}, "exclude": []string{"src/gen/*"}})
	must(t, os.MkdirAll(dir+"/src/gen", 0o755))
	must(t, os.MkdirAll(dir+"/docs", 0o755))
	for _, f := range []string{"src/x.txt", "src/gen/x.go", "docs/d.md", "src/y.go"} {
		only.write(f, "")
	}
	got := only.until("create src/y.go")
	slices.Sort(got)
	if want := []string{"create docs", "create docs/d.md", "create src/y.go"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	flat := observe(t, s, dir, m{"recursive": false})
	flat.write("src/deep", "")
	flat.write("top", "")
	if got := flat.until("create top"); len(got) != 1 {
		t.Errorf("got %q, want 1 entry", got)
	}
	one := observe(t, s, dir+"/top", nil)
	one.write("../other", "")
	one.dir = dir
	one.write("top", "x")
	if got := one.until("write top"); len(got) != 1 {
		t.Errorf("got %q, want 1 entry", got)
	}
	for _, in := range []m{{"path": dir, "exclude": []string{"["}}, {"path": ""}} {
		_, err := call[Created](t, s, "watch_create", in)
		if e, ok := op.AsError(err); !ok || e.Code != op.Invalid {
			t.Errorf("%v: got %v, want an error with code invalid", in, err)
		}
	}
	_, err := call[Created](t, s, "watch_create", m{"path": dir + "/none"})
	if e, ok := op.AsError(err); !ok || e.Code != op.NotFound {
		t.Errorf("got %v, want an error with code not_found", err)
	}
}

// shadow is the state of a tree according to its events.
type shadow map[string]bool

func (s shadow) apply(e Event) {
	below := func(path string) []string {
		var out []string
		for p := range s {
			if p == path || strings.HasPrefix(p, path+"/") {
				out = append(out, p)
			}
		}
		return out
	}
	switch e.Type {
	case Create, Write, Chmod:
		s[e.Path] = true
	case Remove:
		for _, p := range below(e.Path) {
			delete(s, p)
		}
	case Rename:
		for _, p := range below(e.Path) {
			delete(s, p)
		}
		moved := below(*e.OldPath)
		for _, p := range moved {
			delete(s, p)
		}
		for _, p := range moved {
			s[e.Path+strings.TrimPrefix(p, *e.OldPath)] = true
		}
		s[e.Path] = true
	}
}

func actual(t testing.TB, dir string) shadow {
	out := shadow{}
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if path != dir {
			out[path] = true
		}
		return err
	}))
	return out
}

// After any changes of a tree, a client that follows the events knows its state.
func TestEventsDescribeTheTree(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 3))
	s := newService(t)
	dir := t.TempDir()
	o := observe(t, s, dir, nil)
	names := []string{"a", "b", "c", "d"}
	path := func() string {
		p := dir
		for range 1 + rnd.IntN(3) {
			p += "/" + names[rnd.IntN(len(names))]
		}
		return p
	}
	known := shadow{}
	var trace []string
	did := func(what string, err error) {
		if err == nil {
			trace = append(trace, strings.ReplaceAll(what, dir+"/", ""))
		}
	}
	follow := func() bool {
		out, err := call[PollOut](t, s, "watch_poll", m{"watcher_id": o.id, "cursor": o.cursor, "limit": 1000, "timeout": 1})
		must(t, err)
		for _, e := range out.Events {
			known.apply(e)
			trace = append(trace, "  event: "+o.brief(e))
		}
		o.cursor = out.Cursor
		return cmp.Equal(known, actual(t, dir))
	}
	for round := range 12 {
		for range 25 {
			p := path()
			// Many of these fail, which is fine: a file may be in the place of a folder.
			switch rnd.IntN(7) {
			case 0:
				did("mkdir "+p, os.MkdirAll(p, 0o755))
			case 1:
				did("remove all "+p, os.RemoveAll(p))
			case 2:
				q := path()
				did("rename "+p+" to "+q, os.Rename(p, q))
			case 3:
				did("remove "+p, os.Remove(p))
			default:
				did("write "+p, os.WriteFile(p, []byte(names[rnd.IntN(4)]), 0o644))
			}
		}
		deadline := time.Now().Add(longEnough)
		for !follow() {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: got difference %s until the deadline, want none\n%s",
					round, cmp.Diff(known, actual(t, dir)), strings.Join(trace, "\n"))
			}
		}
		trace = nil
	}
}

// After an overflow of the kernel's queue, the known state is compared with the current state.
func TestKernelOverflow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/old/deep", 0o755))
	for _, f := range []string{"stays", "goes", "old/deep/goes"} {
		must(t, os.WriteFile(filepath.Join(dir, f), nil, 0o644))
	}
	tree, err := newTree(t.Context(), dir, true, rules{}, 100)
	must(t, err)
	defer tree.in.Close()
	w := &watcher{path: dir, tree: tree, log: newLog(100), maxPending: 100, pending: map[string]*change{}, moves: map[uint32]*move{}}
	must(t, os.RemoveAll(dir+"/old"))
	must(t, os.Remove(dir+"/goes"))
	must(t, os.MkdirAll(dir+"/new/er", 0o755))
	must(t, os.WriteFile(dir+"/new/er/f", nil, 0o644))
	now := time.Now()
	w.handle(inotify.Event{WD: -1, Mask: unix.IN_Q_OVERFLOW}, now)
	w.reportQuiet(now.Add(time.Second))
	o := observer{dir: dir}
	var got []string
	events, _, _, _ := w.log.after(0, 100)
	for _, e := range events {
		got = append(got, o.brief(e))
	}
	if got[0] != "overflow " || *events[0].Reason == "" {
		t.Errorf(`got %q, want first "overflow " and a reason`, got)
	}
	slices.Sort(got)
	if want := []string{"create new", "create new/er", "create new/er/f", "overflow ", "remove goes", "remove old"}; !cmp.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLogOverflow(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxEvents = 10 })
	dir := t.TempDir()
	o := observe(t, s, dir, nil)
	for i := range 35 {
		o.write(fmt.Sprintf("f%02d", i), "")
	}
	deadline := time.Now().Add(longEnough)
	for {
		out, err := call[PollOut](t, s, "watch_poll", m{"watcher_id": o.id, "limit": 4, "timeout": 1})
		must(t, err)
		if out.Dropped == 25 {
			if !out.Overflow || len(out.Events) != 4 || !out.HasMore || out.Events[0].Seq != 26 || out.Cursor != 29 {
				t.Errorf("got %+v, want overflow, 4 of more events, first seq 26 and cursor 29", out)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %+v until the deadline, want 25 dropped", out)
		}
	}
	out, err := call[PollOut](t, s, "watch_poll", m{"watcher_id": o.id, "cursor": 35})
	if err != nil || len(out.Events) != 0 || out.Cursor != 35 || out.Overflow {
		t.Errorf("got %+v %v, want no events, cursor 35 and no overflow", out, err)
	}
	out, err = call[PollOut](t, s, "watch_poll", m{"watcher_id": o.id, "cursor": 999})
	if err != nil || out.Cursor != 35 {
		t.Errorf("a cursor from elsewhere: got %+v %v, want cursor 35", out, err)
	}
}

func TestWatchedFolderGoes(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"removed", "renamed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			dir := filepath.Join(t.TempDir(), "dir")
			must(t, os.Mkdir(dir, 0o755))
			o := observe(t, s, dir, nil)
			o.write("f", "")
			if how == "removed" {
				must(t, os.RemoveAll(dir))
			} else {
				must(t, os.Rename(dir, dir+"2"))
			}
			o.until("remove ")
			out, err := call[PollOut](t, s, "watch_poll", m{"watcher_id": o.id})
			if err != nil || out.Status != "gone" {
				t.Errorf(`got %+v %v, want status "gone"`, out, err)
			}
		})
	}
}

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	s := newService(t)
	dir := t.TempDir()
	o := observe(t, s, dir, nil)
	var wg sync.WaitGroup
	started := make(chan struct{}, 3)
	wg.Go(func() {
		started <- struct{}{}
		_, _ = s.Poll(context.Background(), PollIn{WatcherID: o.id, Limit: 1, Timeout: 60})
	})
	wg.Go(func() {
		started <- struct{}{}
		_, err := s.Wait(context.Background(), WaitIn{Path: dir + "/none", Timeout: 300, EventTypes: []string{Create}})
		if e, ok := op.AsError(err); !ok || e.Code != op.Canceled && e.Code != op.Exhausted {
			t.Errorf("got %v, want an error with code canceled or exhausted", err)
		}
	})
	wg.Go(func() {
		_ = s.Events(context.Background(), EventsIn{WatcherID: o.id}, func(op.Event) error { started <- struct{}{}; return nil })
	})
	for range 3 {
		<-started
	}
	must(t, s.Close())
	wg.Wait()
	if !errors.Is(o.s.life.Err(), context.Canceled) {
		t.Error("the watcher still runs")
	}
}

// TestFlush: changes that happened before the call are reported, although they are not quiet.
func TestFlush(t *testing.T) {
	t.Parallel()
	s := newService(t)
	dir := t.TempDir()
	made, err := s.Create(t.Context(), CreateIn{Path: dir, Recursive: true, Debounce: 3_600_000})
	must(t, err)
	cursor := int64(0)
	for i := range 50 {
		name := filepath.Join(dir, fmt.Sprint("f", i))
		must(t, os.WriteFile(name, []byte("x"), 0o644))
		must(t, os.Rename(name, name+"-moved"))
		must(t, os.Mkdir(filepath.Join(dir, fmt.Sprint("d", i)), 0o755))
		must(t, s.Flush(t.Context(), made.WatcherID))
		out, err := s.Poll(t.Context(), PollIn{WatcherID: made.WatcherID, Cursor: cursor, Limit: 100})
		must(t, err)
		var got []string
		for _, e := range out.Events {
			got = append(got, e.Type+" "+e.Relative)
		}
		if !slices.Contains(got, fmt.Sprintf("create f%d-moved", i)) || !slices.Contains(got, fmt.Sprintf("create d%d", i)) {
			t.Fatalf("after flush: got %q, want the new file and folder", got)
		}
		cursor = out.Cursor
	}
	if err := s.Flush(t.Context(), "none"); err == nil {
		t.Error("flush of no watcher: got no error")
	}
}
