//go:build linux

package kubernetes_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/provider/providertest"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/test/cluster"
)

// The images of the real cluster.
const (
	realTiny     = "registry.test/tiny:1"
	realPrograms = "registry.test/programs:1"
	realHubImage = "registry.test/hub:1"
)

// real is a real cluster with the namespaces and the role of the installation.
type real struct {
	*cluster.Kubernetes
	t  *testing.T
	ns string // of the sandboxes
}

// TestCluster runs the suite and the faults on a real cluster.
func TestCluster(t *testing.T) {
	t.Parallel()
	k := &real{cluster.StartKubernetes(t), t, realNamespace}
	k.ServeVolumes(t)
	bin := loadImages(t, k.Kubernetes)
	k.Load(t, realPrograms, map[string]string{programsDir + "/cove-container": bin + "/cove-container",
		programsDir + "/payload": bin + "/payload"})
	k.install()
	t.Run("together", func(t *testing.T) {
		for name, run := range map[string]func(*real){"provider": testRealProvider, "walls": testRealWalls,
			"hub": testRealHub, "burst": testRealBurst, "tenants": testRealTenants, "examine": testRealExamine,
			"chart": testRealChart, "claims": testRealClaims, "images": testRealImages, "removed": testRealRemoved, "cuts": testRealCuts,
			"outbound": testRealOutbound} {
			t.Run(name, func(t *testing.T) { t.Parallel(); run(&real{k.Kubernetes, t, realNamespace}) })
		}
	})
	// These tests stop parts that the others require.
	for name, run := range map[string]func(*real){"restarts": testRealRestarts, "drain": testRealDrain,
		"full": testRealFull, "replicas": testRealReplicas} {
		t.Run(name, func(t *testing.T) { run(&real{k.Kubernetes, t, realNamespace}) })
	}
}

// loadImages builds the programs, and loads the images of the hub and of sandboxes.
func loadImages(t testing.TB, k *cluster.Kubernetes) (bin string) {
	t.Helper()
	bin = t.TempDir()
	testenv.Build(t, map[string]string{
		bin + "/cove": "../../../cmd/cove", bin + "/aio": "../../../cmd/aio",
		bin + "/cove-container": "../../../cmd/cove-container", bin + "/payload": "../providertest/testdata/serve",
	})
	k.Load(t, realTiny, tinyFiles(t))
	k.Load(t, realHubImage, map[string]string{"/usr/local/bin/cove": bin + "/cove",
		"/usr/local/lib/cove/cove-container": bin + "/cove-container", "/usr/local/lib/cove/aio": bin + "/aio"}, "/usr/local/bin/cove")
	return bin
}

