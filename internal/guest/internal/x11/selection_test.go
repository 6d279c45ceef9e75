package x11

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jezek/xgb/xproto"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// large returns content that needs several pieces.
func large(n int) []byte {
	b := make([]byte, n)
	rnd := rand.New(rand.NewPCG(5, 6))
	for i := range b {
		b[i] = byte('a' + rnd.IntN(26))
	}
	return b
}

func TestSelectionPassesBetweenClients(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	owner, reader := s.dial(t), s.dial(t)
	for _, sel := range []Selection{Clipboard, Primary} {
		for name, want := range map[string]string{
			"text": "Grüße, 世界 🎉", "latin": "Grüße", "empty": "", "one piece": string(large(pieceSize)),
			"more than one piece": string(large(pieceSize + 1)), "large": string(large(10 << 20)),
		} {
			t.Run(name, func(t *testing.T) {
				ctx := testContext(t)
				offer, err := owner.SetSelection(ctx, sel, Text(want))
				must(t, err)
				for name, c := range map[string]*Conn{"another client": reader, "the owner itself": owner} {
					got, err := c.SelectionText(ctx, sel)
					must(t, err)
					if got != want {
						t.Errorf("%s read %d bytes that differ from the %d offered", name, len(got), len(want))
					}
				}
				must(t, offer.WaitRead(ctx, 0))
				if n := offer.Reads(); n != 1 {
					t.Errorf("the offer counts %d reads, want 1: the owner's do not count", n)
				}
			})
		}
	}
}

func TestSelectionsAreIndependentAndReplaced(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a, b := s.dial(t), s.dial(t)
	ctx := testContext(t)
	if _, err := a.SelectionText(ctx, Clipboard); !errors.Is(err, ErrNoContent) {
		t.Errorf("reading an empty clipboard: %v, want %v", err, ErrNoContent)
	}
	first, err := a.SetSelection(ctx, Clipboard, Text("from a"))
	must(t, err)
	_, err = a.SetSelection(ctx, Primary, Text("marked"))
	must(t, err)
	_, err = b.SetSelection(ctx, Clipboard, Text("from b"))
	must(t, err)
	if err := first.WaitRead(ctx, 0); err == nil || ctx.Err() != nil {
		t.Errorf("waiting for an offer that was replaced: %v, want an error before the deadline", err)
	}
	for sel, want := range map[Selection]string{Clipboard: "from b", Primary: "marked"} {
		if got, err := a.SelectionText(ctx, sel); err != nil || got != want {
			t.Errorf("selection %d holds %q (%v), want %q", sel, got, err, want)
		}
	}
	// Alternating owners must never lose it.
	for i := range 50 {
		c := []*Conn{a, b}[i%2]
		_, err := c.SetSelection(ctx, Clipboard, Text(strings.Repeat("x", i)))
		must(t, err)
		if got, err := a.SelectionText(ctx, Clipboard); err != nil || len(got) != i {
			t.Fatalf("after %d changes of owner: %q, %v, want %d bytes", i, got, err, i)
		}
	}
	must(t, a.ClearSelection(ctx, Clipboard))
	if _, err := b.SelectionText(ctx, Clipboard); !errors.Is(err, ErrNoContent) {
		t.Errorf("reading a cleared clipboard: %v, want %v", err, ErrNoContent)
	}
	must(t, a.Close())
	if _, err := b.SelectionText(ctx, Primary); !errors.Is(err, ErrNoContent) {
		t.Errorf("reading what a closed connection offered: %v, want %v", err, ErrNoContent)
	}
}

func TestContentSurvivesARoundTrip(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	a, b := s.dial(t), s.dial(t)
	ctx := testContext(t)
	want := Content{UTF8Text: []byte("hello"), "text/html": []byte("<b>hello</b>"), "image/png": large(1 << 20)}
	_, err := a.SetSelection(ctx, Clipboard, want)
	must(t, err)
	saved, err := b.SelectionContent(ctx, Clipboard)
	must(t, err)
	if !maps.EqualFunc(saved, want, bytes.Equal) {
		t.Errorf("kept %v, want %v", slices.Sorted(maps.Keys(saved)), slices.Sorted(maps.Keys(want)))
	}
	names, err := b.SelectionTargets(ctx, Clipboard)
	must(t, err)
	for _, n := range []string{"TARGETS", "UTF8_STRING", "STRING", "text/plain", "text/plain;charset=utf-8", "text/html", "image/png"} {
		if !slices.Contains(names, n) {
			t.Errorf("%s is not among %v, want names containing %v", n, names, n)
		}
	}
	latin, err := b.SelectionData(ctx, Clipboard, "STRING")
	must(t, err)
	if string(latin) != "hello" {
		t.Errorf("STRING is %q, want latin \"hello\"", latin)
	}
	if _, err := b.SelectionData(ctx, Clipboard, "video/ogg"); !errors.Is(err, ErrNoContent) {
		t.Errorf("reading a form that is not offered: %v, want %v", err, ErrNoContent)
	}
}

