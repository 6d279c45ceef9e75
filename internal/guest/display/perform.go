package display

import (
	"context"
	"errors"
	"image"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/x11"
)

// A drag is as slow as this because programs take a press, a jump and a release for a click: they must see the button go
// down, the pointer leave its place little by little, and arrive, before it goes up.
const (
	dragSteps = 20
	dragPause = 12 * time.Millisecond
	dragHold  = 60 * time.Millisecond
)

// clickPause is between the clicks of a double click: the server's clock counts milliseconds, and programs take two presses
// in the same one for the same press.
const clickPause = 15 * time.Millisecond

const (
	// pasteTime is how long a program may take to ask for a text that is being pasted.
	pasteTime = 3 * time.Second
	// pasteQuiet is how long it must have stopped asking before the clipboard may change again.
	pasteQuiet = 100 * time.Millisecond
)

const (
	// maxSteps bounds one turn of the wheel.
	maxSteps = 10_000
	// maxKeys bounds a shortcut.
	maxKeys = 16
)

// player performs actions on a display.
type player struct{ *x11.Conn }

func (a *MoveTo) kind() string      { return a.Kind }
func (a *MoveRel) kind() string     { return a.Kind }
func (a *Click) kind() string       { return a.Kind }
func (a *MouseDown) kind() string   { return a.Kind }
func (a *MouseUp) kind() string     { return a.Kind }
func (a *RightClick) kind() string  { return a.Kind }
func (a *DoubleClick) kind() string { return a.Kind }
func (a *DragTo) kind() string      { return a.Kind }
func (a *DragRel) kind() string     { return a.Kind }
func (a *Scroll) kind() string      { return a.Kind }
func (a *Typing) kind() string      { return a.Kind }
func (a *Press) kind() string       { return a.Kind }
func (a *KeyDown) kind() string     { return a.Kind }
func (a *KeyUp) kind() string       { return a.Kind }
func (a *Hotkey) kind() string      { return a.Kind }
func (a *Wait) kind() string        { return a.Kind }

func (a *MoveTo) perform(ctx context.Context, p *player) error {
	return p.moveTo(ctx, &a.X, &a.Y)
}

func (a *MoveRel) perform(ctx context.Context, p *player) error {
	return p.MoveBy(ctx, point(a.X, a.Y))
}

func (a *Click) perform(ctx context.Context, p *player) error {
	return p.click(ctx, a.X, a.Y, button(a.Button), a.Clicks)
}

func (a *RightClick) perform(ctx context.Context, p *player) error {
	return p.click(ctx, a.X, a.Y, x11.Right, 1)
}

func (a *DoubleClick) perform(ctx context.Context, p *player) error {
	return p.click(ctx, a.X, a.Y, x11.Left, 2)
}

func (a *MouseDown) perform(ctx context.Context, p *player) error {
	return p.Conn.Press(ctx, button(a.Button))
}

func (a *MouseUp) perform(ctx context.Context, p *player) error {
	return p.Release(ctx, button(a.Button))
}

func (a *DragTo) perform(ctx context.Context, p *player) error {
	return p.drag(ctx, func(image.Point) image.Point { return point(a.X, a.Y) })
}

func (a *DragRel) perform(ctx context.Context, p *player) error {
	return p.drag(ctx, func(from image.Point) image.Point { return from.Add(point(a.X, a.Y)) })
}

func (a *Scroll) perform(ctx context.Context, p *player) error {
	if max(a.DX, -a.DX, a.DY, -a.DY) > maxSteps {
		return op.Errorf(op.Invalid, "dx and dy are steps of the wheel; at most %d at once", maxSteps)
	}
	return p.Conn.Scroll(ctx, a.DX, -a.DY)
}

func (a *Typing) perform(ctx context.Context, p *player) error {
	if a.Clipboard == nil || *a.Clipboard {
		return p.paste(ctx, a.Text)
	}
	return p.Type(ctx, a.Text, 0)
}

func (a *Press) perform(ctx context.Context, p *player) error {
	return unknownKey(p.Chord(ctx, a.Key))
}

func (a *KeyDown) perform(ctx context.Context, p *player) error {
	return unknownKey(p.Conn.KeyDown(ctx, a.Key))
}

func (a *KeyUp) perform(ctx context.Context, p *player) error {
	return unknownKey(p.Conn.KeyUp(ctx, a.Key))
}

func (a *Hotkey) perform(ctx context.Context, p *player) error {
	if len(a.Keys) > maxKeys {
		return op.Errorf(op.Invalid, "a shortcut has at most %d keys; use TYPING for text", maxKeys)
	}
	keys := slices.Clone(a.Keys)
	for i, key := range keys {
		// Ctrl+A is what keyboards call ctrl and a; who wants shift as well names it.
		if len(keys) > 1 && len(key) == 1 {
			keys[i] = strings.ToLower(key)
		}
	}
	return unknownKey(p.Chord(ctx, keys...))
}

func (a *Wait) perform(context.Context, *player) error { return nil }

func point(x, y float64) image.Point {
	// Far outside is as good as at the edge, and cannot overflow.
	clamp := func(v float64) int { return int(math.Round(min(max(v, -1e5), 1e5))) }
	return image.Pt(clamp(x), clamp(y))
}

func button(name string) x11.Button {
	switch name {
	case "right":
		return x11.Right
	case "middle":
		return x11.Middle
	}
	return x11.Left
}

