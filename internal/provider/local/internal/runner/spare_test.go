package runner

import (
	"context"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestSparesFollowDemand(t *testing.T) {
	const least, most, parallel = 8, 128, 16
	now := time.Unix(1000, 0)
	s := spares{min: least, max: most, target: least}
	fill := func() {
		for len(s.list) < s.target {
			s.list = append(s.list, spare{slot: uint32(len(s.list))})
		}
	}
	// burst creates n sandboxes, so many at a time.
	burst := func(n, parallel int) {
		fill()
		now = now.Add(time.Minute)
		for i := range n {
			if i >= parallel {
				s.creating--
			}
			s.count(now)
			s.list = s.list[:max(0, len(s.list)-1)]
		}
		s.creating = 0
	}
	for _, c := range []struct {
		what              string
		n, parallel, want int
	}{
		{"one", 1, 1, least},
		{"a thousand, one by one", 1000, 1, least},
		{"a thousand, a few at a time", 1000, least, least},
		{"as many as there are", least, parallel, least},
		{"twenty", 20, parallel, 20},
		{"twenty again", 20, parallel, 20},
		{"a hundred", 100, parallel, 100},
		{"a thousand", 1000, parallel, most},
	} {
		if burst(c.n, c.parallel); s.target != c.want {
			t.Errorf("%s: got %d wanted, want %d", c.what, s.target, c.want)
		}
	}
	fill()
	last := now
	if extra := s.takeExcess(last.Add(burstTime / 2)); len(extra) != 0 || len(s.list) != most {
		t.Errorf("while a burst is remembered: got %d removed, want none", len(extra))
	}
	burst(most, parallel) // that is what they were for
	fill()
	if extra := s.takeExcess(last.Add(burstTime + time.Second)); len(extra) != 0 {
		t.Errorf("right after they were used: got %d removed, want none", len(extra))
	}
	extra := s.takeExcess(now.Add(burstTime + time.Second))
	if len(extra) != most-least || len(s.list) != least || s.target != least {
		t.Errorf("after the burst: got %d removed, %d left, %d wanted; want %d, %d, %d", len(extra), len(s.list),
			s.target, most-least, least, least)
	}
	seen := map[uint32]bool{}
	for _, x := range append(extra, s.list...) {
		seen[x.slot] = true
	}
	if len(seen) != most {
		t.Errorf("got %d different spares, want %d", len(seen), most)
	}
	s = spares{min: 2, target: 2}
	for range 10 {
		s.count(now)
	}
	if s.target != 2 {
		t.Errorf("without a maximum: got %d wanted, want 2", s.target)
	}
}

// A spare that is taken when the refill has just added the last one is replaced: the refill may not
// have returned yet.
func TestSpareTakenAtTheEndOfARefillIsReplaced(t *testing.T) {
	testenv.NeedRoot(t)
	refills := 0
	s := spares{min: 1, target: 1, background: func(func(context.Context)) { refills++ }}
	s.refill()
	if s.continueRefill(true, spare{id: "a"}) {
		t.Error("the refill continues with one of one, want its end")
	}
	if got, err := s.take(); got.id != "a" || err != nil {
		t.Errorf("got %+v, %v, want the spare", got, err)
	}
	s.done()
	if refills != 2 {
		t.Errorf("got %d refills, want another for the spare that was taken", refills)
	}
}
