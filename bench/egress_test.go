package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// BenchmarkEgress measures the hub's egress proxy next to direct connections: the time until the first response through a
// new connection, and the throughput of a tunnel.
func BenchmarkEgress(b *testing.B) {
	const size = 256 << 20
	block := make([]byte, 1<<20)
	out := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			for range size / len(block) {
				w.Write(block)
			}
		}
	}))
	defer out.Close()
	address := out.Listener.Addr().String()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		b.Fatal(err)
	}
	socket := serveEgress(b)
	request := func(network, to, connect, path string) (time.Duration, error) {
		began := time.Now()
		c, err := net.Dial(network, to)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		r := bufio.NewReaderSize(c, 64<<10)
		if connect != "" {
			fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: x\r\nUser-Agent: bench/1.0\r\n\r\n", connect)
			if res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect}); err != nil || res.StatusCode != 200 {
				return 0, fmt.Errorf("CONNECT: %v %w", res, err)
			}
		}
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: out.test:%s\r\nConnection: close\r\n\r\n", path, port)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return 0, err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return time.Since(began), err
	}
	measure := func(n int, connect, path string) time.Duration {
		network, to := "tcp", address
		if connect != "" {
			network, to = "unix", socket
		}
		var all []time.Duration
		for range n {
			d, err := request(network, to, connect, path)
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, d)
		}
		slices.Sort(all)
		return all[n/2]
	}
	for b.Loop() {
		target := "out.test:" + port
		direct, tunnel := measure(2000, "", "/"), measure(2000, target, "/")
		b.ReportMetric(float64(direct.Microseconds()), "direct-us")
		b.ReportMetric(float64(tunnel.Microseconds()), "tunnel-us")
		direct, tunnel = measure(7, "", "/large"), measure(7, target, "/large")
		b.ReportMetric(size/1e6/direct.Seconds(), "direct-MB/s")
		b.ReportMetric(size/1e6/tunnel.Seconds(), "tunnel-MB/s")
	}
}

// serveEgress serves an egress proxy with rules on a socket.
func serveEgress(b *testing.B) (socket string) {
	allow := []string{"out.test"}
	for i := range 50 {
		allow = append(allow, fmt.Sprintf("*.host%d.test", i))
	}
	p, err := egress.New(egress.Config{
		Network: sandbox.Network{Mode: sandbox.NetworkAllow, Allow: allow},
		Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	socket = filepath.Join(b.TempDir(), "egress.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	go p.Serve(l)
	b.Cleanup(func() { p.Close() })
	return socket
}
