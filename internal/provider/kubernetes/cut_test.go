//go:build linux

package kubernetes_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/provider/providertest"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const cutsPath = "../../../deploy/kubernetes/volumesnapshots.yaml"

// takeSnapshot replaces the snapshot-controller and the driver of the volumes. It is called with the lock of the API server.
func (s *apiServer) takeSnapshot(name, claim string) {
	driver := s.driver
	s.handlers.Go(func() {
		if driver != nil {
			if fault := driver(name); fault != "" {
				s.setStatus("volumesnapshots", name, doc{"readyToUse": false, "error": doc{"message": fault}})
				return
			}
		}
		err := copyTree(s.kubelet.folder("snapshots", name), s.kubelet.folder("claims", claim))
		if _, gone := s.get("volumesnapshots", name); gone != nil { // it was deleted meanwhile
			os.RemoveAll(s.kubelet.folder("snapshots", name))
			return
		}
		if err != nil {
			s.t.Error(err)
		}
		status := doc{"readyToUse": false, "creationTime": time.Now().UTC().Format(time.RFC3339)}
		s.setStatus("volumesnapshots", name, status)
		status["readyToUse"], status["restoreSize"] = true, "2Gi"
		s.setStatus("volumesnapshots", name, status)
	})
}

func (k *kubelet) folder(kind, name string) string { return filepath.Join(k.dir, kind, name) }

// fillClaim makes the volume of a claim of a snapshot.
func (k *kubelet) fillClaim(claim, snapshot string) error {
	return copyTree(k.folder("claims", claim), k.folder("snapshots", snapshot))
}

func copyTree(to, from string) error {
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		return errors.New(string(out))
	}
	return nil
}

// setDriver changes what drivers do before they copy a volume.
func (s *apiServer) setDriver(driver func(snapshot string) (fault string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver = driver
}

func withCuts(c *kubernetes.Config) { c.Persistent, c.SnapshotClass = true, "homes" }

// cutHub is a hub whose snapshots are VolumeSnapshots.
func cutHub(t *testing.T, c *apiServer) *hub {
	t.Helper()
	return newHub(t, c, withCuts)
}

// snapshots are the VolumeSnapshots of the hub.
func (h *hub) cuts() []string { return h.s.of(h.cfg.Name, "volumesnapshots") }

// testCuts: properties of snapshots of homes that the suite does not test.
func testCuts(t *testing.T) {
	s := newCluster(t)
	t.Run("provider", func(t *testing.T) {
		t.Parallel()
		providertest.RunSnapshots(t, func(t *testing.T) providertest.Harness {
			cfg := s.config(t)
			withCuts(&cfg)
			return harnessOf(cfg, func(hub string) []string { return s.of(hub, append([]string{"volumesnapshots"}, sandboxKinds...)...) })
		})
	})
	for name, run := range map[string]func(*testing.T, *apiServer){
		"running": testRunningCut, "failing driver": testFailingDriver, "killed while cutting": testKilledCut,
		"killed in a rollback": testKilledCutRollback, "no definitions": testNoDefinitions,
		"rollback that fails": testFailedCutRollback, "no home": testNoHome, "foreign": testForeignCuts,
		"role": testCutRole, "settings": testCutSettings, "canceled": testCanceledCut, "ended": testEndedCut,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); run(t, newCluster(t)) })
	}
}

// tick runs a program that writes the next number all the time, and returns what reads it in the folder of the home.
func (h *hub) tick(id, home string) (number func() string) {
	h.t.Helper()
	h.wantOutput(id, `setsid sh -c 'n=1; while :; do echo $n >/home/gem/tick; n=$((n+1)); done' >/dev/null 2>&1 & echo started`, "started\n")
	number = func() string {
		data, err := os.ReadFile(filepath.Join(home, "tick"))
		if err != nil {
			h.t.Error(err)
		}
		return string(data)
	}
	testenv.Poll(h.t, "the program runs", func() bool { _, err := os.Stat(filepath.Join(home, "tick")); return err == nil })
	h.wantMoving(number)
	return number
}

func (h *hub) wantMoving(number func() string) {
	h.t.Helper()
	before := number()
	testenv.Poll(h.t, "the number changes", func() bool { return number() != before })
}

