package locate

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// key is a key of a US keyboard. Names of keys are those of Playwright and of the DOM, and the usual abbreviations.
// Characters that this keyboard lacks are inserted as text.
type key struct {
	Key      string // DOM key, such as a or Enter
	Code     string // DOM code, such as KeyA
	KeyCode  int    // Windows virtual key code
	Text     string // what it types
	Location int
}

// Modifiers in the DevTools protocol.
const (
	altKey = 1 << iota
	controlKey
	metaKey
	shiftKey
)

var modifiers = map[string]int{"Alt": altKey, "AltGraph": 0, "Control": controlKey, "Meta": metaKey, "Shift": shiftKey}

// symbolKeys are the keys other than letters: code, virtual key, plain and shifted character.
var symbolKeys = []struct {
	code           string
	vk             int
	plain, shifted string
}{
	{"Digit1", 49, "1", "!"}, {"Digit2", 50, "2", "@"}, {"Digit3", 51, "3", "#"}, {"Digit4", 52, "4", "$"}, {"Digit5", 53, "5", "%"},
	{"Digit6", 54, "6", "^"}, {"Digit7", 55, "7", "&"}, {"Digit8", 56, "8", "*"}, {"Digit9", 57, "9", "("}, {"Digit0", 48, "0", ")"},
	{"Minus", 189, "-", "_"}, {"Equal", 187, "=", "+"}, {"BracketLeft", 219, "[", "{"},
	{"BracketRight", 221, "]", "}"}, {"Backslash", 220, "\\", "|"},
	{"Semicolon", 186, ";", ":"}, {"Quote", 222, "'", "\""}, {"Backquote", 192, "`", "~"}, {"Comma", 188, ",", "<"},
	{"Period", 190, ".", ">"}, {"Slash", 191, "/", "?"},
	{"Space", 32, " ", " "},
}

// namedKeys are the keys that type no character, or a line break, and those of the number pad.
var namedKeys = []key{
	{Key: "Enter", Code: "Enter", KeyCode: 13, Text: "\r"},
	{Key: "Tab", Code: "Tab", KeyCode: 9},
	{Key: "Backspace", Code: "Backspace", KeyCode: 8},
	{Key: "Delete", Code: "Delete", KeyCode: 46},
	{Key: "Escape", Code: "Escape", KeyCode: 27},
	{Key: "Insert", Code: "Insert", KeyCode: 45},
	{Key: "Home", Code: "Home", KeyCode: 36},
	{Key: "End", Code: "End", KeyCode: 35},
	{Key: "PageUp", Code: "PageUp", KeyCode: 33},
	{Key: "PageDown", Code: "PageDown", KeyCode: 34},
	{Key: "ArrowLeft", Code: "ArrowLeft", KeyCode: 37},
	{Key: "ArrowUp", Code: "ArrowUp", KeyCode: 38},
	{Key: "ArrowRight", Code: "ArrowRight", KeyCode: 39},
	{Key: "ArrowDown", Code: "ArrowDown", KeyCode: 40},
	{Key: "Shift", Code: "ShiftLeft", KeyCode: 16, Location: 1},
	{Key: "Control", Code: "ControlLeft", KeyCode: 17, Location: 1},
	{Key: "Alt", Code: "AltLeft", KeyCode: 18, Location: 1},
	{Key: "Meta", Code: "MetaLeft", KeyCode: 91, Location: 1},
	{Key: "Shift", Code: "ShiftRight", KeyCode: 16, Location: 2},
	{Key: "Control", Code: "ControlRight", KeyCode: 17, Location: 2},
	{Key: "Alt", Code: "AltRight", KeyCode: 18, Location: 2},
	{Key: "Meta", Code: "MetaRight", KeyCode: 92, Location: 2},
	{Key: "AltGraph", Code: "AltGraph", KeyCode: 225},
	{Key: "CapsLock", Code: "CapsLock", KeyCode: 20},
	{Key: "NumLock", Code: "NumLock", KeyCode: 144},
	{Key: "ScrollLock", Code: "ScrollLock", KeyCode: 145},
	{Key: "Pause", Code: "Pause", KeyCode: 19},
	{Key: "PrintScreen", Code: "PrintScreen", KeyCode: 44},
	{Key: "ContextMenu", Code: "ContextMenu", KeyCode: 93},
	{Key: "Enter", Code: "NumpadEnter", KeyCode: 13, Text: "\r", Location: 3},
	{Key: "*", Code: "NumpadMultiply", KeyCode: 106, Text: "*", Location: 3},
	{Key: "+", Code: "NumpadAdd", KeyCode: 107, Text: "+", Location: 3},
	{Key: "-", Code: "NumpadSubtract", KeyCode: 109, Text: "-", Location: 3},
	{Key: ".", Code: "NumpadDecimal", KeyCode: 110, Text: ".", Location: 3},
	{Key: "/", Code: "NumpadDivide", KeyCode: 111, Text: "/", Location: 3},
}

