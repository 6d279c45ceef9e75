package display

import (
	"context"
	"errors"
	"image"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// clickPause is the time between the clicks of a double click. The server's clock has a resolution of milliseconds, and
// programs ignore a second press within the same one.
const clickPause = 15 * time.Millisecond

const (
	// pasteTime is how long a program may take to request the pasted text.
	pasteTime = 5 * time.Second
	// maxPasteTime is how long it may take on an overloaded machine.
	maxPasteTime = 20 * time.Second
	// pasteQuiet is how long there must be no requests before the clipboard may change again.
	pasteQuiet = 100 * time.Millisecond
)

const (
	// maxSteps bounds one scroll.
	maxSteps = 10_000
	// maxKeys bounds a shortcut.
	maxKeys = 16
)

// player performs actions on a display.
type player struct {
	*x11.Conn
	lend func(*loan)
}

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
	dx, dy := wheelSteps(a.DX), wheelSteps(a.DY)
	if max(dx, -dx, dy, -dy) > maxSteps {
		return op.Errorf(op.Invalid, "dx and dy exceed the limit of %d pixels", maxSteps*stepPixels)
	}
	return p.Conn.Scroll(ctx, dx, dy)
}

const (
	// stepPixels is how far a page moves by one step of the wheel.
	stepPixels = 120
	// maxFewSteps is the largest distance that means steps of the wheel: larger distances are pixels.
	maxFewSteps = 10
)

// wheelSteps converts a distance to steps of the wheel, at least one.
func wheelSteps(distance int) int {
	switch {
	case distance >= -maxFewSteps && distance <= maxFewSteps:
		return distance
	case distance < 0:
		return -wheelSteps(-distance)
	}
	return max(1, (distance+stepPixels/2)/stepPixels)
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
		return op.Errorf(op.Invalid, "too many keys in a shortcut (limit %d); use TYPING for text", maxKeys)
	}
	keys := slices.Clone(a.Keys)
	for i, key := range keys {
		// Ctrl+A means ctrl and a; callers name shift explicitly.
		if len(keys) > 1 && len(key) == 1 {
			keys[i] = strings.ToLower(key)
		}
	}
	return unknownKey(p.Chord(ctx, keys...))
}

func (a *Wait) perform(context.Context, *player) error { return nil }

func point(x, y float64) image.Point {
	// Positions far outside select the edge; the bound prevents an overflow.
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

// moveTo moves the pointer. Either coordinate may be missing. A position outside of the display adds a hint.
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
		addHint(ctx, "Position %d,%d is outside the %dx%d display; the pointer stopped at the edge.", at.X, at.Y, size.X, size.Y)
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

// release releases a button even if the caller has disconnected: a pressed button would break every later action.
func (p *player) release(ctx context.Context, b x11.Button) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return p.Release(ctx, b)
}

// latency measures how long the focused program takes to handle its pending events, at most one second.
func (p *player) latency(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := p.Settle(short); err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
		return 0, err
	}
	return time.Since(begin), nil
}

// selections are the selections that programs paste from.
var selections = []x11.Selection{x11.Clipboard, x11.Primary}

// paste offers the text, presses shift+insert, which pastes in browsers and terminals, and waits until a program has read the
// text. The previous content is restored later.
func (p *player) paste(ctx context.Context, text string) (err error) {
	l := &loan{before: map[x11.Selection]x11.Content{}, offers: map[x11.Selection]*x11.Offer{}}
	for _, sel := range selections {
		if l.before[sel], err = p.save(ctx, sel); err != nil {
			return err
		}
	}
	defer func() {
		if err == nil {
			p.lend(l)
		} else {
			err = errors.Join(err, l.end(ctx, p.Conn))
		}
	}()
	var offers []*x11.Offer
	for _, sel := range selections {
		offer, err := p.SetSelection(ctx, sel, x11.Text(text))
		if err != nil {
			return err
		}
		offers, l.offers[sel] = append(offers, offer), offer
	}
	if err := p.Chord(ctx, "shift", "insert"); err != nil {
		return err
	}
	fetched, err := p.awaitFetch(ctx, offers)
	if err != nil {
		return err
	}
	if !fetched {
		addHint(ctx, "No program accepted the text. Click a text field first, or set use_clipboard to false.")
		return nil
	}
	if l.latency, err = p.latency(ctx); err != nil {
		return err
	}
	for _, o := range offers {
		if err := o.WaitQuiet(ctx, pasteQuiet, l.latency); err != nil {
			return err
		}
	}
	return nil
}

// awaitFetch reports whether a program reads one of the offers. A program with a high latency gets more time.
func (p *player) awaitFetch(ctx context.Context, offers []*x11.Offer) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read := make(chan error, len(offers))
	for _, o := range offers {
		go func() { read <- o.WaitRead(ctx, 0) }()
	}
	began := time.Now()
	limit := pasteTime
	for pending := len(offers); pending > 0 && time.Since(began) < limit; {
		select {
		case err := <-read:
			if err == nil {
				return true, nil
			}
			pending--
		case <-time.After(pasteTime / 8):
			slow, err := p.latency(ctx)
			if err != nil {
				return false, err
			}
			limit = max(limit, min(40*slow, maxPasteTime))
		}
	}
	return false, ctx.Err()
}

// save reads the content of a selection. If its owner does not respond, it returns no content and no error, so that typing
// still works.
func (p *player) save(ctx context.Context, sel x11.Selection) (x11.Content, error) {
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

// unknownKey adds the list of valid names to an error about an unknown key.
func unknownKey(err error) error {
	unknown, ok := errors.AsType[*x11.UnknownKeyError](err)
	if !ok {
		return err
	}
	return op.Errorf(op.Invalid, "unknown key %q; use a single character or one of %s", unknown.Name, strings.Join(x11.KeyNames(), ", "))
}
