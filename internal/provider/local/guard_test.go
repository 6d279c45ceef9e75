package local_test

import (
	"context"
	"encoding/json"
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

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/provider/providertest/outbound"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// hub is a provider with a new state folder.
type hub struct {
	*local.Provider
	t   *testing.T
	k   kit
	cfg local.Config
}

func (h *hub) create(spec sandbox.Spec) sandbox.Sandbox {
	h.t.Helper()
	sb, err := h.Create(h.t.Context(), spec)
	if err != nil {
		h.t.Fatal(err)
	}
	return sb
}

// sh runs a command inside.
func (h *hub) sh(id, command string) string {
	h.t.Helper()
	out, err := h.try(id, http.MethodPost, "/run", command)
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *hub) try(id, method, path, body string) (string, error) {
	ep, err := h.Endpoint(h.t.Context(), id, 0)
	if err != nil {
		return "", err
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ep.Dial(ctx) }}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(h.t.Context(), method, "http://sandbox"+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(out), err
}

func TestGuard(t *testing.T) {
	testenv.Long(t)
	testenv.NeedRoot(t)
	t.Parallel()
	k := newKit(t)
	for _, c := range []struct {
		name string
		run  func(*hub)
	}{
		{"neighbours", testNeighbours}, {"planted socket", testPlantedSocket}, {"memory", testMemory},
		{"disk", testDisk}, {"quota", testQuota}, {"volume quota", testVolumeQuota},
		{"volume without quota", testVolumeWithoutQuota}, {"stuck", testStuck}, {"many files", testManyFiles},
		{"deep folders", testDeepFolders}, {"live limits", testLiveLimits}, {"volumes", testVolumes},
		{"home", testHomeAlias}, {"way out", testEgressSocket},
		{"tcp server", testTCPServer}, {"image", testImage}, {"owners are not translated", testUnmapped},
		{"restart of the machine", testReboot}, {"unreadable record", testUnreadable}, {"stubborn", testStubborn},
		{"hostile", testHostile}, {"disk rate", testDiskRate}, {"rounds", testRounds}, {"killed at any moment", testKilled},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := k.config(t)
			h := &hub{t: t, k: k, cfg: cfg, Provider: k.open(t, cfg)}
			t.Cleanup(h.clean)
			c.run(h)
		})
	}
}

// clean deletes everything, also after a failure, and fails if anything is left.
func (h *hub) clean() {
	ctx := context.Background()
	all, err := h.List(ctx, sandbox.Filter{})
	if errors.Is(err, sandbox.ErrClosed) {
		if h.Provider, err = local.Open(ctx, h.cfg); err == nil {
			all, err = h.List(ctx, sandbox.Filter{})
		}
	}
	if err != nil {
		h.t.Fatal(err)
	}
	for _, sb := range all {
		if err := h.Delete(ctx, sb.ID); err != nil {
			h.t.Error(err)
		}
	}
	snaps, err := h.Snapshots(ctx, "")
	if err != nil {
		h.t.Error(err)
	}
	for _, s := range snaps {
		if err := h.DeleteSnapshot(ctx, s.Owner, s.Name); err != nil {
			h.t.Error(err)
		}
	}
	volumes, err := h.Volumes(ctx, "")
	if err != nil {
		h.t.Error(err)
	}
	for _, v := range volumes {
		if err := h.DeleteVolume(ctx, v.Owner, v.Name); err != nil {
			h.t.Error(err)
		}
	}
	if layers, _ := filepath.Glob(filepath.Join(h.cfg.Dir, "disk", "*", "root")); len(layers) > 0 {
		h.t.Errorf("layers are left: %q", layers)
	}
	h.Close()
	if !testenv.Eventually(func() bool { return len(h.k.left(h.cfg))+len(h.k.groups(h.cfg)) == 0 }) {
		h.t.Errorf("left behind: %q", append(h.k.left(h.cfg), h.k.groups(h.cfg)...))
	}
}

