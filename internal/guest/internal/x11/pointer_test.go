package x11

import (
	"image"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jezek/xgb/xproto"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestPointerEventsArriveUnchanged(t *testing.T) {
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
	testenv.Poll(t, "the clicks arrive", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		got = slices.Clone(p.clicks)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("the application received\n%v, want\n%v", got, want)
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
	testenv.Poll(t, "the button is up", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.clicks) == 2
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if up := p.clicks[1]; up.at != image.Pt(35, 65) || up.mask&xproto.KeyButMaskButton1 == 0 {
		t.Errorf("released as %v, want at 35,65 with the button down before", up)
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
			t.Errorf("button %d was accepted, want an error", b)
		}
	}
	if c.Scroll(ctx, 0, 1<<30) == nil {
		t.Error("a billion steps were accepted, want an error")
	}
}

// TestKeysFollowTheClick: keys must not overtake a click that a slow window manager still has to forward.
func TestKeysFollowTheClick(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "openbox")
	s := startServer(t)
	wm := exec.Command("openbox", "--sm-disable")
	wm.Env = append(s.env(), "HOME="+t.TempDir())
	must(t, wm.Start())
	t.Cleanup(func() {
		_ = wm.Process.Kill()
		_ = wm.Wait()
	})
	c := s.dial(t)
	ctx := testContext(t)
	testenv.Poll(t, "the window manager runs", func() bool {
		ok, err := do(ctx, c, c.input, c.supportsFrameQuery)
		return err == nil && ok
	})
	p := startProbe(t, s, func(p *probe) { p.managed = true })
	defer wm.Process.Kill() // first: a stopped window manager that has grabbed the server blocks the cleanup of others
	testenv.Poll(t, "the window has the focus", func() bool {
		f, err := xproto.GetInputFocus(p.x).Reply()
		return err == nil && f.Focus == p.window
	})
	at, err := xproto.TranslateCoordinates(p.x, p.window, p.root, 50, 50).Reply()
	must(t, err)
	must(t, c.Move(ctx, image.Pt(int(at.DstX), int(at.DstY))))
	for range 20 {
		// A window manager that is stopped while it has grabbed the server would block all clients.
		must(t, c.inject(ctx, "wait for the window manager", func() error { c.held.recent = true; return c.awaitManager(ctx) }))
		must(t, wm.Process.Signal(syscall.SIGSTOP))
		must(t, c.Press(ctx, Left))
		typed := make(chan error, 1)
		go func() { typed <- c.Chord(ctx, "a") }()
		must(t, wm.Process.Signal(syscall.SIGCONT))
		must(t, <-typed)
		must(t, c.Release(ctx, Left))
	}
	testenv.Poll(t, "all events arrive", func() bool { return len(p.order()) >= 60 })
	if got := p.order(); got != strings.Repeat("bkr", 20) {
		t.Errorf("buttons (b), keys (k) and releases (r) arrived as %s, want %v", got, strings.Repeat("bkr", 20))
	}
}