// isStill reports whether the number does not change while it is read so often that a program that runs would have changed it.
func isStill(number func() string) bool {
	before := number()
	for range 5000 {
		if number() != before {
			return false
		}
	}
	return true
}

// testRunningCut: programs are stopped from before the copy until it is made, and resume while it is completed.
func testRunningCut(t *testing.T, c *apiServer) {
	h := cutHub(t, c)
	sb := h.create(sandbox.Spec{Name: "busy"})
	h.fillHome(sb.ID)
	testenv.Poll(t, "all files are there", func() bool { out, _ := h.sh(sb.ID, "ls /home/gem/n | wc -l"); return out == "201\n" })
	number := h.tick(sb.ID, c.kubelet.folder("claims", sb.ID))
	still := make(chan bool, 1)
	c.setDriver(func(string) string { still <- isStill(number); return "" })
	got := h.snapshot(sb.ID, "first")
	if !<-still {
		t.Error("a program has written while its home was copied")
	}
	h.wantMoving(number)
	if got.Size != 2<<30 {
		t.Errorf("got size %d, want that of the volume", got.Size)
	}
	c.setDriver(nil)
	h.wantAlive(sb.ID)
	again := h.create(sandbox.Spec{Name: "again", Snapshot: "first", Resources: sandbox.Resources{Disk: 1 << 30}})
	home, err := c.get("persistentvolumeclaims", again.ID)
	if size := home["spec"].(doc)["resources"].(doc)["requests"].(doc)["storage"]; err != nil || size != "2147483648" {
		t.Errorf("got a home of %v, %v, want one that the snapshot fits into", size, err)
	}
	out, err := h.sh(again.ID, "cat /home/gem/n/???")
	numbers := strings.Fields(out)
	if err != nil || len(numbers) != 200 && len(numbers) != 199 { // a file may have been empty for a moment
		t.Fatalf("got %d files, %v, want 200", len(numbers), err)
	}
	if odd := slices.Compact(numbers); len(odd) > 2 {
		t.Errorf("got the numbers %q, want at most two, because programs are stopped during the copy", odd)
	}
	if a := h.Abilities(); !a.Snapshot || !a.Fork ||
		!slices.ContainsFunc(a.Missing, func(s string) bool { return strings.Contains(s, "only the home") }) {
		t.Errorf("got %+v, want the content of a snapshot", a)
	}
}

// testFailingDriver: the error of the driver is returned, nothing is left, and the programs resume. A transient error is retried.
func testFailingDriver(t *testing.T, c *apiServer) {
	h := cutHub(t, c)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.fillHome(sb.ID)
	c.setDriver(func(string) string { return "the pool of snapshots is full" })
	if _, err := h.Snapshot(t.Context(), sb.ID, "first"); !errors.Is(err, sandbox.ErrUnavailable) ||
		!strings.Contains(err.Error(), "the pool of snapshots is full") {
		t.Errorf("got %v, want the error of the driver", err)
	}
	h.wantAlive(sb.ID)
	if _, err := h.Fork(t.Context(), sb.ID, []sandbox.Spec{{Name: "fork"}}); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("got %v, want the error of the driver", err)
	}
	if left := h.cuts(); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
	c.setDriver(func(name string) string {
		c.setStatus("volumesnapshots", name, doc{"error": doc{"message": "the object has been modified"}})
		return ""
	})
	h.snapshot(sb.ID, "first")
	// It is deleted externally, during or after the snapshot.
	c.setDriver(func(name string) string {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.drop("volumesnapshots", name)
		return "gone"
	})
	if _, err := h.Snapshot(t.Context(), sb.ID, "second"); !errors.Is(err, sandbox.ErrUnavailable) ||
		!strings.Contains(err.Error(), "removed externally") {
		t.Errorf("got %v, want that it was removed", err)
	}
	h.wantAlive(sb.ID)
	name := strings.TrimPrefix(h.cuts()[0], "volumesnapshots/")
	c.mu.Lock()
	c.drop("volumesnapshots", name)
	c.mu.Unlock()
	for _, err := range []error{h.Rollback(t.Context(), sb.ID, "first"), func() error {
		_, err := h.Create(t.Context(), sandbox.Spec{Snapshot: "first"})
		return err
	}()} {
		if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "removed externally") {
			t.Errorf("got %v, want that it was removed", err)
		}
	}
	h.wantAlive(sb.ID)
	if err := h.DeleteSnapshot(t.Context(), "", "first"); err != nil {
		t.Error(err)
	}
}