// tinyFiles are a shell and basic programs.
func tinyFiles(t testing.TB) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range []string{"sh", "cat", "echo", "env", "grep", "head", "hostname", "id", "ls", "mkdir", "rm",
		"seq", "setsid", "sleep", "touch", "tr", "wc", "wget"} {
		files["/bin/"+name] = "/bin/busybox"
	}
	shell, err := filepath.EvalSymlinks("/bin/bash")
	if err != nil {
		testenv.Lack(t, "needs bash")
	}
	files["/bin/bash"] = shell
	for _, dir := range []string{"/lib64", "/lib", "/usr/lib"} { // the libraries of bash, in the paths of its loader
		for _, pattern := range []string{"ld-linux-*.so.*", "*-linux-gnu/libc.so.6", "*-linux-gnu/libtinfo.so.6"} {
			found, _ := filepath.Glob(filepath.Join(dir, pattern))
			for _, path := range found {
				if files[path], err = filepath.EvalSymlinks(path); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return files
}

// install applies install.yaml, with the images of this cluster.
func (k *real) install() {
	k.t.Helper()
	data, err := os.ReadFile(manifestPath)
	if err != nil {
		k.t.Fatal(err)
	}
	text := strings.NewReplacer("cove-hub:latest", realHubImage, "cove-sandbox:latest", realTiny).Replace(string(data))
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var object map[string]any
		if err := d.Decode(&object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			k.t.Fatal(err)
		}
		k.apply(object)
	}
}

// apply creates an object like kubectl.
func (k *real) apply(object map[string]any) {
	k.t.Helper()
	if err := k.Do(k.t.Context(), http.MethodPost, pathOf(object), object, nil); err != nil {
		k.t.Fatal(err)
	}
}

// pathOf returns the path for the creation of an object.
func pathOf(object map[string]any) string {
	m := object["metadata"].(map[string]any)
	version, kind := object["apiVersion"].(string), strings.ToLower(object["kind"].(string))
	path := "/apis/" + version
	if version == "v1" {
		path = "/api/v1"
	}
	if ns, ok := m["namespace"].(string); ok {
		path += "/namespaces/" + ns
	}
	plural := kind + "s"
	switch {
	case strings.HasSuffix(kind, "y"):
		plural = strings.TrimSuffix(kind, "y") + "ies"
	case strings.HasSuffix(kind, "s"):
		plural = kind + "es"
	}
	return path + "/" + plural
}

// testRealChart: an API server accepts the objects of the chart with all values whose kinds it supports.
func testRealChart(k *real) {
	all, err := render(k.t, everyValue...)
	if err != nil {
		k.t.Fatal(err)
	}
	for _, object := range all { // those of tenants and claims do not exist yet, and some kinds have several objects
		if ns, ok := object["metadata"].(map[string]any)["namespace"].(string); ok {
			k.Do(k.t.Context(), http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": ns}}, nil)
		}
	}
	for name, object := range all {
		if kind := object["kind"]; kind == "HTTPRoute" || kind == "ServiceMonitor" { // of others
			continue
		}
		metadata := object["metadata"].(map[string]any)
		metadata["name"] = "full"
		if err := k.Do(k.t.Context(), http.MethodPost, pathOf(object)+"?dryRun=All&fieldValidation=Strict", object, nil); err != nil {
			k.t.Errorf("%s: %v", name, err)
		}
	}
}

// testRealTenants: the sandboxes and volumes of a tenant are in its namespace, whose ResourceQuota and LimitRange apply only to
// the tenant. Their errors are passed through verbatim, and nothing is left behind.
func testRealTenants(k *real) {
	const own = "tenant-acme"
	k.apply(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": own,
		"labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"}}})
	k.apply(map[string]any{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": map[string]any{"name": "all",
		"namespace": own}, "spec": map[string]any{"hard": map[string]any{"pods": "1"}}})
	k.apply(map[string]any{"apiVersion": "v1", "kind": "LimitRange", "metadata": map[string]any{"name": "each", "namespace": own},
		"spec": map[string]any{"limits": []any{map[string]any{"type": "Container", "max": map[string]any{"memory": "1Gi"}}}}})
	quotaIs := func(hard, used string) func() bool {
		return func() bool {
			var quota struct {
				Status struct{ Hard, Used map[string]string }
			}
			err := k.Do(k.t.Context(), http.MethodGet, "/api/v1/namespaces/"+own+"/resourcequotas/all", nil, &quota)
			return err == nil && quota.Status.Hard["pods"] == hard && quota.Status.Used["pods"] == used
		}
	}
	k.Await(k.t, "the quota is in force", quotaIs("1", "0"))
	h := k.open(func(c *kubernetes.Config) {
		c.TenantNamespaces, c.StorageClass = map[string]string{"acme": own}, cluster.StorageClass
	})
	inOwn := &real{k.Kubernetes, k.t, own}
	h.wantRefused(sandbox.Spec{Owner: "acme", Resources: sandbox.Resources{MemoryLimit: 2 << 30}}, sandbox.ErrInvalid,
		"maximum memory usage per Container is 1Gi")
	mine := h.create(sandbox.Spec{Name: "first", Owner: "acme", Volumes: []sandbox.Volume{{Name: "data", Target: "/data"}}})
	if _, err := h.Create(k.t.Context(), sandbox.Spec{Name: "second", Owner: "acme"}); !errors.Is(err,
		sandbox.ErrExhausted) || !strings.Contains(err.Error(), "exceeded quota: all") {
		k.t.Errorf("got %v, want an exceeded quota", err)
	}
	common := h.create(sandbox.Spec{Name: "first", Owner: "bob", Resources: sandbox.Resources{MemoryLimit: 2 << 30}})
	for _, kind := range []string{"pods", "secrets"} {
		if got, other := inOwn.list(kind, h.cfg.Name).Items, k.list(kind, h.cfg.Name).Items; len(got) != 1 ||
			got[0].Metadata.Name != mine.ID || len(other) != 1 || other[0].Metadata.Name != common.ID {
			k.t.Errorf("%s: got %+v and %+v, want each in its namespace", kind, got, other)
		}
	}
	var policies objects
	if err := k.Do(k.t.Context(), http.MethodGet, "/apis/networking.k8s.io/v1/namespaces/"+own+"/networkpolicies",
		nil, &policies); err != nil || len(policies.Items) != 1 {
		k.t.Errorf("got %+v, %v, want a NetworkPolicy", policies, err)
	}
	if _, err := h.Update(k.t.Context(), common.ID, func(s *sandbox.Spec) error {
		s.Name, s.Owner = "moved", "acme"
		return nil
	}); !errors.Is(err, sandbox.ErrInvalid) || h.SamePlace("bob", "acme") || !h.SamePlace("bob", "carol") {
		k.t.Errorf("got %v, want an error about the other namespace", err)
	}
	if err := h.Close(); err != nil {
		k.t.Fatal(err)
	}
	h.open() // which finds both again
	h.wantOutput(mine.ID, "echo kept >/data/file && hostname", "first\n")
	h.wantOutput(common.ID, "hostname", "first\n")
	volumes, err := h.Volumes(k.t.Context(), "acme")
	if err != nil || len(volumes) != 1 || len(volumes[0].Sandboxes) != 1 {
		k.t.Errorf("got %+v, %v, want the volume", volumes, err)
	}
	// External removals of Pods are detected in the tenant's namespace, too.
	if err := k.Do(k.t.Context(), http.MethodDelete, "/api/v1/namespaces/"+own+"/pods/"+mine.ID,
		map[string]any{"gracePeriodSeconds": 1}, nil); err != nil {
		k.t.Fatal(err)
	}
	k.Await(k.t, "the sandbox is gone", func() bool { _, err := h.Get(k.t.Context(), mine.ID); return errors.Is(err, sandbox.ErrNotFound) })
	k.Await(k.t, "no Pod counts against the quota", quotaIs("1", "0")) // this is updated shortly after the deletion
	h.create(sandbox.Spec{Name: "third", Owner: "acme"})
	h.left = func(hub string) []string { return append(k.left(hub), inOwn.left(hub)...) }
}

