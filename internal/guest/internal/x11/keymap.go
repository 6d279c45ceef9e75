package x11

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jezek/xgb/xproto"
)

// keyboard is a copy of the server's keymap. The input lane guards all fields except stale.
type keyboard struct {
	names    map[string]xproto.Keysym
	stale    atomic.Bool // the mapping has changed
	loaded   bool
	perCode  int
	where    map[xproto.Keysym]place
	spare    []xproto.Keycode // keys that may be remapped, in order of preference
	exotic   []xproto.Keycode // keys of unusual keyboards
	borrowed []xproto.Keycode // keys that this connection has remapped, oldest first
	shift    xproto.Keycode
	capsLock xproto.Keycode
	numLock  uint16 // the modifier bit
}

// place is the key of a keysym.
type place struct {
	code    xproto.Keycode
	shifted bool
}

// minSpare is the number of spare keys below which keys with exotic keysyms are borrowed, too.
const minSpare = 4

var errNoSpareKey = errors.New("the keymap has no spare key for other characters; release pressed keys, or paste the text")

// loadKeymap reads the server's keymap if it has changed.
func (c *Conn) loadKeymap() error {
	k := &c.keys
	if k.loaded && !k.stale.Load() {
		return nil
	}
	k.stale.Store(false)
	setup := xproto.Setup(c.x)
	first := setup.MinKeycode
	mapping := xproto.GetKeyboardMapping(c.x, first, byte(setup.MaxKeycode-first)+1)
	modifiers := xproto.GetModifierMapping(c.x)
	m, err := mapping.Reply()
	if err != nil {
		return fmt.Errorf("read keymap: %w", err)
	}
	mods, err := modifiers.Reply()
	if err != nil {
		return fmt.Errorf("read keymap: %w", err)
	}
	if m.KeysymsPerKeycode == 0 {
		return errors.New("read keymap: it is empty")
	}
	k.perCode = int(m.KeysymsPerKeycode)
	k.index(first, m.Keysyms, mods)
	if k.shift == 0 {
		return errors.New("read keymap: it has no shift key")
	}
	k.loaded = true
	return nil
}

// index finds the key of each keysym, and the spare keys.
func (k *keyboard) index(first xproto.Keycode, syms []xproto.Keysym, mods *xproto.GetModifierMappingReply) {
	k.where = map[xproto.Keysym]place{}
	var unused, exotic []xproto.Keycode
	code := first
	for row := range slices.Chunk(syms, k.perCode) {
		k.enter(code, row)
		switch {
		case slices.Contains(k.borrowed, code) || slices.Contains(mods.Keycodes, code):
		case !slices.ContainsFunc(row, func(s xproto.Keysym) bool { return s != 0 }):
			unused = append(unused, code)
		case isExotic(row):
			exotic = append(exotic, code)
		}
		code++
	}
	k.spare, k.exotic = slices.Concat(unused, k.borrowed), exotic
	if len(k.spare) < minSpare {
		k.spare = append(k.spare, exotic...)
	}
	k.shift = k.where[symShiftL].code
	k.capsLock = k.where[symCapsLock].code
	k.numLock = 0
	if num := k.where[symNumLock].code; num != 0 && mods.KeycodesPerModifier > 0 {
		if i := slices.Index(mods.Keycodes, num); i >= 0 {
			k.numLock = 1 << (i / int(mods.KeycodesPerModifier))
		}
	}
}

// enter adds the two levels of a key. The first key of a character has precedence, as on a real keyboard; for function keys,
// a key without shift has precedence.
func (k *keyboard) enter(code xproto.Keycode, row []xproto.Keysym) {
	for level, sym := range row[:min(2, len(row))] {
		if sym == 0 || level == 1 && sym == row[0] {
			continue
		}
		p := place{code: code, shifted: level == 1}
		old, known := k.where[sym]
		if !known || sym >= 0xff00 && sym < 0x01000000 && old.shifted && !p.shifted {
			k.where[sym] = p
		}
	}
}

// isExotic reports whether a key can be remapped if there is no unused one: it has only vendor keysyms or Unicode characters,
// which the server or another client has mapped temporarily.
func isExotic(row []xproto.Keysym) bool {
	return !slices.ContainsFunc(row, func(s xproto.Keysym) bool { return s != 0 && s < 0x01000000 })
}

// batch returns how many of the keysyms can be typed with the available spare keys, which of them need a spare key, and which
// spare keys already have the keysyms of others. Pressed keys are not available.
func (k *keyboard) batch(syms []xproto.Keysym, held func(xproto.Keycode) bool) (n int, missing []xproto.Keysym, needed []xproto.Keycode) {
	free := 0
	for _, code := range k.spare {
		if !held(code) {
			free++
		}
	}
	for i, sym := range syms {
		at, known := k.where[sym]
		switch {
		case !known && !slices.Contains(missing, sym):
			if free == 0 {
				return i, missing, needed
			}
			missing = append(missing, sym)
			free--
		case known && slices.Contains(k.spare, at.code) && !held(at.code) && !slices.Contains(needed, at.code):
			if free == 0 {
				return i, missing, needed
			}
			needed = append(needed, at.code)
			free--
		}
	}
	return len(syms), missing, needed
}

