package isolate_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/testenv"
)

// outside puts things outside that an escape would find, and names them.
func outside(t *testing.T, dir string) []string {
	t.Helper()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	listen := func(network, addr string) net.Listener {
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	abstract := fmt.Sprintf("cove-test-%d", os.Getpid())
	listen("unix", "@"+abstract)
	tcp := listen("tcp", "127.0.0.1:0")
	return []string{"secret=" + secret, "socket=" + filepath.Join(dir, "control"), "abstract=" + abstract,
		"tcp=" + tcp.Addr().String(), "pid=" + strconv.Itoa(os.Getpid())}
}

func testEscape(t *testing.T) {
	for _, c := range []struct {
		who, use string
		uid      uint32
		may      []string // what is allowed and harmless
	}{
		{"user", "try", isolate.UID, nil},
		// It is init's user, and may make it the first to go when memory is short.
		{"root inside", "try", 0, []string{"write /proc/1/oom_score_adj", "write /proc/1/clear_refs"}},
		// These namespaces are Chromium's own sandbox.
		{"root of a user namespace", "nested", isolate.UID, []string{"unshare pid", "unshare net", "raise capabilities"}},
	} {
		t.Run(c.who, func(t *testing.T) {
			b := newBox(t)
			b.cfg.Process.UID, b.cfg.Process.GID = c.uid, c.uid
			args := append([]string{"/run/helper", c.use}, outside(t, b.dir)...)
			out, exit := b.run(isolate.Limits{Memory: 256 << 20, Pids: 64, Files: 256}, args...)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if lines[len(lines)-1] != "done" {
				t.Fatalf("the attempts did not end: %v\n%s", exit, out)
			}
			t.Logf("%d attempts", len(lines)-1)
			for _, l := range lines[:len(lines)-1] {
				if name, ok := strings.CutPrefix(l, "ESCAPED\t"); ok && !slices.Contains(c.may, name) {
					t.Errorf("not held: %s", name)
				} else if !ok && !strings.HasPrefix(l, "held\t") {
					t.Log(l)
				}
			}
			if testing.Verbose() {
				t.Log(out)
			}
		})
	}
}

func testForkBomb(t *testing.T) {
	b := newBox(t)
	out, _ := b.run(isolate.Limits{Pids: 40}, "/run/helper", "forks")
	var n int
	if _, err := fmt.Sscanf(out[strings.Index(out, "forks"):], "forks %d", &n); err != nil || n >= 40 || n < 10 {
		t.Errorf("got %d processes: %q", n, out)
	}
}

func testMemoryBomb(t *testing.T) {
	b := newBox(t)
	if !b.groups.Has("memory") {
		testenv.Lack(t, "no memory controller")
	}
	out, exit := b.run(isolate.Limits{Memory: 64 << 20, Pids: 64}, "/run/helper", "eat")
	// Only the child dies, and it is counted.
	if !strings.Contains(out, "child: signal: killed") || exit.Code != 0 {
		t.Errorf("got %q, %v", out, exit)
	}
	if u := b.cfg.Group.Usage(); u.OOMKills < 1 {
		t.Errorf("usage %+v", u)
	}
	// The program itself dies before init does, so that its end is told.
	if _, exit := b.run(isolate.Limits{Memory: 64 << 20, Pids: 64}, "/run/helper", "eat", "all"); exit.Signal != "killed" {
		t.Errorf("exit %+v", exit)
	}
}

func testFileLimits(t *testing.T) {
	b := newBox(t)
	if out, _ := b.run(isolate.Limits{Files: 100}, "/run/helper", "files"); !strings.Contains(out, "too many open files") {
		t.Errorf("got %q", out)
	}
	b.cfg.LogSize = 64 << 10
	out, _ := b.run(isolate.Limits{FileSize: 1 << 20}, "sh", "-c", "dd if=/dev/zero of=big bs=64k count=100 2>&1; stat -c %s big")
	if !strings.Contains(out, "1048576\n") {
		t.Errorf("got %q", out)
	}
}

// testPlantedLinks: what a sandbox leaves on its disk cannot lead the next start
// out of it.
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
		t.Fatalf("%v %s", exit, out)
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

// TestSocketIsASymlink: who dials what the sandbox made is not led elsewhere.
func TestSocketIsASymlink(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "real"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"real": true, "link": false, "file": false, "none": false, "../" + filepath.Base(dir) + "/real": false} {
		c, err := isolate.DialUnix(t.Context(), d, name)
		if (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
		if c != nil {
			c.Close()
		}
	}
}

func testRootless(t *testing.T) {
	const uid = 54321
	dir, err := os.MkdirTemp("", "rootless-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		cmd := exec.Command(kit.helper, append([]string{"rootless", dir}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Env = []string{"HOME=/", "SECRET=x"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	out := run("sh", "-c", "id -un; touch x /tmp/y; ls; cat /proc/self/uid_map; ulimit -n; exit 4")
	for _, want := range []string{"gem\n", "x\n", "256\n", "exited with status 4"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in %q", want, out)
		}
	}
	out = run(append([]string{"/run/helper", "try"}, outside(t, t.TempDir())...)...)
	if !strings.Contains(out, "\ndone\n") {
		t.Fatalf("the attempts did not end: %s", out)
	}
	for l := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(l), "ESCAPED\t"); ok {
			t.Errorf("not held: %s", name)
		}
	}
	if out := run("/run/helper", "forks"); !strings.Contains(out, "forks") || strings.Contains(out, "forks 2000") {
		t.Errorf("no limit on processes: %s", out)
	}
}
