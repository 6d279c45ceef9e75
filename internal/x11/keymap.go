package x11

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jezek/xgb/xproto"
)

// keyboard is what is known of the server's keymap. The input lane guards all but stale.
type keyboard struct {
	names    map[string]xproto.Keysym
	stale    atomic.Bool // set when somebody changed the mapping
	loaded   bool
	perCode  int
	where    map[xproto.Keysym]place
	spare    []spareKey
	shift    xproto.Keycode
	capsLock xproto.Keycode
	numLock  uint16 // the modifier bit
}

// place says how to make a keysym.
type place struct {
	code    xproto.Keycode
	shifted bool
}

// spareKey is a keycode that may be redefined for a while, with what it normally means.
type spareKey struct {
	code xproto.Keycode
	row  []xproto.Keysym
}

var errNoSpareKey = errors.New("the keymap has no spare key for characters that it lacks: release held keys, or paste the text")

// loadKeymap reads the server's mapping unless what is known still holds.
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
	k.index(first, m.Keysyms, mods, c.held.borrows)
	if k.shift == 0 {
		return errors.New("read keymap: it has no shift key")
	}
	k.loaded = true
	return nil
}

// index finds out where keysyms are and which keys are spare. Keys that are borrowed and held are neither.
func (k *keyboard) index(first xproto.Keycode, syms []xproto.Keysym, mods *xproto.GetModifierMappingReply, borrowed func(xproto.Keycode) bool) {
	k.where = map[xproto.Keysym]place{}
	var unused, exotic []spareKey
	code := first
	for row := range slices.Chunk(syms, k.perCode) {
		switch {
		case borrowed(code):
		case !slices.ContainsFunc(row, func(s xproto.Keysym) bool { return s != 0 }):
			unused = append(unused, spareKey{code, row})
		default:
			k.enter(code, row)
			if isExotic(row) && !slices.Contains(mods.Keycodes, code) {
				exotic = append(exotic, spareKey{code, row})
			}
		}
		code++
	}
	k.spare = append(unused, exotic...)
	k.shift = k.where[symShiftL].code
	k.capsLock = k.where[symCapsLock].code
	k.numLock = 0
	if num := k.where[symNumLock].code; num != 0 && mods.KeycodesPerModifier > 0 {
		if i := slices.Index(mods.Keycodes, num); i >= 0 {
			k.numLock = 1 << (i / int(mods.KeycodesPerModifier))
		}
	}
}

// enter records the two levels of a key. The first key that makes a character wins, as on a real keyboard; for function keys
// one that needs no shift is better.
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

// isExotic tells keys that can be spared when no unused one is left: those that carry only vendors' keysyms or Unicode
// characters, which the server or somebody else put there for one moment's use.
func isExotic(row []xproto.Keysym) bool {
	return !slices.ContainsFunc(row, func(s xproto.Keysym) bool { return s != 0 && s < 0x01000000 })
}

// batch returns how many of the keysyms can be typed with the spare keys there are, and which of them need one.
func (k *keyboard) batch(syms []xproto.Keysym) (int, []xproto.Keysym) {
	var missing []xproto.Keysym
	for i, sym := range syms {
		if _, ok := k.where[sym]; ok || slices.Contains(missing, sym) {
			continue
		}
		if len(missing) == len(k.spare) {
			return i, missing
		}
		missing = append(missing, sym)
	}
	return len(syms), missing
}

// borrow gives keysyms that the keymap lacks to spare keys, in as few changes as possible, and waits until the application
// that has the focus knows. giveBack must follow with what it returns, one key for each keysym.
func (c *Conn) borrow(ctx context.Context, syms []xproto.Keysym) ([]spareKey, error) {
	k := &c.keys
	if len(k.spare) < len(syms) {
		return nil, errNoSpareKey
	}
	lent := slices.Clone(k.spare[:len(syms)])
	rows := make([]spareKey, len(syms))
	for i, sym := range syms {
		// The same on all levels, so that held modifiers do not change it.
		rows[i] = spareKey{lent[i].code, slices.Repeat([]xproto.Keysym{sym}, k.perCode)}
	}
	err := c.remap(rows)
	if err == nil {
		err = c.settle(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.remap(lent))
	}
	return lent, nil
}

// giveBack restores borrowed keys once the application has looked up what was typed with them. It does so also when ctx
// has ended, and when the application does not answer.
func (c *Conn) giveBack(ctx context.Context, lent []spareKey) error {
	if err := c.settle(context.WithoutCancel(ctx)); err != nil && !errors.Is(err, errNoAnswer) {
		return err
	}
	return c.remap(lent)
}

// borrows tells whether the key is held with a meaning that it normally does not have.
func (h *held) borrows(code xproto.Keycode) bool {
	for _, k := range h.keys {
		if k.code == code && k.restore != nil {
			return true
		}
	}
	return false
}

// remap changes keys, with one request for each run of neighbours: every change makes all applications read the mapping.
func (c *Conn) remap(rows []spareKey) error {
	c.keys.stale.Store(true)
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b spareKey) int { return int(a.code) - int(b.code) })
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].code == rows[n-1].code+1 {
			n++
		}
		var syms []xproto.Keysym
		for _, r := range rows[:n] {
			syms = append(syms, r.row...)
		}
		err := xproto.ChangeKeyboardMappingChecked(c.x, byte(n), rows[0].code, byte(c.keys.perCode), syms).Check()
		if err != nil {
			return fmt.Errorf("change keymap: %w", err)
		}
		rows = rows[n:]
	}
	return nil
}
