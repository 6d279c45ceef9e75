package sandbox

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func full() Spec {
	return Spec{
		Name: "a", Owner: "o", Environment: "aio", Image: "registry:5000/x/y@sha256:00", Command: []string{"/bin/x"}, Args: []string{"-y", ""},
		Env: map[string]string{"A_b.c": "x=y\nz"}, Workdir: "/home/gem", Server: Server{Port: 1, ReadyPath: "/r?x=1", ReadyTimeout: time.Second},
		Ports: []int{80, 65535}, Resources: Resources{CPU: 1, Memory: 1, CPULimit: 10, MemoryLimit: 16 << 20, Pids: 16, Disk: 1 << 20, Files: 64},
		Network: Network{Mode: NetworkAllow, Allow: []string{"*.example.com:443", "[::1]:80", "10.0.0.0/8"}}, Isolation: "local",
		Volumes:  []Volume{{Name: "data", Target: "/data"}, {Name: "data", Target: "/data2", ReadOnly: true}},
		Lifetime: Lifetime{Timeout: Never, IdleTimeout: time.Hour, IdlePolicy: IdlePause}, Snapshot: "s",
		Labels: map[string]string{"a/b": "c", "e": ""}, Annotations: map[string]string{"n": "{\"any\": text}"},
	}
}

func TestValidate(t *testing.T) {
	if err := full().Validate(); err != nil {
		t.Errorf("full spec: %v", err)
	}
	if err := (Spec{}).Validate(); err != nil {
		t.Errorf("empty spec: %v", err)
	}
	for name, change := range map[string]func(*Spec){
		"root without root":     func(s *Spec) { s.Root, s.NoRoot = true, true },
		"upper-case name":       func(s *Spec) { s.Name = "A" },
		"long name":             func(s *Spec) { s.Name = strings.Repeat("a", MaxName+1) },
		"path in name":          func(s *Spec) { s.Name = "../a" },
		"dash in front":         func(s *Spec) { s.Name = "-a" },
		"dash at the end":       func(s *Spec) { s.Name = "a-" },
		"manifest in image":     func(s *Spec) { s.Image = "x\n  hostPID: true" },
		"option as image":       func(s *Spec) { s.Image = "--privileged" },
		"path in environment":   func(s *Spec) { s.Environment = "a/b" },
		"zero byte in argument": func(s *Spec) { s.Args = []string{"a\x00b"} },
		"no program":            func(s *Spec) { s.Command = []string{""} },
		"= in env":              func(s *Spec) { s.Env = map[string]string{"A=B": ""} },
		"digit begins env":      func(s *Spec) { s.Env = map[string]string{"1A": ""} },
		"zero byte in env":      func(s *Spec) { s.Env = map[string]string{"A": "\x00"} },
		"huge env":              func(s *Spec) { s.Env = map[string]string{"A": strings.Repeat("x", maxArgs)} },
		"relative workdir":      func(s *Spec) { s.Workdir = "home" },
		"unclean workdir":       func(s *Spec) { s.Workdir = "/home/../root" },
		"port 0":                func(s *Spec) { s.Ports = []int{0} },
		"port twice":            func(s *Spec) { s.Ports = []int{1, 1} },
		"server port":           func(s *Spec) { s.Server.Port = 65536 },
		"header in ready path":  func(s *Spec) { s.Server.ReadyPath = "/ HTTP/1.1\r\nA: b" },
		"ready timeout":         func(s *Spec) { s.Server.ReadyTimeout = -1 },
		"tiny memory":           func(s *Spec) { s.Resources.MemoryLimit = 1 },
		"negative pids":         func(s *Spec) { s.Resources.Pids = -1 },
		"memory above limit":    func(s *Spec) { s.Resources.Memory = 17 << 20 },
		"cpu above limit":       func(s *Spec) { s.Resources.CPU = 11 },
		"network mode":          func(s *Spec) { s.Network.Mode = "host" },
		"network rule":          func(s *Spec) { s.Network.Allow = []string{"a;b"} },
		"volume name":           func(s *Spec) { s.Volumes[0].Name = "/etc" },
		"volume over proc":      func(s *Spec) { s.Volumes[0].Target = "/proc/sys" },
		"volume over root":      func(s *Spec) { s.Volumes[0].Target = "/" },
		"volumes overlap":       func(s *Spec) { s.Volumes[1].Target = "/data/x" },
		"label key":             func(s *Spec) { s.Labels = map[string]string{"a b": ""} },
		"label value":           func(s *Spec) { s.Labels = map[string]string{"a": "-"} },
		"annotation":            func(s *Spec) { s.Annotations = map[string]string{"a": strings.Repeat("x", maxNote+1)} },
		"timeout":               func(s *Spec) { s.Lifetime.Timeout = -2 },
		"idle policy":           func(s *Spec) { s.Lifetime.IdlePolicy = "explode" },
	} {
		t.Run(name, func(t *testing.T) {
			s := full()
			change(&s)
			if err := s.Validate(); !errors.Is(err, ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		})
	}
}

// TestCloneSharesNothing walks every field, so that a new reference in Spec
// cannot be forgotten in Clone.
func TestCloneSharesNothing(t *testing.T) {
	s := Sandbox{ID: "x", Spec: full(), Stages: []Stage{{"a", 1}}}
	c := s.Clone()
	if d := cmp.Diff(s, c); d != "" {
		t.Fatalf("clone differs: %s", d)
	}
	var walk func(path string, a, b reflect.Value)
	walk = func(path string, a, b reflect.Value) {
		switch a.Kind() {
		case reflect.Map, reflect.Slice:
			if a.Len() == 0 {
				t.Errorf("%s is empty in the example: fill it", path)
			} else if a.Pointer() == b.Pointer() {
				t.Errorf("%s is shared", path)
			}
		case reflect.Struct:
			if a.Type() == reflect.TypeFor[time.Time]() {
				return
			}
			for i := range a.NumField() {
				walk(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
			}
		}
	}
	walk("Sandbox", reflect.ValueOf(s), reflect.ValueOf(c))
}

func TestCheckUpdate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Spec)
		ok     bool
	}{
		"claim": {func(s *Spec) {
			s.Name, s.Labels, s.Annotations = "b", nil, map[string]string{"x": "y"}
			s.Lifetime, s.Network, s.Resources = Lifetime{}, Network{}, Resources{}
		}, true},
		"owner, with volumes": {func(s *Spec) { s.Owner = "p" }, false},
		"empty list":          {func(s *Spec) { s.Labels = map[string]string{} }, true},
		"image":               {func(s *Spec) { s.Image = "other" }, false},
		"env":                 {func(s *Spec) { s.Env["NEW"], s.Workdir = "x", "/tmp" }, true},
		"command":             {func(s *Spec) { s.Command = []string{"/bin/y"} }, false},
		"no name":             {func(s *Spec) { s.Name = "" }, false},
		"invalid name":        {func(s *Spec) { s.Name = "B" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			next := full()
			c.change(&next)
			err := full().CheckUpdate(next)
			if c.ok && err != nil || !c.ok && !errors.Is(err, ErrInvalid) {
				t.Errorf("got %v, want %v", err, ErrInvalid)
			}
		})
	}
}

