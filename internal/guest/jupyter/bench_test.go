package jupyter

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// timed returns the duration of run in milliseconds.
func timed(run func()) float64 {
	begin := time.Now()
	run()
	return float64(time.Since(begin).Microseconds()) / 1000
}

func median(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/2]
}

// peer runs cells through jupyter_client in another process.
func peer(b *testing.B) (run func(n int) []float64) {
	b.Helper()
	cmd := exec.Command(filepath.Join(venv(b), "bin/python"), "testdata/roundtrip.py", "--InteractiveShell.colors=NoColor",
		"--HistoryManager.hist_file=:memory:", "--IPKernelApp.capture_fd_output=False", "--Kernel._execute_sleep=0")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	lines := bufio.NewScanner(out)
	return func(n int) []float64 {
		fmt.Fprintln(in, n)
		if !lines.Scan() {
			b.Fatalf("got no line from jupyter_client, %v, want one", lines.Err())
		}
		var times []float64
		for field := range strings.FieldsSeq(lines.Text()) {
			t, err := strconv.ParseFloat(field, 64)
			if err != nil {
				b.Fatal(err)
			}
			times = append(times, t)
		}
		return times
	}
}

// BenchmarkWarmExecute compares a cell in a session with jupyter_client's round trip. They
// alternate, so that both run under the same load.
func BenchmarkWarmExecute(b *testing.B) {
	s := newService(b)
	runIn(b, s, "s", "n = 0; n")
	run := peer(b)
	for b.Loop() {
		var ours, theirs []float64
		for range 10 {
			for range 30 {
				ours = append(ours, timed(func() { runIn(b, s, "s", "n += 1; n") }))
			}
			theirs = append(theirs, run(30)...)
		}
		b.ReportMetric(median(ours), "p50-ms")
		b.ReportMetric(median(theirs), "jupyter_client-p50-ms")
		b.ReportMetric(median(ours)/median(theirs), "ratio")
	}
}

// BenchmarkFirstCell measures the first cell of a new session with a warm kernel.
func BenchmarkFirstCell(b *testing.B) {
	for b.Loop() {
		s := newService(b, func(c *Config) { c.Warm = 1 })
		execute(b, s, ExecuteIn{Code: "1"})
		ready := func() { testenv.Poll(b, "a kernel is warm", func() bool { return s.pool.size() == 1 }) }
		var times []float64
		for i := range 7 {
			ready()
			times = append(times, timed(func() { runIn(b, s, strconv.Itoa(i), "1") }))
		}
		ready()
		alone := timed(func() { execute(b, s, ExecuteIn{Code: "1"}) })
		s.Close()
		b.ReportMetric(median(times), "p50-ms")
		b.ReportMetric(times[len(times)-1], "worst-ms")
		b.ReportMetric(alone, "without-session-ms")
	}
}
