package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// StorageClass is the StorageClass of ServeVolumes.
const StorageClass = "folders"

// claim is a PersistentVolumeClaim.
type claim struct {
	Metadata struct {
		Name, Namespace, UID string
	}
	Spec struct {
		StorageClassName string
		VolumeName       string
		AccessModes      []string
		Resources        map[string]any
	}
}

// ServeVolumes creates PersistentVolumes from folders for the claims of StorageClass, the default class, until the test
// ends. A new cluster has none.
func (k *Kubernetes) ServeVolumes(t testing.TB) {
	t.Helper()
	class := map[string]any{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "cove.test/folders",
		"metadata": map[string]any{"name": StorageClass, "annotations": map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}}
	if err := k.Do(t.Context(), http.MethodPost, "/apis/storage.k8s.io/v1/storageclasses", class, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	t.Cleanup(func() { cancel(); work.Wait() })
	work.Go(func() {
		for ctx.Err() == nil {
			if k.followClaims(ctx) == nil {
				continue
			}
			select { // the API server is unreachable
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
}

// followClaims lists and watches the claims until the connection ends.
func (k *Kubernetes) followClaims(ctx context.Context) error {
	var all struct {
		Metadata struct{ ResourceVersion string }
		Items    []claim
	}
	const path = "/api/v1/persistentvolumeclaims"
	if err := k.Do(ctx, http.MethodGet, path, nil, &all); err != nil {
		return err
	}
	for _, c := range all.Items {
		if err := k.provide(ctx, c); err != nil {
			return err
		}
	}
	if err := k.discardVolumes(ctx, all.Items); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		k.Server+path+"?watch=true&timeoutSeconds=30&resourceVersion="+all.Metadata.ResourceVersion, nil)
	if err != nil {
		return err
	}
	resp, err := k.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for events := json.NewDecoder(resp.Body); ; {
		var event struct {
			Type   string
			Object claim
		}
		if err := events.Decode(&event); err != nil {
			return err
		}
		switch event.Type {
		case "ADDED":
			err = k.provide(ctx, event.Object)
		case "DELETED":
			err = k.discardVolume(ctx, event.Object.volume())
		case "ERROR":
			err = errors.New("the watch has expired")
		}
		if err != nil {
			return err
		}
	}
}

func (c claim) volume() string { return "folder-" + c.Metadata.UID }

func (k *Kubernetes) folder(volume string) string { return filepath.Join(k.Dir, "volumes", volume) }

// provide creates the volume of a claim.
func (k *Kubernetes) provide(ctx context.Context, c claim) error {
	if c.Spec.StorageClassName != StorageClass || c.Spec.VolumeName != "" {
		return nil
	}
	name := c.volume()
	if err := os.Mkdir(k.folder(name), 0o777); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		return err
	}
	node := map[string]any{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{"node"}}
	terms := []any{map[string]any{"matchExpressions": []any{node}}}
	return k.Do(ctx, http.MethodPost, "/api/v1/persistentvolumes", map[string]any{"apiVersion": "v1", "kind": "PersistentVolume",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"storageClassName": StorageClass, "accessModes": c.Spec.AccessModes,
			"capacity": c.Spec.Resources["requests"], "persistentVolumeReclaimPolicy": "Retain",
			"claimRef": map[string]any{"kind": "PersistentVolumeClaim", "namespace": c.Metadata.Namespace,
				"name": c.Metadata.Name, "uid": c.Metadata.UID},
			"local":        map[string]any{"path": k.folder(name)},
			"nodeAffinity": map[string]any{"required": map[string]any{"nodeSelectorTerms": terms}}}}, nil)
}

// discardVolumes removes volumes without a claim.
func (k *Kubernetes) discardVolumes(ctx context.Context, claims []claim) error {
	folders, err := os.ReadDir(filepath.Join(k.Dir, "volumes"))
	for _, f := range folders {
		if !slices.ContainsFunc(claims, func(c claim) bool { return c.volume() == f.Name() }) {
			err = errors.Join(err, k.discardVolume(ctx, f.Name()))
		}
	}
	return err
}

func (k *Kubernetes) discardVolume(ctx context.Context, name string) error {
	if err := k.Do(ctx, http.MethodDelete, "/api/v1/persistentvolumes/"+name, nil, nil); err != nil {
		return err
	}
	return os.RemoveAll(k.folder(name))
}
