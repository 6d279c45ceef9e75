package bench

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// BenchmarkPage: page operations over HTTP beside playwright-core on the same page of the same browser, and the length of
// snapshots beside Playwright's.
func BenchmarkPage(b *testing.B) {
	testenv.Need(b, "node")
	url, _ := desk(b)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "corpus/bench.mjs")
	cmd.Dir = "../test/page"
	cmd.Env = append(cmd.Environ(), "URL="+url)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		report(b, "%s", strings.TrimSpace(line))
	}
}
