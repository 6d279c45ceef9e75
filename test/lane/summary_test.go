package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	s := newSummary()
	const pkg = "github.com/cove-sandbox/cove/internal/a"
	for _, e := range []event{
		{Action: "pass", Package: pkg, Test: "TestFast", Elapsed: 0.1},
		{Action: "pass", Package: pkg, Test: "TestSlow/part", Elapsed: 8},
		{Action: "pass", Package: pkg, Test: "TestSlow", Elapsed: 9},
		{Action: "output", Package: pkg, Test: "TestRoot", Output: "    a_test.go:7: needs root\n"},
		{Action: "output", Package: pkg, Test: "TestRoot", Output: "--- SKIP: TestRoot (0.00s)\n"},
		{Action: "skip", Package: pkg, Test: "TestRoot"},
		{Action: "fail", Package: pkg, Test: "TestWrong"},
		{Action: "output", Package: pkg, Test: "TestKilled", Output: "panic: test timed out\n"},
		{Action: "fail", Package: pkg},
	} {
		s.add(e, false)
	}
	var out bytes.Buffer
	s.print(&out, "engines", 10*time.Second, 10)
	for _, want := range []string{
		"make test-engines took 10s: 3 passed, 2 failed, 1 skipped\n",
		"     9.0s  internal/a TestSlow\n     0.1s  internal/a TestFast\n",
		"        1  needs root\n",
		"        1  internal/a TestKilled\n", "        1  internal/a TestWrong\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %s, want it to contain %q", &out, want)
		}
	}
	if strings.Contains(out.String(), "TestSlow/part") {
		t.Errorf("got %s, want only whole tests among the slowest", &out)
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		output []string
		want   string
	}{
		{[]string{"=== RUN   TestA\n", "    a_test.go:7: needs the program rg\n", "--- SKIP: TestA (0.00s)\n"}, "needs the program rg"},
		{[]string{"    deep/a_test.go:17: runs in make test: later\n"}, "runs in make test: later"},
		{nil, "no reason given"},
	} {
		if got := reason(c.output); got != c.want {
			t.Errorf("%q: got %q, want %q", c.output, got, c.want)
		}
	}
}