func TestSelectionLimits(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	big := s.dial(t)
	cfg := s.config()
	cfg.MaxClipboard = 1000
	small, err := Dial(testContext(t), cfg)
	must(t, err)
	defer small.Close()
	ctx := testContext(t)
	if _, err := small.SetSelection(ctx, Clipboard, Text(string(large(1001)))); err == nil {
		t.Error("content beyond the limit was offered, want an error")
	}
	if _, err := small.SetSelection(ctx, Clipboard, nil); err == nil {
		t.Error("empty content was offered, want an error")
	}
	for _, n := range []int{1001, 1 << 20} {
		_, err := big.SetSelection(ctx, Clipboard, Text(string(large(n))))
		must(t, err)
		if _, err := small.SelectionText(ctx, Clipboard); !errors.Is(err, errTooLarge) {
			t.Errorf("reading %d bytes: %v, want %v", n, err, errTooLarge)
		}
	}
	_, err = big.SetSelection(ctx, Clipboard, Text(string(large(1000))))
	must(t, err)
	if got, err := small.SelectionText(ctx, Clipboard); err != nil || len(got) != 1000 {
		t.Errorf("reading the maximum size: %d bytes, %v, want 1000 bytes", len(got), err)
	}
}

func TestReadingFromASilentOwnerEndsWithTheContext(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProbe(t, s) // it owns the selection and does not respond
	c := s.dial(t)
	must(t, xproto.SetSelectionOwnerChecked(p.x, p.window, c.atoms.clipboard, xproto.TimeCurrentTime).Check())
	ctx, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
	defer cancel()
	if _, err := c.SelectionText(ctx, Clipboard); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reading from a silent owner: %v, want context.DeadlineExceeded", err)
	}
	_, err := c.SetSelection(testContext(t), Clipboard, Text("after"))
	must(t, err)
	if got, err := c.SelectionText(testContext(t), Clipboard); err != nil || got != "after" {
		t.Errorf("afterwards: %q, %v, want \"after\"", got, err)
	}
}

func TestAbandonedTransfersAreRemoved(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.dial(t)
	ctx := testContext(t)
	_, err := c.SetSelection(ctx, Clipboard, Text(string(large(1<<20))))
	must(t, err)
	count := func() int {
		c.sel.mu.Lock()
		defer c.sel.mu.Unlock()
		return len(c.sel.transfers)
	}
	// The reader closes its window.
	p := startProbe(t, s)
	xproto.ConvertSelection(p.x, p.window, c.atoms.clipboard, c.atoms.utf8, p.ping, xproto.TimeCurrentTime)
	testenv.Poll(t, "a transfer has begun", func() bool { return count() == 1 })
	must(t, xproto.DestroyWindowChecked(p.x, p.window).Check())
	testenv.Poll(t, "it is removed", func() bool { return count() == 0 })
	// The reader stops reading, and requests more than the limit.
	p = startProbe(t, s)
	for i := range xproto.Atom(maxTransfers + 10) {
		xproto.ConvertSelection(p.x, p.window, c.atoms.clipboard, c.atoms.utf8, 1+i, xproto.TimeCurrentTime)
	}
	testenv.Poll(t, "the limit is reached", func() bool { return count() == maxTransfers })
	c.sel.expire(time.Now().Add(2 * transferIdle))
	testenv.Poll(t, "all are removed", func() bool { return count() == 0 })
	if got, err := s.dial(t).SelectionText(ctx, Clipboard); err != nil || len(got) != 1<<20 {
		t.Errorf("afterwards: %d bytes, %v, want %d bytes", len(got), err, 1<<20)
	}
}

func TestFloodOfRequestsDoesNotBlock(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.dial(t)
	p := startProbe(t, s)
	ctx := testContext(t)
	_, err := c.SetSelection(ctx, Clipboard, Text("still here"))
	must(t, err)
	for range 20_000 {
		xproto.ConvertSelection(p.x, p.window, c.atoms.clipboard, c.atoms.utf8, p.ping, xproto.TimeCurrentTime)
	}
	_, err = c.Screenshot(ctx, Shot{})
	must(t, err)
	must(t, c.Sync(ctx))
	testenv.Poll(t, "the selection can be read", func() bool {
		// A request during the flood may have been dropped.
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		got, err := s.dial(t).SelectionText(short, Clipboard)
		return err == nil && got == "still here"
	})
}