// borrow maps missing keysyms to spare keys other than the needed ones, in as few changes as possible, waits until the focused
// application has read the change, and returns the key of each keysym. The keys keep their keysyms until they are borrowed
// again: a change costs applications, especially the window manager, much more than a key press.
func (c *Conn) borrow(ctx context.Context, syms []xproto.Keysym, needed []xproto.Keycode) ([]xproto.Keycode, error) {
	k := &c.keys
	var codes []xproto.Keycode
	reused := false
	for _, code := range k.spare {
		if len(codes) == len(syms) {
			break
		}
		if !c.held.holds(code) && !slices.Contains(needed, code) {
			codes = append(codes, code)
			reused = reused || slices.Contains(k.borrowed, code)
		}
	}
	if len(codes) < len(syms) {
		return nil, errNoSpareKey
	}
	if reused { // the application must have handled earlier events of these keys
		if err := c.settle(ctx); err != nil && !errors.Is(err, errNoResponse) {
			return nil, err
		}
	}
	k.borrowed = slices.DeleteFunc(k.borrowed, func(code xproto.Keycode) bool { return slices.Contains(codes, code) })
	k.borrowed = append(k.borrowed, codes...)
	if err := c.remap(codes, syms); err != nil {
		return nil, err
	}
	return codes, c.settle(ctx)
}

// holds reports whether a key is pressed.
func (h *held) holds(code xproto.Keycode) bool {
	for _, k := range h.keys {
		if k.code == code {
			return true
		}
	}
	return false
}

// remap assigns keysyms to keys, with one request for each run of adjacent keys: every request makes all applications read the
// keymap.
func (c *Conn) remap(codes []xproto.Keycode, syms []xproto.Keysym) error {
	c.keys.stale.Store(true)
	symOf := map[xproto.Keycode]xproto.Keysym{}
	for i, code := range codes {
		symOf[code] = syms[i]
	}
	codes = slices.Sorted(slices.Values(codes))
	first, last := codes[0], codes[len(codes)-1]
	for len(codes) > 0 {
		n := 1
		for n < len(codes) && codes[n] == codes[n-1]+1 {
			n++
		}
		var rows []xproto.Keysym
		for _, code := range codes[:n] {
			// The keysym is the same on all levels, so that pressed modifiers do not change it.
			rows = append(rows, slices.Repeat([]xproto.Keysym{symOf[code]}, c.keys.perCode)...)
		}
		err := xproto.ChangeKeyboardMappingChecked(c.x, byte(n), codes[0], byte(c.keys.perCode), rows).Check()
		if err != nil {
			return fmt.Errorf("change keymap: %w", err)
		}
		codes = codes[n:]
	}
	c.repeatMappingNotify(first, last)
	return nil
}

// AddLetters maps characters that the keymap lacks to the keys of unusual keyboards: the letters of Western European languages and
// a few signs. When a viewer presses a missing character, the server adds it. Programs such as Chromium learn of it from a
// notification, and can miss the first press. Call it before programs connect. Unused keys remain for other characters.
func (c *Conn) AddLetters(ctx context.Context) error {
	return c.inject(ctx, "add letters to the keymap", func() error {
		if err := c.loadKeymap(); err != nil {
			return err
		}
		free := c.keys.exotic
		c.keys.stale.Store(true)
		for _, pair := range letters() {
			if _, known := c.keys.where[pair[0]]; known || len(free) == 0 {
				continue
			}
			row := make([]xproto.Keysym, c.keys.perCode)
			copy(row, pair[:])
			if err := xproto.ChangeKeyboardMappingChecked(c.x, 1, free[0], byte(c.keys.perCode), row).Check(); err != nil {
				return fmt.Errorf("change keymap: %w", err)
			}
			free = free[1:]
		}
		return nil
	})
}

// letters returns, for each added key, the keysyms without and with Shift, most common first. A Latin-1 keysym is the code of its
// character.
func letters() (pairs [][2]xproto.Keysym) {
	for _, pair := range []string{"äÄ", "öÖ", "üÜ", "ß§", "éÉ", "èÈ", "çÇ", "àÀ", "ñÑ", "åÅ", "øØ", "æÆ", "°£", "¿¡"} {
		runes := []rune(pair)
		pairs = append(pairs, [2]xproto.Keysym{xproto.Keysym(runes[0]), xproto.Keysym(runes[1])})
	}
	const distance = 'a' - 'A'
	for r := 'à'; r <= 'þ'; r++ {
		pair := [2]xproto.Keysym{xproto.Keysym(r), xproto.Keysym(r - distance)}
		if r != '÷' && !slices.Contains(pairs, pair) {
			pairs = append(pairs, pair)
		}
	}
	return pairs
}

// repeatMappingNotify sends the focused application a MappingNotify event for a range of keys. The server's own notification
// can get lost: Xlib reads the keymap at its first key event, subscribes to changes only after that, and misses a change in
// between. The event arrives before the keys that are typed next.
func (c *Conn) repeatMappingNotify(first, last xproto.Keycode) {
	note := xproto.MappingNotifyEvent{Request: xproto.MappingKeyboard, FirstKeycode: first, Count: byte(last-first) + 1}
	xproto.SendEvent(c.x, false, xproto.SendEventDestItemFocus, xproto.EventMaskNoEvent, string(note.Bytes()))
}