// testCanceledCut: a canceled snapshot leaves nothing, and the programs resume.
func testCanceledCut(t *testing.T, c *apiServer) {
	h := cutHub(t, c)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.fillHome(sb.ID)
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	c.setDriver(func(string) string { cancel(); <-release; return "late" })
	if _, err := h.Snapshot(ctx, sb.ID, "first"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	h.wantAlive(sb.ID)
	close(release)
	if left := h.cuts(); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
	h.wantSnapshots()
}

// testEndedCut: of a sandbox without programs, the home is copied without a Pod.
func testEndedCut(t *testing.T, c *apiServer) {
	h := cutHub(t, c)
	for what, end := range map[string]func(id string){
		"stopped": func(id string) {
			if err := h.Stop(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		},
		"failed": func(id string) { c.kubelet.fail(id); h.wantState(id, sandbox.Failed) },
	} {
		sb := h.create(sandbox.Spec{Name: what})
		h.wantOutput(sb.ID, "echo "+what+" >/home/gem/file", "")
		end(sb.ID)
		var pods atomic.Int64
		c.fail(func(r *http.Request) int {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") {
				pods.Add(1)
			}
			return 0
		}, nil)
		h.snapshot(sb.ID, what)
		if n := pods.Load(); n != 0 {
			t.Errorf("%s: %d Pods were created for the copy", what, n)
		}
		h.wantState(sb.ID, sandbox.State(what))
		again := h.create(sandbox.Spec{Snapshot: what})
		h.wantOutput(again.ID, "cat /home/gem/file", what+"\n")
	}
}

// testKilledCut: after kill -9 of a hub in the middle of a snapshot, the programs resume, and the next hub removes the remains.
func testKilledCut(t *testing.T, c *apiServer) {
	h := cutHub(t, c)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.fillHome(sb.ID)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	held, release := make(chan struct{}), make(chan struct{})
	c.setDriver(func(string) string { close(held); <-release; return "" })
	_, kill := startDying(t, plan{Config: h.cfg, Snapshot: sb.ID})
	defer kill()
	<-held
	kill()
	close(release)
	if len(h.cuts()) != 1 {
		t.Error("there is nothing to remove")
	}
	h.open()
	h.wantAlive(sb.ID)
	h.wantSnapshots()
	if left := h.cuts(); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
	c.setDriver(nil)
	h.snapshot(sb.ID, "next")
}

// homes are the claims of a hub's sandboxes.
func (h *hub) homes() []string { return h.s.of(h.cfg.Name, "persistentvolumeclaims") }

// testKilledCutRollback: a hub that is killed at any step of a rollback leaves a sandbox that
// starts on the home of the snapshot, also if that was deleted
// meanwhile, and one home.
func testKilledCutRollback(t *testing.T, c *apiServer) {
	for step, at := range []func(r *http.Request) bool{
		func(r *http.Request) bool {
			return r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/pods/")
		},
		func(r *http.Request) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/persistentvolumeclaims")
		},
		func(r *http.Request) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods")
		},
		func(r *http.Request) bool {
			return r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/persistentvolumeclaims/")
		},
	} {
		h := cutHub(t, c)
		sb := h.create(sandbox.Spec{Name: "a"})
		h.wantOutput(sb.ID, "echo one >/home/gem/file", "")
		h.snapshot(sb.ID, "first")
		h.wantOutput(sb.ID, "echo two >/home/gem/file; echo more >/home/gem/more", "")
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		held, release := make(chan struct{}, 10), make(chan struct{})
		c.fail(func(r *http.Request) int {
			if at(r) {
				held <- struct{}{}
				<-release
				return http.StatusForbidden
			}
			return 0
		}, nil)
		_, kill := startDying(t, plan{Config: h.cfg, Rollback: sb.ID, Snapshot: "first"})
		<-held
		kill()
		close(release)
		c.fail(nil, nil)
		h.open()
		over := step == 3 // all but the removal of the old home
		if !over {
			h.wantState(sb.ID, sandbox.Stopped)
			if _, err := h.Snapshot(t.Context(), sb.ID, "second"); !errors.Is(err, sandbox.ErrState) {
				t.Errorf("step %d: got %v, want an error about the unfinished rollback", step, err)
			}
		}
		if homes := h.homes(); len(homes) != 1 {
			t.Errorf("step %d: got %q, want one home", step, homes)
		}
		h.finishRollback(sb.ID)
		if cuts, homes := h.cuts(), h.homes(); len(cuts) != 0 || len(homes) != 1 {
			t.Errorf("step %d: %q and %q are left, want one home", step, cuts, homes)
		}
		if err := h.Delete(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
		if homes := h.homes(); len(homes) != 0 {
			t.Errorf("step %d: %q are left", step, homes)
		}
	}
}

