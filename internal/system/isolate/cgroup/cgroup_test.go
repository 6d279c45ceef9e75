package cgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFindMounts(t *testing.T) {
	for name, c := range map[string]struct {
		mountinfo, v2 string
		v1            map[string]string
	}{
		"v2": {"24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", "/sys/fs/cgroup", map[string]string{}},
		"hybrid": {"30 1 0:9 / /cg/unified rw - cgroup2 cgroup2 rw\n31 1 0:10 / /cg/cpu,cpuacct rw - cgroup cgroup " +
			"rw,cpu,cpuacct\n32 1 0:11 / /cg/memory rw - cgroup cgroup rw,memory\n", "/cg/unified",
			map[string]string{"cpu": "/cg/cpu,cpuacct", "memory": "/cg/memory"}},
		"none": {"20 1 254:0 / / rw - ext4 /dev/vda rw\ngarbage\n\n", "", map[string]string{}},
	} {
		v2, v1 := findMounts(c.mountinfo)
		if v2 != c.v2 || !cmp.Equal(v1, c.v1) {
			t.Errorf("%s: got %q, %v, want %q, %v", name, v2, v1, c.v2, c.v1)
		}
	}
}

// fakeGroup is a group of ordinary files, for the hierarchies that this machine
// does not have.
func fakeGroup(t *testing.T, v2 bool, files ...string) *Group {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		name, content, _ := strings.Cut(f, "=")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := &Group{dirs: map[string]string{"memory": dir, "cpu": dir, "pids": dir, "freezer": dir}}
	if v2 {
		g.unified = dir
	}
	return g
}

func TestLimitsInFiles(t *testing.T) {
	l := Limits{CPU: 1500, Share: 500, Memory: 64 << 20, Pids: 100}
	for name, c := range map[string]struct {
		v2    bool
		files []string
		want  map[string]string
	}{
		"v1": {false, []string{"memory.limit_in_bytes", "cpu.cfs_quota_us", "cpu.shares", "pids.max"},
			map[string]string{"memory.limit_in_bytes": "67108864", "cpu.cfs_quota_us": "150000", "cpu.shares": "512", "pids.max": "100"}},
		"v1 with swap": {false, []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_quota_us", "cpu.shares", "pids.max"},
			map[string]string{"memory.memsw.limit_in_bytes": "67108864"}},
		"v2": {true, []string{"memory.max", "memory.swap.max", "cpu.max", "cpu.weight", "pids.max"},
			map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "cpu.max": "150000 100000", "cpu.weight": "50", "pids.max": "100"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := fakeGroup(t, c.v2, c.files...)
			if err := g.Set(l); err != nil {
				t.Fatal(err)
			}
			for f, want := range c.want {
				if got, err := os.ReadFile(filepath.Join(g.dirs["cpu"], f)); string(got) != want {
					t.Errorf("%s: got %q, %v, want %q", f, got, err, want)
				}
			}
		})
	}
}

