package bandwidth

import (
	"testing"
	"time"
)

func TestLimitKeepsItsRate(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	l := Limit{Rate: 1000}
	// After a pause a burst passes. Then each byte takes its time, for every caller.
	for i, c := range []struct {
		pass time.Duration
		n    int
		want time.Duration
	}{
		{time.Hour, 250, 0}, {0, 100, 100 * time.Millisecond}, {0, 100, 200 * time.Millisecond},
		{200 * time.Millisecond, 100, 100 * time.Millisecond}, {time.Hour, 1250, time.Second}, {0, 0, 0},
	} {
		now = now.Add(c.pass)
		if got := max(0, l.take(now, c.n)); got != c.want {
			t.Errorf("step %d: got a wait of %v, want %v", i, got, c.want)
		}
	}
	if got := len((&Limit{Rate: 1 << 20}).Cut(make([]byte, 1<<20))); got > 1<<20/10 {
		t.Errorf("got a piece of %d bytes, want at most a tenth of a second", got)
	}
	if got := len((&Limit{}).Cut(make([]byte, 1<<20))); got != 1<<20 || (&Limit{}).take(now, 1<<30) != 0 {
		t.Errorf("without a rate: got a piece of %d bytes, want all at once", got)
	}
}
