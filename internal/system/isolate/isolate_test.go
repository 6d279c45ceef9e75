package isolate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
	"github.com/cove-sandbox/cove/internal/system/isolate/hostroot"
	"github.com/cove-sandbox/cove/internal/system/isolate/outputlog"
	"github.com/cove-sandbox/cove/internal/system/isolate/unixsocket"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// kit is shared by all sandboxes of the tests.
var kit struct {
	helper string // testdata/helper, built without cgo as the real programs are
	root   hostroot.Root
}

func TestIsolate(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // for the test without root
			t.Fatal(err)
		}
	}
	kit.helper = filepath.Join(dir, "helper")
	testenv.Build(t, map[string]string{kit.helper: "./testdata/helper"})
	var err error
	if kit.root, err = hostroot.Build(filepath.Join(dir, "base"), 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"run", testRun}, {"programs", testPrograms}, {"program is killed", testProgramIsKilled},
		{"terminate", testTerminate}, {"start fails", testStartFails}, {"IDs are reused", testIDsAreReused},
		{"cancel anywhere", testCancelAnywhere}, {"adopt", testAdopt}, {"freeze", testFreeze},
		{"freeze by signal", testFreezeBySignal}, {"dial", testDial},
		{"orphans are reaped", testOrphansAreReaped}, {"log is bounded", testLogIsBounded}, {"escape", testEscape}, {"fork bomb", testForkBomb},
		{"memory bomb", testMemoryBomb}, {"file limits", testFileLimits}, {"planted links", testPlantedLinks}, {"rootless", testRootless},
		{"init is settled", testInitIsSettled}, {"nothing is inherited", testNothingIsInherited},
		{"files of other users", testFilesOfOtherUsers}, {"only the program is the program", testOnlyTheProgramIsTheProgram},
		{"addresses can be listed", testAddressesCanBeListed}, {"signals are not ignored", testSignalsAreNotIgnored},
		{"chromium", testChromium},
	} {
		t.Run(c.name, c.run)
	}
}

// patience bounds the time of a program on a busy machine.
const patience = 3 * time.Minute

// box is a sandbox of a test.
type box struct {
	t      *testing.T
	dir    string
	cfg    isolate.Config
	groups *cgroup.Root
	stages []sandbox.Stage
}

