package x11

import (
	"bufio"
	"context"
	"errors"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jezek/xgb/xproto"
)

func TestEveryKeyNameArrivesAsItsKeysym(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, pings := range []bool{true, false} {
		p := startProbe(t, s, func(p *probe) { p.pings = pings })
		c := s.dial(t)
		for name, sym := range namedKeys() {
			must(t, c.Chord(testContext(t), strings.ToUpper(name)))
			events := p.takeKeys(t)
			var seen []xproto.Keysym
			// Num lock is turned on for digits of the keypad, and off again.
			for locks := 0; ; events = p.takeKeys(t) {
				for _, e := range events {
					if e.down && e.sym == symNumLock && sym != symNumLock {
						locks++
					} else if e.down {
						seen = append(seen, e.sym)
					}
				}
				if locks%2 == 0 {
					break
				}
			}
			if n := len(seen); n == 0 || seen[n-1] != sym {
				t.Errorf("key %q: saw keysyms %#x, want %#x", name, seen, sym)
			}
			// Release the lock, which would change later keys.
			if name == "capslock" || name == "numlock" || name == "scrolllock" {
				must(t, c.Chord(testContext(t), name))
				p.takeKeys(t)
			}
			if !pings && !testenv.AtNight() {
				break
			}
		}
	}
}

// TestLettersNeedNoChangeOfTheKeymap: letters of Western European languages are in the keymap before programs connect, and
// unused keys are left for other characters.
func TestLettersNeedNoChangeOfTheKeymap(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.dial(t)
	must(t, c.AddLetters(testContext(t)))
	must(t, c.inject(testContext(t), "read the keymap", c.loadKeymap))
	spare := len(c.keys.spare)
	for _, r := range "äöüßÄÖÜéèçàñåøæÉÑ°£¿¡" {
		if _, ok := c.keys.where[xproto.Keysym(r)]; !ok {
			t.Errorf("the keymap lacks %c", r)
		}
	}
	p := startProbe(t, s)
	must(t, c.Type(testContext(t), "Grüße, Ñandú: ÄÖÜ", 0))
	p.typed(t, "Grüße, Ñandú: ÄÖÜ")
	if len(c.keys.borrowed) > 0 || spare < 10 {
		t.Errorf("remapped %d keys to type letters, of %d spare ones; want none, and at least 10 spare keys", len(c.keys.borrowed), spare)
	}
	must(t, c.Type(testContext(t), "世界", 0)) // other characters still find a key
	p.typed(t, "世界")
}

func TestTypedTextArrives(t *testing.T) {
	t.Parallel()
	var many strings.Builder // many more characters than spare keys, some of them twice
	for r := rune(0x4e00); r < 0x4e00+150; r++ {
		many.WriteRune(r)
		many.WriteRune(0x4e00 + (r*7)%150)
	}
	texts := map[string]string{
		"ascii":    "The quick brown fox, 0123456789 !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
		"mixed":    "Grüße, 世界 🎉",
		"composed": "👩‍👩‍👧 e\u0301 ₿ żółć Привет",
		"lines":    "one\ttwo\nthree\n",
		"many":     many.String(),
		"single":   "a",
	}
	for _, app := range []struct {
		name  string
		pings bool
		slow  int
	}{{"prompt", true, 0}, {"lagging", true, 100}, {"without ping", false, 0}} {
		t.Run(app.name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			p := startProbe(t, s, func(p *probe) { p.pings, p.slow = app.pings, app.slow })
			cfg := s.config()
			cfg.Settle = time.Second // for busy machines
			c, err := Dial(testContext(t), cfg)
			must(t, err)
			defer c.Close()
			before := p.rows(t)
			for name, want := range texts {
				t.Run(name, func(t *testing.T) {
					must(t, c.Type(testContext(t), want, 0))
					p.typed(t, want)
				})
			}
			checkMeanings(t, p, before)
		})
	}
}