func TestDiskRateInFiles(t *testing.T) {
	read := func(g *Group, name string) string {
		data, _ := os.ReadFile(filepath.Join(g.dirs["io"], name))
		return string(data)
	}
	v2 := fakeGroup(t, true, "io.max=", "cpu.max=", "pids.max=", "memory.max=")
	v2.dirs["io"] = v2.unified
	if err := v2.Set(Limits{Device: "8:0", DiskRate: 1 << 20}); err != nil || read(v2, "io.max") != "8:0 rbps=1048576 wbps=1048576" {
		t.Errorf("v2: got %q, %v", read(v2, "io.max"), err)
	}
	v1 := fakeGroup(t, false, "cgroup.procs=", "cpu.cfs_quota_us=", "pids.max=", "memory.limit_in_bytes=")
	v1.io = filepath.Join(t.TempDir(), "sandbox")
	if err := v1.Set(Limits{Device: "8:0"}); err != nil || exists(v1.io) {
		t.Errorf("without a limit: got %v and a group: %v, want none", err, exists(v1.io))
	}
	if err := os.Mkdir(v1.io, 0o700); err != nil { // the kernel would fill it
		t.Fatal(err)
	}
	for _, f := range []string{"cgroup.procs", "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"} {
		if err := os.WriteFile(filepath.Join(v1.io, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := v1.Set(Limits{Device: "8:0", DiskRate: 1 << 20})
	for _, f := range []string{"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"} {
		if got := read(v1, f); err != nil || got != "8:0 1048576" {
			t.Errorf("%s: got %q, %v, want the rate", f, got, err)
		}
	}
	if !slices.Contains(v1.Folders(), v1.io) {
		t.Errorf("got the folders %q, want %q among them", v1.Folders(), v1.io)
	}
}

func TestFindSource(t *testing.T) {
	const mounts = "1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 7:0 / /state/disk rw shared:1 - btrfs /dev/loop0 " +
		"rw\n3 1 0:9 / /a\\040b rw - tmpfs tmpfs rw\ngarbage\n4 1 8:1 / /state/disk rw - btrfs /dev/sda1 rw\n"
	for path, want := range map[string]string{"/state/disk": "/dev/sda1", "/state/disk/x": "/dev/sda1",
		"/state/disks": "/dev/vda", "/a b/c": "tmpfs", "/": "/dev/vda"} {
		if got := findSource(mounts, path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	if got := findSource("", "/"); got != "" {
		t.Errorf("without mounts: got %q", got)
	}
}

func TestYieldInFiles(t *testing.T) {
	// The kernel forgets the share of a group that yields.
	g := fakeGroup(t, false, "cpu.idle=0", "cpu.shares=512")
	want := func(what, file, value string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(g.dirs["cpu"], file)); string(got) != value {
			t.Errorf("%s: %s: got %q, %v, want %q", what, file, got, err, value)
		}
	}
	if err := g.Yield(true, 500); err != nil {
		t.Error(err)
	}
	want("yields", "cpu.idle", "1")
	if err := g.Yield(false, 250); err != nil {
		t.Error(err)
	}
	want("has its share again", "cpu.idle", "0")
	want("has its share again", "cpu.shares", "256")
	g = fakeGroup(t, true, "cpu.weight=")
	if err := g.Yield(true, 0); err != nil {
		t.Error(err)
	}
	want("yields on an old kernel", "cpu.weight", "1")
	if err := g.Yield(false, 0); err != nil {
		t.Error(err)
	}
	want("has its share again on an old kernel", "cpu.weight", "100")
}

func TestUsageFromFiles(t *testing.T) {
	v2 := fakeGroup(t, true, "cpu.pressure=some avg10=0.00 avg60=0.00 avg300=0.00 total=2500\nfull avg10=0.00 "+
		"avg60=0.00 avg300=0.00 total=7\n", "cpu.stat=usage_usec 1500\nuser_usec 1", "memory.current=42\n",
		"pids.current=3\n", "memory.events=low 0\noom 5\noom_kill 2\n")
	if got, want := v2.Usage(), (Usage{CPU: 1500 * time.Microsecond, Memory: 42, Pids: 3, OOMKills: 2}); got != want {
		t.Errorf("v2: got %+v, want %+v", got, want)
	}
	if got, want := v2.Waited(), 2500*time.Microsecond; got != want {
		t.Errorf("waited: got %v, want %v", got, want)
	}
	v1 := fakeGroup(t, false, "cpuacct.usage=7\n", "memory.usage_in_bytes=42\n", "pids.current=3\n",
		"memory.oom_control=under_oom 0\noom_kill 1\n")
	if got, want := v1.Usage(), (Usage{CPU: 7, Memory: 42, Pids: 3, OOMKills: 1}); got != want {
		t.Errorf("v1: got %+v, want %+v", got, want)
	}
	if got, want := (&Group{}).Usage(), (Usage{-1, -1, -1, -1}); got != want {
		t.Errorf("none: got %+v, want %+v", got, want)
	}
}

func TestFreezeInFiles(t *testing.T) {
	v1 := fakeGroup(t, false, "freezer.state=THAWED")
	for _, on := range []bool{true, false} {
		if err := v1.freeze(t.Context(), on); err != nil {
			t.Error(err)
		}
		if frozen, err := v1.Frozen(); frozen != on || err != nil {
			t.Errorf("frozen: got %v, %v, want %v", frozen, err, on)
		}
	}
	// Here nothing ever freezes, so the attempt times out and is undone.
	v2 := fakeGroup(t, true, "cgroup.freeze=", "cgroup.events=populated 1\nfrozen 0\n")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := v2.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("freeze: got %v, want %v", err, context.DeadlineExceeded)
	}
	if state, _ := os.ReadFile(v2.file("freezer", "cgroup.freeze")); string(state) != "0" {
		t.Errorf("state after a failed freeze: got %q, want 0", state)
	}
	if err := (&Group{}).Freeze(ctx); !errors.Is(err, ErrNoFreezer) {
		t.Errorf("without a freezer: got %v, want %v", err, ErrNoFreezer)
	}
}

func FuzzFindMounts(f *testing.F) {
	f.Add("24 1 0:22 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n")
	f.Add(" - \n - cgroup\n1 2 3 4 5 - cgroup x\n")
	f.Fuzz(func(t *testing.T, s string) {
		findMounts(s)
		findSource(s, "/a/b")
		field(s, "oom_kill")
	})
}

// TestTakeDelegated: a group is used only if the process is alone in it, and it can be moved below.
func TestTakeDelegated(t *testing.T) {
	for name, c := range map[string]struct {
		own, procs string
		leaf, want bool
	}{
		"alone":    {"0::/scope\n", "42\n", true, true},
		"others":   {"0::/scope\n", "41\n42\n", true, false},
		"root's":   {"0::/scope\n", "42\n", false, false}, // the leaf cannot be entered
		"v1":       {"5:memory:/scope\n", "42\n", true, false},
		"replaced": {"0::/scope/cove-hub\n", "", true, true},
	} {
		mount := t.TempDir()
		scope := filepath.Join(mount, "scope")
		if err := os.MkdirAll(filepath.Join(scope, leaf), 0o755); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{filepath.Join(scope, "cgroup.procs"): c.procs}
		if c.leaf {
			files[filepath.Join(scope, leaf, "cgroup.procs")] = ""
		}
		for path, text := range files {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want := map[bool]string{true: scope}[c.want]
		if got := takeDelegated(mount, c.own, 42); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
