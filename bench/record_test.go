package bench

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// BenchmarkRecord: overhead of the activity record for an exec, measured with two servers that differ only in this setting. They
// take turns, so that other load on the machine affects both.
func BenchmarkRecord(b *testing.B) {
	start := func(setting string) string {
		dir := b.TempDir()
		for i := range 200 { // a workspace of some size
			if err := os.WriteFile(fmt.Sprintf("%s/file%d.txt", dir, i), []byte("some text\n"), 0o600); err != nil {
				b.Fatal(err)
			}
		}
		return serve(b, "HOME="+dir, "WORKSPACE="+dir, "AIO_ACTIVITY="+setting) + "/v1/bash/exec"
	}
	for _, c := range []struct{ what, body string }{{"echo", `{"command":"echo hello"}`},
		{"a command that writes a file", `{"command":"echo $RANDOM > file1.txt"}`}} {
		with, without := start("true"), start("false")
		var on, off []time.Duration
		var ratios []float64 // of each pair of consecutive measurements
		for i := range 2000 {
			first, second := with, without
			if i%2 == 1 {
				first, second = without, with
			}
			took := map[string]time.Duration{}
			for _, url := range []string{first, second} {
				begin := time.Now()
				post(b, url, c.body)
				took[url] = time.Since(begin)
			}
			if i < 20 { // warm up
				continue
			}
			on, off = append(on, took[with]), append(off, took[without])
			ratios = append(ratios, float64(took[with])/float64(took[without]))
		}
		slices.Sort(ratios)
		p, q := percentile(on, 0.5), percentile(off, 0.5)
		report(b, "%s: p50 %v with the record, %v without, ratio %.3f; of pairs %.3f (target 1.02)", c.what,
			p.Round(time.Microsecond), q.Round(time.Microsecond), float64(p)/float64(q), ratios[len(ratios)/2])
	}
}