// moveTo moves to a position of which either coordinate may be missing, and says when it lies outside.
func (p *player) moveTo(ctx context.Context, x, y *float64) error {
	if x == nil && y == nil {
		return nil
	}
	at, err := p.Pointer(ctx)
	if err != nil {
		return err
	}
	if x != nil {
		at.X = point(*x, 0).X
	}
	if y != nil {
		at.Y = point(0, *y).Y
	}
	size, err := p.Size(ctx)
	if err != nil {
		return err
	}
	if !at.In(image.Rectangle{Max: size}) {
		hintf(ctx, "The position %d,%d lies outside of the %dx%d display; the pointer stopped at its edge.", at.X, at.Y, size.X, size.Y)
	}
	return p.Move(ctx, at)
}

func (p *player) click(ctx context.Context, x, y *float64, b x11.Button, times int) error {
	if err := p.moveTo(ctx, x, y); err != nil {
		return err
	}
	for i := range times {
		if i > 0 {
			if err := sleep(ctx, clickPause); err != nil {
				return err
			}
		}
		if err := p.Conn.Press(ctx, b); err != nil {
			return err
		}
		if err := p.release(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// release lets go of a button even if the caller has left meanwhile: one that stays down spoils every later action.
func (p *player) release(ctx context.Context, b x11.Button) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return p.Release(ctx, b)
}

// drag holds the left button from where the pointer is to where to says. Programs begin a drag some time after they saw the
// pointer leave, and miss its end if that comes first; so it goes as fast as they answer.
func (p *player) drag(ctx context.Context, to func(from image.Point) image.Point) (err error) {
	from, err := p.Pointer(ctx)
	if err != nil {
		return err
	}
	way := to(from).Sub(from)
	if err := p.Conn.Press(ctx, x11.Left); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.release(ctx, x11.Left)) }()
	slow, err := p.latency(ctx)
	if err != nil {
		return err
	}
	if err := sleep(ctx, max(dragHold, 2*slow)); err != nil {
		return err
	}
	for i := 1; i <= dragSteps; i++ {
		if err := p.Move(ctx, from.Add(image.Pt(way.X*i/dragSteps, way.Y*i/dragSteps))); err != nil {
			return err
		}
		pause := max(dragPause, slow/4)
		if i == dragSteps/4 { // the drag begins about now
			pause = max(dragHold, 4*slow)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	if slow, err = p.latency(ctx); err != nil {
		return err
	}
	return sleep(ctx, max(dragHold, 4*slow))
}

// latency is how long the program with the focus takes to handle what it was sent, within reason.
func (p *player) latency(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := p.Settle(short); err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
		return 0, err
	}
	return time.Since(begin), nil
}

// selections are the two places that programs paste from.
var selections = []x11.Selection{x11.Clipboard, x11.Primary}

// paste offers the text, presses the shortcut that browsers and terminals alike paste on, waits until the text was fetched,
// and puts back what was there before.
func (p *player) paste(ctx context.Context, text string) (err error) {
	before := map[x11.Selection]x11.Content{}
	for _, sel := range selections {
		if before[sel], err = p.keep(ctx, sel); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, p.restore(ctx, before)) }()
	var offers []*x11.Offer
	for _, sel := range selections {
		offer, err := p.SetSelection(ctx, sel, x11.Text(text))
		if err != nil {
			return err
		}
		offers = append(offers, offer)
	}
	if err := p.Chord(ctx, "shift", "insert"); err != nil {
		return err
	}
	if !fetched(ctx, offers) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		hintf(ctx, "No program has taken the text: click into a field that takes text first, or send use_clipboard false.")
		return nil
	}
	for _, o := range offers {
		if err := o.WaitQuiet(ctx, pasteQuiet); err != nil {
			return err
		}
	}
	return nil
}

// fetched waits until a program has read one of the offers.
func fetched(ctx context.Context, offers []*x11.Offer) bool {
	ctx, cancel := context.WithTimeout(ctx, pasteTime)
	defer cancel()
	read := make(chan bool, len(offers))
	for _, o := range offers {
		go func() { read <- o.WaitRead(ctx, 0) == nil }()
	}
	any := false
	for range offers {
		if <-read {
			any = true
			cancel()
		}
	}
	return any
}

// keep reads what a selection holds. An owner that does not answer must not keep a text from being typed.
func (p *player) keep(ctx context.Context, sel x11.Selection) (x11.Content, error) {
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	content, err := p.SelectionContent(short, sel)
	switch {
	case err == nil || errors.Is(err, x11.ErrNoContent) || ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return content, nil
	default:
		return nil, err
	}
}

func (p *player) restore(ctx context.Context, before map[x11.Selection]x11.Content) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var errs []error
	for sel, content := range before {
		if len(content) == 0 {
			errs = append(errs, p.ClearSelection(ctx, sel))
			continue
		}
		_, err := p.SetSelection(ctx, sel, content)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// unknownKey turns the error about a name that no key has into one that says which there are.
func unknownKey(err error) error {
	unknown, ok := errors.AsType[*x11.UnknownKeyError](err)
	if !ok {
		return err
	}
	return op.Errorf(op.Invalid, "there is no key %q; use a single character or one of %s", unknown.Name, strings.Join(x11.KeyNames(), ", "))
}
