package op

import (
	"math"
	"testing"
	"time"
)

func TestSeconds(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]time.Duration{
		0: 0, 0.25: 250 * time.Millisecond, -1: -time.Second, 3600: time.Hour,
		1e300: math.MaxInt64, -1e300: math.MinInt64, math.Inf(1): math.MaxInt64, math.NaN(): 0,
	} {
		if got := Seconds(n); got != want {
			t.Errorf("%v: got %v, want %v", n, got, want)
		}
	}
}
