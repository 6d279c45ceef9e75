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
	rush := func(n int, pause time.Duration) {
		now = now.Add(time.Minute)
		for range n {
			s.ask(now, least, most)
			now = now.Add(pause)
		}
	}
	for _, c := range []struct {
		what  string
		n     int
		pause time.Duration
		want  int
	}{
		{"one", 1, 0, least},
		{"a hundred, one by one", 100, 2 * calm, least},
		{"a few at once", 5, 0, least},
		{"twenty at once", 20, 0, 20},
		{"ten after that", 10, 0, 20},
		{"a hundred at once", 100, time.Millisecond, most},
	} {
		if rush(c.n, c.pause); s.want != c.want {
			t.Errorf("%s: %d are wanted, not %d", c.what, s.want, c.want)
		}
	}
	fill()
	if extra := s.spareable(now.Add(rememberRush/2), least); len(extra) != 0 || len(s.list) != most {
		t.Errorf("%d are taken away while a rush is remembered", len(extra))
	}
	now = now.Add(rememberRush / 2)
	rush(most, 0) // that is what they were for
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
