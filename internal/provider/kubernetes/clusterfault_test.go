//go:build linux

package kubernetes_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// testRealImages: a missing image fails with the error of the cluster; the caller decides how long to wait for a slow one.
// Neither leaves objects.
func testRealImages(k *real) {
	gate := make(chan struct{})
	k.ServeImage(k.t, "slow.test/tiny:1", tinyFiles(k.t), gate)
	h := k.open(nil)
	h.wantRefused(sandbox.Spec{Image: "slow.test/none:1"}, sandbox.ErrInvalid, "slow.test/none:1", "ErrImagePull", "not found")
	type result struct {
		sb  sandbox.Sandbox
		err error
	}
	made := make(chan result, 1)
	create := func(ctx context.Context, name string) {
		go func() {
			sb, err := h.Create(ctx, sandbox.Spec{Name: name, Image: "slow.test/tiny:1"})
			made <- result{sb, err}
		}()
		k.Await(k.t, "the Pod waits for its image", func() bool {
			pods := k.list("pods", h.cfg.Name).Items
			return len(pods) == 1 && len(pods[0].Status.InitContainerStatuses) == 1 &&
				pods[0].Status.InitContainerStatuses[0].State.Terminated != nil
		})
	}
	impatient, cancel := context.WithCancelCause(context.Background())
	create(impatient, "impatient")
	cancel(context.DeadlineExceeded) // at a time when there is a Pod to wait for
	if err := (<-made).err; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "its Pod has not started") {
		k.t.Errorf("got %v, want an error about the timeout", err)
	}
	h.wantClean()
	create(context.Background(), "patient")
	close(gate)
	got := <-made
	if got.err != nil {
		k.t.Fatal(got.err)
	}
	h.wantOutput(got.sb.ID, "hostname", "patient\n")
}

// testRealRemoved: if a Pod is deleted externally, also by force, its sandbox is removed; with a persistent home it becomes failed
// and can be started.
func testRealRemoved(k *real) {
	kept, gone := k.open(persistent), k.open(nil)
	for _, grace := range []int{1, 0} {
		a, b := kept.create(sandbox.Spec{}), gone.create(sandbox.Spec{})
		kept.wantOutput(a.ID, "echo kept >/home/gem/file && echo ok", "ok\n")
		for _, id := range []string{a.ID, b.ID} {
			if err := k.Do(k.t.Context(), http.MethodDelete, "/api/v1/namespaces/"+k.ns+"/pods/"+id,
				map[string]any{"gracePeriodSeconds": grace}, nil); err != nil {
				k.t.Fatal(err)
			}
		}
		k.Await(k.t, "the sandbox without a home is gone", func() bool {
			_, err := gone.Get(k.t.Context(), b.ID)
			return errors.Is(err, sandbox.ErrNotFound)
		})
		gone.wantClean()
		kept.wantState(a.ID, sandbox.Failed)
		if _, err := kept.Endpoint(k.t.Context(), a.ID, 0); !errors.Is(err, sandbox.ErrState) {
			k.t.Errorf("got %v, want that it does not run", err)
		}
		if err := kept.Start(k.t.Context(), a.ID); err != nil {
			k.t.Fatal(err)
		}
		kept.wantOutput(a.ID, "cat /home/gem/file", "kept\n")
	}
}

// testRealFull: on a full node, a create fails with the error of the scheduler and leaves nothing behind; one with a longer
// timeout starts when there are resources.
func testRealFull(k *real) {
	filler := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "filler",
		"namespace": "default"}, "spec": map[string]any{
		"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
		"containers": []any{map[string]any{"name": "filler", "image": realTiny,
			"command": []string{"/bin/sleep", "infinity"}, "resources": map[string]any{"requests": map[string]any{"memory": k.almostAll()}}}}}}
	k.apply(filler)
	const path = "/api/v1/namespaces/default/pods/filler"
	var pod struct{ Status struct{ Phase string } }
	k.Await(k.t, "the node is full", func() bool {
		return k.Do(k.t.Context(), http.MethodGet, path, nil, &pod) == nil && pod.Status.Phase == "Running"
	})
	large := sandbox.Spec{Name: "large", Resources: sandbox.Resources{Memory: 2 << 30, MemoryLimit: 2 << 30}}
	hasty := k.open(func(c *kubernetes.Config) { c.ScheduleTimeout = time.Second })
	hasty.wantRefused(large, sandbox.ErrExhausted, "no node can run the sandbox", "Insufficient memory")
	patient := k.open(nil)
	made := make(chan error, 1)
	go func() { _, err := patient.Create(context.Background(), large); made <- err }()
	k.Await(k.t, "its Pod finds no node", func() bool {
		pods := k.list("pods", patient.cfg.Name).Items
		return len(pods) == 1 && pods[0].Spec.NodeName == "" && len(pods[0].Status.Conditions) > 0
	})
	small := hasty.create(sandbox.Spec{Name: "small"}) // there is still room for others
	hasty.wantOutput(small.ID, "hostname", "small\n")
	if err := k.Do(k.t.Context(), http.MethodDelete, path, nil, nil); err != nil {
		k.t.Fatal(err)
	}
	if err := <-made; err != nil {
		k.t.Error(err)
	}
}

// almostAll is the memory of the node but for 1.5 GiB.
func (k *real) almostAll() string {
	k.t.Helper()
	var node struct {
		Status struct{ Allocatable map[string]string }
	}
	if err := k.Do(k.t.Context(), http.MethodGet, "/api/v1/nodes/node", nil, &node); err != nil {
		k.t.Fatal(err)
	}
	kib, err := strconv.Atoi(strings.TrimSuffix(node.Status.Allocatable["memory"], "Ki"))
	if err != nil {
		k.t.Fatal(err)
	}
	return strconv.Itoa(kib-3<<19) + "Ki"
}
