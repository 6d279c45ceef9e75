package x11

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jezek/xgb/xproto"
)

// Keysyms that are used outside of the table.
const (
	symReturn   xproto.Keysym = 0xff0d
	symTab      xproto.Keysym = 0xff09
	symBack     xproto.Keysym = 0xff08
	symEscape   xproto.Keysym = 0xff1b
	symShiftL   xproto.Keysym = 0xffe1
	symShiftR   xproto.Keysym = 0xffe2
	symCapsLock xproto.Keysym = 0xffe5
	symNumLock  xproto.Keysym = 0xff7f
)

// namedKeys maps pyautogui's names of more than one character, and some names of other tools, to keysyms. Keys that X lacks map
// to the nearest one: accept is OK, final ends the Hangul mode, command is the left Super key, option an Alt key.
func namedKeys() map[string]xproto.Keysym {
	m := map[string]xproto.Keysym{
		"accept": 0x10081160, "add": 0xffab, "alt": 0xffe9, "altleft": 0xffe9, "altright": 0xffea, "apps": 0xff67,
		"backspace": symBack, "browserback": 0x1008ff26, "browserfavorites": 0x1008ff30, "browserforward": 0x1008ff27,
		"browserhome": 0x1008ff18, "browserrefresh": 0x1008ff29, "browsersearch": 0x1008ff1b, "browserstop": 0x1008ff28,
		"capslock": symCapsLock, "clear": 0xff0b, "command": 0xffeb, "convert": 0xff23,
		"ctrl": 0xffe3, "ctrlleft": 0xffe3, "ctrlright": 0xffe4, "decimal": 0xffae, "del": 0xffff, "delete": 0xffff,
		"divide": 0xffaf, "down": 0xff54, "end": 0xff57, "enter": symReturn, "esc": symEscape, "escape": symEscape,
		"execute": 0xff62, "final": 0xff33, "fn": 0x100811d0, "hanguel": 0xff31, "hangul": 0xff31, "hanja": 0xff34,
		"help": 0xff6a, "home": 0xff50, "insert": 0xff63, "junja": 0xff38, "kana": 0xff2d, "kanji": 0xff21,
		"launchapp1": 0x1008ff40, "launchapp2": 0x1008ff41, "launchmail": 0x1008ff19, "launchmediaselect": 0x1008ff32,
		"left": 0xff51, "modechange": 0xff7e, "multiply": 0xffaa, "nexttrack": 0x1008ff17, "nonconvert": 0xff22,
		"numlock": symNumLock, "option": 0xffe9, "optionleft": 0xffe9, "optionright": 0xffea,
		"pagedown": 0xff56, "pageup": 0xff55, "pause": 0xff13, "pgdn": 0xff56, "pgup": 0xff55,
		"playpause": 0x1008ff14, "prevtrack": 0x1008ff16, "print": 0xff61, "printscreen": 0xff61, "prntscrn": 0xff61,
		"prtsc": 0xff61, "prtscr": 0xff61, "return": symReturn, "right": 0xff53, "scrolllock": 0xff14, "select": 0xff60,
		"separator": 0xffac, "shift": symShiftL, "shiftleft": symShiftL, "shiftright": symShiftR, "sleep": 0x1008ff2f,
		"space": ' ', "stop": 0x1008ff15, "subtract": 0xffad, "tab": symTab, "up": 0xff52,
		"volumedown": 0x1008ff11, "volumemute": 0x1008ff12, "volumeup": 0x1008ff13,
		"win": 0xffeb, "winleft": 0xffeb, "winright": 0xffec, "yen": 0xa5,
	}
	// Names that web pages and other tools use for the same keys.
	for name, same := range map[string]string{
		"arrowdown": "down", "arrowleft": "left", "arrowright": "right", "arrowup": "up", "cmd": "command", "control": "ctrl",
		"ins": "insert", "menu": "apps", "meta": "win", "page_down": "pagedown", "page_up": "pageup", "super": "win",
	} {
		m[name] = m[same]
	}
	for i := range xproto.Keysym(10) {
		m[fmt.Sprintf("num%d", i)] = 0xffb0 + i
	}
	for i := range xproto.Keysym(24) {
		m[fmt.Sprintf("f%d", i+1)] = 0xffbe + i
	}
	return m
}

// KeyNames returns the names of keys, except for single characters.
func KeyNames() []string { return slices.Sorted(maps.Keys(namedKeys())) }

// keysymOf returns the keysym of a key name (case-insensitive) or character.
func keysymOf(names map[string]xproto.Keysym, name string) (xproto.Keysym, error) {
	if utf8.RuneCountInString(name) == 1 {
		r, _ := utf8.DecodeRuneInString(name)
		return keysymOfRune(r)
	}
	if sym, ok := names[strings.ToLower(name)]; ok {
		return sym, nil
	}
	return 0, &UnknownKeyError{Name: name}
}

// UnknownKeyError is the error about an unknown key name.
type UnknownKeyError struct{ Name string }

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("unknown key %q; use one character, or a name such as enter, ctrl, f5, pagedown", e.Name)
}

// keysymOfRune returns the keysym that applications translate to r.
func keysymOfRune(r rune) (xproto.Keysym, error) {
	switch {
	case r == '\n' || r == '\r':
		return symReturn, nil
	case r == '\t':
		return symTab, nil
	case r == '\b':
		return symBack, nil
	case r == 0x1b:
		return symEscape, nil
	case r >= 0x20 && r <= 0x7e, r >= 0xa0 && r <= 0xff:
		return xproto.Keysym(r), nil
	case r < 0x100 || r == utf8.RuneError || !utf8.ValidRune(r):
		return 0, fmt.Errorf("character %U has no key", r)
	}
	return 0x01000000 | xproto.Keysym(r), nil
}

// isKeypad reports whether num lock selects the keysym, on keys with two levels.
func isKeypad(sym xproto.Keysym) bool { return sym >= 0xff95 && sym <= 0xffb9 }
