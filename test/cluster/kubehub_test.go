package cluster_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/attack"
	"github.com/cove-sandbox/cove/test/cluster"
)

// testKubernetes runs the tests that require a real cluster and the real images.
func testKubernetes(t *testing.T, e *cluster.Engine) {
	k := cluster.StartKubernetes(t)
	k.ImportFrom(t, e, cluster.SlimImage, cluster.HubImage)
	helper := filepath.Join(t.TempDir(), "helper")
	testenv.Build(t, map[string]string{helper: "../../" + attack.EscapeProgram})
	t.Run("manifest", func(t *testing.T) { t.Parallel(); testManifest(t, k) })
	for _, c := range podKinds {
		t.Run(c.name, func(t *testing.T) { t.Parallel(); testPods(t, k, c, helper) })
	}
}

// podKind is a way to run sandboxes as Pods.
type podKind struct {
	name   string
	level  string   // of Pod Security, in the namespace
	flags  []string // of the hub
	create client.CreateOptions
	proofs map[string]string // commands inside that print what proves the kind
	root   bool              // sudo works inside
	who    []escapee
}

// escapee is a user that tries to escape: the prefix of its command, and what is allowed and harmless.
type escapee struct {
	name, command string
	may           []string
	// refused is the output of the program if it cannot start.
	refused string
}

// podMay lists what every Pod may do: the Go runtime reads the limit of its control group, the devices are the usual ones,
// the sandbox's own resolver answers at the address of every resolver, and the NetworkPolicy isolates the network interface.
// The rest is harmless.
var podMay = []string{
	"no descriptor but the usual", "device nodes", "read /proc/cmdline", "dial tcp 8.8.8.8:53", "dial udp 8.8.8.8:53", "other interfaces",
	"option: load a protocol", "socket uevent", "see the host's load", "see the host's work",
}

// runcMay lists what the seccomp filter of containerd also allows; kubernetes_seccomp configures a stricter one. The sockets
// and ioctls affect only the network of the Pod, and require capabilities that Pods do not have. Sockets of the hypervisor
// work only on virtual machines with such a device.
var runcMay = append([]string{
	"read /proc/pressure/cpu", "ioctl: add a tunnel", "ioctl: ask a driver", "ioctl: add a vlan", "socket netfilter",
	"socket audit", "socket xfrm", "socket family with high bits",
	"see the host's boot", "see the host's memory", "see the host's locks", "see the host's vmstat",
	"see the host's zoneinfo", "see the host's buddyinfo", "see the host's softirqs",
}, podMay...)

// sudoMay lists what sudo requires. RootMay lists what root may do with files of the sandbox, which contain no passwords
// except "!", and with its first process.
var (
	sudoMay = append([]string{"live without no_new_privs"}, runcMay...)
	rootMay = append([]string{"find a password in /etc/shadow", "find a password in /etc/gshadow",
		"write /proc/1/oom_score_adj", "write /proc/1/clear_refs"}, sudoMay...)
)

// gvisorMay lists what the kernel of gVisor allows: none of these calls reach the host, and the devices are virtual.
// NestedMay lists what it allows root of a user namespace.
var (
	gvisorMay = append([]string{
		"make a whiteout", "unshare time", "clone3", "become nicer than others", "lower the oom score",
		"live without the filter", "read the kernel log",
		"option: read arptables", "option: read ebtables", "option: read ipvs", "option: repair",
		"open /dev/fuse", "open /dev/net/tun",
	}, podMay...)
	nestedMay = append([]string{
		"unshare mount", "unshare uts", "unshare ipc", "unshare net", "raise capabilities", "netlink in a network of our own",
	}, gvisorMay...)
)