// checkMeanings checks that typing has not changed keys that had keysyms before.
func checkMeanings(t *testing.T, p *probe, before []xproto.Keysym) {
	t.Helper()
	for i, sym := range p.rows(t) {
		if was := before[i]; was != 0 && was != sym {
			t.Errorf("after typing, entry %d of the keymap is %#x, want %#x", i, sym, was)
		}
	}
}

// TestTypingTheSameTwiceChangesTheKeymapOnce: a window manager needs as much time for a change as for hundreds of keys.
func TestTypingTheSameTwiceChangesTheKeymapOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProbe(t, s, func(p *probe) { p.pings = true })
	c := s.dial(t)
	const text = "ж世🎉"
	must(t, c.Type(testContext(t), text, 0))
	p.typed(t, text)
	before := p.remaps.Load()
	for range 3 {
		must(t, c.Type(testContext(t), text, 0))
		p.typed(t, text)
	}
	must(t, c.Chord(testContext(t), "世"))
	p.typed(t, "世")
	if after := p.remaps.Load(); before == 0 || after != before {
		t.Errorf("the keymap changed %d times for the first text and %d times in total, want no change after the first", before, after)
	}
}

// TestApplicationLearnsNewKeysWithoutNotification: an Xlib application that has not subscribed to keymap changes yet must
// see characters on borrowed keys.
func TestApplicationLearnsNewKeysWithoutNotification(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProbe(t, s, func(p *probe) { p.pings, p.unnotified = true, true })
	c := s.dial(t)
	const text = "Grüße, 世界 🎉!"
	must(t, c.Type(testContext(t), text, 0))
	p.typed(t, text)
}

func TestTypingRespectsLocksAndPressedKeys(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProbe(t, s, func(p *probe) { p.pings = true })
	c := s.dial(t)
	ctx := testContext(t)

	must(t, c.Chord(ctx, "capslock"))
	must(t, c.Type(ctx, "aBü世", 0))
	p.typed(t, "aBü世")
	must(t, c.Chord(ctx, "a"))
	p.typed(t, "A") // the lock is on again
	must(t, c.Chord(ctx, "capslock"))
	p.takeKeys(t)

	must(t, c.Chord(ctx, "numlock"))
	p.takeKeys(t)
	must(t, c.Chord(ctx, "num7"))
	if e := p.takeKeys(t); len(e) != 2 || e[0].sym != 0xffb7 {
		t.Errorf("num7 with the lock on: %v, want 2 events and first sym 0xffb7", e)
	}
	must(t, c.Chord(ctx, "numlock"))
	p.takeKeys(t)

	must(t, c.KeyDown(ctx, "shift"))
	must(t, c.Type(ctx, "aB", 0))
	must(t, c.KeyUp(ctx, "shift"))
	if got := text(p.takeKeys(t)); got != "AB" {
		t.Errorf("with shift held, aB arrived as %q, want \"AB\"", got)
	}

	must(t, c.Chord(ctx, "ctrl", "shift", "t"))
	events := p.takeKeys(t)
	if last := events[2]; last.sym != 'T' || last.mask != xproto.KeyButMaskControl|xproto.KeyButMaskShift {
		t.Errorf("ctrl+shift+t arrived as %v, want sym %v, mask %v", events, 'T', xproto.KeyButMaskControl|xproto.KeyButMaskShift)
	}

	// A pressed key that the keymap lacks keeps its keysym while text is typed with other borrowed keys.
	must(t, c.KeyDown(ctx, "💡"))
	must(t, c.Type(ctx, "世", 0))
	must(t, c.KeyUp(ctx, "💡"))
	events = p.takeKeys(t)
	if got := text(events); got != "💡世" || events[len(events)-1].sym != 0x0101f4a1 {
		t.Errorf("held key and text arrived as %q: %v, want %q", got, events, "💡世")
	}
}

