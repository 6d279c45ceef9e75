package metric

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTextFormat(t *testing.T) {
	r := New()
	count := r.Counter("calls_total", "Calls.", "op", "code")
	took := r.Histogram("took_seconds", "Time.", "op")
	r.Gauge("things", "Things.", "kind", func() map[string]float64 { return map[string]float64{"a": 1.5} })
	r.Gauge("up", "Up.", "", func() map[string]float64 { return map[string]float64{"": 1} })
	count(1, "x", "200")
	count(2, "x", "200")
	count(1, "odd\"\\\n", "500")
	took(3*time.Millisecond, "x")
	var b strings.Builder
	if _, err := r.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`calls_total{op="x",code="200"} 3`,
		`calls_total{op="odd\"\\\n",code="500"} 1`,
		`took_seconds_bucket{op="x",le="0.001"} 0`,
		`took_seconds_bucket{op="x",le="0.005"} 1`,
		`took_seconds_bucket{op="x",le="+Inf"} 1`,
		`took_seconds_count{op="x"} 1`,
		`things{kind="a"} 1.5`,
		"\nup 1\n",
		"# TYPE took_seconds histogram",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing from\n%s", want, b.String())
		}
	}
}

func TestLabelsAreBounded(t *testing.T) {
	r := New()
	count := r.Counter("n", "N.", "who")
	for i := range 3 * maxSeries {
		count(1, fmt.Sprint(i))
	}
	if n := len(r.family["n"].series); n != maxSeries+1 {
		t.Fatalf("got %d series, want %d", n, maxSeries+1)
	}
	if got := r.family["n"].series["other"].value; got != 2*maxSeries {
		t.Fatalf("other: got %v, want %d", got, 2*maxSeries)
	}
}