const base = 2_000_000

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{t: t, dir: t.TempDir()}
	prog, root := kit.helper, kit.root
	var err error
	b.groups, err = cgroup.Open("cove-test-"+filepath.Base(filepath.Dir(b.dir))[4:], "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.groups.Close() })
	b.cfg = isolate.Config{
		Argv: []string{prog, "isolate-init"}, Hostname: "box", IDs: isolate.IDs{Base: base, Count: 65536},
		Tmpfs:   []isolate.Tmpfs{{Target: "/run", Mode: 0o755, Size: 1 << 20}},
		Binds:   []isolate.Bind{{Source: isolate.Dir{Path: prog}, Target: "/run/helper", ReadOnly: true}},
		Process: isolate.Process{Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/gem"}, Dir: "/home/gem", UID: isolate.UID, GID: isolate.GID},
		LogSize: 1 << 20,
	}
	for i, target := range append([]string{"/"}, root.Trees...) {
		lower := isolate.Dir{Path: root.Base, Mapped: true}
		if i > 0 {
			lower.Path, lower.OfHost = target, true
		}
		up := filepath.Join(b.dir, "upper"+strings.ReplaceAll(target, "/", "-"))
		for _, d := range []string{"data", "work"} {
			if err := os.MkdirAll(filepath.Join(up, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		b.cfg.Root = append(b.cfg.Root, isolate.Overlay{Target: target, Lower: []isolate.Dir{lower},
			Upper: isolate.Dir{Path: up, Mapped: true}, Data: "data", Work: "work"})
	}
	return b
}

func (b *box) file(name string) *os.File {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join(b.dir, name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { f.Close() })
	return f
}

// start runs args inside.
func (b *box) start(ctx context.Context, limits isolate.Limits, args ...string) (*isolate.Handle, error) {
	b.t.Helper()
	b.cfg.Process.Args, b.cfg.Limits = args, limits
	b.cfg.Log = [2]*os.File{b.file("log.0"), b.file("log.1")}
	b.cfg.Exit = b.file("exit")
	dir, err := os.Open(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	defer dir.Close()
	l, err := unixsocket.Listen(dir, "control", 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	defer l.Close()
	if b.cfg.Control, err = l.File(); err != nil {
		b.t.Fatal(err)
	}
	defer b.cfg.Control.Close()
	if b.cfg.Group, err = b.groups.Create("box", limits.Group()); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := b.cfg.Group.Remove(context.Background()); err != nil {
			b.t.Error(err)
		}
	})
	h, stages, err := isolate.Start(ctx, b.cfg)
	if err == nil {
		b.stages = stages
		b.t.Cleanup(func() { h.Kill(); <-h.Done(); h.Close() })
	}
	return h, err
}

// run runs args inside to their end and returns what they wrote.
func (b *box) run(limits isolate.Limits, args ...string) (string, isolate.Exit) {
	b.t.Helper()
	h, err := b.start(b.t.Context(), limits, args...)
	if err != nil {
		b.t.Fatal(err)
	}
	select {
	case <-h.Done():
	case <-time.After(patience):
		b.t.Fatal("the program did not end")
	}
	exit, _ := isolate.ReadExit(filepath.Join(b.dir, "exit"))
	return b.log(), exit
}

func (b *box) log() string {
	b.t.Helper()
	out, err := outputlog.Read([2]string{filepath.Join(b.dir, "log.0"), filepath.Join(b.dir, "log.1")}, 1<<20)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(out)
}

// line waits until the program has written want.
func (b *box) line(want string) {
	b.t.Helper()
	if !testenv.Eventually(func() bool { return strings.Contains(b.log(), want) }) {
		b.t.Fatalf("the program never wrote %q, but %q", want, b.log())
	}
}

func testRun(t *testing.T) {
	b := newBox(t)
	out, exit := b.run(isolate.Limits{Memory: 256 << 20, Pids: 64, CPU: 1000, Files: 512, FileSize: 1 << 20}, "sh", "-c",
		"id -u; id -un; pwd; hostname; cat /proc/self/cgroup; ulimit -n; touch file /tmp/file && ls; python3 -c 'print(6*7)'; exit 7")
	for _, want := range []string{"1000\ngem\n/home/gem\nbox\n", "memory:/\n", "512\n", "file\n", "42\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in %q", want, out)
		}
	}
	if exit.Code != 7 || exit.String() != "exited with status 7" {
		t.Errorf("exit: got %+v, want status 7", exit)
	}
	if len(b.stages) != 4 {
		t.Errorf("stages: got %v, want 4", b.stages)
	}
	// The disk is kept, and the owners on it are those seen inside.
	st, err := os.Stat(filepath.Join(b.dir, "upper-/data/home/gem/file"))
	if err != nil || st.Sys().(*syscall.Stat_t).Uid != isolate.UID {
		t.Errorf("the file on disk: got %+v, %v, want one of user %d", st, err, isolate.UID)
	}
	if out, _ := b.run(isolate.Limits{}, "ls", "/home/gem"); out != "file\nworkspace\n" {
		t.Errorf("files in the second run: got %q, want %q", out, "file\nworkspace\n")
	}
}

// testSignalsAreNotIgnored: the program handles signals even if the hub was started with nohup.
func testSignalsAreNotIgnored(t *testing.T) {
	b := newBox(t)
	b.cfg.Argv[1] = "isolate-init-ignoring"
	const none = "0000000000000000"
	want := "SigBlk:\t" + none + "\nSigIgn:\t" + none + "\n"
	if out, exit := b.run(isolate.Limits{}, "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"); out != want {
		t.Errorf("signals of the program: got %q (%v), want %q", out, exit, want)
	}
}

func testProgramIsKilled(t *testing.T) {
	b := newBox(t)
	if _, exit := b.run(isolate.Limits{}, "sh", "-c", "kill -9 $$"); exit.Signal != "killed" {
		t.Errorf("exit: got %+v, want killed", exit)
	}
}

func testTerminate(t *testing.T) {
	b := newBox(t)
	h, err := b.start(t.Context(), isolate.Limits{}, "/run/helper", "patient")
	if err != nil {
		t.Fatal(err)
	}
	b.line("ready")
	if err := h.Terminate(); err != nil {
		t.Fatal(err)
	}
	<-h.Done()
	if exit, ok := isolate.ReadExit(filepath.Join(b.dir, "exit")); !ok || exit.Code != 9 {
		t.Errorf("exit: got %+v, %v, want status 9", exit, ok)
	}
}

func testStartFails(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		change func(*box)
		ctx    context.Context
		want   string
	}{
		"no such program":     {func(b *box) { b.cfg.Process.Args = []string{"nonesuch"} }, nil, "not found in the sandbox's PATH"},
		"program is a folder": {func(b *box) { b.cfg.Process.Args = []string{"/usr"} }, nil, "permission denied"},
		"no such folder":      {func(b *box) { b.cfg.Binds[0].Source.Path = "/nonesuch" }, nil, "/nonesuch"},
		"no such upper":       {func(b *box) { b.cfg.Root[0].Data = "other" }, nil, "overlay"},
		"bad target":          {func(b *box) { b.cfg.Binds[0].Target = "/a/../b" }, nil, "clean absolute path"},
		"folder over a file": {func(b *box) {
			b.cfg.Binds[0].Source.Path = "/usr"
			b.cfg.Binds[0].Target = "/etc/passwd"
		}, nil, "cannot mount a folder on a file"},
		"gate stays shut":     {func(b *box) { b.cfg.Gate = func(isolate.Record) error { return errors.New("no entry") } }, nil, "no entry"},
		"init does not speak": {func(b *box) { b.cfg.Argv = []string{"/bin/true"} }, nil, "init ended without a report"},
		"no such init":        {func(b *box) { b.cfg.Argv = []string{"/nonesuch"} }, nil, "start init"},
		"context has ended":   {func(b *box) {}, gone, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.cfg.Process.Args = []string{"sleep", "1000"}
			c.change(b)
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			h, err := b.start(ctx, isolate.Limits{Pids: 64}, b.cfg.Process.Args...)
			if err == nil {
				h.Kill()
				t.Fatal("the sandbox started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error %q does not contain %q", err, c.want)
			}
			if pids, err := b.cfg.Group.Procs(); len(pids) != 0 || err != nil {
				t.Errorf("processes %v remain, %v", pids, err)
			}
		})
	}
}

