package local

import (
	"testing"
	"time"
)

func TestAsManyWaitAsWereMissed(t *testing.T) {
	const least, most, parallel = 8, 128, 16
	now := time.Unix(1000, 0)
	s := spares{want: least}
	fill := func() {
		for len(s.list) < s.want {
			s.list = append(s.list, spare{slot: uint32(len(s.list))})
		}
	}
	// rush makes n sandboxes, so many at a time.
	rush := func(n, parallel int) {
		fill()
		now = now.Add(time.Minute)
		for i := range n {
			if i >= parallel {
				s.asking--
			}
			s.ask(now, least, most)
			s.list = s.list[:max(0, len(s.list)-1)]
		}
		s.asking = 0
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
		if rush(c.n, c.parallel); s.want != c.want {
			t.Errorf("%s: %d are wanted, not %d", c.what, s.want, c.want)
		}
	}
	fill()
	last := now
	if extra := s.spareable(last.Add(rememberRush/2), least); len(extra) != 0 || len(s.list) != most {
		t.Errorf("%d are taken away while a rush is remembered", len(extra))
	}
	rush(most, parallel) // that is what they were for
	fill()
	if extra := s.spareable(last.Add(rememberRush+time.Second), least); len(extra) != 0 {
		t.Errorf("%d are taken away though they were used", len(extra))
	}
	extra := s.spareable(now.Add(rememberRush+time.Second), least)
	if len(extra) != most-least || len(s.list) != least || s.want != least {
		t.Errorf("%d are taken away, %d left, %d wanted", len(extra), len(s.list), s.want)
	}
	seen := map[uint32]bool{}
	for _, x := range append(extra, s.list...) {
		seen[x.slot] = true
	}
	if len(seen) != most {
		t.Errorf("%d of %d are known", len(seen), most)
	}
	s = spares{want: 2}
	for range 10 {
		s.ask(now, 2, 0)
	}
	if s.want != 2 {
		t.Errorf("without a most: %d are wanted", s.want)
	}
}
