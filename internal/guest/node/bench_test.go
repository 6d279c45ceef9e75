package node

import (
	"slices"
	"testing"
	"time"
)

// p50 calls run n times and reports the median.
func p50(b *testing.B, n int, run func()) {
	b.Helper()
	for b.Loop() {
		times := make([]time.Duration, n)
		for i := range times {
			begin := time.Now()
			run()
			times[i] = time.Since(begin)
		}
		slices.Sort(times)
		b.ReportMetric(float64(times[n/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(times[n*95/100].Microseconds())/1000, "p95-ms")
	}
}

func BenchmarkSessionCall(b *testing.B) {
	s := newService(b)
	runIn(b, s, "s", "let n = 0")
	p50(b, 300, func() { runIn(b, s, "s", "console.log(n); ++n") })
}

func BenchmarkNewSession(b *testing.B) {
	s := newService(b)
	p50(b, 10, func() {
		runIn(b, s, "s", "1")
		if _, err := s.DeleteSession(b.Context(), SessionIn{SessionID: "s"}); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkCallWithoutSession(b *testing.B) {
	s := newService(b)
	p50(b, 10, func() { execute(b, s, ExecuteIn{Code: "1"}) })
}

func BenchmarkMuchOutput(b *testing.B) {
	s := newService(b)
	b.SetBytes(100e6)
	for b.Loop() {
		runIn(b, s, "s", "for (let i = 0; i < 1000; i++) console.log('x'.repeat(100_000))")
	}
}
