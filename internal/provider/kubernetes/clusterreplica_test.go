//go:build linux

package kubernetes_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cove-sandbox/cove/client"
)

// pairName is the release of two replicas, and their namespace.
const pairName = "pair"

// hubPods are the Pods of replicas.
type hubPods struct {
	Items []struct {
		Metadata struct{ Name, UID string }
		Status   struct {
			ContainerStatuses []struct {
				Ready        bool
				RestartCount int
			}
		}
	}
}

// testRealReplicas: of two hubs behind a Service, each is killed in turn under load, and only requests in progress fail.
func testRealReplicas(k *real) {
	k.installPair()
	pods := k.awaitPair(func(ready, _ int) bool { return ready == 2 })
	var service struct{ Spec struct{ ClusterIP string } }
	var claim struct{ Metadata struct{ UID string } }
	for path, out := range map[string]any{"services/pair": &service, "persistentvolumeclaims/pair": &claim} {
		if err := k.Do(k.t.Context(), http.MethodGet, "/api/v1/namespaces/pair/"+path, nil, out); err != nil {
			k.t.Fatal(err)
		}
	}
	key, err := os.ReadFile(filepath.Join(k.Dir, "volumes", "folder-"+claim.Metadata.UID, "admin.key"))
	if err != nil {
		k.t.Fatal(err)
	}
	connect := func() *client.Client {
		c, err := client.New(client.Config{URL: "http://" + service.Spec.ClusterIP + ":10000", Key: strings.TrimSpace(string(key))})
		if err != nil {
			k.t.Fatal(err)
		}
		return c
	}
	first := connect()
	defer first.Close()
	k.Await(k.t, "the Service leads to the hub", func() bool { return k.answers(first) })
	if _, err := first.Create(k.t.Context(), client.CreateOptions{Name: "a", Env: map[string]string{"GREETING": "hello"}}); err != nil {
		k.t.Fatal(err)
	}
	l := startLoad(k.t, func(int) (string, error) {
		c := connect()
		defer c.Close()
		g := c.Guest("a")
		defer g.Close()
		var out bytes.Buffer
		_, err := g.Exec(k.t.Context(), "echo $GREETING", client.ExecOptions{Stdout: &out, Stderr: &out})
		return out.String(), err
	})
	l.more("with two replicas")
	for turn, pod := range pods.Items {
		k.killHub(l, pod.Metadata.UID)
		l.more("after a replica was killed")
		k.awaitPair(func(ready, restarts int) bool { return ready == 2 && restarts == turn+1 })
		l.more("with two replicas again")
	}
	l.finish()
	last := connect()
	defer last.Close()
	if err := last.Delete(k.t.Context(), "a"); err != nil {
		k.t.Error(err)
	}
	k.ns = pairName + "-sandboxes"
	if left := k.left(pairName); len(left) > 0 {
		k.t.Errorf("left behind: %q", left)
	}
}

// installPair installs the chart with two replicas.
func (k *real) installPair() {
	k.t.Helper()
	args := []string{"template", pairName, chartPath, "--namespace", pairName, "--kube-version", "1.34"}
	for _, v := range []string{"replicas=2", "image=" + realHubImage, "sandboxImage=" + realTiny} {
		args = append(args, "--set", v)
	}
	text, err := helm(k.t, args...)
	if err != nil {
		k.t.Fatal(err)
	}
	k.apply(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": pairName}})
	k.applyAll(decodeObjects(k.t, text))
}

// applyAll creates objects, namespaces first, since others are in them.
func (k *real) applyAll(objects map[string]map[string]any) {
	k.t.Helper()
	for _, first := range []bool{true, false} {
		for _, o := range objects {
			if (o["kind"] == "Namespace") == first {
				k.apply(o)
			}
		}
	}
}

// awaitPair waits until the replicas are as wanted: how many are ready, and how often they were restarted in all.
func (k *real) awaitPair(ok func(ready, restarts int) bool) (pods hubPods) {
	k.t.Helper()
	k.Await(k.t, "the replicas are ready", func() bool {
		pods = hubPods{}
		if err := k.Do(k.t.Context(), http.MethodGet, "/api/v1/namespaces/pair/pods", nil, &pods); err != nil {
			return false
		}
		ready, restarts := 0, 0
		for _, p := range pods.Items {
			for _, c := range p.Status.ContainerStatuses {
				if restarts += c.RestartCount; c.Ready {
					ready++
				}
			}
		}
		return ok(ready, restarts)
	})
	return pods
}

// killHub kills the hub of a Pod with kill -9.
func (k *real) killHub(l *load, uid string) {
	k.t.Helper()
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, path := range groups {
		group, _ := os.ReadFile(path)
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if !bytes.Contains(group, []byte("pod"+uid)) ||
			!slices.Equal(strings.Split(string(command), "\x00")[:min(2, bytes.Count(command, []byte{0}))], []string{"/usr/local/bin/cove", "hub"}) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			k.t.Fatal(err)
		}
		l.kill(func() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				k.t.Error(err)
			}
			k.Await(k.t, "the hub is dead", func() bool {
				status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
				// Its sockets are open until the last of its threads has ended.
				return err != nil || bytes.Contains(status, []byte("\nState:\tZ")) && bytes.Contains(status, []byte("\nThreads:\t1\n"))
			})
		})
		return
	}
	k.t.Errorf("no hub in the Pod %s", uid)
}
