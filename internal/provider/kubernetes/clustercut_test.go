//go:build linux

package kubernetes_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/provider/providertest"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/test/cluster"
)

// driven is a real cluster with a driver of volumes.
type driven struct {
	*real
	driver *cluster.Driver
}

func withRealCuts(c *kubernetes.Config) {
	c.Persistent, c.StorageClass, c.SnapshotClass = true, cluster.CutClass, cluster.SnapshotClass
}

// testRealCuts: snapshots by VolumeSnapshots, with the real controllers and a driver.
func testRealCuts(k *real) {
	driver := k.ServeSnapshots(k.t)
	k.t.Run("all", func(t *testing.T) {
		t.Run("provider", func(t *testing.T) {
			t.Parallel()
			providertest.RunSnapshots(t, func(t *testing.T) providertest.Harness {
				t.Parallel()
				k := &real{k.Kubernetes, t, k.ns}
				cfg := k.config()
				withRealCuts(&cfg)
				return harnessOf(cfg, k.leftWithCuts)
			})
		})
		for name, run := range map[string]func(*driven){"still": testRealStill, "failing": testRealFailingDriver,
			"killed": testRealKilledRollback, "killed while cutting": testRealKilledCut, "late": testRealLate,
			"no class": testRealNoClass, "tenants": testRealCutTenants, "role": testRealCutRole} {
			t.Run(name, func(t *testing.T) { t.Parallel(); run(&driven{&real{k.Kubernetes, t, k.ns}, driver}) })
		}
	})
	k.Await(k.t, "the driver has nothing left", func() bool { return len(driver.Left(k.t)) == 0 })
}

// cuts lists the VolumeSnapshots of a hub.
func (k *real) cuts(hub string) (names []string) {
	k.t.Helper()
	var all objects
	if err := k.Do(context.Background(), http.MethodGet, "/apis/snapshot.storage.k8s.io/v1/namespaces/"+k.ns+
		"/volumesnapshots?labelSelector=io.cove.hub%3D"+hub, nil, &all); err != nil {
		k.t.Error(err)
	}
	for _, o := range all.Items {
		names = append(names, "volumesnapshots/"+o.Metadata.Name)
	}
	return names
}

func (k *real) leftWithCuts(hub string) []string { return append(k.left(hub), k.cuts(hub)...) }

// openCuts opens a hub whose snapshots are VolumeSnapshots. Its snapshots are deleted with the test.
func (k *real) openCuts(change func(*kubernetes.Config)) *hub {
	k.t.Helper()
	h := k.open(func(c *kubernetes.Config) {
		withRealCuts(c)
		if change != nil {
			change(c)
		}
	})
	k.t.Cleanup(func() { // before the hub is closed
		all, err := h.Snapshots(context.Background(), "")
		for _, s := range all {
			err = errors.Join(err, h.DeleteSnapshot(context.Background(), s.Owner, s.Name))
		}
		if err != nil {
			k.t.Error(err)
		}
	})
	return h
}

// testRealStill: programs are stopped until the driver has copied the home, and then continue; the copy is consistent.
func testRealStill(k *driven) {
	h := k.openCuts(nil)
	sb := h.create(sandbox.Spec{Name: "busy"})
	h.fillHome(sb.ID)
	testenv.Poll(k.t, "all files are there", func() bool { out, _ := h.sh(sb.ID, "ls /home/gem/n | wc -l"); return out == "201\n" })
	volume := k.driver.Volume(k.t, k.ns, sb.ID)
	number := h.tick(sb.ID, volume)
	begun, release := k.driver.Hold(k.t, volume)
	defer release()
	took := make(chan error, 1)
	go func() {
		_, err := h.Snapshot(k.t.Context(), sb.ID, "first")
		took <- err
	}()
	begun()
	if !isStill(number) {
		k.t.Error("a program has written while its home was copied")
	}
	release()
	if err := <-took; err != nil {
		k.t.Fatal(err)
	}
	h.wantMoving(number)
	h.wantAlive(sb.ID)
	again := h.create(sandbox.Spec{Name: "again", Snapshot: "first"})
	out, err := h.sh(again.ID, "cat /home/gem/n/???")
	numbers := strings.Fields(out)
	if err != nil || len(numbers) != 200 && len(numbers) != 199 { // a file may have been empty for a moment
		k.t.Fatalf("got %d files, %v, want 200", len(numbers), err)
	}
	if odd := slices.Compact(numbers); len(odd) > 2 {
		k.t.Errorf("got the numbers %q, want at most two, because programs are stopped during the copy", odd)
	}
}

