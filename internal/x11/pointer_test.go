package x11

import (
	"image"
	"slices"
	"testing"

	"github.com/jezek/xgb/xproto"
)

func TestPointerArrivesWhereAndAsSent(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProbe(t, s)
	c := s.dial(t)
	ctx := testContext(t)

	var want []clickEvent
	for b := Left; b <= Right; b++ {
		at := image.Pt(10*int(b), 20*int(b))
		must(t, c.Move(ctx, at))
		must(t, c.Press(ctx, b))
		must(t, c.Release(ctx, b))
		want = append(want, clickEvent{down: true, button: byte(b), at: at}, clickEvent{button: byte(b), at: at, mask: 1 << (7 + b)})
	}
	at := image.Pt(100, 90)
	must(t, c.Move(ctx, at))
	must(t, c.Scroll(ctx, 1, 2))
	must(t, c.Scroll(ctx, -1, -1))
	for _, b := range []byte{5, 5, 7, 4, 6} {
		up := clickEvent{button: b, at: at}
		if b < 6 {
			up.mask = 1 << (7 + b)
		}
		want = append(want, clickEvent{down: true, button: b, at: at}, up)
	}
	must(t, c.Press(ctx, Back))
	must(t, c.Release(ctx, Back))
	want = append(want, clickEvent{down: true, button: 8, at: at}, clickEvent{button: 8, at: at})

	var got []clickEvent
	eventually(t, "the clicks arrive", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		got = slices.Clone(p.clicks)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("the application saw\n%v, want\n%v", got, want)
	}
}

func TestApplicationSeesDragWithButtonDown(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProbe(t, s)
	c := s.dial(t)
	ctx := testContext(t)
	must(t, c.Move(ctx, image.Pt(5, 5)))
	must(t, c.Press(ctx, Left))
	for range 3 {
		must(t, c.MoveBy(ctx, image.Pt(10, 20)))
	}
	must(t, c.Release(ctx, Left))
	eventually(t, "the button is up", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.clicks) == 2
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if up := p.clicks[1]; up.at != image.Pt(35, 65) || up.mask&xproto.KeyButMaskButton1 == 0 {
		t.Errorf("released as %v", up)
	}
	if want := []image.Point{{15, 25}, {25, 45}, {35, 65}}; !slices.Equal(p.moves[len(p.moves)-3:], want) {
		t.Errorf("dragged along %v, want %v", p.moves, want)
	}
}

func TestPointerPositionAndBounds(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.dial(t)
	ctx := testContext(t)
	for _, move := range []struct{ to, want image.Point }{
		{image.Pt(123, 45), image.Pt(123, 45)},
		{image.Pt(-5, 1<<20), image.Pt(0, 479)},
		{image.Pt(1<<40, -1), image.Pt(639, 0)},
	} {
		must(t, c.Move(ctx, move.to))
		got, err := c.Pointer(ctx)
		must(t, err)
		if got != move.want {
			t.Errorf("moved to %v, the pointer is at %v, want %v", move.to, got, move.want)
		}
	}
	for _, b := range []Button{0, 10, 255} {
		if c.Press(ctx, b) == nil || c.Release(ctx, b) == nil {
			t.Errorf("button %d was accepted", b)
		}
	}
	if c.Scroll(ctx, 0, 1<<30) == nil {
		t.Error("a billion steps were accepted")
	}
}
