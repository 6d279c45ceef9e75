package op

import (
	"math"
	"time"
)

// Seconds converts a number of seconds, the unit of times in the API, to a duration. Numbers
// out of range become the closest duration, and NaN becomes 0.
func Seconds(n float64) time.Duration {
	switch d := n * float64(time.Second); {
	case d >= math.MaxInt64:
		return math.MaxInt64
	case d <= math.MinInt64:
		return math.MinInt64
	case math.IsNaN(d):
		return 0
	default:
		return time.Duration(d)
	}
}
