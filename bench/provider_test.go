package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/cluster"
)

// peer is a provider that is measured.
type peer struct {
	name string
	open func(b *testing.B) (args []string) // of the hub
	// tell is the setting that distinguishes hubs with shared resources of open, if required.
	tell string
	// drain removes the sandboxes of a pool, unless they end with the resources of open.
	drain func(b *testing.B, state string)
}

// peers are the providers, in the order of the table.
var peers = []peer{
	{"local", func(*testing.B) []string { return nil }, "", drain},
	{"docker", func(b *testing.B) []string {
		e := startEngine(b)
		return []string{"--provider", "docker", "--docker-host", "unix://" + e.Socket, "--default-image", cluster.SlimImage}
	}, "", nil},
	{"kubernetes", func(b *testing.B) []string {
		k := cluster.StartKubernetes(b)
		k.ImportFrom(b, startEngine(b), cluster.SlimImage, cluster.HubImage)
		return []string{"--provider", "kubernetes", "--kubernetes-config", k.Kubeconfig, "--kubernetes-reach", "pod",
			"--kubernetes-programs-image", cluster.HubImage, "--default-image", cluster.SlimImage}
	}, "--kubernetes-name", nil},
}

// startEngine starts a private Docker engine with our images.
func startEngine(b *testing.B) *cluster.Engine {
	b.Helper()
	e := cluster.StartDocker(b)
	e.BuildImages(b, "..", filepath.Dir(program(b, "aio")))
	return e
}

// BenchmarkProviders: time from the request for a sandbox to the first output of a command in it, on
// every provider: cold, and warm from a full pool.
func BenchmarkProviders(b *testing.B) {
	const rounds, pool = 15, 3
	testenv.NeedRoot(b)
	rows := []string{fmt.Sprintf("%-12s %-26s %s", "provider", "cold", "warm")}
	for _, p := range peers {
		b.Run(p.name, func(b *testing.B) {
			args := p.open(b)
			measure := func(hub, state string, more ...string) string {
				flags := slices.Concat(args, more)
				if p.tell != "" {
					flags = append(flags, p.tell, hub)
				}
				c, url := startHub(b, state, flags...)
				var took []time.Duration
				for i := range rounds {
					if len(more) > 0 {
						awaitMetric(b, url, fmt.Sprintf(`cove_pool_ready{environment="aio"} %d`, pool))
					}
					name := fmt.Sprintf("n%d", i)
					took = append(took, round(b, c, name))
					remove(b, c, name)
				}
				return fmt.Sprintf("p50 %-8v p90 %-8v", percentile(took, 0.5).Round(100*time.Microsecond),
					percentile(took, 0.9).Round(100*time.Microsecond))
			}
			cold := measure("cold", b.TempDir())
			state := b.TempDir()
			if p.drain != nil {
				b.Cleanup(func() { p.drain(b, state) }) // after its hub has ended
			}
			warm := measure("warm", state, "--pool", fmt.Sprint(pool))
			rows = append(rows, fmt.Sprintf("%-12s %-26s %s", p.name, cold, warm))
		})
	}
	for _, row := range rows {
		report(b, "%s", row)
	}
}

// awaitMetric waits until the metrics of the hub contain a line.
func awaitMetric(b *testing.B, url, line string) {
	b.Helper()
	testenv.Poll(b, line, func() bool {
		resp, err := http.Get(url + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(text), line+"\n")
	})
}

// BenchmarkImage: size, cold start and idle memory of the sandbox's image, compared with the known
// figures of the public image. That image starts its browser immediately; ours does so on first use.
func BenchmarkImage(b *testing.B) {
	e := startEngine(b)
	for _, image := range []string{cluster.SlimImage, cluster.FullImage} {
		begin := time.Now()
		e.Run(b, nil, "run", "-d", "--name", "bench", "--security-opt", "seccomp=../deploy/seccomp.json",
			"--shm-size", "2g", "-p", "127.0.0.1:8080:8080", image)
		client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) { return e.Dial("127.0.0.1:8080") }}}
		ask := func(path string) bool {
			resp, err := client.Get("http://localhost:8080" + path)
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		}
		memory := func() string {
			used, _, _ := strings.Cut(e.Run(b, nil, "stats", "--no-stream", "--format", "{{.MemUsage}}", "bench"), " / ")
			return used
		}
		testenv.Poll(b, "the sandbox is ready", func() bool { return ask("/readyz") })
		line := fmt.Sprintf("%s: %s, ready after %v with %s", image,
			strings.TrimSpace(e.Run(b, nil, "images", "--format", "{{.Size}}", image)), time.Since(begin).Round(10*time.Millisecond), memory())
		if image == cluster.FullImage {
			begin = time.Now()
			if !ask("/v1/browser/info") {
				b.Error("no browser")
			}
			line += fmt.Sprintf("; its browser %v later, then with %s (public image: ready with its browser after "+
				"3.7 s, with 769 to 895 MiB)", time.Since(begin).Round(10*time.Millisecond), memory())
		}
		report(b, "%s", line)
		e.Run(b, nil, "rm", "-f", "bench")
	}
}