// testFailedCutRollback: a rollback that cannot make the new home keeps the old one until it can.
func testFailedCutRollback(t *testing.T, c *apiServer) {
	h := cutHub(t, c)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.wantOutput(sb.ID, "echo one >/home/gem/file", "")
	h.snapshot(sb.ID, "first")
	h.wantOutput(sb.ID, "echo two >/home/gem/file", "")
	before := h.homes()
	c.fail(func(r *http.Request) int {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") {
			return http.StatusUnprocessableEntity
		}
		return 0
	}, nil)
	if err := h.Rollback(t.Context(), sb.ID, "first"); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("got %v, want that it fails", err)
	}
	c.fail(nil, nil)
	h.wantState(sb.ID, sandbox.Stopped)
	if after := h.homes(); !slices.Equal(before, after) {
		t.Errorf("got the homes %q, want %q", after, before)
	}
	if err := h.Start(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	h.wantOutput(sb.ID, "cat /home/gem/file", "one\n")
	for range 2 { // each replaces the previous one
		h.wantOutput(sb.ID, "echo three >/home/gem/file", "")
		if err := h.Rollback(t.Context(), sb.ID, "first"); err != nil {
			t.Fatal(err)
		}
		h.wantOutput(sb.ID, "cat /home/gem/file", "one\n")
	}
	if after := h.homes(); len(after) != 1 || slices.Equal(before, after) {
		t.Errorf("got the homes %q, want another than %q", after, before)
	}
}

// testNoHome: a snapshot of a sandbox without a persistent home returns the reason.
func testNoHome(t *testing.T, c *apiServer) {
	h := newHub(t, c, nil)
	sb := h.create(sandbox.Spec{Name: "a"})
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	withCuts(&h.cfg)
	h.open()
	_, snapshot := h.Snapshot(t.Context(), sb.ID, "first")
	_, fork := h.Fork(t.Context(), sb.ID, []sandbox.Spec{{Name: "fork"}})
	for _, err := range []error{snapshot, fork} {
		if !errors.Is(err, sandbox.ErrState) || !strings.Contains(err.Error(), "no persistent home") {
			t.Errorf("got %v, want that there is no home", err)
		}
	}
	h.wantOutput(sb.ID, "echo hello", "hello\n")
}

// testNoDefinitions: sandboxes work without VolumeSnapshots; the missing CRDs are reported, and detected once installed.
func testNoDefinitions(t *testing.T, c *apiServer) {
	c.fail(func(r *http.Request) int {
		if strings.Contains(r.URL.Path, "/volumesnapshots") {
			return http.StatusNotFound
		}
		return 0
	}, nil)
	h := cutHub(t, c)
	sb := h.create(sandbox.Spec{Name: "a"})
	_, list := h.Snapshots(t.Context(), "")
	_, snapshot := h.Snapshot(t.Context(), sb.ID, "first")
	for _, err := range []error{list, snapshot} {
		if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "external-snapshotter") {
			t.Errorf("got %v, want what to install", err)
		}
	}
	c.fail(nil, nil)
	h.snapshot(sb.ID, "first")
	h.wantSnapshots("first")
}

