package desktop

import (
	"context"
	"errors"
	"fmt"
	"image"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// tool is a run of xdotool. Its arguments are a sequence of commands.
type tool struct {
	*command
	conn *x11.Conn
	rest []string
	down bool // a button remains pressed
}

// find returns a command that clients use, or nil.
func (t *tool) find(name string) func(context.Context) error {
	return map[string]func(context.Context) error{
		"click": t.click, "mousedown": t.press, "mouseup": t.release, "mousemove": t.move, "getmouselocation": t.location,
		"type": t.typeText, "key": t.key, "getwindowfocus": t.focused, "getactivewindow": t.focused, "search": t.search,
		"getwindowname": t.windowName,
	}[name]
}

func runTool(ctx context.Context, c *command) (err error) {
	t := &tool{command: c, rest: c.args}
	if len(t.rest) == 0 {
		return errors.New("missing command; use one such as click 1")
	}
	if t.conn, err = c.dial(ctx, ""); err != nil {
		return err
	}
	for err == nil && len(t.rest) > 0 {
		name := t.rest[0]
		run := t.find(name)
		if t.rest = t.rest[1:]; run == nil {
			err = fmt.Errorf("unsupported command %.60q; install the package xdotool", name)
			break
		}
		err = run(ctx)
	}
	if err == nil {
		err = t.conn.Sync(ctx)
	}
	if t.down {
		t.conn.Detach()
	} else {
		t.conn.Close()
	}
	return err
}

// flags consumes the options before the arguments. Those in with have a value.
func (t *tool) flags(with ...string) map[string]string {
	got := map[string]string{}
	for len(t.rest) > 0 && strings.HasPrefix(t.rest[0], "--") {
		name := t.rest[0]
		t.rest = t.rest[1:]
		if name == "--" {
			break
		}
		got[name] = ""
		for _, w := range with {
			if w == name && len(t.rest) > 0 {
				got[name], t.rest = t.rest[0], t.rest[1:]
			}
		}
	}
	return got
}

// number consumes a number.
func (t *tool) number(what string, low, high int) (int, error) {
	if len(t.rest) == 0 {
		return 0, fmt.Errorf("missing %s", what)
	}
	text := t.rest[0]
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil || n < int64(low) || n > int64(high) {
		return 0, fmt.Errorf("invalid %s %.60q; use a number from %d to %d", what, text, low, high)
	}
	t.rest = t.rest[1:]
	return int(n), nil
}

// maxRepeat bounds the clicks of a command.
const maxRepeat = 10_000

func (t *tool) click(ctx context.Context) error {
	set := t.flags("--repeat", "--delay")
	repeat := 1
	if text, ok := set["--repeat"]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > maxRepeat {
			return fmt.Errorf("invalid --repeat %.60q; use a number up to %d", text, maxRepeat)
		}
		repeat = n
	}
	n, err := t.number("button", 1, 9)
	for i := 0; i < repeat && err == nil; i++ {
		if err = t.conn.Press(ctx, x11.Button(n)); err == nil {
			err = t.conn.Release(ctx, x11.Button(n))
		}
	}
	return err
}

func (t *tool) press(ctx context.Context) error {
	t.flags()
	n, err := t.number("button", 1, 9)
	if err != nil {
		return err
	}
	t.down = true
	return t.conn.Press(ctx, x11.Button(n))
}

func (t *tool) release(ctx context.Context) error {
	t.flags()
	n, err := t.number("button", 1, 9)
	if err != nil {
		return err
	}
	return t.conn.Release(ctx, x11.Button(n))
}

func (t *tool) move(ctx context.Context) error {
	t.flags()
	const far = 1 << 15
	x, err := t.number("x", -far, far)
	if err != nil {
		return err
	}
	y, err := t.number("y", -far, far)
	if err != nil {
		return err
	}
	return t.conn.Move(ctx, image.Pt(x, y))
}

func (t *tool) location(ctx context.Context) error {
	t.flags()
	at, err := t.conn.Pointer(ctx)
	if err == nil {
		_, err = fmt.Fprintf(t.Out, "x:%d y:%d screen:0 window:0\n", at.X, at.Y)
	}
	return err
}