// testIDsAreReused: Start ends although a new thread of this process has the ID of the thread that spawned init. Before,
// it then waited forever.
func testIDsAreReused(t *testing.T) {
	for range 30 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte("20000"), 0); err != nil {
			t.Fatal(err)
		}
		b := newBox(t)
		if out, exit := b.run(isolate.Limits{}, "echo", "started"); out != "started\n" || exit.Code != 0 {
			t.Fatalf("got %q, %v, want started", out, exit)
		}
	}
}

// testCancelAnywhere ends the context at many moments of a start: the sandbox either
// runs or leaves nothing.
func testCancelAnywhere(t *testing.T) {
	b := newBox(t)
	started, failed := 0, 0
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*400*time.Microsecond)
		h, err := b.start(ctx, isolate.Limits{Pids: 64}, "sleep", "1000")
		cancel()
		if err == nil {
			started++
			h.Kill()
			<-h.Done()
		} else {
			failed++
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("round %d: %v, want %v", i, err, context.DeadlineExceeded)
			}
		}
		if pids, _ := b.cfg.Group.Procs(); len(pids) != 0 {
			t.Fatalf("round %d left processes %v", i, pids)
		}
	}
	t.Logf("%d started, %d failed", started, failed)
}

func testAdopt(t *testing.T) {
	b := newBox(t)
	var kept isolate.Record
	b.cfg.Gate = func(r isolate.Record) error { kept = r; return nil }
	h, err := b.start(t.Context(), isolate.Limits{}, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if r := h.Record(); r.PID != kept.PID || r.Start != kept.Start || r.Inner == 0 {
		t.Errorf("the gate saw %+v, the handle has %+v", kept, r)
	}
	for name, wrong := range map[string]isolate.Record{
		"another start": {PID: kept.PID, Start: kept.Start + 1, Boot: kept.Boot},
		"another boot":  {PID: kept.PID, Start: kept.Start, Boot: "x"},
		"no process":    {PID: 1 << 30, Start: kept.Start, Boot: kept.Boot},
		"nothing":       {},
	} {
		if h, err := isolate.Adopt(wrong); !errors.Is(err, isolate.ErrGone) {
			t.Errorf("%s: got %v, %v, want %v", name, h, err, isolate.ErrGone)
		}
	}
	second, err := isolate.Adopt(kept)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	third, err := isolate.Adopt(kept)
	if err != nil {
		t.Fatal(err)
	}
	third.Close()
	third.Close()
	second.Kill()
	<-second.Done()
	<-h.Done()
	select {
	case <-third.Done():
		t.Error("a closed handle reports the end")
	default:
	}
	if _, err := isolate.Adopt(kept); !errors.Is(err, isolate.ErrGone) {
		t.Errorf("adopted the dead: %v, want %v", err, isolate.ErrGone)
	}
}

func testFreeze(t *testing.T) {
	b := newBox(t)
	if _, err := b.start(t.Context(), isolate.Limits{}, "sh", "-c", "while :; do echo x; done"); err != nil {
		t.Fatal(err)
	}
	g := b.cfg.Group
	if !b.groups.Has("freezer") {
		testenv.Lack(t, "no freezer")
	}
	b.line("x\n")
	if err := g.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Thaw(context.Background()) }) // a frozen process cannot end
	if frozen, err := g.Frozen(); !frozen || err != nil {
		t.Errorf("frozen: got %v, %v, want true", frozen, err)
	}
	before := b.log()
	t.Run("while another runs", func(t *testing.T) {
		if out, exit := newBox(t).run(isolate.Limits{}, "seq", "10000"); exit.Code != 0 || !strings.HasSuffix(out, "\n10000\n") {
			t.Errorf("got %v and %q, want 10000 lines", exit, out)
		}
	})
	if b.log() != before {
		t.Error("a frozen sandbox runs")
	}
	if err := g.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !testenv.Eventually(func() bool { return b.log() != before }) {
		t.Error("a thawed sandbox does not run")
	}
}

