package cluster

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// Objects that ServeSnapshots creates: a StorageClass, one that creates volumes when a Pod requires them, and a
// VolumeSnapshotClass.
const (
	CutClass      = "homes"
	CutClassLate  = "homes-late"
	SnapshotClass = "homes"
	cutDriver     = "folders.csi.cove.test"
)

// ServeSnapshots starts a CSI driver whose volumes are folders, and the controllers of volumes and VolumeSnapshots. They end
// with the cluster.
func (k *Kubernetes) ServeSnapshots(t testing.TB) *Driver {
	t.Helper()
	programs := filepath.Join(filepath.Dir(k.runtimes), "csi")
	for _, name := range []string{"csi", "csi-provisioner", "csi-snapshotter", "snapshot-controller"} {
		testenv.NeedFile(t, filepath.Join(programs, name))
	}
	definitions, err := filepath.Glob(filepath.Join(programs, "crds/*.yaml"))
	if err != nil || len(definitions) == 0 {
		t.Fatalf("no definitions of VolumeSnapshots: %v", err)
	}
	for _, path := range definitions {
		var object map[string]any
		data, err := os.ReadFile(path)
		if err == nil {
			err = yaml.Unmarshal(data, &object)
		}
		if err == nil {
			err = k.Do(t.Context(), http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const snapshots = "/apis/snapshot.storage.k8s.io/v1/"
	k.wait(t, "the API of VolumeSnapshots", func() bool {
		return errors.Join(k.Do(t.Context(), http.MethodGet, snapshots+"volumesnapshots", nil, nil),
			k.Do(t.Context(), http.MethodGet, snapshots+"volumesnapshotcontents", nil, nil),
			k.Do(t.Context(), http.MethodGet, snapshots+"volumesnapshotclasses", nil, nil)) == nil
	})
	create := func(path string, object map[string]any) {
		t.Helper()
		if err := k.Do(t.Context(), http.MethodPost, path, object, nil); err != nil {
			t.Fatal(err)
		}
	}
	create("/apis/storage.k8s.io/v1/csidrivers", map[string]any{"apiVersion": "storage.k8s.io/v1",
		"kind": "CSIDriver", "metadata": map[string]any{"name": cutDriver},
		"spec": map[string]any{"attachRequired": false, "fsGroupPolicy": "File"}})
	for name, mode := range map[string]string{CutClass: "Immediate", CutClassLate: "WaitForFirstConsumer"} {
		create("/apis/storage.k8s.io/v1/storageclasses", map[string]any{"apiVersion": "storage.k8s.io/v1",
			"kind": "StorageClass", "metadata": map[string]any{"name": name},
			"provisioner": cutDriver, "volumeBindingMode": mode})
	}
	create(snapshots+"volumesnapshotclasses", map[string]any{"apiVersion": "snapshot.storage.k8s.io/v1",
		"kind": "VolumeSnapshotClass", "metadata": map[string]any{"name": SnapshotClass},
		"driver": cutDriver, "deletionPolicy": "Delete"})
	k.send(t, "csi "+programs)
	k.wait(t, "the driver of volumes", func() bool { return k.hasDriver(t) })
	pid, err := os.ReadFile(filepath.Join(k.Dir, "init.pid"))
	if err != nil {
		t.Fatal(err)
	}
	return &Driver{k, filepath.Join("/proc", strings.TrimSpace(string(pid)), "root", k.Dir, "csi")}
}

// hasDriver reports whether the driver is registered with the kubelet.
func (k *Kubernetes) hasDriver(t testing.TB) bool {
	var node struct {
		Spec struct{ Drivers []struct{ Name string } }
	}
	err := k.Do(t.Context(), http.MethodGet, "/apis/storage.k8s.io/v1/csinodes/node", nil, &node)
	return err == nil && len(node.Spec.Drivers) == 1
}

// Driver is the CSI driver of ServeSnapshots.
type Driver struct {
	k   *Kubernetes
	dir string // its folder, as the tests see it
}

// Volume returns the folder of the volume of a claim.
func (d *Driver) Volume(t testing.TB, namespace, claim string) string {
	t.Helper()
	var bound struct{ Spec struct{ VolumeName string } }
	var volume struct {
		Spec struct{ CSI struct{ VolumeHandle string } }
	}
	err := d.k.Do(t.Context(), http.MethodGet, "/api/v1/namespaces/"+namespace+"/persistentvolumeclaims/"+claim, nil, &bound)
	if err == nil {
		err = d.k.Do(t.Context(), http.MethodGet, "/api/v1/persistentvolumes/"+bound.Spec.VolumeName, nil, &volume)
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(d.dir, "volumes", volume.Spec.CSI.VolumeHandle)
}

// Left lists existing volumes and snapshots.
func (d *Driver) Left(t testing.TB) (all []string) {
	t.Helper()
	for _, kind := range []string{"volumes", "snapshots"} {
		entries, err := os.ReadDir(filepath.Join(d.dir, kind))
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				all = append(all, kind+"/"+e.Name())
			}
		}
	}
	return all
}

// Hold blocks snapshots of a volume before the copy, until release is called. Begun waits for a blocked snapshot.
func (d *Driver) Hold(t testing.TB, volume string) (begun, release func()) {
	t.Helper()
	if err := os.WriteFile(volume+".hold", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	release = func() { os.Remove(volume + ".hold"); os.Remove(volume + ".held") }
	return func() {
		t.Helper()
		testenv.Poll(t, "the driver has begun", func() bool { _, err := os.Stat(volume + ".held"); return err == nil })
	}, release
}

// Fail makes snapshots of a volume fail with a message, until heal.
func (d *Driver) Fail(t testing.TB, volume, message string) (heal func()) {
	t.Helper()
	if err := os.WriteFile(volume+".fault", []byte(message), 0o644); err != nil {
		t.Fatal(err)
	}
	return func() { os.Remove(volume + ".fault") }
}