// testNeighbours: two sandboxes share nothing and cannot see each other.
func testNeighbours(h *hub) {
	a, b := h.create(sandbox.Spec{Name: "a"}), h.create(sandbox.Spec{Name: "b"})
	h.sh(a.ID, "echo secret > /tmp/secret; echo secret > /dev/shm/secret; (sleep 1000 >/dev/null 2>&1 &)")
	for _, c := range []struct{ command, want string }{
		{"cat /tmp/secret /dev/shm/secret 2>&1 | grep -c secret:", ""},
		{"pgrep -c sleep", "0\n[exit status 1]"},
		{"hostname", "b\n"},
		{"tr '\\0' ' ' </proc/1/cmdline; cat /proc/1/comm", "init isolate-init init\n"},
		{"getent hosts $(hostname) | wc -l", "1\n"},
		{"ls -a /run/cove", ".\n..\n"},
		{"grep -c ' - btrfs ' /proc/self/mountinfo", "0\n[exit status 1]"},
		{"touch /run/cove/x 2>&1", "touch: cannot touch '/run/cove/x': Read-only file system\n[exit status 1]"},
		{"stat -f -c %T /run/payload", "tmpfs\n"},
		{"touch /run/payload 2>&1", "touch: cannot touch '/run/payload': Permission denied\n[exit status 1]"},
		{"find / -xdev -name '*" + a.ID + "*' 2>/dev/null | wc -l", "0\n"},
		{"env | grep -v -e ^PATH= -e ^HOME= -e ^USER= -e ^LOGNAME= -e ^SHELL= -e ^LANG= -e ^XDG_RUNTIME_DIR= -e " +
			"^NPM_CONFIG_PREFIX= -e ^PIP_BREAK_SYSTEM_PACKAGES= -e ^SSL_CERT_FILE= -e ^REQUESTS_CA_BUNDLE= -e " +
			"^NODE_EXTRA_CA_CERTS= -e ^COVE_ -e ^PWD= | wc -l", "0\n"},
	} {
		if got := h.sh(b.ID, c.command); got != c.want && c.want != "" {
			h.t.Errorf("%s: got %q, want %q", c.command, got, c.want)
		}
	}
	// Each has different user IDs on the host.
	uid := func(id string) string { return strings.Fields(h.sh(id, "cat /proc/self/uid_map"))[1] }
	if uid(a.ID) == uid(b.ID) {
		h.t.Errorf("both sandboxes use IDs of the host from %s", uid(a.ID))
	}
	if st, err := os.Stat(boxes(h.cfg.Dir)); err != nil || st.Mode().Perm()&0o077 != 0 {
		h.t.Errorf("other users can access the folder of sandboxes: %v, %v", st.Mode(), err)
	}
}

// testPlantedSocket: if a sandbox replaces the socket of its server with a link to a socket of the host, the hub does not
// connect to that.
func testPlantedSocket(h *hub) {
	host := filepath.Join(h.t.TempDir(), "host.sock")
	l, err := net.Listen("unix", host)
	if err != nil {
		h.t.Fatal(err)
	}
	defer l.Close()
	reached := make(chan struct{}, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
			reached <- struct{}{}
		}
	}()
	for _, plant := range []string{
		"rm /run/aio/aio.sock; ln -s " + host + " /run/aio/aio.sock",
		"rm /run/aio/aio.sock; ln -s ../../../../../../.." + host + " /run/aio/aio.sock",
		"rm /run/aio/aio.sock; mkdir -p /run/aio/aio.sock/deep; ln -s / /run/aio/root",
		"rm /run/aio/aio.sock; mkfifo /run/aio/aio.sock",
	} {
		sb := h.create(sandbox.Spec{})
		h.sh(sb.ID, plant)
		if out, err := h.try(sb.ID, http.MethodGet, "/readyz", ""); err == nil {
			h.t.Errorf("%s: reached %q", plant, out)
		}
		// The next start removes it, and does not follow the link.
		if err := errors.Join(h.Stop(h.t.Context(), sb.ID), h.Start(h.t.Context(), sb.ID)); err != nil {
			h.t.Errorf("%s: %v", plant, err)
		}
		if _, err := h.try(sb.ID, http.MethodGet, "/readyz", ""); err != nil {
			h.t.Errorf("%s: %v", plant, err)
		}
	}
	select {
	case <-reached:
		h.t.Error("the hub connected to a socket of the host")
	default:
	}
	if _, err := os.Stat(host); err != nil {
		h.t.Errorf("the host's socket: %v", err)
	}
}

