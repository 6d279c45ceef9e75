package bench

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// BenchmarkPreview: a service in the sandbox through its preview, compared with nginx in front of the
// same service and with the service itself.
func BenchmarkPreview(b *testing.B) {
	nginx, err := filepath.Abs("../.tools/nginx/usr/sbin/nginx")
	if err != nil {
		b.Fatal(err)
	}
	if _, err := os.Stat(nginx); err != nil {
		testenv.Lack(b, "needs "+nginx+"; run scripts/deps bench first")
	}
	page, big := []byte(strings.Repeat("a line of a page\n", 64)), make([]byte, 4<<20)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	service := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		if r.URL.Path == "/big" {
			w.Write(big)
			return
		}
		w.Write(page)
	})}
	go service.Serve(l)
	b.Cleanup(func() { service.Close() })
	port := l.Addr().(*net.TCPAddr).Port
	ways := []way{
		{name: "direct", url: fmt.Sprintf("http://127.0.0.1:%d/", port)},
		{name: "nginx", url: fmt.Sprintf("http://%s/proxy/%d/", startNginx(b, nginx, port), port)},
		{name: "preview", url: fmt.Sprintf("%s/proxy/%d/", serve(b), port)},
	}
	for i := range ways {
		ways[i].client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers, DisableCompression: true}}
		b.Cleanup(ways[i].client.CloseIdleConnections)
		ways[i].rate(b, 200) // warm
	}
	// They take turns, so that other load on the machine affects all of them.
	for range 10 {
		for i := range ways {
			w := &ways[i]
			w.best = max(w.best, w.rate(b, 4000))
			w.bytes = max(w.bytes, w.throughput(b, len(big)))
			for range 200 {
				began := time.Now()
				w.fetch(b, "")
				w.took = append(w.took, time.Since(began))
			}
		}
	}
	direct, peer, ours := &ways[0], &ways[1], &ways[2]
	report(b, "%d callers: %.0f/s = %.0f %% of nginx (%.0f/s; target 80 %%), direct %.0f/s", callers, ours.best,
		100*ours.best/peer.best, peer.best, direct.best)
	report(b, "4 MiB: %.0f MB/s = %.0f %% of nginx (%.0f MB/s; target 80 %%), direct %.0f MB/s", ours.bytes,
		100*ours.bytes/peer.bytes, peer.bytes, direct.bytes)
	report(b, "latency p50 %v, nginx %v, direct %v; p99 %v, nginx %v, direct %v", percentile(ours.took, 0.5),
		percentile(peer.took, 0.5), percentile(direct.took, 0.5),
		percentile(ours.took, 0.99), percentile(peer.took, 0.99), percentile(direct.took, 0.99))
}

// callers is the number of concurrent requests.
const callers = 16

// way is one way to reach the service, and its measurements.
type way struct {
	name, url string
	client    *http.Client
	best      float64 // requests per second
	bytes     float64 // megabytes per second
	took      []time.Duration
}

func (w *way) fetch(b *testing.B, path string) int64 {
	res, err := w.client.Get(w.url + path)
	if err != nil {
		b.Error(err)
		return 0
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err != nil || res.StatusCode != 200 {
		b.Errorf("%s: got status %d, %v, want 200", w.name, res.StatusCode, err)
	}
	return n
}

// rate measures requests per second.
func (w *way) rate(b *testing.B, n int) float64 {
	began := time.Now()
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			for range n / callers {
				w.fetch(b, "")
			}
		})
	}
	wait.Wait()
	return float64(n) / time.Since(began).Seconds()
}

// throughput measures megabytes per second, with two concurrent requests.
func (w *way) throughput(b *testing.B, size int) float64 {
	began := time.Now()
	var wait sync.WaitGroup
	const each = 8
	for range 2 {
		wait.Go(func() {
			for range each {
				if n := w.fetch(b, "big"); n != int64(size) {
					b.Errorf("%s: got %d bytes, want %d", w.name, n, size)
				}
			}
		})
	}
	wait.Wait()
	return float64(2*each*size) / 1e6 / time.Since(began).Seconds()
}

// startNginx starts nginx as Debian builds it, with connections to the service kept open, and
// returns its address.
func startNginx(b *testing.B, nginx string, port int) string {
	b.Helper()
	dir, socket := b.TempDir(), freeAddress(b)
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; master_process on; worker_processes auto; pid %[1]s/pid; error_log stderr error;
events { worker_connections 1024; }
http {
	access_log off; keepalive_requests 1000000; proxy_max_temp_file_size 0;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	upstream service { server 127.0.0.1:%[3]d; keepalive 64; keepalive_requests 1000000; }
	server {
		listen %[2]s;
		location /proxy/%[3]d/ {
			proxy_pass http://service/; proxy_http_version 1.1;
			proxy_set_header Connection ""; proxy_set_header Host $host;
		}
	}
}
`, dir, socket, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(nginx, "-p", dir, "-c", conf, "-e", "stderr")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() })
	testenv.Poll(b, "nginx listens", func() bool {
		c, err := net.Dial("tcp", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return socket
}

// freeAddress returns an unused address.
func freeAddress(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