// testFreezeBySignal: init stops all processes, even while they fork, and continues only those that ran.
func testFreezeBySignal(t *testing.T) {
	b := newBox(t)
	h, err := b.start(t.Context(), isolate.Limits{}, "sh", "-c",
		"sleep 1000 & kill -STOP $!; (while :; do /bin/true; done) & (while :; do (/bin/true); done) & echo ready; while :; do :; done")
	if err != nil {
		t.Fatal(err)
	}
	b.line("ready")
	dir, err := os.Open(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	// stopped returns the names of the stopped processes, and how many others there are.
	stopped := func() (names []string, others int) {
		pids, err := b.cfg.Group.Procs()
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			_, name, _ := strings.Cut(string(stat), "(")
			name, state, _ := strings.Cut(name, ") ")
			switch {
			case pid == h.Record().PID || state == "" || state[0] == 'Z':
			case state[0] == 'T':
				names = append(names, name)
			default:
				others++
			}
		}
		return names, others
	}
	for range 5 {
		for range 2 { // the second call is a no-op
			if err := control.Freeze(t.Context(), dir, "control", true); err != nil {
				t.Fatal(err)
			}
		}
		if names, others := stopped(); len(names) < 4 || others != 0 {
			t.Errorf("frozen: got %v stopped and %d others, want all stopped", names, others)
		}
		for range 2 {
			if err := control.Freeze(t.Context(), dir, "control", false); err != nil {
				t.Fatal(err)
			}
		}
		if !testenv.Eventually(func() bool { names, others := stopped(); return len(names) == 1 && others > 1 }) {
			names, others := stopped()
			t.Errorf("thawed: got %v stopped and %d others, want only the job that was stopped before", names, others)
		}
	}
}

