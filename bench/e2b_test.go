package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// BenchmarkE2B: what E2B's unmodified SDK for Python waits for, beside our own client and a bare
// process.
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
	cmd.Env = append(os.Environ(), "E2B_API_KEY=any", "E2B_VALIDATE_API_KEY=false", "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "NO_PROXY=*")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	var took struct{ Create, Command, Spawn float64 }
	if err == nil {
		err = json.Unmarshal(out, &took)
	}
	if err != nil {
		b.Fatalf("%v %s", err, out)
	}
	bare := percentile(own, 0.5).Seconds()
	report(b, "create to first output p50 %.1f ms, bare client %.1f ms: %.2f ×; command p50 %.1f ms, bare bash %.1f ms: %.2f ×",
		1000*took.Create, 1000*bare, took.Create/bare, 1000*took.Command, 1000*took.Spawn, took.Command/took.Spawn)
}
