package local_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/provider/providertest"
	"github.com/cove-sandbox/cove/internal/provider/providertest/outbound"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// kit contains the programs of the tests, built without cgo like the real ones.
type kit struct{ hub, payload, probe, sudo string }

func newKit(t *testing.T) kit {
	t.Helper()
	dir := t.TempDir()
	k := kit{filepath.Join(dir, "hub"), filepath.Join(dir, "payload"), filepath.Join(dir, "probe"), filepath.Join(dir, "sudo")}
	testenv.Build(t, map[string]string{k.hub: "./testdata/hub", k.payload: "../providertest/testdata/serve", k.sudo: "../../../cmd/cove-init"})
	outbound.Build(t, k.probe)
	return k
}

func (k kit) config(t *testing.T) local.Config {
	return local.Config{
		Dir: t.TempDir(), Init: []string{k.hub, "isolate-init"}, Command: []string{"/run/payload"},
		Binds: []local.Bind{{Source: k.payload, Target: "/run/payload"}}, StopGrace: 2 * time.Second, Spares: 2,
		ReadyTimeout: 3 * time.Minute, // of a busy machine
	}
}

func (k kit) open(t *testing.T, cfg local.Config) *local.Provider {
	t.Helper()
	p, err := local.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// left lists remaining objects of the sandboxes of a state folder.
func (k kit) left(cfg local.Config) (left []string) {
	for _, pattern := range []string{"sandboxes/*", "sandboxes/.*-deep-*", "disk/sandboxes/*",
		"disk/sandboxes/.*-deep-*", "sockets/*/control", "sockets/*/*/*", "trial*", ".trial*"} { // folders of spares have no sockets
		files, _ := filepath.Glob(filepath.Join(cfg.Dir, pattern))
		left = append(left, files...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		// The filesystems of disks and programs are mounted while the provider is open.
		if strings.Contains(line, cfg.Dir) && !strings.Contains(line, filepath.Join(cfg.Dir, "disk")+" ") &&
			!strings.Contains(line, filepath.Join(cfg.Dir, "programs")+" ") &&
			!strings.Contains(line, filepath.Join(cfg.Dir, "sockets")+" ") {
			left = append(left, "a mount: "+line)
		}
	}
	layers, _ := filepath.Glob(filepath.Join(cfg.Dir, "disk", "*"))
	left = append(left, slices.DeleteFunc(layers, func(l string) bool { return l == boxes(cfg.Dir) || filepath.Base(l) == "volumes" })...)
	sockets, _ := os.ReadFile("/proc/net/unix")
	if bytes.Contains(sockets, []byte(cfg.Dir)) {
		left = append(left, "a socket")
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range procs {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, boxes(cfg.Dir)+"/") {
			left = append(left, fd+" is "+to)
		}
	}
	return left
}

// groups returns the control groups of the sandboxes of a state folder, and of spares while its provider is open.
func (k kit) groups(cfg local.Config) []string {
	sum := sha256.Sum256([]byte(cfg.Dir))
	unified, _ := filepath.Glob("/sys/fs/cgroup/cove-" + hex.EncodeToString(sum[:4]) + "/*/cgroup.procs")
	others, _ := filepath.Glob("/sys/fs/cgroup/*/cove-" + hex.EncodeToString(sum[:4]) + "/*/cgroup.procs")
	return append(unified, others...)
}

// boxes returns the folder that contains the folders of sandboxes.
func boxes(state string) string {
	own := filepath.Join(state, "disk", "sandboxes")
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return filepath.Join(state, "sandboxes")
}

// dying starts another hub on the state folder, which never closes its provider.
func (k kit) dying(t *testing.T, cfg local.Config, specs []sandbox.Spec, churn string) (hub *exec.Cmd, out *bufio.Reader) {
	t.Helper()
	in, err := json.Marshal(map[string]any{"Config": cfg, "Specs": specs, "Churn": churn})
	if err != nil {
		t.Fatal(err)
	}
	hub = exec.Command(k.hub)
	hub.Stdin, hub.Stderr = bytes.NewReader(in), os.Stderr
	pipe, err := hub.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hub.Start(); err != nil {
		t.Fatal(err)
	}
	return hub, bufio.NewReader(pipe)
}

// waitForSteps waits until another hub has reported steps.
func waitForSteps(t *testing.T, out *bufio.Reader, steps int) {
	t.Helper()
	for range steps {
		if line, err := out.ReadString('\n'); line != "done\n" {
			t.Fatalf("the other hub printed %q, %v, want done", line, err)
		}
	}
}

func kill9(t *testing.T, hub *exec.Cmd, out io.Reader) {
	t.Helper()
	if err := hub.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, out)
	hub.Wait()
}

func TestProvider(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	providertest.Run(t, harness(newKit(t), "", ""))
}

// TestPauseWithoutControlGroups: without a freezer, init suspends the processes with signals.
func TestPauseWithoutControlGroups(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	providertest.RunPauses(t, harness(newKit(t), "", t.TempDir()))
}

// TestProviderGVisor runs the suite with gVisor.
func TestProviderGVisor(t *testing.T) {
	testenv.NeedRoot(t)
	testenv.GVisor(t)
	t.Parallel()
	providertest.Run(t, harness(newKit(t), "gvisor", ""))
}

// TestProviderWithoutRoot runs the suite in a process of another user.
func TestProviderWithoutRoot(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const uid = 54322
	runElsewhere(t, "TestProviderWithoutRoot", uid, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, 20,
		func(k kit) { providertest.Run(t, harness(k, "", "")) })
}

// TestRootOfUserNamespace runs sandboxes as root in a user namespace with 65,536 IDs, as in a container.
func TestRootOfUserNamespace(t *testing.T) {
	t.Parallel()
	const base, count = 300_000_000, 65536
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: count}}
	runElsewhere(t, "TestRootOfUserNamespace", base, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{}}, 6,
		func(k kit) { providertest.RunPauses(t, harness(k, "", "")) })
}

