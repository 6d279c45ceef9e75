package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// BenchmarkVisit: time until each of our pages is usable, and a cold visit to VS Code and the lab.
func BenchmarkVisit(b *testing.B) {
	testenv.Need(b, "node", "chromium", "Xtigervnc", "openbox")
	dir := b.TempDir()
	env := []string{"WORKSPACE=" + dir, "AIO_VENV=" + testenv.NeedFile(b, "../.venv")}
	plain := serve(b, env...)
	c, hub := serveHub(b, "--keep-activity", "1h")
	if _, err := c.Create(b.Context(), client.CreateOptions{Name: "a"}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { remove(b, c, "a") })
	runBench(b, "every.mjs", "BENCH=true", "URL="+plain, "KEY_URL="+hub, "DIR="+dir)
	if components, err := filepath.Abs("../.tools/components"); err == nil {
		if _, err := os.Stat(components); err == nil {
			runBench(b, "cold.mjs", "URL="+serve(b, append(env, "AIO_COMPONENTS="+components)...), "DIR="+dir)
		}
	}
}

// runBench runs a script that prints its measurements.
func runBench(b *testing.B, script string, env ...string) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), "node", "story.mjs", script)
	cmd.Dir = "../test/page"
	cmd.Env = append(cmd.Environ(), env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		report(b, "%s", strings.TrimSpace(line))
	}
}
