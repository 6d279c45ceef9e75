package isolate_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/gvisor"
	"github.com/cove-sandbox/cove/test/attack"
)

// mode is an identity under which all attempts are made.
type mode struct {
	name string
	// run runs the helper inside and returns what it wrote.
	run func(t *testing.T, args []string) string
	may []string // what is allowed and harmless
}

// inBox runs the helper in a sandbox of root's, as a user inside.
func inBox(use string, uid uint32) func(*testing.T, []string) string {
	return inBoxWith(use, uid, false)
}

// inBoxWith is inBox with or without setuid programs.
func inBoxWith(use string, uid uint32, setuid bool) func(*testing.T, []string) string {
	return func(t *testing.T, args []string) string {
		b := newBox(t)
		b.cfg.Setuid = setuid
		b.cfg.Process.UID, b.cfg.Process.GID = uid, uid
		out, exit := b.run(isolate.Limits{Memory: 256 << 20, Pids: 64, Files: 256}, append([]string{"/run/helper", use}, args...)...)
		return out + exit.String()
	}
}

// Init's user may make it the first process to be killed when memory is short.
var rootMay = []string{"write /proc/1/oom_score_adj", "write /proc/1/clear_refs"}

// These namespaces are Chromium's own sandbox.
var nestedMay = []string{"unshare pid", "unshare net", "raise capabilities"}

// All mounts except that of sudo ignore the setuid bit.
var sudoMay = []string{"live without no_new_privs"}

var modes = []mode{
	{"user", inBox("try", isolate.UID), nil},
	{"root inside", inBox("try", 0), rootMay},
	{"root of a user namespace", inBox("nested", isolate.UID), nestedMay},
	// Without no_new_privs, as where sudo works.
	{"user who may use sudo", inBoxWith("try", isolate.UID, true), sudoMay},
	{"root by sudo", inBoxWith("try", 0, true), append(sudoMay, rootMay...)},
	{"root of a user namespace who may use sudo", inBoxWith("nested", isolate.UID, true), append(sudoMay, nestedMay...)},
	{"user without root outside", func(t *testing.T, args []string) string {
		return runRootless(t, append([]string{"/run/helper", "try"}, args...)...)
	}, nil},
	{"user under gVisor", inGVisor(isolate.UID, false), inGVisorMay},
	{"root by sudo under gVisor", inGVisor(0, true),
		append([]string{"live without no_new_privs", "write /proc/sysrq-trigger"}, inGVisorMay...)},
}

// inGVisor runs the helper under gVisor, as a user inside.
func inGVisor(uid uint32, setuid bool) func(*testing.T, []string) string {
	return func(t *testing.T, args []string) string {
		runsc := testenv.GVisor(t)
		b := newBox(t)
		b.cfg.Setuid = setuid
		b.cfg.Process.UID, b.cfg.Process.GID = uid, uid
		b.cfg.Process.Args = append([]string{"/run/helper", "try", "kernel=gvisor"}, args...)
		if err := gvisor.Wrap(&b.cfg, gvisor.Config{Runsc: runsc, Bundle: filepath.Join(b.dir, "bundle"), OwnSocket: true}); err != nil {
			t.Fatal(err)
		}
		out, exit := b.run(isolate.Limits{Memory: 1 << 30, Pids: 512}, b.cfg.Process.Args...)
		return out + exit.String()
	}
}

// inGVisorMay is what gVisor's own kernel allows. PID 1 there is the program itself,
// devices, clocks, options and statistics are the emulated ones, and no call reaches the
// host. It ignores what root writes to sysrq-trigger. It reveals the memory of the
// machine.
var inGVisorMay = []string{
	"device nodes", "read /proc/1/environ", "read /proc/1/maps", "read /proc/1/root/etc/passwd",
	"read /proc/1/cwd/etc/passwd", "read /proc/1/exe",
	"write /proc/1/oom_score_adj", "read init's memory", "take init's descriptor", "become nicer than others", "lower the oom score",
	"read /proc/cmdline", "unshare time", "clone3", "live without the filter", "socket uevent", "read the kernel log",
	"option: read iptables", "option: read arptables", "option: read ebtables", "option: read ipvs",
	"option: read ip6tables", "option: load a protocol", "option: repair",
	"open /dev/fuse", "see the host's memory", "see the host's load", "see the host's work",
}

func testEscape(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { attack.CheckEscape(t, m.run(t, attack.Outside(t, t.TempDir())), m.may) })
	}
}