func (k *real) config() kubernetes.Config {
	return kubernetes.Config{
		Dir: k.t.TempDir(), Access: kubernetes.Access{Server: k.Server, Authority: k.Authority, Cert: k.Cert,
			Key: k.Key}, Namespace: k.ns, Name: fmt.Sprintf("hub-%d", hubs.Add(1)),
		Programs: realPrograms, Installer: programsDir + "/cove-container", Command: []string{"/run/bin/payload"}, Image: realTiny,
		ReadyTimeout: 3 * time.Minute, ScheduleTimeout: 3 * time.Minute, StopGrace: 2 * time.Second,
	}
}

// realNamespace is the namespace of install.yaml, with Pod Security level restricted.
const realNamespace = "cove-sandboxes"

// objects is a list with the checked fields.
type objects struct {
	Items []struct {
		Metadata struct {
			Name   string
			Labels map[string]string
		}
		Spec   struct{ NodeName string }
		Status struct {
			Phase, PodIP          string
			Conditions            []struct{ Type string }
			InitContainerStatuses []struct {
				State struct{ Terminated *struct{} }
			}
		}
		Data map[string]string
	}
}

// list lists the objects of a hub.
func (k *real) list(kind, hub string) (all objects) {
	k.t.Helper()
	path := "/api/v1/namespaces/" + k.ns + "/" + kind + "?labelSelector=io.cove.kind%3Dsandbox,io.cove.hub%3D" + hub
	if err := k.Do(context.Background(), http.MethodGet, path, nil, &all); err != nil {
		k.t.Error(err)
	}
	return all
}

func (k *real) left(hub string) (names []string) {
	for _, kind := range sandboxKinds {
		for _, o := range k.list(kind, hub).Items {
			names = append(names, kind+"/"+o.Metadata.Name)
		}
	}
	return names
}

// open opens a provider and cleans up with the test.
func (k *real) open(change func(*kubernetes.Config)) *hub {
	k.t.Helper()
	cfg := k.config()
	if change != nil {
		change(&cfg)
	}
	h := &hub{t: k.t, cfg: cfg, left: k.left}
	h.open()
	k.t.Cleanup(h.clean)
	return h
}

func persistent(c *kubernetes.Config) { c.Persistent, c.StorageClass = true, cluster.StorageClass }

func testRealProvider(k *real) {
	store := startStore(k.t)
	providertest.Run(k.t, func(t *testing.T) providertest.Harness {
		t.Parallel() // a cluster is slow, not busy
		k := &real{k.Kubernetes, t, realNamespace}
		cfg := k.config()
		persistent(&cfg)
		cfg.Snapshots = store.config()
		return harnessOf(cfg, k.left)
	})
}