// keyAliases maps common other names of keys, in lower case, to their names.
var keyAliases = map[string]string{
	"ctrl": "Control", "cmd": "Meta", "command": "Meta", "win": "Meta", "super": "Meta", "option": "Alt",
	"opt": "Alt", "controlormeta": "Control", "return": "Enter", "esc": "Escape", "del": "Delete", "ins": "Insert",
	"pgup": "PageUp", "pgdn": "PageDown", "pagedn": "PageDown", "up": "ArrowUp", "down": "ArrowDown",
	"left": "ArrowLeft", "right": "ArrowRight", "space": " ", "spacebar": " ", "plus": "+", "altgr": "AltGraph",
}

// keysByName maps names, DOM keys and DOM codes to keys.
var keysByName = sync.OnceValue(func() map[string]key {
	m := map[string]key{}
	add := func(k key, names ...string) {
		for _, n := range names {
			if _, ok := m[n]; !ok {
				m[n] = k
			}
		}
	}
	for c := 'a'; c <= 'z'; c++ {
		lower, upper := string(c), strings.ToUpper(string(c))
		add(key{lower, "Key" + upper, int(upper[0]), lower, 0}, lower, "Key"+upper)
		add(key{upper, "Key" + upper, int(upper[0]), upper, 0}, upper)
	}
	for _, s := range symbolKeys {
		add(key{s.plain, s.code, s.vk, s.plain, 0}, s.plain, s.code)
		add(key{s.shifted, s.code, s.vk, s.shifted, 0}, s.shifted)
	}
	for _, k := range namedKeys {
		add(k, k.Key, k.Code)
	}
	for i := range 10 {
		add(key{fmt.Sprint(i), fmt.Sprint("Numpad", i), 96 + i, fmt.Sprint(i), 3}, fmt.Sprint("Numpad", i))
	}
	for i := 1; i <= 24; i++ {
		name := fmt.Sprint("F", i)
		add(key{name, name, 111 + i, "", 0}, name)
	}
	return m
})

// findKey returns the key with a name. Names of more than one character are case-insensitive.
func findKey(name string) (key, bool) {
	all := keysByName()
	if k, ok := all[name]; ok {
		return k, true
	}
	if n, ok := keyAliases[strings.ToLower(name)]; ok {
		return all[n], true
	}
	if utf8.RuneCountInString(name) > 1 {
		for n, k := range all {
			if strings.EqualFold(n, name) {
				return k, true
			}
		}
	}
	return key{}, false
}

// splitKeys splits a combination such as Control+Shift+A into names. A plus sign at the end is the key itself.
func splitKeys(combination string) []string {
	var names []string
	rest := combination
	for {
		i := strings.IndexByte(rest, '+')
		if i <= 0 {
			return append(names, rest)
		}
		names = append(names, rest[:i])
		if rest = rest[i+1:]; rest == "" {
			return append(names, "+")
		}
	}
}

// UnknownKeyError is a key that does not exist.
type UnknownKeyError struct{ Name string }

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("unknown key %q; use names such as Enter, Tab, Escape, ArrowDown, F5, a, Control+a", e.Name)
}

// PressKey presses and releases a key or a combination such as Control+A.
func PressKey(ctx context.Context, t *tab.Tab, combination string) error {
	return PressKeys(ctx, t, splitKeys(combination))
}

