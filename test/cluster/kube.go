package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
)

//go:embed kube.sh
var kubeScript string

// GVisor is the RuntimeClass of Pods with the kernel of gVisor.
const GVisor = "gvisor"

// maxClusters is the maximum number of concurrent clusters.
const maxClusters = 16

// Kubernetes is a private cluster with at most one node.
type Kubernetes struct {
	Server     string // the URL of its API server
	Kubeconfig string // of its administrator
	Dir        string // its folder; only the logs in it outlive the cluster
	// Authority, Cert and Key are the credentials of the administrator, in PEM.
	Authority, Cert, Key []byte

	runtimes string // the folder of containerd, runc and their shims
	host     string // our address on its network
	http     *http.Client

	*script
}

// StartKubernetes starts a cluster that ends with the test. It skips the test if no cluster can run here.
func StartKubernetes(t testing.TB) *Kubernetes {
	t.Helper()
	testenv.Engine(t)
	testenv.NeedRoot(t)
	testenv.Need(t, "runsc", "iptables", "conntrack", "ip", "unshare", "nsenter", "setpriv", "busybox")
	for _, file := range []string{"/usr/lib/cni/bridge", "/usr/lib/cni/host-local"} {
		if _, err := os.Stat(file); err != nil {
			testenv.Lack(t, "needs "+file+" (Debian package containernetworking-plugins)")
		}
	}
	return startCluster(t, "")
}

// FakePods is the range of addresses of simulated Pods in a cluster without a node.
const FakePods = "198.19.0.0/16"

// StartControlPlane starts a cluster without a node, for simulated nodes. Only one can run at a time. Connections to
// addresses of FakePods reach the listener of ListenAsPods.
func StartControlPlane(t testing.TB) *Kubernetes {
	t.Helper()
	testenv.Engine(t)
	testenv.NeedRoot(t)
	testenv.Need(t, "ip", "unshare", "nsenter", "setpriv")
	return startCluster(t, "control-plane")
}

// ListenAsPods listens on a port of all addresses of FakePods.
func (k *Kubernetes) ListenAsPods(port int) (net.Listener, error) {
	pid, err := os.ReadFile(filepath.Join(k.Dir, "init.pid"))
	if err != nil {
		return nil, err
	}
	inside, err := os.Open("/proc/" + strings.TrimSpace(string(pid)) + "/ns/net")
	if err != nil {
		return nil, err
	}
	defer inside.Close()
	type result struct {
		net.Listener
		error
	}
	out := make(chan result)
	go func() {
		runtime.LockOSThread() // and the thread ends with this function: it is no longer in our network
		if err := unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET); err != nil {
			out <- result{nil, err}
			return
		}
		l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		out <- result{l, err}
	}()
	r := <-out
	return r.Listener, r.error
}

// startCluster starts a cluster, or the part of it that the script supports under a name.
func startCluster(t testing.TB, only string) *Kubernetes {
	t.Helper()
	tools := findTools(t, only)
	cache, err := os.UserCacheDir()
	if err != nil {
		testenv.Lack(t, "no folder for a cluster: "+err.Error())
	}
	for slot := range maxClusters {
		k := &Kubernetes{Dir: filepath.Join(cache, "cove", fmt.Sprintf("kube-%d", slot)), runtimes: filepath.Join(tools, "runtimes")}
		switch why, free := k.start(t, filepath.Join(tools, "bin/kubernetes"), slot, only); {
		case !free:
		case why != "":
			testenv.Lack(t, "no Kubernetes on this machine: "+why)
		default:
			k.prepare(t, only == "")
			return k
		}
	}
	testenv.Lack(t, fmt.Sprintf("%d clusters are running already", maxClusters))
	return nil
}

// findTools returns the folder with the programs that make deps has built.
func findTools(t testing.TB, only string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			tools := filepath.Join(dir, ".tools")
			needed := []string{"bin/kubernetes"}
			if only == "" {
				needed = append(needed, "runtimes/containerd", "runtimes/containerd-shim-runc-v2",
					"runtimes/containerd-shim-runsc-v1", "runtimes/ctr", "runtimes/runc")
			}
			for _, name := range needed {
				testenv.NeedFile(t, filepath.Join(tools, name))
			}
			return tools
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the folder of this test")
		}
	}
}