// testRealWalls: the node enforces the security settings of a Pod.
func testRealWalls(k *real) {
	h := k.open(nil)
	sb := h.create(sandbox.Spec{Name: "walls", Env: map[string]string{"SECRET": "s3cret"},
		Resources: sandbox.Resources{MemoryLimit: 64 << 20, CPULimit: 500, Files: 500}})
	for command, want := range map[string]string{
		"id -u": "1000\n",
		"grep -e ^CapEff -e ^CapPrm -e ^CapBnd /proc/self/status | tr -d 'CapEfrmPBnd:\\t\\n0'": "",
		"grep -e ^NoNewPrivs -e ^Seccomp: /proc/self/status":                                    "NoNewPrivs:\t1\nSeccomp:\t2\n",
		"touch /run/cove/x /run/bin/x 2>&1 | grep -c Read-only":                                 "2\n",
		"hostname":                 "walls\n",
		"ulimit -n":                "500\n",
		"env | grep -c KUBERNETES": "0\n[exit status 1]",
		"ls /run/cove":             "plan.json\ntls.crt\ntls.key\n",
		"ls -d /var/run/secrets 2>&1 | grep -c 'No such'":                                       "1\n",
		"cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null": "67108864\n[exit status 1]",
	} {
		h.wantOutput(sb.ID, command, want)
	}
}

// testRealBurst: after kill -9 of a hub during many creates, the next hub has only complete sandboxes, and no other objects are
// left.
func testRealBurst(k *real) {
	h := k.open(nil)
	if err := h.Close(); err != nil {
		k.t.Fatal(err)
	}
	todo := plan{Config: h.cfg, Burst: true}
	for i := range 50 {
		todo.Specs = append(todo.Specs, sandbox.Spec{Name: fmt.Sprintf("burst-%d", i)})
	}
	_, kill := startDying(k.t, todo)
	defer kill()
	running := func() (n int) {
		for _, s := range k.list("secrets", h.cfg.Name).Items {
			if raw, _ := base64.StdEncoding.DecodeString(s.Data["record.json"]); bytes.Contains(raw, []byte(`"state":"running"`)) {
				n++
			}
		}
		return n
	}
	k.Await(k.t, "some sandboxes are running", func() bool { return running() >= 3 })
	kill()
	ready := running()
	h.open()
	all, err := h.List(k.t.Context(), sandbox.Filter{})
	if err != nil || len(all) < ready {
		k.t.Errorf("got %d sandboxes, %v, want the %d that were ready", len(all), err, ready)
	}
	for _, sb := range all {
		h.wantOutput(sb.ID, "echo hello", "hello\n")
	}
	for _, kind := range []string{"pods", "secrets"} {
		if got := k.list(kind, h.cfg.Name).Items; len(got) != len(all) {
			k.t.Errorf("%d %s, want %d", len(got), kind, len(all))
		}
	}
}

// testRealRestarts: killed parts of the cluster only cause delays.
func testRealRestarts(k *real) {
	h := k.open(nil)
	sb := h.create(sandbox.Spec{Name: "before"})
	for _, parts := range [][]string{{"apiserver"}, {"etcd"}, {"kubelet", "controllers", "scheduler"}} {
		for _, part := range parts {
			k.Kill(k.t, part)
		}
		h.wantOutput(sb.ID, "echo hello", "hello\n") // an existing sandbox needs none of them
		name := "during-" + parts[0]
		var work sync.WaitGroup
		for _, n := range []string{"1", "2"} {
			work.Go(func() {
				made, err := h.Create(k.t.Context(), sandbox.Spec{Name: name + n})
				if err != nil {
					k.t.Errorf("create while %s restarts: %v", parts, err)
					return
				}
				h.wantOutput(made.ID, "hostname", name+n+"\n")
				if err := h.Delete(k.t.Context(), made.ID); err != nil {
					k.t.Errorf("delete after the restart of %s: %v", parts, err)
				}
			})
		}
		work.Wait()
	}
	h.wantState(sb.ID, sandbox.Running)
}

