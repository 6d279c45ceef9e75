package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
)

// BenchmarkTemplate: an unchanged rebuild of a Dockerfile with ten steps, and a sandbox from that template compared with one
// from the default environment, in turn.
func BenchmarkTemplate(b *testing.B) {
	c, url := serveHub(b)
	dir := b.TempDir()
	text := "FROM environment://\nCOPY data /opt/data\n"
	for i := range 9 {
		text += fmt.Sprintf("RUN echo %d > /opt/step%[1]d\n", i)
	}
	for name, content := range map[string]string{"Dockerfile": text, "data": strings.Repeat("x", 1<<20)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	build := func() time.Duration {
		begin := time.Now()
		cmd := exec.Command(program(b, "cove"), "--hub-url", url, "build", "-q", "-t", "ten", dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return time.Since(begin)
	}
	first := build()
	var again, ours, standard []time.Duration
	for range 20 {
		again = append(again, build())
	}
	for i := range 50 {
		name := fmt.Sprintf("n%d", i)
		standard = append(standard, round(b, c, name))
		remove(b, c, name)
		idle(b, 50*time.Millisecond)
		name = fmt.Sprintf("t%d", i)
		ours = append(ours, roundFrom(b, c, client.CreateOptions{Name: name, Environment: "ten"}))
		remove(b, c, name)
		idle(b, 50*time.Millisecond)
	}
	if err := c.Templates().Delete(context.Background(), "ten"); err != nil {
		b.Error(err)
	}
	short := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	report(b, "ten steps: first build %v, unchanged rebuild p50 %v, p99 %v (target 100ms); to first output p50 %v, from the default "+
		"environment p50 %v", short(first), short(percentile(again, 0.5)), short(percentile(again, 0.99)), short(percentile(ours, 0.5)),
		short(percentile(standard, 0.5)))
}
