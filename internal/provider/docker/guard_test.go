package docker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/deploy"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/docker"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// hub is a provider under test.
type hub struct {
	*docker.Provider
	t   *testing.T
	r   rig
	cfg docker.Config
}

func testGuard(t *testing.T, r rig) {
	for _, c := range []struct {
		name string
		run  func(*hub)
	}{
		{"walls", testWalls}, {"planted socket", testPlantedSocket}, {"limits", testLimits},
		{"volumes", testSharedVolumes}, {"image's own program", testImageProgram},
		{"snapshot as an image", testSnapshotSecrets}, {"images based on each other", testImageChain},
		{"disks of others", testOthersDisks}, {"hostile image", testHostileImage}, {"no such image", testNoImage},
		{"slow image", testSlowImage}, {"hub killed while it pulls", testKilledPulling},
		{"hub killed in a burst", testBurst}, {"engine restarts", testRestart}, {"engine killed", testEngineKilled},
		{"container removed by hand", testRemoved}, {"state folder lost", testLost},
		{"container that comes late", testLate}, {"late subscription", testLateSubscription},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &hub{t: t, r: r, cfg: r.config(t)}
			h.cfg.Seccomp = deploy.Seccomp
			h.open()
			t.Cleanup(h.clean)
			c.run(h)
		})
	}
}

func (h *hub) open() {
	h.t.Helper()
	p, err := docker.Open(context.Background(), h.cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Provider = p
}

// clean deletes everything, also after a failure, and fails if anything is left.
func (h *hub) clean() {
	ctx := context.Background()
	all, err := h.List(ctx, sandbox.Filter{})
	for _, sb := range all {
		err = errors.Join(err, h.Delete(ctx, sb.ID))
	}
	volumes, more := h.Volumes(ctx, "")
	err = errors.Join(err, more)
	for _, v := range volumes {
		err = errors.Join(err, h.DeleteVolume(ctx, v.Owner, v.Name))
	}
	if err := errors.Join(err, h.Close()); err != nil {
		h.t.Error(err)
	}
	if left := h.r.left(h.t, h.cfg); len(left) > 0 {
		h.t.Errorf("left behind: %q", left)
	}
}

func (h *hub) create(spec sandbox.Spec) sandbox.Sandbox {
	h.t.Helper()
	sb, err := h.Create(h.t.Context(), spec)
	if err != nil {
		h.t.Fatal(err)
	}
	return sb
}

func (h *hub) request(id string, port int, path, body string) (string, error) {
	ep, err := h.Endpoint(h.t.Context(), id, port)
	if err != nil {
		return "", err
	}
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return ep.Dial(ctx)
	}}
	resp, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Post("http://sandbox"+path, "", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return string(out), err
}