func (t *tool) typeText(ctx context.Context) error {
	set := t.flags("--delay")
	delay := 12 * time.Millisecond
	if text, ok := set["--delay"]; ok {
		ms, err := strconv.Atoi(text)
		if err != nil || ms < 0 {
			return fmt.Errorf("invalid --delay %.60q; use milliseconds", text)
		}
		delay = time.Duration(ms) * time.Millisecond
	}
	text := strings.Join(t.rest, " ")
	t.rest = nil
	if err := t.conn.Type(ctx, text, delay); err != nil {
		return err
	}
	return t.conn.Settle(ctx) // until the window has received keys with a temporary mapping
}

func (t *tool) key(ctx context.Context) error {
	t.flags("--delay")
	if len(t.rest) == 0 {
		return errors.New("missing key; use one such as Return or ctrl+c")
	}
	for len(t.rest) > 0 && t.find(t.rest[0]) == nil {
		names := strings.Split(t.rest[0], "+")
		for i, name := range names {
			names[i] = keyName(name)
		}
		if err := t.conn.Chord(ctx, names...); err != nil {
			return err
		}
		t.rest = t.rest[1:]
	}
	return nil
}

// symNames translates X's names of keys to those of package x11.
var symNames = map[string]string{
	"alt_l": "altleft", "alt_r": "altright", "control_l": "ctrlleft", "control_r": "ctrlright", "shift_l": "shiftleft",
	"shift_r": "shiftright", "super_l": "winleft", "super_r": "winright", "meta_l": "win", "meta_r": "winright",
	"caps_lock": "capslock", "num_lock": "numlock", "scroll_lock": "scrolllock", "prior": "pageup", "next": "pagedown",
	"minus": "-", "plus": "+", "equal": "=", "comma": ",", "period": ".", "slash": "/", "backslash": "\\", "semicolon": ";",
	"colon": ":", "apostrophe": "'", "quotedbl": "\"", "grave": "`", "bracketleft": "[", "bracketright": "]", "underscore": "_",
	"exclam": "!", "at": "@", "numbersign": "#", "dollar": "$", "percent": "%", "ampersand": "&", "asterisk": "*",
	"parenleft": "(", "parenright": ")", "question": "?", "less": "<", "greater": ">", "bar": "|", "asciitilde": "~",
}

// keyName translates an X name of a key.
func keyName(name string) string {
	if len(name) == 1 {
		return name
	}
	lower := strings.ToLower(name)
	if other, ok := symNames[lower]; ok {
		return other
	}
	return lower
}

func (t *tool) focused(ctx context.Context) error {
	t.flags()
	id, err := t.conn.Focused(ctx)
	if err == nil {
		_, err = fmt.Fprintln(t.Out, id)
	}
	return err
}

func (t *tool) search(ctx context.Context) error {
	set := t.flags()
	if len(t.rest) == 0 {
		return errors.New("missing pattern; use one such as search --class chromium")
	}
	pattern, err := regexp.Compile("(?i)" + t.rest[0])
	if err != nil {
		return fmt.Errorf("invalid pattern: %w", err)
	}
	t.rest = t.rest[1:]
	list, err := t.conn.Windows(ctx)
	if err != nil {
		return err
	}
	_, visible := set["--onlyvisible"]
	_, class := set["--class"]
	_, name := set["--name"]
	found := 0
	for _, w := range list {
		if visible && !w.Visible {
			continue
		}
		if (class || !name) && pattern.MatchString(w.Class) || (name || !class) && pattern.MatchString(w.Title) {
			found++
			fmt.Fprintln(t.Out, w.ID)
		}
	}
	if found == 0 {
		return errors.New("no such window")
	}
	return nil
}

func (t *tool) windowName(ctx context.Context) error {
	t.flags()
	id, err := t.number("window", 1, 1<<32-1)
	if err != nil {
		return err
	}
	w, err := t.conn.Window(ctx, uint32(id))
	if err == nil {
		_, err = fmt.Fprintln(t.Out, w.Title)
	}
	return err
}
