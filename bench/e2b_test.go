package bench

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// BenchmarkE2B: latency of E2B's unmodified Python SDK, compared with our own client and a bare process.
// If ENVD is the path of E2B's own daemon, also compared with that daemon, without a hub.
func BenchmarkE2B(b *testing.B) {
	python := testenv.NeedFile(b, "../test/e2b/.venv-1/bin/python")
	c, url := serveHub(b)
	var own []time.Duration
	for i := range 20 {
		name := fmt.Sprintf("n%d", i)
		own = append(own, round(b, c, name))
		remove(b, c, name)
	}
	cmd := exec.Command(python, "sdk.py")
	cmd.Env = append(os.Environ(), "E2B_API_KEY=any", "E2B_VALIDATE_API_KEY=false", "E2B_API_URL="+url,
		"E2B_SANDBOX_URL="+url, "NO_PROXY=*", "ENVD_URL="+serveEnvd(b))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var took struct{ Create, Command, Spawn, Daemon float64 }
	if err == nil {
		err = json.Unmarshal(out, &took)
	}
	if err != nil {
		b.Fatalf("%v %s", err, out)
	}
	bare := percentile(own, 0.5).Seconds()
	report(b, "create to first output p50 %.1f ms, bare client %.1f ms: %.2f ×; command p50 %.1f ms, bare bash %.1f ms: %.2f ×",
		1000*took.Create, 1000*bare, took.Create/bare, 1000*took.Command, 1000*took.Spawn, took.Command/took.Spawn)
	if took.Daemon > 0 {
		report(b, "command through the hub p50 %.1f ms, E2B's envd without one %.1f ms: %.2f × (target 1.3)",
			1000*took.Command, 1000*took.Daemon, took.Command/took.Daemon)
	}
}

// serveEnvd starts E2B's daemon outside of E2B's machines and returns its address, which is empty if ENVD is not set.
func serveEnvd(b *testing.B) string {
	b.Helper()
	path := os.Getenv("ENVD")
	if path == "" {
		return ""
	}
	addr := freeAddress(b)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(path, "-isnotfc", "-port", port)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for begin := time.Now(); ; idle(b, 10*time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return "http://" + addr
		} else if time.Since(begin) > time.Minute {
			b.Fatalf("%s does not listen on %s: %v", path, addr, err)
		}
	}
}