// testHomeAlias: the home has a second path, at which also its volumes are. A disk that uses that path keeps its content.
func testHomeAlias(h *hub) {
	sb := h.create(sandbox.Spec{Owner: "ann",
		Volumes: []sandbox.Volume{{Name: "a", Target: "/home/user/a"}, {Name: "b", Target: "/home/gem/b"}}})
	if out := h.sh(sb.ID, "cd /home/user && /bin/pwd; echo 1 > x; cat /home/gem/x; echo 2 > b/x; cat /home/gem/b/x; stat -c %m a b; "+
		"getent passwd user"); out != "/home/user\n1\n2\n/home/user/a\n/home/user/b\nuser:x:1000:1000:gem:/home/user:/bin/bash\n" {
		h.t.Errorf("got %q, want the home at its second path", out)
	}
}

func testVolumes(h *hub) {
	volume := func(name, target string, ro bool) sandbox.Spec {
		return sandbox.Spec{Owner: "ann", Volumes: []sandbox.Volume{{Name: name, Target: target, ReadOnly: ro}}}
	}
	a, b := h.create(volume("shared", "/home/gem/data", false)), h.create(volume("shared", "/data", true))
	h.sh(a.ID, "echo hello > /home/gem/data/file")
	if out := h.sh(b.ID, "cat /data/file; stat -c %U /data/file; touch /data/x 2>&1"); out != "hello\ngem\ntouch: "+
		"cannot touch '/data/x': Read-only file system\n[exit status 1]" {
		h.t.Errorf("the other sandbox: got %q, want the file, and no writing", out)
	}
	foreign := volume("shared", "/data", false)
	foreign.Owner = "bob"
	if out := h.sh(h.create(foreign).ID, "ls /data"); out != "" {
		h.t.Errorf("another owner's volume of that name: got %q, want it empty", out)
	}
	if err := errors.Join(h.Delete(h.t.Context(), a.ID), h.Delete(h.t.Context(), b.ID)); err != nil {
		h.t.Fatal(err)
	}
	if out := h.sh(h.create(volume("shared", "/mnt/v", false)).ID, "cat /mnt/v/file"); out != "hello\n" {
		h.t.Errorf("a later sandbox: got %q, want %q", out, "hello\n")
	}
}

// testEgressSocket: a sandbox can use the socket for outgoing connections but not replace it.
func testEgressSocket(h *hub) {
	id := h.create(sandbox.Spec{}).ID
	outbound.Serve(h.t, &outbound.Box{Listen: func(ctx context.Context) (net.Listener, error) { return h.Egress(ctx, id) }})
	out := h.sh(id, "ls /run/cove; rm -f /run/cove/egress.sock 2>&1; mv /run/cove /run/other 2>&1 | wc -l")
	if !strings.HasPrefix(out, "egress.sock\nrm: ") || !strings.HasSuffix(out, "1\n") {
		h.t.Errorf("got %q, want errors and an unchanged socket", out)
	}
	out = h.sh(id, "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 80))' 2>&1 | tail -1")
	if !strings.Contains(out, "refused") {
		h.t.Errorf("direct connection: got %q, want a refused connection", out)
	}
}

func testTCPServer(h *hub) {
	sb := h.create(sandbox.Spec{Server: sandbox.Server{Port: 8080}})
	if out := h.sh(sb.ID, "echo $COVE_LISTEN"); out != "tcp:127.0.0.1:8080\n" {
		h.t.Errorf("got %q, want %q", out, "tcp:127.0.0.1:8080\n")
	}
}