// testRealFailingDriver: the error of the driver is returned, programs continue, and nothing is left behind.
func testRealFailingDriver(k *driven) {
	h := k.openCuts(nil)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.fillHome(sb.ID)
	heal := k.driver.Fail(k.t, k.driver.Volume(k.t, k.ns, sb.ID), "the pool is full")
	defer heal()
	if _, err := h.Snapshot(k.t.Context(), sb.ID, "first"); !errors.Is(err, sandbox.ErrUnavailable) ||
		!strings.Contains(err.Error(), "the pool is full") {
		k.t.Errorf("got %v, want the error of the driver", err)
	}
	h.wantAlive(sb.ID)
	heal()
	k.Await(k.t, "nothing is left", func() bool { return len(k.cuts(h.cfg.Name)) == 0 })
	h.wantSnapshots()
	h.snapshot(sb.ID, "first")
}

// testRealKilledCut: after kill -9 of a hub during a snapshot, programs continue immediately, and the next hub removes leftovers.
func testRealKilledCut(k *driven) {
	h := k.openCuts(nil)
	sb := h.create(sandbox.Spec{Name: "a"})
	volume := k.driver.Volume(k.t, k.ns, sb.ID)
	number := h.tick(sb.ID, volume)
	if err := h.Close(); err != nil {
		k.t.Fatal(err)
	}
	begun, release := k.driver.Hold(k.t, volume)
	defer release()
	_, kill := startDying(k.t, plan{Config: h.cfg, Snapshot: sb.ID})
	defer kill()
	begun()
	if !isStill(number) {
		k.t.Error("a program has written while its home was copied")
	}
	kill()
	h.wantMoving(number)
	release()
	h.open()
	h.wantSnapshots()
	k.Await(k.t, "nothing is left", func() bool { return len(k.cuts(h.cfg.Name)) == 0 })
}

// testRealKilledRollback: after kill -9 of a hub during a rollback, the next hub completes it.
func testRealKilledRollback(k *driven) {
	h := k.openCuts(nil)
	sb := h.create(sandbox.Spec{Name: "a"})
	h.wantOutput(sb.ID, "echo one >/home/gem/file", "")
	h.snapshot(sb.ID, "first")
	h.wantOutput(sb.ID, "echo two >/home/gem/file", "")
	if err := h.Close(); err != nil {
		k.t.Fatal(err)
	}
	_, kill := startDying(k.t, plan{Config: h.cfg, Rollback: sb.ID, Snapshot: "first"})
	defer kill()
	k.Await(k.t, "there is another home", func() bool { // and still the first, unless this runs late
		for _, home := range k.list("persistentvolumeclaims", h.cfg.Name).Items {
			if home.Metadata.Name != sb.ID {
				return true
			}
		}
		return false
	})
	kill()
	h.open()
	if err := h.Start(k.t.Context(), sb.ID); err != nil {
		k.t.Fatal(err)
	}
	h.wantOutput(sb.ID, "cat /home/gem/file", "one\n")
	k.Await(k.t, "there is one home", func() bool { return len(k.list("persistentvolumeclaims", h.cfg.Name).Items) == 1 })
}

// testRealLate: volumes with delayed binding work, too, and a snapshot can be deleted as soon as a sandbox was created from it.
func testRealLate(k *driven) {
	h := k.openCuts(func(c *kubernetes.Config) { c.StorageClass = cluster.CutClassLate })
	sb := h.create(sandbox.Spec{Name: "a"})
	h.wantOutput(sb.ID, "echo one >/home/gem/file", "")
	h.snapshot(sb.ID, "first")
	// The snapshot may be deleted while a sandbox is created.
	type result struct {
		sandbox.Sandbox
		error
	}
	made := make(chan result, 1)
	go func() {
		sb, err := h.Create(k.t.Context(), sandbox.Spec{Name: "copy", Snapshot: "first"})
		made <- result{sb, err}
	}()
	k.Await(k.t, "its home is there", func() bool { return len(k.list("persistentvolumeclaims", h.cfg.Name).Items) == 2 })
	if err := h.DeleteSnapshot(k.t.Context(), "", "first"); err != nil {
		k.t.Error(err)
	}
	got := <-made
	if got.error != nil {
		k.t.Fatal(got.error)
	}
	h.wantOutput(got.ID, "cat /home/gem/file", "one\n")
	k.Await(k.t, "the snapshot is gone", func() bool { return len(k.cuts(h.cfg.Name)) == 0 })
}

