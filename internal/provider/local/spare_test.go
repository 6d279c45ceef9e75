package local

import (
	"testing"
	"time"
)

func TestAsManyWaitAsWereAskedFor(t *testing.T) {
	const least, most = 8, 64
	now := time.Unix(1000, 0)
	s := spares{want: least}
	fill := func() {
		for len(s.list) < s.want {
			s.list = append(s.list, spare{slot: uint32(len(s.list))})
		}
	}
	rush := func(n int) {
		now = now.Add(time.Minute)
		for range n {
			s.ask(now, least, most)
		}
		s.asking = 0
	}
	for _, c := range []struct {
		what    string
		n, want int
	}{
		{"one", 1, least},
		{"a few at once", 5, least},
		{"twenty at once", 20, 20},
		{"ten after that", 10, 20},
		{"a hundred at once", 100, most},
	} {
		if rush(c.n); s.want != c.want {
			t.Errorf("%s: %d are wanted, not %d", c.what, s.want, c.want)
		}
	}
	s = spares{want: least}
	for range 100 {
		if rush(1); s.want != least {
			t.Fatalf("one by one: %d are wanted", s.want)
		}
	}
	rush(100)
	fill()
	if extra := s.spareable(now.Add(rememberRush/2), least); len(extra) != 0 || len(s.list) != most {
		t.Errorf("%d are taken away while a rush is remembered", len(extra))
	}
	now = now.Add(rememberRush / 2)
	rush(most) // that is what they were for
	if extra := s.spareable(now.Add(rememberRush-time.Second), least); len(extra) != 0 {
		t.Errorf("%d are taken away though they were asked for", len(extra))
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