// sh runs a command of the shell inside, whose programs are built in.
func (h *hub) sh(id, command string) string {
	h.t.Helper()
	out, err := h.request(id, 0, "/run", command)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

// wantOutput runs commands inside.
func (h *hub) wantOutput(id string, commands map[string]string) {
	h.t.Helper()
	for command, want := range commands {
		if got := h.sh(id, command); got != want {
			h.t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
}

// testWalls: a program inside has no privileges, and cannot see or reach the host.
func testWalls(h *hub) {
	sb, bare := h.create(sandbox.Spec{Name: "walls", Env: map[string]string{"WORD": "hush-hush"}}),
		h.create(sandbox.Spec{Name: "bare", NoRoot: true})
	common := map[string]string{
		"id -u": "1000\n",
		"grep -e ^CapEff -e ^CapPrm -e ^CapAmb /proc/self/status | tr -d 'CapEfrmPAb:\\t\\n0'": "",
		"grep ^CapBnd /proc/self/status":                              "CapBnd:\t00000000a00405fb\n", // those of capabilities
		"grep ^Seccomp: /proc/self/status":                            "Seccomp:\t2\n",
		"ls /sys/class/net":                                           "lo\n",
		"ip route | wc -l":                                            "0\n",
		"nc -w 60 172.31.255.1 80 </dev/null 2>&1 | grep -c refused":  "1\n",
		"touch /run/cove/x /run/bin/x 2>&1 | grep -c Read-only":       "2\n",
		"rm -f /run/cove-control/control 2>&1 | grep -c permitted":    "1\n",
		"ls /var/run/docker.sock 2>&1 | grep -c 'No such file'":       "1\n",
		"mount -t tmpfs x /tmp 2>&1 | grep -c -i permi":               "1\n",
		"echo x 2>/dev/null >/proc/sys/kernel/hostname || echo no":    "no\n",
		"ps | grep -c -e '[d]ockerd' -e '[c]ontainerd' -e '[p]odman'": "0\n[exit status 1]",
	}
	h.wantOutput(sb.ID, common)
	h.wantOutput(bare.ID, common)
	h.wantOutput(sb.ID, map[string]string{"hostname": "walls\n", "grep ^NoNewPrivs /proc/self/status": "NoNewPrivs:\t0\n"})
	h.wantOutput(bare.ID, map[string]string{"grep ^NoNewPrivs /proc/self/status": "NoNewPrivs:\t1\n"})
	if strings.Contains(h.r.Run(h.t, nil, "inspect", "cove-"+sb.ID), "hush-hush") {
		h.t.Error("the labels contain the environment")
	}
	info := h.r.Run(h.t, nil, "inspect", "--format",
		"{{.HostConfig.Privileged}} {{.HostConfig.NetworkMode}} {{.HostConfig.Binds}}", "cove-"+sb.ID)
	if !strings.HasPrefix(info, "false none ") || strings.Contains(info, "sock") {
		h.t.Errorf("container: got %q, want no privileges, network or sockets", info)
	}
}

// testPlantedSocket: if root inside replaces the control socket with a link to a socket of the host, the hub does not
// connect to that.
func testPlantedSocket(h *hub) {
	sb := h.create(sandbox.Spec{})
	host := filepath.Join(h.t.TempDir(), "host.sock")
	l, err := net.Listen("unix", host)
	if err != nil {
		h.t.Fatal(err)
	}
	defer l.Close()
	control := filepath.Join(h.cfg.Dir, "containers", sb.ID, "control", "control")
	if err := errors.Join(os.Remove(control), os.Symlink(host, control)); err != nil {
		h.t.Fatal(err)
	}
	if out, err := h.request(sb.ID, 0, "/run", "true"); err == nil {
		h.t.Errorf("reached %q", out)
	}
	// The next start removes it.
	if err := errors.Join(h.Stop(h.t.Context(), sb.ID), h.Start(h.t.Context(), sb.ID)); err != nil {
		h.t.Fatal(err)
	}
	h.wantOutput(sb.ID, map[string]string{"echo hello": "hello\n"})
}

// testLimits: limits are enforced, and can be changed while a sandbox runs.
func testLimits(h *hub) {
	sb := h.create(sandbox.Spec{Resources: sandbox.Resources{MemoryLimit: 64 << 20, Pids: 40, CPULimit: 500, Files: 500}})
	limits := func(memory int, pids, cpu string) {
		h.t.Helper()
		group := func(names string) string { return "cd /sys/fs/cgroup; cat " + names + " 2>/dev/null | cut -d' ' -f1" }
		h.wantOutput(sb.ID, map[string]string{ // version 2 and 1 of control groups
			group("memory.max memory/memory.limit_in_bytes"): fmt.Sprintln(memory),
			group("pids.max pids/pids.max"):                  pids + "\n",
			group("cpu.max cpu/cpu.cfs_quota_us"):            cpu + "\n",
		})
	}
	limits(64<<20, "40", "50000")
	h.wantOutput(sb.ID, map[string]string{"ulimit -n": "500\n"})
	hog := "dd if=/dev/zero bs=100M count=1 2>/dev/null | wc -c"
	if out := h.sh(sb.ID, hog); strings.Contains(out, fmt.Sprint(100<<20)) {
		h.t.Errorf("100 MiB in memory with a limit of 64: got %q", out)
	}
	if got, err := h.Get(h.t.Context(), sb.ID); err != nil || got.State != sandbox.Running {
		h.t.Fatalf("got %+v, %v, want it running", got, err)
	}
	_, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error {
		s.Resources.MemoryLimit, s.Resources.CPULimit = 256<<20, 1000
		s.Resources.Files, s.Env = 600, map[string]string{"LATER": "yes"}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	limits(256<<20, "40", "100000")
	if out := h.sh(sb.ID, hog); !strings.Contains(out, fmt.Sprint(100<<20)) {
		h.t.Errorf("100 MiB in memory with a limit of 256: got %q", out)
	}
	if err := errors.Join(h.Stop(h.t.Context(), sb.ID), h.Start(h.t.Context(), sb.ID)); err != nil {
		h.t.Fatal(err)
	}
	limits(256<<20, "40", "100000")
	h.wantOutput(sb.ID, map[string]string{"echo $LATER": "yes\n", "ulimit -n": "600\n"})
	if err := h.Stop(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error { s.Resources.Pids = 50; return nil }); err != nil {
		h.t.Fatal(err)
	}
	if err := h.Start(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	limits(256<<20, "50", "100000")
}

func testSharedVolumes(h *hub) {
	with := func(owner, target string, readOnly bool) sandbox.Sandbox {
		h.t.Helper()
		return h.create(sandbox.Spec{Owner: owner, Volumes: []sandbox.Volume{{Name: "data", Target: target, ReadOnly: readOnly}}})
	}
	writer, reader, stranger := with("ann", "/home/gem/data", false), with("ann", "/data", true), with("bob", "/data", false)
	h.wantOutput(writer.ID, map[string]string{"echo hello >/home/gem/data/file && echo ok": "ok\n"})
	h.wantOutput(reader.ID, map[string]string{"cat /data/file": "hello\n", "touch /data/x 2>&1 | grep -c Read-only": "1\n"})
	h.wantOutput(stranger.ID, map[string]string{"ls -A /data": ""})
	if _, err := h.Snapshot(h.t.Context(), writer.ID, "without-volumes"); err != nil {
		h.t.Fatal(err)
	}
	copied := h.create(sandbox.Spec{Owner: "ann", Snapshot: "without-volumes"})
	h.wantOutput(copied.ID, map[string]string{"ls -A /home/gem/data": ""})
	for _, sb := range []sandbox.Sandbox{writer, copied} {
		if err := h.Delete(h.t.Context(), sb.ID); err != nil {
			h.t.Error(err)
		}
	}
	if err := h.DeleteSnapshot(h.t.Context(), "ann", "without-volumes"); err != nil {
		h.t.Error(err)
	}
}

// testSnapshotSecrets: the image of a snapshot, which can be pushed and shared, contains no data about its sandbox.
func testSnapshotSecrets(h *hub) {
	sb := h.create(sandbox.Spec{Owner: "ann", Env: map[string]string{"WORD": "hush-hush"}})
	if _, err := h.Snapshot(h.t.Context(), sb.ID, "shared"); err != nil {
		h.t.Fatal(err)
	}
	image := strings.TrimSpace(h.r.Run(h.t, nil, "images", "-q", "--filter", "label=io.cove.hub="+docker.Instance(h.cfg)))
	if got := h.r.Run(h.t, nil, "image", "inspect", image); image == "" || strings.Contains(got, "hush-hush") ||
		!strings.Contains(got, `"io.cove.sandbox": ""`) {
		h.t.Errorf("got %s, want neither a secret nor the sandbox", got)
	}
	// Images that users build from it have the same labels, and are kept.
	const theirs = "cove-test/theirs:1"
	made := strings.TrimSpace(h.r.Run(h.t, nil, "create", "--network", "none", image))
	h.r.Run(h.t, nil, "commit", made, theirs)
	h.r.Run(h.t, nil, "rm", made)
	if err := errors.Join(h.DeleteSnapshot(h.t.Context(), "ann", "shared"), h.Close()); err != nil {
		h.t.Fatal(err)
	}
	h.open()
	h.r.Run(h.t, nil, "image", "inspect", theirs)
	h.r.Run(h.t, nil, "rmi", theirs)
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.open() // which removes the rest
}

// testImageChain: parent and child images are removed together, independently of the order in which the engine lists them.
func testImageChain(h *hub) {
	hubLabel, image := "io.cove.hub="+docker.Instance(h.cfg), tinyImage
	for i := range 6 { // in about a second, which is the resolution of that order
		container := fmt.Sprintf("chain-%d", i)
		h.r.Run(h.t, nil, "create", "--network", "none", "--name", container, image, "/bin/sh")
		image = fmt.Sprintf("cove-%s-deleted:%d", docker.Instance(h.cfg), i)
		h.r.Run(h.t, nil, "commit", "--change", "LABEL "+hubLabel, container, image)
		h.r.Run(h.t, nil, "rm", container)
	}
	sb := h.create(sandbox.Spec{})
	if _, err := h.Snapshot(h.t.Context(), sb.ID, "s"); err != nil {
		h.t.Fatal(err)
	}
	if err := h.DeleteSnapshot(h.t.Context(), "", "s"); err != nil {
		h.t.Fatal(err)
	}
	if left := strings.Fields(h.r.Run(h.t, nil, "images", "-aq", "--filter", "label="+hubLabel)); len(left) != 0 {
		h.t.Errorf("%d images are left, want none", len(left))
	}
}

// testImageProgram: a spec with a port runs the program of the image, with its user, environment and folder.
func testImageProgram(h *hub) {
	const image = "cove-test/own:1"
	h.r.Run(h.t, tinyRoot(h.t, ""), "import", "-c", "ENV FROM=image", "-c", "USER 1000", "-c", "WORKDIR /tmp",
		"-c", `ENTRYPOINT ["/bin/sh", "-c", "PAYLOAD_TCP=127.0.0.1:9000 COVE_LISTEN=tcp:127.0.0.1:8000 exec /run/bin/payload"]`, "-", image)
	sb := h.create(sandbox.Spec{Image: image, Server: sandbox.Server{Port: 8000}, Env: map[string]string{"HOME": "/home/gem"}})
	h.wantOutput(sb.ID, map[string]string{"echo $FROM; id -u; pwd": "image\n1000\n/tmp\n"})
	if out, err := h.request(sb.ID, 9000, "/run", "echo other port"); out != "other port\n" {
		h.t.Errorf("port 9000: got %q, %v", out, err)
	}
}

func testNoImage(h *hub) {
	_, err := h.Create(h.t.Context(), sandbox.Spec{Image: "cove-test/none:1"})
	if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "cove-test/none:1") {
		h.t.Errorf("got %v, want %v with the name", err, sandbox.ErrInvalid)
	}
}

// testBurst: after kill -9 of a hub during many creates, the next hub has only complete sandboxes, and no other objects are
// left.
func testBurst(h *hub) {
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	todo := plan{Config: h.cfg, Burst: true}
	for i := range 50 {
		todo.Specs = append(todo.Specs, sandbox.Spec{Name: fmt.Sprintf("burst-%d", i)})
	}
	_, kill := startDying(h.t, todo)
	defer kill()
	running := func() (n int) {
		records, _ := filepath.Glob(filepath.Join(h.cfg.Dir, "containers", "*", "record.json"))
		for _, path := range records {
			if data, _ := os.ReadFile(path); strings.Contains(string(data), `"state":"running"`) {
				n++
			}
		}
		return n
	}
	for n := range 3 { // each within the patience of Poll
		testenv.Poll(h.t, fmt.Sprintf("%d sandboxes are running", n+1), func() bool { return running() > n })
	}
	kill()
	h.open()
	all, err := h.List(h.t.Context(), sandbox.Filter{})
	if err != nil || len(all) < 3 {
		h.t.Errorf("got %d sandboxes, %v, want those that were ready", len(all), err)
	}
	for _, sb := range all {
		if sb.State != sandbox.Running {
			h.t.Errorf("%s is %s", sb.Spec.Name, sb.State)
			continue
		}
		h.wantOutput(sb.ID, map[string]string{"echo hello": "hello\n"})
	}
	// The second hub removes containers that the engine creates late for the first.
	testenv.Poll(h.t, "the engine has no other containers", func() bool {
		return len(strings.Fields(h.r.Run(h.t, nil, "ps", "-aq", "--filter", "label=io.cove.hub="+docker.Instance(h.cfg)))) == len(all)
	})
}
