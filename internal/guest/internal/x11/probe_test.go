package x11

import (
	"image"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// probe is an X application with one window that has the focus. It records events, and looks keysyms up as Xlib does: it reads
// the keymap again when it handles the notification of a change.
type probe struct {
	x      *xgb.Conn
	window xproto.Window
	root   xproto.Window
	ended  chan struct{}

	slow  int  // number of round trips before each event, to delay it
	pings bool // responds to _NET_WM_PING

	managed bool // the window manager manages its window

	unnotified bool // gets no MappingNotify from the server

	protocols, ping xproto.Atom
	keymap          *xproto.GetKeyboardMappingReply
	remaps          atomic.Int32 // how often the keymap has changed

	mu     sync.Mutex
	keys   []keyEvent
	clicks []clickEvent
	moves  []image.Point
	turns  []byte // b for a pressed button, r for a released one, k for a key
}

type keyEvent struct {
	down bool
	sym  xproto.Keysym
	mask uint16
}

type clickEvent struct {
	down   bool
	button byte
	at     image.Point
	mask   uint16
}

func startProbe(t testing.TB, s *server, options ...func(*probe)) *probe {
	t.Helper()
	_, x, err := open(testContext(t), s.socket, s.cookie)
	must(t, err)
	p := &probe{x: x, root: xproto.Setup(x).DefaultScreen(x).Root, ended: make(chan struct{})}
	for _, o := range options {
		o(p)
	}
	p.window, err = xproto.NewWindowId(x)
	must(t, err)
	events := uint32(xproto.EventMaskKeyPress | xproto.EventMaskKeyRelease | xproto.EventMaskButtonPress |
		xproto.EventMaskButtonRelease | xproto.EventMaskPointerMotion | xproto.EventMaskExposure)
	must(t, xproto.CreateWindowChecked(x, 24, p.window, p.root, 0, 0, 400, 300, 0, xproto.WindowClassInputOutput, 0,
		xproto.CwBackPixel|xproto.CwOverrideRedirect|xproto.CwEventMask, []uint32{0x204060, p.redirect(), events}).Check())
	p.protocols = p.atom(t, "WM_PROTOCOLS")
	p.ping = p.atom(t, "_NET_WM_PING")
	if p.pings {
		b := make([]byte, 4)
		xgb.Put32(b, uint32(p.ping))
		must(t, xproto.ChangePropertyChecked(x, xproto.PropModeReplace, p.window, p.protocols, xproto.AtomAtom, 32, 1, b).Check())
	}
	if p.unnotified {
		p.useXKB(t)
	}
	p.readKeymap()
	mapped := make(chan struct{})
	go p.run(mapped)
	must(t, xproto.MapWindowChecked(x, p.window).Check())
	if p.managed {
		// openbox loses requests during its start, even after it has published what it supports.
		testenv.Poll(t, "the window manager shows the window", func() bool {
			must(t, xproto.MapWindowChecked(x, p.window).Check())
			select {
			case <-mapped:
				return true
			default:
				return false
			}
		})
	} else {
		<-mapped
		must(t, xproto.SetInputFocusChecked(x, xproto.InputFocusNone, p.window, xproto.TimeCurrentTime).Check())
	}
	t.Cleanup(func() {
		x.Close()
		<-p.ended
	})
	return p
}

// useXKB requests the XKB extension, as Xlib does when it connects. The server then sends no core MappingNotify, and no XKB
// MapNotify either until the client subscribes to it, which Xlib does after its first key event.
func (p *probe) useXKB(t testing.TB) {
	t.Helper()
	const name = "XKEYBOARD"
	ext, err := xproto.QueryExtension(p.x, uint16(len(name)), name).Reply()
	must(t, err)
	useExtension := []byte{ext.MajorOpcode, 0, 2, 0, 1, 0, 0, 0} // two words; version 1.0
	cookie := p.x.NewCookie(true, true)
	p.x.NewRequest(useExtension, cookie)
	_, err = cookie.Reply()
	must(t, err)
}

// redirect returns the attribute that excludes the window from the window manager.
func (p *probe) redirect() uint32 {
	if p.managed {
		return 0
	}
	return 1
}

// order returns the order of buttons and keys.
func (p *probe) order() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.turns)
}

func (p *probe) atom(t testing.TB, name string) xproto.Atom {
	r, err := xproto.InternAtom(p.x, false, uint16(len(name)), name).Reply()
	must(t, err)
	return r.Atom
}

