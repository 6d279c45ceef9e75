package bench

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// BenchmarkPage: page operations over HTTP, compared with playwright-core on the same page of the same browser, and the length of
// snapshots, compared with Playwright's.
func BenchmarkPage(b *testing.B) {
	testenv.Need(b, "node")
	url, _ := desk(b)
	runBench(b, "corpus/bench.mjs", "URL="+url)
}
