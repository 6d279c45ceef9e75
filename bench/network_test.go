package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// connections measures the time of a connect and the throughput of one connection, as a program that uses no proxy.
const connections = `
import socket, sys, time
to = sys.argv[1], int(sys.argv[2])
times = []
for _ in range(500):
    began = time.perf_counter()
    s = socket.create_connection(to)
    times.append(time.perf_counter() - began)
    s.close()
s = socket.create_connection(to)
s.sendall(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
began, n, buf = time.perf_counter(), 0, bytearray(1 << 20)
while got := s.recv_into(buf): n += got
print(sorted(times)[250] * 1e6, n / (time.perf_counter() - began) / 1e6)
`

// BenchmarkOutbound: connections of a program in a sandbox that uses no proxy, compared with those of a program outside.
func BenchmarkOutbound(b *testing.B) {
	testenv.NeedRoot(b)
	testenv.Need(b, "python3")
	address := ""
	list, err := net.InterfaceAddrs()
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			address = n.IP.String()
		}
	}
	if address == "" {
		testenv.Lack(b, "no network address")
	}
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go serveBytes(l, 1<<30)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	c, _ := serveHub(b, "--private-networks", address+"/32")
	if _, err := c.Create(context.Background(), client.CreateOptions{Name: "n"}); err != nil {
		b.Fatal(err)
	}
	defer remove(b, c, "n")
	direct, err := exec.Command("python3", "-c", connections, address, port).Output()
	if err != nil {
		b.Fatal(err)
	}
	var out struct{ Stdout, Stderr string }
	if err := c.Guest("n").Call(context.Background(), "POST", "/v1/bash/exec", map[string]any{"timeout": 300,
		"command": fmt.Sprintf("/usr/bin/python3 - %s %s <<'E'\n%sE\n", address, port, connections)}, &out); err != nil {
		b.Fatal(err)
	}
	var connect, rate, connectInside, rateInside float64
	fmt.Sscan(string(direct), &connect, &rate)
	if _, err := fmt.Sscan(strings.TrimSpace(out.Stdout), &connectInside, &rateInside); err != nil {
		b.Fatalf("%v: %+v", err, out)
	}
	report(b, "connect p50 %.0fµs, direct %.0fµs: %.0fµs more (target 500µs); %.0f MB/s, direct %.0f MB/s: %.0f %% (target 50 %%)",
		connectInside, connect, connectInside-connect, rateInside, rate, 100*rateInside/rate)
}

// serveBytes sends size bytes to each client that sends a request.
func serveBytes(l net.Listener, size int64) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if n, _ := c.Read(make([]byte, 1024)); n > 0 {
				io.Copy(c, io.LimitReader(zeros{}, size))
			}
		}()
	}
}

// zeros is a reader of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