func TestInvalidKeysAndTextHaveNoEffect(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProbe(t, s)
	c := s.dial(t)
	ctx := testContext(t)
	var unknown *UnknownKeyError
	if err := c.KeyDown(ctx, "hyper-key"); !errors.As(err, &unknown) || unknown.Name != "hyper-key" {
		t.Errorf("unknown key: %v, want an UnknownKeyError for hyper-key", err)
	}
	if err := c.Chord(ctx, "ctrl", "nope"); !errors.As(err, &unknown) {
		t.Errorf("unknown key in a chord: %v, want an UnknownKeyError", err)
	}
	p.takeKeys(t) // ctrl went down and up again
	for _, bad := range []string{"abc\x00", "abc\x85", "abc\xff"} {
		if err := c.Type(ctx, bad, 0); err == nil {
			t.Errorf("typing %q succeeded, want an error", bad)
		}
	}
	must(t, c.Type(ctx, "x", 0))
	if e := p.takeKeys(t); text(e) != "x" || e[len(e)-1].mask != 0 {
		t.Errorf("after the errors, x arrived as %v, want x without modifiers", e)
	}
}

func TestTypingStopsWithItsContext(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProbe(t, s, func(p *probe) { p.pings = true })
	c := s.dial(t)
	before := p.rows(t)
	ctx, cancel := context.WithCancel(testContext(t))
	failed := make(chan error)
	go func() { failed <- c.Type(ctx, strings.Repeat("世", 10_000), time.Millisecond) }()
	testenv.Poll(t, "typing has begun", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.keys) > 4
	})
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("typing ended with %v, want context.Canceled", err)
	}
	must(t, c.Sync(testContext(t)))
	checkMeanings(t, p, before)
}

func TestCloseReleasesHeldKeys(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := startProbe(t, s)
	c := s.dial(t)
	ctx := testContext(t)
	must(t, c.KeyDown(ctx, "ctrl"))
	must(t, c.KeyDown(ctx, "a"))
	must(t, c.Press(ctx, Left))
	must(t, c.Close())
	p.takeKeys(t) // returns when all keys are up
	r, err := xproto.QueryPointer(p.x, p.root).Reply()
	must(t, err)
	if r.Mask != 0 {
		t.Errorf("after Close, modifiers and buttons are %#x, want Mask 0", r.Mask)
	}
}

// TestXlibApplicationSeesKeys uses an application that shares no code with this package.
func TestXlibApplicationSeesKeys(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "xev")
	s := startServer(t)
	c := s.dial(t)
	ctx := testContext(t)
	cmd := exec.Command("xev", "-event", "keyboard")
	cmd.Env = s.env()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testenv.Poll(t, "xev has the focus", func() bool { return focusFirstWindow(t, c) })

	const want = "Grüße, 世界 🎉!"
	must(t, c.Chord(ctx, "f13"))
	must(t, c.Type(ctx, want, 0))
	must(t, c.Chord(ctx, "escape"))

	var got strings.Builder
	lines := bufio.NewScanner(out)
	var first string
	for press := false; lines.Scan(); {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "Key"):
			press = strings.HasPrefix(line, "KeyPress")
		case press && strings.Contains(line, "keysym") && first == "":
			first = line
		case press && strings.Contains(line, "XmbLookupString gives"):
			_, s, _ := strings.Cut(line, `"`)
			got.WriteString(strings.TrimSuffix(s, `"`))
		}
		if strings.Contains(line, "Escape") {
			break
		}
	}
	if !strings.Contains(first, "0xffca") {
		t.Errorf("f13 arrived as %q, want first containing \"0xffca\"", first)
	}
	if g := strings.TrimSuffix(got.String(), "\x1b"); g != want {
		t.Errorf("xev saw %q, want %q", g, want)
	}
}

// focusFirstWindow sets the focus to the first visible window.
func focusFirstWindow(t testing.TB, c *Conn) bool {
	tree, err := xproto.QueryTree(c.x, c.root).Reply()
	must(t, err)
	for _, w := range tree.Children {
		a, err := xproto.GetWindowAttributes(c.x, w).Reply()
		if err == nil && a.MapState == xproto.MapStateViewable && a.Class == xproto.WindowClassInputOutput {
			return xproto.SetInputFocusChecked(c.x, xproto.InputFocusPointerRoot, w, xproto.TimeCurrentTime).Check() == nil
		}
	}
	return false
}
