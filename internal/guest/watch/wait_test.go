package watch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// waiting calls wait and returns when it has a slot. It has checked the path then, so later changes
// are detected.
func waiting(t *testing.T, s *Service, in m, then func()) WaitOut {
	t.Helper()
	type result struct {
		out WaitOut
		err error
	}
	done := make(chan result)
	go func() {
		out, err := call[WaitOut](t, s, "watch_wait", in)
		done <- result{out, err}
	}()
	testenv.Poll(t, "the wait begins", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.waits > 0
	})
	then()
	r := <-done
	must(t, r.err)
	return r.out
}

func TestWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		path  string
		types []string
		do    func(t *testing.T, dir string)
		want  string
	}{
		{"create", "new", nil, func(t *testing.T, d string) { must(t, os.WriteFile(d+"/new", nil, 0o644)) }, Create},
		{"folder comes later", "x/y/z/f", []string{"create"}, func(t *testing.T, d string) {
			must(t, os.MkdirAll(d+"/x/y/z", 0o755))
			must(t, os.WriteFile(d+"/x/y/z/f", nil, 0o644))
		}, Create},
		{"folders come one by one, and go again", "x/y/f", []string{"create"}, func(t *testing.T, d string) {
			must(t, os.Mkdir(d+"/x", 0o755))
			must(t, os.Remove(d+"/x"))
			must(t, os.Mkdir(d+"/x", 0o755))
			must(t, os.Mkdir(d+"/tmp", 0o755))
			must(t, os.WriteFile(d+"/tmp/f", nil, 0o644))
			must(t, os.Rename(d+"/tmp", d+"/x/y"))
		}, Create},
		{"write", "old", []string{"write"}, func(t *testing.T, d string) { must(t, os.WriteFile(d+"/old", []byte("more"), 0o644)) }, Write},
		{"replaced as a whole", "old", []string{"write"}, func(t *testing.T, d string) {
			must(t, os.WriteFile(d+"/temp", []byte("more"), 0o644))
			must(t, os.Rename(d+"/temp", d+"/old"))
		}, Write},
		{"remove", "old", []string{"remove"}, func(t *testing.T, d string) { must(t, os.Remove(d+"/old")) }, Remove},
		{"renamed away", "old", []string{"rename"}, func(t *testing.T, d string) { must(t, os.Rename(d+"/old", d+"/gone")) }, Rename},
		{"its folder goes", "sub/in", []string{"remove"}, func(t *testing.T, d string) { must(t, os.RemoveAll(d+"/sub")) }, Remove},
		{"chmod", "old", []string{"chmod"}, func(t *testing.T, d string) { must(t, os.Chmod(d+"/old", 0o600)) }, Chmod},
		{"is there already", "old", []string{"create"}, nil, Create},
		{"does not exist", "none", []string{"remove"}, nil, Remove},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			dir := t.TempDir()
			must(t, os.Mkdir(dir+"/sub", 0o755))
			for _, f := range []string{"old", "sub/in"} {
				must(t, os.WriteFile(filepath.Join(dir, f), nil, 0o644))
			}
			in := m{"path": filepath.Join(dir, c.path), "timeout": longEnough.Seconds()}
			if c.types != nil {
				in["event_types"] = c.types
			}
			var out WaitOut
			if c.do == nil {
				var err error
				out, err = call[WaitOut](t, s, "watch_wait", in)
				must(t, err)
			} else {
				out = waiting(t, s, in, func() { c.do(t, dir) })
			}
			if !out.Triggered || out.TimedOut || out.EventType != c.want || out.Event.Type != c.want {
				t.Errorf("got %+v, want triggered, not timed out, event type %q and type %q", out, c.want, c.want)
			}
		})
	}
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	s := newService(t)
	dir := t.TempDir()
	out, err := call[WaitOut](t, s, "watch_wait", m{"path": dir + "/never", "timeout": 1})
	if err != nil || out.Triggered || !out.TimedOut || out.Exists {
		t.Errorf("got %+v %v, want not triggered, timed out and not existing", out, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Wait(ctx, WaitIn{Path: dir + "/never", Timeout: 300, EventTypes: []string{Write}})
	if e, ok := op.AsError(err); !ok || e.Code != op.Canceled {
		t.Errorf("got %v, want an error with code canceled", err)
	}
	for _, in := range []m{{"path": dir, "timeout": 0}, {"path": dir, "timeout": 301}, {"path": dir, "event_types": []string{"burn"}}} {
		if _, err := call[WaitOut](t, s, "watch_wait", in); err == nil {
			t.Errorf("%v: got no error, want one", in)
		}
	}
}

// fewWatches is set when this test program runs in its own user namespace, where the limits of
// inotify can be changed.
const fewWatches = "COVE_TEST_FEW_WATCHES"

func TestWatchesRunOut(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestFewWatches$", "-test.v")
	cmd.Env = append(os.Environ(), fewWatches+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		testenv.Lack(t, fmt.Sprint("no user namespace can be made: ", err))
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: TestFewWatches") {
		t.Errorf("got %v\n%s, want \"--- PASS: TestFewWatches\" in it", err, out)
	}
}

func TestFewWatches(t *testing.T) {
	if os.Getenv(fewWatches) == "" {
		t.Skip("TestWatchesRunOut runs it")
	}
	must(t, os.WriteFile("/proc/sys/user/max_inotify_watches", []byte("10"), 0o644))
	must(t, os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("2"), 0o644))
	s := newService(t)
	many := t.TempDir()
	for i := range 20 {
		must(t, os.Mkdir(filepath.Join(many, string(rune('a'+i))), 0o755))
	}
	_, err := call[Created](t, s, "watch_create", m{"path": many})
	if e, ok := op.AsError(err); !ok || e.Code != op.Exhausted || !strings.Contains(e.Msg, "max_user_watches") {
		t.Errorf(`got %v, want an error with code exhausted that contains "max_user_watches"`, err)
	}
	few := t.TempDir()
	// The kernel releases the watches of a closed instance a moment later.
	deadline := time.Now().Add(longEnough)
	o := &observer{t: t, s: s, dir: few}
	for o.id == "" {
		info, err := call[Created](t, s, "watch_create", m{"path": few, "debounce": 50})
		if o.id = info.WatcherID; err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		must(t, os.Mkdir(filepath.Join(few, string(rune('a'+i))), 0o755))
	}
	o.until("overflow ")
	for {
		list, err := call[ListOut](t, s, "watch_list", nil)
		must(t, err)
		if list.Watchers[0].Unwatched > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %+v until the deadline, want a folder that is not watched", list)
		}
	}
	must(t, os.WriteFile("/proc/sys/user/max_inotify_watches", []byte("1000"), 0o644))
	observe(t, s, few, nil)
	_, err = call[Created](t, s, "watch_create", m{"path": few})
	if e, ok := op.AsError(err); !ok || e.Code != op.Exhausted || !strings.Contains(e.Msg, "max_user_instances") {
		t.Errorf(`got %v, want an error with code exhausted that contains "max_user_instances"`, err)
	}
}