// TestClaim: a sandbox may get another owner, unless volumes of one owner are mounted.
func TestClaim(t *testing.T) {
	s := full()
	s.Volumes = nil
	next := s.Clone()
	next.Owner = "p"
	if err := s.CheckUpdate(next); err != nil {
		t.Error(err)
	}
}

func TestFilter(t *testing.T) {
	s := Sandbox{Spec: full(), State: Running}
	for name, c := range map[string]struct {
		f    Filter
		want bool
	}{
		"all": {Filter{}, true},
		"everything": {Filter{Owner: "o", Name: "a", Environment: "aio", States: []State{Paused, Running},
			Labels: map[string]string{"a/b": "c", "e": ""}}, true},
		"other owner": {Filter{Owner: "p"}, false},
		"other name":  {Filter{Name: "b"}, false},
		"other state": {Filter{States: []State{Stopped}}, false},
		"no label":    {Filter{Labels: map[string]string{"f": ""}}, false},
		"other label": {Filter{Labels: map[string]string{"a/b": "d"}}, false},
	} {
		if got := c.f.Match(s); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestFeed(t *testing.T) {
	var f Feed
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch := func(existing ...Event) <-chan Event {
		ch, err := f.Watch(ctx, existing)
		if err != nil {
			t.Fatal(err)
		}
		return ch
	}
	slow, quick := watch(Event{Kind: Existing}), watch()
	for range backlog + 2 {
		f.Publish(Event{Kind: Changed, Sandbox: Sandbox{Spec: full()}})
		e := <-quick
		e.Sandbox.Spec.Env["changed"] = "by the reader"
	}
	n := 0
	for range slow {
		n++
	}
	if n != backlog+1 {
		t.Errorf("events before the slow reader was closed: got %d, want %d", n, backlog+1)
	}
	cancel()
	if _, ok := <-quick; ok {
		t.Error("an event after the end of the context")
	}
	ctx = context.Background()
	last := watch()
	f.Close()
	f.Close()
	if _, ok := <-last; ok {
		t.Error("an event after Close")
	}
	if _, err := f.Watch(ctx, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("watch after close: %v, want %v", err, ErrClosed)
	}
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"a", "a-b", "", "..", "a/b", "a\x00", "ä", strings.Repeat("a", 51)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckName(s) == nil && (s == "" || len(s) > MaxName || strings.ContainsAny(s, "./\\ \x00\n:") || strings.Trim(s, "-") != s) {
			t.Errorf("%q was accepted", s)
		}
	})
}