func testDial(t *testing.T) {
	b := newBox(t)
	if _, err := b.start(t.Context(), isolate.Limits{}, "/run/helper", "listen", "127.0.0.1:80"); err != nil {
		t.Fatal(err)
	}
	b.line("listening")
	dir, err := os.Open(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for range 3 {
		c, err := control.Dial(t.Context(), dir, "control", 80)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != "hello" {
			t.Errorf("got %q, %v, want hello", got, err)
		}
		c.Close()
	}
	if _, err := control.Dial(t.Context(), dir, "control", 81); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("dial a port without a server: got %v, want it refused", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := control.Dial(gone, dir, "control", 80); err == nil {
		t.Error("dialed with an ended context")
	}
}

func testOrphansAreReaped(t *testing.T) {
	b := newBox(t)
	if _, err := b.start(t.Context(), isolate.Limits{}, "/run/helper", "orphans"); err != nil {
		t.Fatal(err)
	}
	b.line("ready")
	if !testenv.Eventually(func() bool { pids, _ := b.cfg.Group.Procs(); return len(pids) == 2 }) {
		pids, _ := b.cfg.Group.Procs()
		t.Errorf("%d processes remain in addition to init and the program", len(pids)-2)
	}
}

func testLogIsBounded(t *testing.T) {
	b := newBox(t)
	b.cfg.LogSize = 64 << 10
	out, _ := b.run(isolate.Limits{}, "sh", "-c", "seq 1 200000; echo the end")
	if !strings.HasSuffix(out, "200000\nthe end\n") || len(out) > 2*64<<10 || len(out) < 48<<10 {
		t.Errorf("log: got %d bytes, ending in %q, want 48 to 128 KiB up to the end", len(out), out[max(0, len(out)-40):])
	}
}

// testInitIsSettled: a thread of init with remaining privileges could be abused.
func testInitIsSettled(t *testing.T) {
	for _, spare := range []bool{false, true} {
		b := newBox(t)
		group, err := b.groups.Create("box", cgroup.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if spare {
			if b.cfg.Spare, err = isolate.Prepare(t.Context(), b.cfg.Argv, b.cfg.IDs, group); err != nil {
				t.Fatal(err)
			}
		}
		h, err := b.start(t.Context(), isolate.Limits{}, "sleep", "60")
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"Uid": "2000000 2000000 2000000 2000000", "Gid": "2000000 2000000 2000000 2000000", "Groups": "",
			"CapInh": "0000000000000000", "CapPrm": "0000000000080022", "CapEff": "0000000000080022", "CapAmb": "0000000000000000", "Seccomp": "2"}
		var wrong []string
		if !testenv.Eventually(func() bool { wrong = threadsOtherThan(t, h.Record().PID, want); return len(wrong) == 0 }) {
			t.Errorf("spare %v: got threads with %v, want none", spare, wrong)
		}
		h.Kill()
		<-h.Done()
	}
}

// threadsOtherThan lists the fields of the threads of a process that differ from want.
func threadsOtherThan(t *testing.T, pid int, want map[string]string) (wrong []string) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads: got %v, %v, want several", threads, err)
	}
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		seen := 0
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			if is := strings.Join(strings.Fields(value), " "); want[name] != "" || name == "Groups" {
				seen++
				if is != want[name] {
					wrong = append(wrong, fmt.Sprintf("%s: %s is %q, not %q", file, name, is, want[name]))
				}
			}
		}
		if seen != len(want) {
			t.Fatalf("%s has %d of %d lines", file, seen, len(want))
		}
	}
	return wrong
}

func testNothingIsInherited(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	fd, err := unix.Open(secret, unix.O_CREAT|unix.O_RDWR, 0o600) // inheritable, as from a shell
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD, 700); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b := newBox(t)
	h, err := b.start(t.Context(), isolate.Limits{}, "sh", "-c", "ls -l /proc/self/fd; echo listed; sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	b.line("listed")
	if strings.Contains(b.log(), "secret") || strings.Contains(b.log(), " 700 -> ") {
		t.Errorf("inside: %s", b.log())
	}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.Record().PID))
	if err != nil || len(links) == 0 {
		t.Fatalf("descriptors of init: got %v, %v, want some", links, err)
	}
	for _, l := range links {
		if to, _ := os.Readlink(l); to == secret {
			t.Errorf("init holds %s", to)
		}
	}
}