// runElsewhere runs a test in a process with other attributes, whose user has an ID here. It must pass cases.
func runElsewhere(t *testing.T, name string, uid int, sys *syscall.SysProcAttr, cases int, run func(kit)) {
	const hub, payload, probe = "COVE_TEST_HUB", "COVE_TEST_PAYLOAD", "COVE_TEST_PROBE"
	if os.Getenv(hub) != "" {
		run(kit{hub: os.Getenv(hub), payload: os.Getenv(payload), probe: os.Getenv(probe)})
		return
	}
	testenv.NeedRoot(t) // to become another user
	k := newKit(t)
	tmp, err := os.MkdirTemp("", "local-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	// Other users cannot access the folder of the test binary.
	self := filepath.Join(tmp, "test")
	testenv.CopySelf(t, self)
	if err := os.Chown(tmp, uid, uid); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{filepath.Dir(k.hub), filepath.Dir(filepath.Dir(k.hub))} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(self, "-test.run=^"+name+"$", "-test.v")
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "TMPDIR=" + tmp, hub + "=" + k.hub,
		payload + "=" + k.payload, probe + "=" + k.probe}
	cmd.SysProcAttr = sys
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "--- PASS"); n < cases {
		t.Errorf("only %d cases passed, want %d:\n%s", n, cases, out)
	}
}

// harness runs sandboxes of a kind of isolation, with control groups below a folder; empty: the usual ones.
func harness(k kit, isolation, cgroup string) func(t *testing.T) providertest.Harness {
	return func(t *testing.T) providertest.Harness {
		t.Parallel()
		cfg := k.config(t)
		cfg.Cgroup = cgroup
		crowd := 0
		if isolation == "gvisor" {
			cfg.Runsc = testenv.GVisor(t)
			crowd = 20 // each has a kernel to start
		}
		return providertest.Harness{
			Crowd: crowd,
			Open: func() (sandbox.Provider, error) {
				p, err := local.Open(context.Background(), cfg)
				if err != nil {
					return nil, err
				}
				return p, nil
			},
			Spec: func() sandbox.Spec { return sandbox.Spec{Isolation: isolation} },
			Left: func() []string { return k.left(cfg) },
			CreateAndDie: func(t *testing.T, specs []sandbox.Spec) {
				hub, out := k.dying(t, cfg, specs, "")
				if line, err := out.ReadString('\n'); line != "created\n" {
					t.Errorf("the other hub printed %q, %v", line, err)
				}
				kill9(t, hub, out)
			},
			DieCreating: func(t *testing.T, spec sandbox.Spec) {
				hub, out := k.dying(t, cfg, []sandbox.Spec{spec}, "")
				if !testenv.Eventually(func() bool {
					records, _ := filepath.Glob(filepath.Join(boxes(cfg.Dir), "*/state.json"))
					return slices.ContainsFunc(records, func(name string) bool {
						record, _ := os.ReadFile(name)
						return bytes.Contains(record, []byte(`"state":"creating"`))
					})
				}) {
					t.Error("the create has not started")
				}
				kill9(t, hub, out)
			},
		}
	}
}

// TestCloseWithAStoppedSandbox: nothing of the hub stays mounted if no sandbox runs, and the next hub starts the sandbox.
func TestCloseWithAStoppedSandbox(t *testing.T) {
	testenv.NeedRoot(t)
	k := newKit(t)
	cfg := k.config(t)
	p := k.open(t, cfg)
	sb, err := p.Create(t.Context(), sandbox.Spec{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Stop(t.Context(), sb.ID), p.Close()); err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " "+cfg.Dir+"/") {
			t.Errorf("after Close: got the mount %s, want none", line)
		}
	}
	p = k.open(t, cfg)
	if err := errors.Join(p.Start(t.Context(), sb.ID), p.Delete(t.Context(), sb.ID), p.Close()); err != nil {
		t.Fatal(err)
	}
}