// start runs the script. It returns why the cluster cannot start, and whether the folder was unused.
func (k *Kubernetes) start(t testing.TB, program string, slot int, only string) (why string, free bool) {
	t.Helper()
	// A reserved range for tests of networks.
	link := fmt.Sprintf("covek%d", slot)
	address := func(third int, rest string) string { return fmt.Sprintf("198.18.%d.%s", 4*slot+third, rest) }
	host, box, services, pods := address(0, "1"), address(0, "2"), address(1, "0/24"), address(2, "0/23")
	if only != "" {
		pods = FakePods
	}
	k.host, k.Server, k.Kubeconfig = host, "https://"+box+":6443", filepath.Join(k.Dir, "keys/admin.kubeconfig")
	lock, err := lockDir(k.Dir)
	if err != nil {
		return err.Error(), true
	}
	if lock == nil {
		return "", false
	}
	defer lock.Close() // the script has it, too
	if err := k.issueAll(box, address(1, "1")); err != nil {
		return err.Error(), true
	}
	cmd := exec.Command("bash", "-c", kubeScript, "kube.sh", k.Dir, program, link, host, box, pods, services, only)
	cmd.Stderr, cmd.ExtraFiles, cmd.Env = os.Stderr, []*os.File{lock}, append(os.Environ(), "PATH="+k.runtimes+":"+os.Getenv("PATH"))
	run, why, _ := startScript(t, cmd, func() { k.http.CloseIdleConnections() })
	k.script = run
	return why, true
}

// lockDir creates and locks the folder. It fails if a cluster uses the folder.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := lockfile.Open(filepath.Join(dir, "lock"))
	if errors.Is(err, lockfile.ErrLocked) {
		return nil, nil
	}
	return f, err
}

// prepare waits until the cluster can run Pods, if it has a node.
func (k *Kubernetes) prepare(t testing.TB, node bool) {
	t.Helper()
	cert, err := tls.X509KeyPair(k.Cert, k.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(k.Authority)
	k.http = &http.Client{Timeout: time.Minute,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots}, ForceAttemptHTTP2: true}}
	if node {
		k.wait(t, "containerd", func() bool { return k.ctr(nil, "version") == nil })
		k.Load(t, "registry.test/pause:1", map[string]string{"/bin/busybox": "/bin/busybox"}, "/bin/busybox", "sleep", "infinity")
	}
	k.wait(t, "the API server", func() bool { return k.Do(t.Context(), "GET", "/readyz", nil, nil) == nil })
	if node {
		k.wait(t, "the node", k.ready)
	}
	k.wait(t, "service accounts", func() bool {
		return k.Do(t.Context(), "GET", "/api/v1/namespaces/default/serviceaccounts/default", nil, nil) == nil
	})
	class := map[string]any{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
		"metadata": map[string]any{"name": GVisor}, "handler": "runsc"}
	if err := k.Do(t.Context(), "POST", "/apis/node.k8s.io/v1/runtimeclasses", class, nil); err != nil {
		t.Fatal(err)
	}
}

// ready reports whether the node accepts Pods.
func (k *Kubernetes) ready() bool {
	var node struct {
		Spec struct {
			Taints []struct{ Key string }
		}
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if err := k.Do(context.Background(), "GET", "/api/v1/nodes/node", nil, &node); err != nil || len(node.Spec.Taints) > 0 {
		return false
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

func (k *Kubernetes) wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !testenv.Eventually(ok) {
		t.Fatalf("%s did not start in time; its log is in %s", what, filepath.Join(k.Dir, "log"))
	}
}

// Kill kills a part of the cluster (etcd, apiserver, controllers, scheduler, containerd, kubelet, proxy), and returns when
// it was restarted. The part may not be ready.
func (k *Kubernetes) Kill(t testing.TB, part string) {
	t.Helper()
	k.send(t, "kill "+part)
}

// Do sends a request to the API server as administrator. In and out are encoded as JSON; a patch is a merge patch.
func (k *Kubernetes) Do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, k.Server+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := k.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, data)
	case out == nil:
		return nil
	}
	return json.Unmarshal(data, out)
}

func (k *Kubernetes) ctr(in io.Reader, args ...string) error {
	cmd := exec.Command(filepath.Join(k.runtimes, "ctr"), append([]string{"-a", filepath.Join(k.Dir, "containerd.sock")}, args...)...)
	cmd.Stdin = in
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