// testForeignCuts: VolumeSnapshots of others are not changed, and invalid notes are ignored.
func testForeignCuts(t *testing.T, c *apiServer) {
	h := cutHub(t, c)
	sb := h.create(sandbox.Spec{Name: "a", Owner: "ann"})
	h.snapshot(sb.ID, "first")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	mine, err := c.get("volumesnapshots", strings.TrimPrefix(h.cuts()[0], "volumesnapshots/"))
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string, change func(metadata doc)) {
		o := clone(mine)
		metaOf(o)["name"] = name
		change(metaOf(o))
		c.mu.Lock()
		defer c.mu.Unlock()
		c.insert("volumesnapshots", o)
	}
	note := metaOf(mine)["annotations"].(doc)["io.cove.snapshot"].(string)
	add("backup", func(m doc) { delete(m, "labels"); delete(m, "annotations") })
	add("others", func(m doc) { m["labels"].(doc)["io.cove.hub"] = "other" })
	add("borrowed", func(m doc) { m["annotations"] = doc{"io.cove.snapshot": strings.ReplaceAll(note, "first", "second")} })
	add("stolen", func(m doc) {
		m["annotations"] = doc{"io.cove.snapshot": strings.NewReplacer("ann", "bob", metaOf(mine)["name"].(string), "stolen").Replace(note)}
	})
	add("broken", func(m doc) { m["annotations"] = doc{"io.cove.snapshot": "{"} })
	add("leftover", func(m doc) { delete(m, "annotations") })
	h.open()
	h.wantSnapshots("first")
	for name, kept := range map[string]bool{"backup": true, "others": true, "borrowed": true, "stolen": true,
		"broken": true, "leftover": false} {
		if _, err := c.get("volumesnapshots", name); (err == nil) != kept {
			t.Errorf("%s: got %v, want kept %v", name, err, kept)
		}
	}
	// No caller restores another owner's snapshot.
	if _, err := h.Create(t.Context(), sandbox.Spec{Owner: "bob", Snapshot: "first"}); !errors.Is(err, sandbox.ErrNoSnapshot) {
		t.Errorf("got %v, want none of bob", err)
	}
	other := h.create(sandbox.Spec{Name: "b", Owner: "bob"})
	if err := h.Rollback(t.Context(), other.ID, "first"); !errors.Is(err, sandbox.ErrNoSnapshot) {
		t.Errorf("got %v, want none of bob", err)
	}
}

// testCutRole: volumesnapshots.yaml grants the rights that the provider requires beyond the role of the installation, and no others.
func testCutRole(t *testing.T, c *apiServer) {
	h := cutHub(t, c)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.snapshot(sb.ID, "first")
	if err := errors.Join(h.Rollback(t.Context(), sb.ID, "first"), h.DeleteSnapshot(t.Context(), "", "first")); err != nil {
		t.Fatal(err)
	}
	base, asked := roleRights(t), []string{}
	c.mu.Lock()
	for what := range c.asked {
		if !slices.Contains(base, what) {
			asked = append(asked, what)
		}
	}
	c.mu.Unlock()
	slices.Sort(asked)
	if allowed := rightsOf(t, cutsPath, "Role cove-sandboxes/cove-volumesnapshots"); !slices.Equal(asked, allowed) {
		t.Errorf("the provider uses\n%s\nand the role allows\n%s", strings.Join(asked, "\n"), strings.Join(allowed, "\n"))
	}
}

// testCutSettings: settings that are mutually exclusive are refused, with what to do.
func testCutSettings(t *testing.T, c *apiServer) {
	for want, change := range map[string]func(*kubernetes.Config){
		"are mutually exclusive": func(cfg *kubernetes.Config) {
			cfg.Snapshots.Endpoint, cfg.Snapshots.Bucket = "https://s3.example.com", "b"
		},
		"kubernetes_disk to pers": func(cfg *kubernetes.Config) { cfg.Persistent = false },
	} {
		cfg := c.config(t)
		withCuts(&cfg)
		change(&cfg)
		if p, err := kubernetes.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			if p != nil {
				p.Close()
			}
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