func (p *probe) run(mapped chan struct{}) {
	defer close(p.ended)
	for {
		ev, xerr := p.x.WaitForEvent()
		if ev == nil && xerr == nil {
			return
		}
		for range p.slow {
			_, _ = xproto.GetInputFocus(p.x).Reply()
		}
		switch e := ev.(type) {
		case xproto.ExposeEvent:
			if mapped != nil {
				close(mapped)
				mapped = nil
			}
		case xproto.MappingNotifyEvent:
			p.remaps.Add(1)
			p.readKeymap()
		case xproto.KeyPressEvent:
			p.key(keyEvent{true, p.lookup(e.Detail, e.State), e.State})
		case xproto.KeyReleaseEvent:
			p.key(keyEvent{false, p.lookup(e.Detail, e.State), e.State})
		case xproto.ButtonPressEvent:
			p.click(clickEvent{true, byte(e.Detail), image.Pt(int(e.EventX), int(e.EventY)), e.State})
		case xproto.ButtonReleaseEvent:
			p.click(clickEvent{false, byte(e.Detail), image.Pt(int(e.EventX), int(e.EventY)), e.State})
		case xproto.MotionNotifyEvent:
			p.mu.Lock()
			p.moves = append(p.moves, image.Pt(int(e.EventX), int(e.EventY)))
			p.mu.Unlock()
		case xproto.ClientMessageEvent:
			if e.Type == p.protocols && xproto.Atom(e.Data.Data32[0]) == p.ping {
				e.Window = p.root
				mask := uint32(xproto.EventMaskSubstructureNotify | xproto.EventMaskSubstructureRedirect)
				xproto.SendEvent(p.x, false, p.root, mask, string(e.Bytes()))
			}
		}
	}
}

func (p *probe) readKeymap() {
	setup := xproto.Setup(p.x)
	m, err := xproto.GetKeyboardMapping(p.x, setup.MinKeycode, byte(setup.MaxKeycode-setup.MinKeycode)+1).Reply()
	if err == nil {
		p.keymap = m
	}
}

// lookup follows the core protocol's rules for the first group.
func (p *probe) lookup(code xproto.Keycode, mask uint16) xproto.Keysym {
	per := int(p.keymap.KeysymsPerKeycode)
	row := p.keymap.Keysyms[int(code-xproto.Setup(p.x).MinKeycode)*per:][:per]
	plain, shifted := row[0], row[1]
	if shifted == 0 {
		shifted = plain
		if plain < 0x100 && unicode.IsLower(rune(plain)) {
			shifted = xproto.Keysym(unicode.ToUpper(rune(plain)))
		}
	}
	shift := mask&xproto.KeyButMaskShift != 0
	const numLock = xproto.KeyButMaskMod2
	if mask&numLock != 0 && isKeypad(shifted) {
		shift = !shift
	} else if mask&xproto.KeyButMaskLock != 0 && plain < 0x100 && unicode.IsLetter(rune(plain)) {
		shift = !shift
	}
	if shift {
		return shifted
	}
	return plain
}

func (p *probe) key(e keyEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append(p.keys, e)
	if e.down {
		p.turns = append(p.turns, 'k')
	}
}

func (p *probe) click(e clickEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clicks = append(p.clicks, e)
	if e.down {
		p.turns = append(p.turns, 'b')
	} else {
		p.turns = append(p.turns, 'r')
	}
}

// takeKeys waits until keys were pressed and all of them released, and returns the key events since the last call.
func (p *probe) takeKeys(t testing.TB) []keyEvent {
	t.Helper()
	var got []keyEvent
	testenv.Poll(t, "the keys arrive", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		down := 0
		for _, e := range p.keys {
			if e.down {
				down++
			} else {
				down--
			}
		}
		if down != 0 || len(p.keys) == 0 {
			return false
		}
		got, p.keys = p.keys, nil
		return true
	})
	return got
}

// text returns the text of key presses.
func text(events []keyEvent) string {
	var s []rune
	for _, e := range events {
		switch {
		case !e.down || e.sym >= 0xff00 && e.sym < 0x01000000 && e.sym != symReturn && e.sym != symTab:
		case e.sym == symReturn:
			s = append(s, '\n')
		case e.sym == symTab:
			s = append(s, '\t')
		default:
			s = append(s, rune(e.sym&0x00ffffff))
		}
	}
	return string(s)
}

// typed waits for text and checks that it is want.
func (p *probe) typed(t testing.TB, want string) {
	t.Helper()
	n := 0
	for range want {
		n++
	}
	var got string
	testenv.Poll(t, "text arrives", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		got = text(p.keys)
		return len([]rune(got)) >= n && !slices.ContainsFunc(p.keys[len(p.keys)-1:], func(e keyEvent) bool { return e.down })
	})
	if got != want {
		t.Fatalf("typed %q, the application received %q", want, got)
	}
	p.mu.Lock()
	p.keys = nil
	p.mu.Unlock()
}

// rows reads the keymap from the server.
func (p *probe) rows(t testing.TB) []xproto.Keysym {
	t.Helper()
	setup := xproto.Setup(p.x)
	m, err := xproto.GetKeyboardMapping(p.x, setup.MinKeycode, byte(setup.MaxKeycode-setup.MinKeycode)+1).Reply()
	must(t, err)
	return m.Keysyms
}