var podKinds = []podKind{
	{
		name: "restricted", level: "restricted", create: client.CreateOptions{Name: "plain"},
		proofs: map[string]string{"cat /proc/self/uid_map | xargs": "0 0 4294967295\n", "id -u": "1000\n", "sudo -n id -u 2>/dev/null": ""},
		who: []escapee{
			{name: "user", command: "env -i ./helper try", may: runcMay},
			{name: "root of a user namespace", command: "env -i ./helper nested", refused: "operation not permitted"},
		},
	},
	{
		name: "user namespaces", level: "baseline", flags: []string{"--kubernetes-user-namespaces",
			"--kubernetes-root"}, root: true, create: client.CreateOptions{Name: "userns"},
		proofs: map[string]string{"read inside outside count </proc/self/uid_map; echo $inside $((outside >= " +
			"65536)) $count": "0 1 65536\n", "id -u; sudo -n id -u": "1000\n0\n"},
		who: []escapee{
			{name: "user", command: "env -i ./helper try", may: sudoMay},
			{name: "root by sudo", command: "sudo -n env -i ./helper try", may: rootMay},
			{name: "root of a user namespace", command: "env -i ./helper nested", refused: "operation not permitted"},
		},
	},
	{
		name: "gVisor", level: "restricted", flags: []string{"--kubernetes-runtime-classes", cluster.GVisor},
		create: client.CreateOptions{Name: "gvisor", Isolation: cluster.GVisor},
		proofs: map[string]string{"dmesg | grep -c 'Starting gVisor'": "1\n", "grep -c " + hostKernel() +
			" /proc/version": "0\n", "id -u": "1000\n"},
		who: []escapee{
			{name: "user", command: "env -i ./helper try", may: gvisorMay},
			{name: "root of a user namespace", command: "env -i ./helper nested", may: nestedMay},
		},
	},
}

// hostKernel is the kernel version of Pods without gVisor.
func hostKernel() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(release))
}

// kubeHub is a hub outside a cluster, with a separate namespace.
type kubeHub struct {
	*hub
	k  *cluster.Kubernetes
	ns string
}

func startKubeHub(t *testing.T, k *cluster.Kubernetes, ns, level string, flags ...string) *kubeHub {
	t.Helper()
	state, err := os.MkdirTemp("", "cove-hub-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	object := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": ns,
		"labels": map[string]any{"pod-security.kubernetes.io/enforce": level}}}
	if err := k.Do(t.Context(), http.MethodPost, "/api/v1/namespaces", object, nil); err != nil {
		t.Fatal(err)
	}
	args := []string{"--provider", "kubernetes", "--kubernetes-config", k.Kubeconfig, "--kubernetes-reach", "pod",
		"--kubernetes-namespace", ns, "--kubernetes-programs-image", cluster.HubImage, "--tenants"}
	return &kubeHub{launchHub(t, state, append(args, flags...)...), k, ns}
}

// pods returns the Pods of sandboxes.
func (h *kubeHub) pods() (all struct {
	Items []struct {
		Metadata struct {
			Name   string
			Labels map[string]string
		}
		Status struct{ PodIP string }
	}
}) {
	h.t.Helper()
	if err := h.k.Do(h.t.Context(), http.MethodGet, "/api/v1/namespaces/"+h.ns+"/pods", nil, &all); err != nil {
		h.t.Fatal(err)
	}
	return all
}

// testPods: sandboxes of a kind have the documented properties, programs cannot escape, and access requires a key.
func testPods(t *testing.T, k *cluster.Kubernetes, kind podKind, helper string) {
	h := startKubeHub(t, k, "kind-"+kind.create.Name, kind.level, append(storeFlags(cluster.StartStore(t, "../../.tools")), kind.flags...)...)
	name := kind.create.Name
	if _, err := h.Create(t.Context(), kind.create); err != nil {
		t.Fatal(err)
	}
	for command, want := range kind.proofs {
		h.wantOutput(name, command, want)
	}
	pods := h.pods().Items
	if len(pods) != 1 {
		t.Fatalf("got %d Pods, want 1", len(pods))
	}
	h.upload(name, helper)
	for _, who := range kind.who {
		t.Run("escape as "+who.name, func(t *testing.T) {
			out := h.tryEscape(t, name, who.command, kernelOf(kind)...)
			if who.refused == "" {
				attack.CheckEscape(t, out, who.may)
			} else if !strings.Contains(out, who.refused) {
				t.Errorf("got %s, want %q", out, who.refused)
			}
		})
	}
	t.Run("copies", func(t *testing.T) { h.testPodCopies(t, kind) })
	t.Run("sign-in", func(t *testing.T) { testSignIn(t, h.hub, name) })
	t.Run("sign-in at the Pod", func(t *testing.T) { h.testPodPorts(t, name, pods[0].Status.PodIP) })
	h.wantPolicy(pods[0].Metadata.Labels)
	if err := h.Delete(t.Context(), name); err != nil {
		t.Error(err)
	}
	if left := h.pods().Items; len(left) != 0 {
		t.Errorf("left behind: %+v", left)
	}
}