func testImage(h *hub) {
	h.Close()
	upper, lower := h.t.TempDir(), h.t.TempDir()
	payload, err := os.ReadFile(h.k.payload)
	if err != nil {
		h.t.Fatal(err)
	}
	for path, data := range map[string][]byte{
		filepath.Join(lower, "server"): []byte("hidden by the upper layer"), filepath.Join(upper, "server"): payload,
		filepath.Join(lower, "lower"): nil,
	} {
		testenv.WriteProgram(h.t, path, data)
	}
	for _, d := range []string{upper, lower} {
		if err := os.Chmod(d, 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
	h.cfg.Images.Dir = filepath.Join(h.cfg.Dir, "images")
	h.Provider = h.k.open(h.t, h.cfg)
	if err := h.ImportImage(h.t.Context(), saveImage(h.t, lower, upper), "some/image:1"); err != nil {
		h.t.Fatal(err)
	}
	sb := h.create(sandbox.Spec{Image: "some/image:1"})
	for range 2 {
		for path, want := range map[string]string{"/env/FROM": "image", "/env/PWD": ""} {
			if got, err := h.try(sb.ID, http.MethodGet, path, ""); got != want || err != nil {
				h.t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
			}
		}
		if err := errors.Join(h.Stop(h.t.Context(), sb.ID), h.Start(h.t.Context(), sb.ID)); err != nil {
			h.t.Fatal(err)
		}
	}
}

// testUnmapped: without ID-mapped mounts, files on disk have the IDs of the sandbox on the host.
func testUnmapped(h *hub) {
	h.Close()
	h.cfg.WithoutIDMaps()
	h.Provider = h.k.open(h.t, h.cfg)
	sb := h.create(sandbox.Spec{Owner: "ann", Volumes: []sandbox.Volume{{Name: "data", Target: "/data"}}})
	for range 2 {
		if out := h.sh(sb.ID, "id -un; touch x /data/y; stat -c %U x /data/y /home/gem /run/aio"); out != "gem\ngem\ngem\ngem\ngem\n" {
			h.t.Errorf("got %q, want %q", out, "gem\ngem\ngem\ngem\ngem\n")
		}
		if err := errors.Join(h.Stop(h.t.Context(), sb.ID), h.Start(h.t.Context(), sb.ID)); err != nil {
			h.t.Fatal(err)
		}
	}
}

// edit changes the record of a sandbox while no hub is running.
func (h *hub) edit(id string, change func(data []byte) []byte) {
	h.t.Helper()
	// It is on the filesystem of the disks, which stays mounted while this file is open.
	dir, err := os.Open(filepath.Join(boxes(h.cfg.Dir), id))
	if err != nil {
		h.t.Fatal(err)
	}
	defer dir.Close()
	h.Close()
	path := fmt.Sprintf("/proc/self/fd/%d/state.json", dir.Fd())
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(data), 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.Provider = h.k.open(h.t, h.cfg)
}

// editJSON is edit with a valid record.
func (h *hub) editJSON(id string, change func(record map[string]any)) {
	h.t.Helper()
	h.edit(id, func(data []byte) []byte {
		var rec map[string]any
		err := json.Unmarshal(data, &rec)
		if err == nil {
			change(rec)
			data, err = json.Marshal(rec)
		}
		if err != nil {
			h.t.Error(err)
		}
		return data
	})
}

// testReboot: after a reboot nothing runs, and a recorded PID may belong to another process.
func testReboot(h *hub) {
	sb := h.create(sandbox.Spec{})
	h.sh(sb.ID, "echo kept > file; sync")
	if err := h.Stop(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	h.editJSON(sb.ID, func(rec map[string]any) {
		rec["sandbox"].(map[string]any)["state"] = "running"
		rec["init"] = map[string]any{"pid": os.Getpid(), "start": 1, "boot": "another"}
	})
	got, err := h.Get(h.t.Context(), sb.ID)
	if err != nil || got.State != sandbox.Failed || got.Message == "" {
		h.t.Fatalf("got %+v, %v, want it failed, with a message", got, err)
	}
	if err := h.Start(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	if out := h.sh(sb.ID, "cat file"); out != "kept\n" {
		h.t.Errorf("the file on the disk: got %q, want %q", out, "kept\n")
	}
}

// testUnreadable: an unreadable record is kept for inspection, and does not affect other sandboxes.
func testUnreadable(h *hub) {
	good, bad := h.create(sandbox.Spec{}), h.create(sandbox.Spec{})
	if err := h.Stop(h.t.Context(), bad.ID); err != nil {
		h.t.Fatal(err)
	}
	h.edit(bad.ID, func([]byte) []byte { return []byte("{") })
	folder := filepath.Join(boxes(h.cfg.Dir), bad.ID)
	if _, err := h.try(good.ID, http.MethodGet, "/readyz", ""); err != nil {
		h.t.Error(err)
	}
	if _, err := os.Stat(folder); err != nil {
		h.t.Errorf("the folder: %v", err)
	}
	if err := os.RemoveAll(folder); err != nil {
		h.t.Fatal(err)
	}
	// Its layers were kept.
	h.Close()
	h.Provider = h.k.open(h.t, h.cfg)
}

// testStubborn: a program that ignores SIGTERM is killed, and so is a paused one.
func testStubborn(h *hub) {
	spec := sandbox.Spec{Command: []string{"sh", "-c", "trap '' TERM; /run/payload"}}
	sb := h.create(spec)
	if err := h.Stop(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	if err := h.Start(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.Stop(ctx, sb.ID); err != nil {
		h.t.Errorf("stop with a short deadline: %v", err)
	}
	if got, err := h.Get(h.t.Context(), sb.ID); err != nil || got.State != sandbox.Stopped {
		h.t.Errorf("got %+v, %v, want it stopped", got, err)
	}
}

// testRounds: many starts and deletions leave nothing, which the end of TestGuard checks.
func testRounds(h *hub) {
	for range 30 {
		sb := h.create(sandbox.Spec{})
		if out := h.sh(sb.ID, "echo hello"); out != "hello\n" {
			h.t.Errorf("got %q, want %q", out, "hello\n")
		}
		if err := h.Delete(h.t.Context(), sb.ID); err != nil {
			h.t.Fatal(err)
		}
	}
}

// testKilled: a killed hub leaves only complete sandboxes, which the next hub adopts in their
// actual state.
func testKilled(h *hub) {
	h.Close()
	for round := range 12 {
		other, out := h.k.dying(h.t, h.cfg, nil, "lives")
		if line, err := out.ReadString('\n'); line != "created\n" {
			h.t.Errorf("the other hub printed %q, %v", line, err)
		}
		waitForSteps(h.t, out, round)
		kill9(h.t, other, out)
		h.Provider = h.k.open(h.t, h.cfg)
		all, err := h.List(h.t.Context(), sandbox.Filter{})
		if err != nil {
			h.t.Fatal(err)
		}
		for _, sb := range all {
			switch sb.State {
			case sandbox.Paused:
				err = h.Resume(h.t.Context(), sb.ID)
			case sandbox.Stopped, sandbox.Failed:
				err = h.Start(h.t.Context(), sb.ID)
			default:
				err = nil
			}
			if err == nil {
				_, err = h.try(sb.ID, http.MethodGet, "/readyz", "")
			}
			if err == nil {
				err = h.Delete(h.t.Context(), sb.ID)
			}
			if err != nil {
				h.t.Errorf("round %d: a sandbox that was %s: %v", round, sb.State, err)
			}
		}
		h.t.Logf("round %d: %d sandboxes", round, len(all))
		if left := h.k.left(h.cfg); len(left) != 0 {
			h.t.Errorf("round %d left %q", round, left)
		}
		h.Close()
	}
}