func testForkBomb(t *testing.T) {
	b := newBox(t)
	out, _ := b.run(isolate.Limits{Pids: 40}, "/run/helper", "forks")
	var n int
	if _, err := fmt.Sscanf(out[strings.Index(out, "forks"):], "forks %d", &n); err != nil || n >= 40 || n < 10 {
		t.Errorf("forks: got %d, want 10 to 39: %q", n, out)
	}
}

func testMemoryBomb(t *testing.T) {
	b := newBox(t)
	if !b.groups.Has("memory") {
		testenv.Lack(t, "no memory controller")
	}
	out, exit := b.run(isolate.Limits{Memory: 64 << 20, Pids: 64}, "/run/helper", "eat")
	// Only the child is killed, and the kill is counted.
	if !strings.Contains(out, "child: signal: killed") || exit.Code != 0 {
		t.Errorf("got %q, %v, want only the child killed", out, exit)
	}
	if u := b.cfg.Group.Usage(); u.OOMKills < 1 {
		t.Errorf("usage: got %+v, want an OOM kill", u)
	}
	// The program is killed before init, so that its end is reported.
	if _, exit := b.run(isolate.Limits{Memory: 64 << 20, Pids: 64}, "/run/helper", "eat", "all"); exit.Signal != "killed" {
		t.Errorf("exit: got %+v, want killed", exit)
	}
}

func testFileLimits(t *testing.T) {
	b := newBox(t)
	if out, _ := b.run(isolate.Limits{Files: 100}, "/run/helper", "files"); !strings.Contains(out, "too many open files") {
		t.Errorf("got %q, want too many open files", out)
	}
	b.cfg.LogSize = 64 << 10
	out, _ := b.run(isolate.Limits{FileSize: 1 << 20}, "sh", "-c", "dd if=/dev/zero of=big bs=64k count=100 2>&1; stat -c %s big")
	if !strings.Contains(out, "1048576\n") {
		t.Errorf("got %q, want a file of 1048576 bytes", out)
	}
}

// testPlantedLinks: links on the disk of a sandbox cannot redirect the mounts of its next
// start.
func testPlantedLinks(t *testing.T) {
	b := newBox(t)
	b.cfg.Process.UID, b.cfg.Process.GID, b.cfg.Process.Dir = 0, 0, "/"
	victim := filepath.Join(b.dir, "victim")
	if err := os.Mkdir(victim, 0o777); err != nil {
		t.Fatal(err)
	}
	out, exit := b.run(isolate.Limits{}, "sh", "-ec", `
		mkdir -p /data /home/gem
		rm -rf /data /home/gem; ln -s `+victim+` /data; ln -s /../../../../`+victim+` /home/gem; ln -s /proc/1/root /mnt/root`)
	if exit.Code != 0 {
		t.Fatalf("exit: got %v, want 0: %s", exit, out)
	}
	src := filepath.Join(b.dir, "volume")
	if err := os.Mkdir(src, 0o777); err != nil {
		t.Fatal(err)
	}
	b.cfg.Binds = append(b.cfg.Binds,
		isolate.Bind{Source: isolate.Dir{Path: src, Mapped: true}, Target: "/home/gem/new/deep"},
		isolate.Bind{Source: isolate.Dir{Path: src, Mapped: true}, Target: "/data"})
	h, err := b.start(t.Context(), isolate.Limits{}, "sh", "-c", "touch /data/here")
	if err == nil {
		<-h.Done()
	}
	if e, _ := os.ReadDir(victim); len(e) != 0 {
		t.Errorf("the start wrote outside: %v", e)
	}
}

// runRootless runs a program in a sandbox of an ordinary user.
func runRootless(t *testing.T, args ...string) string {
	t.Helper()
	const uid = 54321
	dir, err := os.MkdirTemp("", "rootless-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(kit.helper, append([]string{"rootless", dir}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Env = []string{"HOME=/", "SECRET=x"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func testRootless(t *testing.T) {
	out := runRootless(t, "sh", "-c", "id -un; touch x /tmp/y; ls; cat /proc/self/uid_map; ulimit -n; exit 4")
	for _, want := range []string{"gem\n", "x\n", "256\n", "exited with status 4"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in %q", want, out)
		}
	}
	if out := runRootless(t, "/run/helper", "forks"); !strings.Contains(out, "forks") || strings.Contains(out, "forks 2000") {
		t.Errorf("no limit on processes: %s", out)
	}
}
