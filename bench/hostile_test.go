package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
)

// hostile exhausts all resources of a sandbox until the sandbox ends: processes, memory, disk, inodes,
// sockets, file handles and CPU.
const hostile = `
import os, socket, threading, subprocess
def keep(f):
    def run():
        while True:
            try: f()
            except BaseException: pass
    threading.Thread(target=run, daemon=True).start()
held, files, n = [], [], 0
def fork():
    if os.fork() == 0:
        while True: pass
def eat(): subprocess.run(["python3", "-c", "x=[]\nwhile True: x.append(bytearray(1<<24))"])
def disk():
    f = open("big", "wb", 0); os.unlink("big"); files.append(f)
    while True: f.write(os.urandom(1 << 20))
def inodes():
    global n
    os.makedirs("many", exist_ok=True)
    while True: open("many/%d" % n, "w").close(); n += 1
def sockets():
    while True: held.append(socket.socketpair())
def handles():
    while True: held.append(open("/dev/null"))
for f in (fork, eat, disk, inodes, sockets, handles): keep(f)
threading.Event().wait()
`

// BenchmarkHubHostile compares the response times of the hub and of the neighbours of a hostile sandbox
// with those before its start. 1,000 sandboxes take about 4 GB.
// On 2 cores with 200 alive, p50 was 3.1 ms for a neighbour (3.6 before) and 0.35 ms for the
// hub (0.44 before); with 50 alive, 3.3 (2.5) and 0.33 (0.32).
func BenchmarkHubHostile(b *testing.B) {
	crowd := 1000
	if testing.Short() {
		crowd = 50
	}
	c, _ := serveHub(b)
	ctx := context.Background()
	name := func(i int) string { return fmt.Sprintf("crowd-%d", i) }
	for i := range crowd {
		if _, err := c.Create(ctx, client.CreateOptions{Name: name(i)}); err != nil {
			b.Fatal(err)
		}
	}
	defer func() {
		for i := range crowd {
			remove(b, c, name(i))
		}
		remove(b, c, "hostile")
	}()
	if _, err := c.Create(ctx, client.CreateOptions{Name: "hostile"}); err != nil {
		b.Fatal(err)
	}
	// measure returns the median times of a neighbour's command and of a reply of the hub itself.
	measure := func() (exec, list time.Duration) {
		var execs, lists []time.Duration
		for i := range 60 {
			begin := time.Now()
			var out struct{ Stdout string }
			if err := c.Guest(name(i*7%crowd)).Call(ctx, "POST", "/v1/bash/exec",
				map[string]any{"command": "echo hello"}, &out); err != nil || out.Stdout != "hello\n" {
				b.Errorf("a neighbour: %+v, %v", out, err)
			}
			execs = append(execs, time.Since(begin))
			begin = time.Now()
			if _, err := c.Get(ctx, name(i%crowd)); err != nil {
				b.Errorf("the hub: %v", err)
			}
			lists = append(lists, time.Since(begin))
		}
		return percentile(execs, 0.5), percentile(lists, 0.5)
	}
	measure() // the first command of each starts required processes
	exec, list := measure()
	start := "cat > h.py <<'END'\n" + hostile + "END\nsetsid python3 h.py >/dev/null 2>&1 &"
	if err := c.Guest("hostile").Call(ctx, "POST", "/v1/bash/exec", map[string]any{"command": start}, nil); err != nil {
		b.Fatal(err)
	}
	idle(b, 5*time.Second) // until all resources are exhausted
	during, listDuring := measure()
	report(b, "%d alive, one hostile: a neighbour's command p50 %v, before %v (%.1f ×, target 2); the hub p50 %v, "+
		"before %v (%.1f ×, target 2)", crowd,
		during.Round(100*time.Microsecond), exec.Round(100*time.Microsecond), float64(during)/float64(exec),
		listDuring.Round(10*time.Microsecond), list.Round(10*time.Microsecond), float64(listDuring)/float64(list))
}