// upload copies a program into a sandbox.
func (h *kubeHub) upload(name, program string) {
	h.t.Helper()
	f, err := os.Open(program)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	g := h.Guest(name)
	defer g.Close()
	if _, _, err := g.Upload(h.t.Context(), "/home/gem/helper", "helper", f); err != nil {
		h.t.Fatal(err)
	}
	h.wantOutput(name, "chmod 755 helper", "")
}

// testPodPorts: the tunnel port of a Pod accepts only its hub, and the readiness port sends nothing.
func (h *kubeHub) testPodPorts(t *testing.T, name, ip string) {
	h.wantOutput(name, openPorts+" | grep -vx 7444", "7443\n")
	t.Run("the port of the probe", func(t *testing.T) {
		var c net.Conn
		testenv.Poll(t, "the port is open", func() bool { // it is closed while the server is too busy to answer
			var err error
			c, err = net.Dial("tcp", net.JoinHostPort(ip, "7444"))
			return err == nil
		})
		defer c.Close()
		io.WriteString(c, "GET /v1/sandbox HTTP/1.1\r\nHost: x\r\n\r\n") // it may be closed by now
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("got %q, want nothing", got)
		}
	})
	address := net.JoinHostPort(ip, "7443")
	t.Run("plain", func(t *testing.T) {
		attack.NewSignIn(t).AttackBelow(t, func() (net.Conn, error) { return net.Dial("tcp", address) }, "")
	})
	t.Run("TLS without a key", func(t *testing.T) {
		attack.NewSignIn(t).AttackBelow(t, func() (net.Conn, error) {
			return tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		}, "")
	})
	t.Run("TLS with another key", func(t *testing.T) {
		pair, err := tls.X509KeyPair(h.k.Cert, h.k.Key)
		if err != nil {
			t.Fatal(err)
		}
		attack.NewSignIn(t).AttackBelow(t, func() (net.Conn, error) {
			return tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
		}, "")
	})
}

// openPorts prints the TCP ports of a Pod that are open outside of the loopback network.
const openPorts = `cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "0A" { split($2, a, ":"); if (a[1] !~ ` +
	`/7F$/ && a[1] !~ /^0+1000000$/) print a[2] }' | sort -u | while read port; do echo $((0x$port)); done`

// wantPolicy checks that the NetworkPolicy selects a Pod with these labels, denies all egress, and allows ingress only from
// the hub.
func (h *kubeHub) wantPolicy(labels map[string]string) {
	h.t.Helper()
	var got struct {
		Spec struct {
			PodSelector struct{ MatchLabels map[string]string }
			PolicyTypes []string
			Ingress     []any
			Egress      []any
		}
	}
	if err := h.k.Do(h.t.Context(), http.MethodGet, "/apis/networking.k8s.io/v1/namespaces/"+h.ns+
		"/networkpolicies/cove-sandboxes-cove", nil, &got); err != nil {
		h.t.Fatal(err)
	}
	if len(got.Spec.PodSelector.MatchLabels) == 0 {
		h.t.Error("the policy selects every Pod, want only the sandboxes of the hub")
	}
	for name, value := range got.Spec.PodSelector.MatchLabels {
		if labels[name] != value {
			h.t.Errorf("the policy selects %s=%s, but the Pod has %v", name, value, labels)
		}
	}
	only := []any{map[string]any{
		"from": []any{map[string]any{"namespaceSelector": map[string]any{},
			"podSelector": map[string]any{"matchLabels": map[string]any{"io.cove.role": "hub"}}}},
		"ports": []any{map[string]any{"protocol": "TCP", "port": float64(7443)}},
	}}
	if !slices.Equal(got.Spec.PolicyTypes, []string{"Ingress", "Egress"}) || len(got.Spec.Egress) != 0 ||
		!reflect.DeepEqual(got.Spec.Ingress, only) {
		h.t.Errorf("got %+v, want no egress, and ingress only from the hub", got.Spec)
	}
}

// kernelOf returns the arguments that describe a kernel other than the host's to the escape program.
func kernelOf(kind podKind) []string {
	if kind.create.Isolation == cluster.GVisor {
		return []string{"kernel=gvisor"}
	}
	return nil
}