// testRealNoClass: without the class, snapshots fail with an error about it.
func testRealNoClass(k *driven) {
	h := k.openCuts(func(c *kubernetes.Config) { c.SnapshotClass = "absent" })
	sb := h.create(sandbox.Spec{Name: "a"})
	h.fillHome(sb.ID)
	if _, err := h.Snapshot(k.t.Context(), sb.ID, "first"); !errors.Is(err, sandbox.ErrUnavailable) ||
		!strings.Contains(err.Error(), "absent") {
		k.t.Errorf("got %v, want an error about the missing class", err)
	}
	h.wantAlive(sb.ID)
	_, list := kubernetes.Examine(k.t.Context(), h.cfg)
	if !slices.ContainsFunc(list, func(f kubernetes.Finding) bool {
		return !f.OK && strings.Contains(f.What, `no VolumeSnapshotClass "absent"`)
	}) {
		k.t.Errorf("got %+v, want an error about the missing class", list)
	}
}

// testRealCutTenants: the snapshots of a tenant and the sandboxes created from them are in its namespace.
func testRealCutTenants(k *driven) {
	const own = "tenant-cuts"
	k.apply(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": own}})
	h := k.openCuts(func(c *kubernetes.Config) { c.TenantNamespaces = map[string]string{"acme": own} })
	inOwn := &real{k.Kubernetes, k.t, own}
	h.left = func(hub string) []string { return append(k.left(hub), inOwn.left(hub)...) }
	sb := h.create(sandbox.Spec{Name: "a", Owner: "acme"})
	h.wantOutput(sb.ID, "echo one >/home/gem/file", "")
	h.snapshot(sb.ID, "first")
	if common, mine := k.cuts(h.cfg.Name), inOwn.cuts(h.cfg.Name); len(common) != 0 || len(mine) != 1 {
		k.t.Errorf("got %q and %q, want one in the tenant's namespace", common, mine)
	}
	if err := h.Close(); err != nil {
		k.t.Fatal(err)
	}
	h.open()
	forks, err := h.Fork(k.t.Context(), sb.ID, []sandbox.Spec{{Name: "fork", Owner: "acme"}})
	if err != nil {
		k.t.Fatal(err)
	}
	h.wantOutput(forks[0].ID, "cat /home/gem/file", "one\n")
	copied := h.create(sandbox.Spec{Name: "copy", Owner: "acme", Snapshot: "first"})
	h.wantOutput(copied.ID, "cat /home/gem/file", "one\n")
	if _, err := h.Create(k.t.Context(), sandbox.Spec{Owner: "bob", Snapshot: "first"}); !errors.Is(err, sandbox.ErrNoSnapshot) {
		k.t.Errorf("got %v, want none of bob", err)
	}
	if _, err := h.Fork(k.t.Context(), sb.ID, []sandbox.Spec{{Name: "fork", Owner: "bob"}}); !errors.Is(err, sandbox.ErrInvalid) {
		k.t.Errorf("got %v, want an error about the other namespace", err)
	}
}

// testRealCutRole: the rights of install.yaml and volumesnapshots.yaml are sufficient; without the latter, the error names the
// missing rights.
func testRealCutRole(k *driven) {
	as := func(c *kubernetes.Config) { c.Access.Cert, c.Access.Key, c.Access.Token = nil, nil, k.tokenOf("cove") }
	h := k.openCuts(as)
	sb := h.create(sandbox.Spec{Name: "a"})
	if _, err := h.Snapshot(k.t.Context(), sb.ID, "first"); !errors.Is(err, sandbox.ErrUnavailable) ||
		!strings.Contains(err.Error(), "volumesnapshots.yaml") {
		k.t.Errorf("got %v, want the missing rights", err)
	}
	usable, list := kubernetes.Examine(k.t.Context(), h.cfg)
	if usable || !slices.ContainsFunc(list, func(f kubernetes.Finding) bool {
		return strings.Contains(f.What, "create snapshot.storage.k8s.io/volumesnapshots")
	}) {
		k.t.Errorf("got %v, %+v, want the missing rights", usable, list)
	}
	file, err := os.Open(cutsPath)
	if err != nil {
		k.t.Fatal(err)
	}
	defer file.Close()
	for d := yaml.NewDecoder(file); ; {
		var object map[string]any
		if err := d.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			k.t.Fatal(err)
		}
		k.apply(object)
	}
	k.Await(k.t, "the rights are there", func() bool { _, err := h.Snapshots(k.t.Context(), ""); return err == nil })
	h.snapshot(sb.ID, "first")
	if usable, list := kubernetes.Examine(k.t.Context(), h.cfg); !usable || !slices.ContainsFunc(list, func(f kubernetes.Finding) bool {
		return f.OK && strings.Contains(f.What, "the hub may not read whether")
	}) {
		k.t.Errorf("got %v, %+v, want support for snapshots", usable, list)
	}
}
