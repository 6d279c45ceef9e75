package isolate

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// verdict runs the filter on one call. The simulator reads words as they come
// from a network, so that is how they are laid out for it.
func verdict(t *testing.T, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	raw, err := filter()
	if err != nil {
		t.Fatal(err)
	}
	prog, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter cannot be read back")
	}
	vm, err := bpf.NewVM(prog)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[0:], nr)
	binary.BigEndian.PutUint32(data[4:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(a>>32))
	}
	out, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(out)
}

func TestFilter(t *testing.T) {
	const yes = unix.SECCOMP_RET_ALLOW
	no := func(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }
	for _, c := range []struct {
		name string
		nr   uint32
		args []uint64
		want uint32
	}{
		{"read", unix.SYS_READ, nil, yes},
		{"ptrace of one's own", unix.SYS_PTRACE, nil, yes},
		{"landlock", unix.SYS_LANDLOCK_CREATE_RULESET, nil, yes},
		{"seccomp", unix.SYS_SECCOMP, nil, yes},
		{"newest known", ceiling, nil, yes},
		{"unknown", ceiling + 1, nil, no(unix.ENOSYS)},
		{"x32", 0x40000000, nil, no(unix.ENOSYS)},
		{"fork", unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, yes},
		{"exit signal like a time namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWTIME}, yes},
		{"user namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET}, yes},
		{"mount namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | unix.CLONE_NEWNS}, no(unix.EPERM)},
		{"unshare user", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWUSER}, yes},
		{"unshare files", unix.SYS_UNSHARE, []uint64{unix.CLONE_FS | unix.CLONE_FILES}, yes},
		{"unshare time", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWTIME}, no(unix.EPERM)},
		{"clone3", unix.SYS_CLONE3, nil, no(unix.ENOSYS)},
		{"mount", unix.SYS_MOUNT, nil, no(unix.EPERM)},
		{"chroot", unix.SYS_CHROOT, nil, yes}, // Chromium's; the kernel asks for a capability
		{"unix socket", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, yes},
		{"tcp", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP}, yes},
		{"udp6", unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_DGRAM}, yes},
		{"ping", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, yes},
		{"mptcp", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, no(unix.EPROTONOSUPPORT)},
		{"raw", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_RAW | unix.SOCK_CLOEXEC}, no(unix.EPERM)},
		{"route netlink", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, yes},
		{"other netlink", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, no(unix.EPROTONOSUPPORT)},
		{"vsock", unix.SYS_SOCKET, []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, no(unix.EAFNOSUPPORT)},
		{"vsock with high bits", unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_VSOCK, unix.SOCK_STREAM}, no(unix.EAFNOSUPPORT)},
		{"window size", unix.SYS_IOCTL, []uint64{0, unix.TIOCGWINSZ}, yes},
		{"type", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, no(unix.EPERM)},
		{"type with high bits", unix.SYS_IOCTL, []uint64{0, 1<<32 | unix.TIOCSTI}, no(unix.EPERM)},
		{"fifo", unix.SYS_MKNODAT, []uint64{0, 0, unix.S_IFIFO | 0o666}, yes},
		{"file", unix.SYS_MKNODAT, []uint64{0, 0, 0o666}, yes},
		{"device", unix.SYS_MKNODAT, []uint64{0, 0, unix.S_IFCHR | 0o666}, no(unix.EPERM)},
		{"personality", unix.SYS_PERSONALITY, []uint64{0xffffffff}, yes},
		{"read implies exec", unix.SYS_PERSONALITY, []uint64{0x0400000}, no(unix.EPERM)},
	} {
		if got := verdict(t, auditArch, c.nr, c.args...); got != c.want {
			t.Errorf("%s: got %#x, want %#x", c.name, got, c.want)
		}
	}
	if got := verdict(t, unix.AUDIT_ARCH_I386, unix.SYS_READ); got != unix.SECCOMP_RET_KILL_PROCESS {
		t.Errorf("another architecture: got %#x", got)
	}
}

func TestCgroupMounts(t *testing.T) {
	for name, c := range map[string]struct {
		mountinfo, v2 string
		v1            map[string]string
	}{
		"v2":     {"24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", "/sys/fs/cgroup", map[string]string{}},
		"hybrid": {"30 1 0:9 / /cg/unified rw - cgroup2 cgroup2 rw\n31 1 0:10 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n32 1 0:11 / /cg/memory rw - cgroup cgroup rw,memory\n", "/cg/unified", map[string]string{"cpu": "/cg/cpu,cpuacct", "memory": "/cg/memory"}},
		"none":   {"20 1 254:0 / / rw - ext4 /dev/vda rw\ngarbage\n\n", "", map[string]string{}},
	} {
		v2, v1 := cgroupMounts(c.mountinfo)
		if v2 != c.v2 || !cmp.Equal(v1, c.v1) {
			t.Errorf("%s: got %q, %v", name, v2, v1)
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
					t.Errorf("%s is %q, %v, want %q", f, got, err, want)
				}
			}
		})
	}
}