// testOnlyTheProgramIsTheProgram: a process is not the program if it has the program's PID only
// in another namespace.
func testOnlyTheProgramIsTheProgram(t *testing.T) {
	testenv.Need(t, "unshare")
	b := newBox(t)
	h, err := b.start(t.Context(), isolate.Limits{Pids: 200}, "sh", "-c",
		`unshare -Upf sh -c 'for i in $(seq 40); do sleep 1000 & done; echo ready; wait'; wait`)
	if err != nil {
		t.Fatal(err)
	}
	b.line("ready")
	pids, err := b.cfg.Group.Procs()
	if err != nil {
		t.Fatal(err)
	}
	var spared []string
	for _, pid := range pids {
		if h.Record().Has(pid) {
			cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			spared = append(spared, strings.ReplaceAll(string(cmd), "\x00", " "))
		}
	}
	if len(pids) < 40 || len(spared) != 2 {
		t.Errorf("of %d processes %q are spared, want init and the program", len(pids), spared)
	}
}

// testAddressesCanBeListed: language runtimes list their addresses by netlink.
func testAddressesCanBeListed(t *testing.T) {
	out, exit := newBox(t).run(isolate.Limits{Pids: 64}, "/run/helper", "addresses")
	if exit.Code != 0 || !strings.Contains(out, "127.0.0.1/8") {
		t.Errorf("%v: got %q, want 127.0.0.1/8 in it", exit, out)
	}
}

// testFilesOfOtherUsers: files of a host user with the number of the user inside do not belong
// to the user inside.
func testFilesOfOtherUsers(t *testing.T) {
	host := t.TempDir()
	for name, uid := range map[string]int{"root": 0, "user": isolate.UID, "daemon": 1} {
		path := filepath.Join(host, name)
		for _, err := range []error{os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "secret"),
			[]byte("of "+name), 0o600), os.Chmod(path, 0o755),
			os.WriteFile(filepath.Join(path, "public"), []byte("all\n"), 0o644), os.Chown(path, uid, uid),
			os.Chown(filepath.Join(path, "secret"), uid, uid), os.Chmod(host, 0o755)} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	b := newBox(t)
	up := filepath.Join(b.dir, "upper-host")
	for _, d := range []string{"data", "work"} {
		if err := os.MkdirAll(filepath.Join(up, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.cfg.Root = append(b.cfg.Root, isolate.Overlay{Target: "/srv", Lower: []isolate.Dir{{Path: host, Mapped: true, OfHost: true}},
		Upper: isolate.Dir{Path: up, Mapped: true}, Data: "data", Work: "work"})
	b.cfg.Binds = append(b.cfg.Binds, isolate.Bind{Source: isolate.Dir{Path: host, Mapped: true, OfHost: true},
		Target: "/mnt/host", ReadOnly: true})
	const script = `for d in /srv /mnt/host; do cd $d; stat -c %u:%g root user daemon; cat root/public user/public ` +
		`daemon/public; cat user/secret daemon/secret; done 2>/dev/null; touch /usr/local/new`
	const want = "0:0\n65534:65534\n65534:1\nall\nall\nall\n"
	if out, _ := b.run(isolate.Limits{}, "sh", "-c", script+" 2>/dev/null"); out != want+want {
		t.Errorf("as the user: got %q, want %q twice", out, want)
	}
	// Not even root inside, which can change root's files.
	b.cfg.Process.UID, b.cfg.Process.GID = 0, 0
	if out, exit := b.run(isolate.Limits{}, "sh", "-c",
		script+"; cat /srv/root/secret; echo changed > /srv/root/secret; cat /srv/root/secret"); out != want+want+"of rootchanged\n" {
		t.Errorf("as root: got %v, %q, want %q", exit, out, want+want+"of rootchanged\n")
	}
}
