//go:build linux

package kubernetes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/cluster"
)

// BenchmarkCluster prints the time until the first output of a command in sandboxes of a real cluster: new ones, warm ones, and
// many concurrent warm ones. For comparison, it prints the time of one write to the API server, which every claim requires.
func BenchmarkCluster(b *testing.B) {
	const crowd, claims = 100, 20
	k := cluster.StartKubernetes(b)
	bin := loadImages(b, k)
	ns := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": realNamespace,
		"labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if err := k.Do(b.Context(), http.MethodPost, "/api/v1/namespaces", ns, nil); err != nil {
		b.Fatal(err)
	}
	write := newWriter(b, k)
	h := startBenchHub(b, k, bin, crowd)
	filled := func() {
		for n := 10; n <= crowd; n += 10 { // each step within the patience of Await
			k.Await(b, fmt.Sprintf("the pool has %d", n), func() bool { return h.warm(b) >= n })
		}
	}
	began := time.Now()
	filled()
	fmt.Printf("%-46s %7.1f s, %.0f ms each\n", fmt.Sprintf("a pool of %d is full after", crowd),
		time.Since(began).Seconds(), float64(time.Since(began).Milliseconds())/crowd)
	var writes, created, warm []time.Duration
	for i := range claims {
		name := fmt.Sprintf("warm-%d", i)
		writes = append(writes, write()) // under the same load as the claim
		create, all, err := h.say(b.Context(), name)
		if err := errors.Join(err, h.Delete(b.Context(), name)); err != nil {
			b.Fatal(err)
		}
		created, warm = append(created, create), append(warm, all)
		filled()
	}
	bare := show("a write to the API server", writes)
	show("claim", created)
	first := show("claim to first output", warm)
	fmt.Printf("%-46s %7.1f\n", "  in writes to the API server", float64(first)/float64(bare))

	many, pods := make([]time.Duration, crowd), map[string]string{}
	var work sync.WaitGroup
	began = time.Now()
	for i := range crowd {
		work.Go(func() {
			if _, _, err := h.say(b.Context(), fmt.Sprintf("crowd-%d", i)); err != nil {
				b.Error(err)
			}
			many[i] = time.Since(began)
		})
	}
	work.Wait()
	show(fmt.Sprintf("claim to first output, %d at once", crowd), many)
	all, err := h.List(b.Context(), client.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for _, sb := range all {
		if strings.HasPrefix(sb.Name, "crowd-") {
			pods[sb.ID] = sb.Name
		}
	}
	fmt.Printf("%-46s %7d\n", "  different Pods", len(pods))
}

// show prints durations and returns the median.
func show(what string, all []time.Duration) time.Duration {
	slices.Sort(all)
	at := func(percent int) time.Duration { return all[(len(all)-1)*percent/100] }
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	fmt.Printf("%-46s p50 %7.1f ms   p99 %7.1f ms   max %7.1f ms   n %d\n", what, ms(at(50)), ms(at(99)), ms(at(100)), len(all))
	return at(50)
}

// newWriter returns a function that measures only the API server: a patch of a Secret over an open connection.
func newWriter(b *testing.B, k *cluster.Kubernetes) func() time.Duration {
	path := "/api/v1/namespaces/" + realNamespace + "/secrets"
	content := func(i int) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "bench"},
			"data": map[string][]byte{"record.json": bytes.Repeat([]byte{byte('a' + i%26)}, 2000)}}
	}
	if err := k.Do(b.Context(), http.MethodPost, path, content(0), nil); err != nil {
		b.Fatal(err)
	}
	i := 0
	return func() time.Duration {
		i++
		began := time.Now()
		if err := k.Do(b.Context(), http.MethodPatch, path+"/bench", content(i), nil); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
}

// benchHub is the real program with direct connections to Pods.
type benchHub struct {
	*client.Client
	socket string
}

func startBenchHub(b *testing.B, k *cluster.Kubernetes, bin string, pool int) *benchHub {
	state, err := os.MkdirTemp("", "cove-hub-") // short: it holds sockets
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(state) })
	h := &benchHub{socket: filepath.Join(state, "listen.sock")}
	file := filepath.Join(state, "environments.json") // a small request, so that the node has room for all
	if err := os.WriteFile(file, fmt.Appendf(nil, `[{"name":"bench","cpu":"5m","pool":%d}]`, pool), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "cove"), "hub", "--provider", "kubernetes", "--kubernetes-config",
		k.Kubeconfig, "--kubernetes-namespace", realNamespace, "--kubernetes-reach", "pod",
		"--default-image", realTiny, "--kubernetes-programs-image", realHubImage, "--state", state, "--listen",
		"unix:"+h.socket, "--environments", file, "--log-level", "warn")
	cmd.Env, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + state}, os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() }) // the cluster ends with everything in it
	if h.Client, err = client.New(client.Config{URL: "unix:" + h.socket}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(h.Close)
	testenv.Poll(b, "the hub answers", func() bool { _, err := h.Info(b.Context()); return err == nil })
	return h
}

// warm returns the number of warm sandboxes.
func (h *benchHub) warm(b *testing.B) (n int) {
	_, after, _ := strings.Cut(metricsOf(b, h.socket), `cove_pool_ready{environment="bench"} `)
	fmt.Sscan(after, &n)
	return n
}

// say creates a sandbox and runs a command. It returns the duration of the create, and of both.
func (h *benchHub) say(ctx context.Context, name string) (create, all time.Duration, err error) {
	began := time.Now()
	if _, err := h.Create(ctx, client.CreateOptions{Name: name, Environment: "bench"}); err != nil {
		return 0, 0, err
	}
	create = time.Since(began)
	g := h.Guest(name)
	defer g.Close()
	var out bytes.Buffer
	_, err = g.Exec(ctx, "echo hello", client.ExecOptions{Stdout: &out})
	if err == nil && out.String() != "hello\n" {
		err = errors.New("got " + out.String())
	}
	return create, time.Since(began), err
}