func TestUsageFromFiles(t *testing.T) {
	v2 := fakeGroup(t, true, "cpu.stat=usage_usec 1500\nuser_usec 1", "memory.current=42\n", "pids.current=3\n", "memory.events=low 0\noom 5\noom_kill 2\n")
	if got := v2.Usage(); got != (Usage{CPU: 1500 * time.Microsecond, Memory: 42, Pids: 3, OOMKills: 2}) {
		t.Errorf("v2: got %+v", got)
	}
	v1 := fakeGroup(t, false, "cpuacct.usage=7\n", "memory.usage_in_bytes=42\n", "pids.current=3\n", "memory.oom_control=under_oom 0\noom_kill 1\n")
	if got := v1.Usage(); got != (Usage{CPU: 7, Memory: 42, Pids: 3, OOMKills: 1}) {
		t.Errorf("v1: got %+v", got)
	}
	if got := (&Group{}).Usage(); got != (Usage{-1, -1, -1, -1}) {
		t.Errorf("none: got %+v", got)
	}
}

func TestFreezeInFiles(t *testing.T) {
	v1 := fakeGroup(t, false, "freezer.state=THAWED")
	for _, on := range []bool{true, false} {
		if err := v1.freeze(t.Context(), on); err != nil {
			t.Error(err)
		}
		if frozen, err := v1.Frozen(); frozen != on || err != nil {
			t.Errorf("frozen %v, %v", frozen, err)
		}
	}
	// Here nothing ever freezes, so it is given up and undone.
	v2 := fakeGroup(t, true, "cgroup.freeze=", "cgroup.events=populated 1\nfrozen 0\n")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := v2.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if state, _ := os.ReadFile(v2.file("freezer", "cgroup.freeze")); string(state) != "0" {
		t.Errorf("left with %q", state)
	}
	if err := (&Group{}).Freeze(ctx); !errors.Is(err, ErrNoFreezer) {
		t.Errorf("got %v", err)
	}
}

// TestHostRoot: the base holds what programs need and nothing that is secret.
func TestHostRoot(t *testing.T) {
	dir := t.TempDir()
	root, err := BuildHostRoot(dir, -1)
	if err != nil {
		t.Fatal(err)
	}
	again, err := BuildHostRoot(dir, -1)
	if err != nil || again.Base != root.Base || len(root.Trees) == 0 {
		t.Errorf("again: %+v, %v; first: %+v", again, err, root)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left in the folder: %v", left)
	}
	for _, name := range []string{"passwd", "group", "nsswitch.conf", "hosts", "resolv.conf"} {
		if data, err := os.ReadFile(filepath.Join(root.Base, "etc", name)); len(data) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"shadow", "shadow-", "gshadow", "ssh", "sudoers", "machine-id", "fstab", "ssl/private", "krb5.keytab", "environment", "npmrc", "pip.conf"} {
		if exists(filepath.Join(root.Base, "etc", name)) {
			t.Errorf("etc/%s is there", name)
		}
	}
	host, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	own, _ := os.ReadFile(filepath.Join(root.Base, "etc/passwd"))
	if string(own) == string(host) {
		t.Error("the host's users are there")
	}
}

func TestCopyTakesOnlyWhatAllMayRead(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"open": 0o644, "closed": 0o640, "setuid": 0o755 | os.ModeSetuid} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600), os.Chmod(filepath.Join(dir, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "private"), 0o700), os.Symlink("/etc/shadow", filepath.Join(dir, "link")), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	p := &basePlan{have: map[string]bool{}}
	if err := p.copy(dir, "etc/x"); err != nil {
		t.Fatal(err)
	}
	got := map[string]os.FileMode{}
	for _, e := range p.entries {
		got[e.path] = e.mode
	}
	want := map[string]os.FileMode{"etc/x": 0o755 | os.ModeDir, "etc/x/open": 0o644, "etc/x/setuid": 0o755, "etc/x/link": os.ModeSymlink}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestReadExit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "exit")
	for text, want := range map[string]string{
		"": "", `{"Code":3}`: "exited with status 3", `{"Code":0,"Signal":"killed"}`: "killed by signal: killed", "panic: oh": "init failed: panic: oh",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		e, ok := ReadExit(path)
		if ok != (want != "") || ok && e.String() != want {
			t.Errorf("%q: got %q, %v", text, e, ok)
		}
	}
}

func TestCheck(t *testing.T) {
	good := func() *Config {
		f := os.Stdin
		return &Config{Argv: []string{"x"}, Root: []Overlay{{Target: "/"}}, Log: [2]*os.File{f, f}, Exit: f, Control: f}
	}
	if err := good().check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"no argv":         func(c *Config) { c.Argv = nil },
		"no root":         func(c *Config) { c.Root[0].Target = "/usr" },
		"no log":          func(c *Config) { c.Log[1] = nil },
		"relative target": func(c *Config) { c.Binds = []Bind{{Target: "x"}} },
		"climbing target": func(c *Config) { c.Tmpfs = []Tmpfs{{Target: "/x/.."}} },
	} {
		c := good()
		change(c)
		if c.check() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func FuzzCgroupMounts(f *testing.F) {
	f.Add("24 1 0:22 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n")
	f.Add(" - \n - cgroup\n1 2 3 4 5 - cgroup x\n")
	f.Fuzz(func(t *testing.T, s string) {
		cgroupMounts(s)
		field(s, "oom_kill")
	})
}