// testRealDrain: draining a node ends its sandboxes; those with a persistent home can be restarted, others are removed.
func testRealDrain(k *real) {
	kept, gone := k.open(persistent), k.open(nil)
	a, b := kept.create(sandbox.Spec{Name: "kept"}), gone.create(sandbox.Spec{Name: "gone"})
	kept.wantOutput(a.ID, "echo kept >/home/gem/file && echo ok", "ok\n")
	cordon := func(on bool) {
		if err := k.Do(k.t.Context(), http.MethodPatch, "/api/v1/nodes/node",
			map[string]any{"spec": map[string]any{"unschedulable": on}}, nil); err != nil {
			k.t.Fatal(err)
		}
	}
	cordon(true)
	for _, id := range []string{a.ID, b.ID} {
		eviction := map[string]any{"apiVersion": "policy/v1", "kind": "Eviction",
			"metadata": map[string]any{"name": id, "namespace": realNamespace}}
		if err := k.Do(k.t.Context(), http.MethodPost, "/api/v1/namespaces/"+realNamespace+"/pods/"+id+"/eviction", eviction, nil); err != nil {
			k.t.Fatal(err)
		}
	}
	kept.wantState(a.ID, sandbox.Failed)
	k.Await(k.t, "the sandbox without a home is gone", func() bool {
		_, err := gone.Get(k.t.Context(), b.ID)
		return errors.Is(err, sandbox.ErrNotFound)
	})
	started := make(chan error, 1)
	go func() { started <- kept.Start(context.Background(), a.ID) }()
	k.Await(k.t, "its next Pod finds no node", func() bool {
		for _, p := range k.list("pods", kept.cfg.Name).Items {
			if p.Metadata.Name == a.ID+"-1" && p.Spec.NodeName == "" {
				return true
			}
		}
		return false
	})
	cordon(false)
	if err := <-started; err != nil {
		k.t.Fatal(err)
	}
	kept.wantOutput(a.ID, "cat /home/gem/file", "kept\n")
}

// answers reports whether a Service reaches a hub. Earlier connections fail.
func (k *real) answers(c *client.Client) bool {
	ctx, cancel := context.WithTimeout(k.t.Context(), 5*time.Second)
	defer cancel()
	_, err := c.Info(ctx)
	return err == nil
}

// testRealHub: the installation works with its two commands and the rights of its role, and continues after its Pod was
// deleted.
func testRealHub(k *real) {
	var service struct{ Spec struct{ ClusterIP string } }
	if err := k.Do(k.t.Context(), http.MethodGet, "/api/v1/namespaces/cove/services/cove", nil, &service); err != nil {
		k.t.Fatal(err)
	}
	var keys []string
	k.Await(k.t, "the hub has an administrator", func() bool {
		keys, _ = filepath.Glob(filepath.Join(k.Dir, "volumes/*/admin.key"))
		return len(keys) == 1
	})
	key, err := os.ReadFile(keys[0])
	if err != nil {
		k.t.Fatal(err)
	}
	c, err := client.New(client.Config{URL: "http://" + service.Spec.ClusterIP + ":10000", Key: strings.TrimSpace(string(key))})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(c.Close)
	h := &realHub{Client: c, t: k.t}
	answers := func() bool { return k.answers(c) }
	k.Await(k.t, "the hub answers", answers)
	if _, err := c.Create(k.t.Context(), client.CreateOptions{Name: "a", Env: map[string]string{"GREETING": "hello"}}); err != nil {
		k.t.Fatal(err)
	}
	h.wantOutput("a", "echo $GREETING; id -u; echo kept >file", "hello\n1000\n")
	h.wantOutput("a", "wget -q -O /dev/null http://192.0.2.1/ 2>&1 | grep -o 403", "403\n") // the hub's proxy refuses
	var pods objects
	if err := k.Do(k.t.Context(), http.MethodGet, "/api/v1/namespaces/cove/pods", nil, &pods); err != nil || len(pods.Items) != 1 {
		k.t.Fatalf("got %+v, %v, want one hub", pods, err)
	}
	old := pods.Items[0].Metadata.Name
	if err := k.Do(k.t.Context(), http.MethodDelete, "/api/v1/namespaces/cove/pods/"+old,
		map[string]any{"gracePeriodSeconds": 1}, nil); err != nil {
		k.t.Fatal(err)
	}
	k.Await(k.t, "the old hub is gone", func() bool {
		err := k.Do(k.t.Context(), http.MethodGet, "/api/v1/namespaces/cove/pods", nil, &pods)
		return err == nil && len(pods.Items) == 1 && pods.Items[0].Metadata.Name != old
	})
	k.Await(k.t, "another hub answers", answers)
	h.wantOutput("a", "echo $GREETING; cat file", "hello\nkept\n")
	if err := c.Delete(k.t.Context(), "a"); err != nil {
		k.t.Error(err)
	}
}