// PressKeys presses keys in order and releases them in reverse order.
func PressKeys(ctx context.Context, t *tab.Tab, names []string) error {
	var list []key
	for _, name := range names {
		k, ok := findKey(name)
		if !ok && utf8.RuneCountInString(name) == 1 && len(names) == 1 {
			return insertText(ctx, t, name)
		}
		if !ok {
			return &UnknownKeyError{name}
		}
		list = append(list, k)
	}
	held := 0
	for _, k := range list {
		held |= modifiers[k.Key]
		if held&shiftKey != 0 {
			k = shifted(k)
		}
		if err := dispatchKey(ctx, t, true, k, held); err != nil {
			return err
		}
	}
	for i := len(list) - 1; i >= 0; i-- {
		k := list[i]
		if held&shiftKey != 0 {
			k = shifted(k)
		}
		held &^= modifiers[k.Key]
		if err := dispatchKey(ctx, t, false, k, held); err != nil {
			return err
		}
	}
	return nil
}

// holdKeys presses modifier keys such as Shift until release. Events must carry the modifiers held meanwhile.
func holdKeys(ctx context.Context, t *tab.Tab, names []string) (held int, release func() error, err error) {
	var list []key
	release = func() error {
		for i := len(list) - 1; i >= 0; i-- {
			held &^= modifiers[list[i].Key]
			if err := dispatchKey(ctx, t, false, list[i], held); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range names {
		k, ok := findKey(name)
		if !ok || modifiers[k.Key] == 0 {
			return held, release, &UnknownKeyError{name}
		}
		held |= modifiers[k.Key]
		if err := dispatchKey(ctx, t, true, k, held); err != nil {
			return held, release, err
		}
		list = append(list, k)
	}
	return held, release, nil
}

// shifted returns the key as it is while Shift is held.
func shifted(k key) key {
	if len(k.Key) == 1 && k.Key[0] >= 'a' && k.Key[0] <= 'z' {
		k.Key = strings.ToUpper(k.Key)
		k.Text = k.Key
		return k
	}
	for _, s := range symbolKeys {
		if s.code == k.Code {
			k.Key, k.Text = s.shifted, s.shifted
		}
	}
	return k
}

// editCommands are the commands that browsers on Linux run for keys with Control. Pages receive the events in any case.
var editCommands = map[string]string{"a": "selectAll"}

func dispatchKey(ctx context.Context, t *tab.Tab, down bool, k key, held int) error {
	kind, text := "keyUp", ""
	if down {
		kind = "rawKeyDown"
		if k.Text != "" && held&(controlKey|metaKey|altKey) == 0 {
			kind, text = "keyDown", k.Text
		}
	}
	params := map[string]any{
		"type": kind, "modifiers": held, "key": k.Key, "code": k.Code, "windowsVirtualKeyCode": k.KeyCode,
		"location": k.Location, "isKeypad": k.Location == 3,
	}
	if text != "" {
		params["text"], params["unmodifiedText"] = text, text
	}
	if c := editCommands[strings.ToLower(k.Key)]; down && held == controlKey && c != "" {
		params["commands"] = []string{c}
	}
	return t.Call(ctx, "Input.dispatchKeyEvent", params, nil)
}

// TypeText types a text key by key, with a delay between keys.
func TypeText(ctx context.Context, t *tab.Tab, text string, delay time.Duration) error {
	for i, r := range text {
		if i > 0 && delay > 0 {
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			}
		}
		name := string(r)
		switch r {
		case '\n', '\r':
			name = "Enter"
		case '\t':
			name = "Tab"
		}
		k, ok := findKey(name)
		if !ok {
			if err := insertText(ctx, t, name); err != nil {
				return err
			}
			continue
		}
		if err := dispatchKey(ctx, t, true, k, 0); err != nil {
			return err
		}
		if err := dispatchKey(ctx, t, false, k, 0); err != nil {
			return err
		}
	}
	return nil
}

// insertText inserts text as an input method does.
func insertText(ctx context.Context, t *tab.Tab, text string) error {
	return t.Call(ctx, "Input.insertText", map[string]any{"text": text}, nil)
}
