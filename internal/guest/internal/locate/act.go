package locate

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// Press is how a mouse button is pressed.
type Press struct {
	Button    string // left, right or middle
	Count     int
	Keys      []string // held during the click, such as Shift
	At        *Point   // relative to the element; nil: its center
	modifiers int      // of Keys
}

var buttons = map[string]int{"left": 1, "right": 2, "middle": 4}

type mouseEvent struct {
	Type       string  `json:"type"`
	X          float64 `json:"x"`
	Y          float64 `json:"y"`
	Button     string  `json:"button,omitempty"`
	Buttons    int     `json:"buttons"`
	ClickCount int     `json:"clickCount,omitempty"`
	DeltaX     float64 `json:"deltaX"`
	DeltaY     float64 `json:"deltaY"`
	Modifiers  int     `json:"modifiers,omitempty"`
	Force      float64 `json:"force,omitempty"`
}

// send sends input events in order and waits until the page has handled all of them.
func send(ctx context.Context, t *tab.Tab, events ...mouseEvent) error {
	var sent []*cdp.Pending
	for _, e := range events {
		p, err := t.Browser().Client().Begin(ctx, t.Session(), "Input.dispatchMouseEvent", e)
		if err != nil {
			return err
		}
		sent = append(sent, p)
	}
	for _, p := range sent {
		if err := p.Wait(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

func pressEvents(at Point, p Press) []mouseEvent {
	var events []mouseEvent
	for n := 1; n <= p.Count; n++ {
		events = append(events,
			mouseEvent{Type: "mousePressed", X: at.X, Y: at.Y, Button: p.Button, Buttons: buttons[p.Button],
				ClickCount: n, Modifiers: p.modifiers, Force: 0.5},
			mouseEvent{Type: "mouseReleased", X: at.X, Y: at.Y, Button: p.Button, ClickCount: n, Modifiers: p.modifiers})
	}
	return events
}

// send clicks at a point while the keys are held.
func (p Press) send(ctx context.Context, t *tab.Tab, at Point) error {
	held, release, err := holdKeys(ctx, t, p.Keys)
	if err == nil {
		t.RecordPointer(at)
		p.modifiers = held
		err = send(ctx, t, append([]mouseEvent{{Type: "mouseMoved", X: at.X, Y: at.Y, Modifiers: held}}, pressEvents(at, p)...)...)
	}
	if rerr := release(); err == nil {
		err = rerr
	}
	return err
}

// ClickAt clicks at a point of the viewport.
func ClickAt(ctx context.Context, t *tab.Tab, at Point, p Press) error {
	if err := p.send(ctx, t, at); err != nil && !tab.IsStale(err) {
		return err
	}
	return Settle(ctx, t)
}

// Click clicks an element.
func Click(ctx context.Context, t *tab.Tab, target Target, p Press) (Element, error) {
	return point(ctx, t, target, spec{Need: clickable, Strict: true, At: p.At},
		func(ctx context.Context, at Point) error { return p.send(ctx, t, at) }, false)
}

// Hover moves the mouse over an element.
func Hover(ctx context.Context, t *tab.Tab, target Target) (Element, error) {
	return point(ctx, t, target, spec{Need: hoverable, Strict: true},
		func(ctx context.Context, at Point) error { return HoverAt(ctx, t, at) }, true)
}

// HoverAt moves the mouse to a point of the viewport.
func HoverAt(ctx context.Context, t *tab.Tab, at Point) error {
	t.RecordPointer(at)
	return send(ctx, t, mouseEvent{Type: "mouseMoved", X: at.X, Y: at.Y})
}

// restoreHover moves the mouse along its last positions again. A window that opens over the page, such as the list of a field
// in another tab, ends the hover and hides what the page shows for it. The last position may be over an element that only
// the position before it has opened.
func restoreHover(ctx context.Context, t *tab.Tab) error {
	var events []mouseEvent
	for _, at := range t.PointerPath() {
		events = append(events, mouseEvent{Type: "mouseMoved", X: at.X - 1, Y: at.Y}, mouseEvent{Type: "mouseMoved", X: at.X, Y: at.Y})
	}
	return send(ctx, t, events...)
}

type verdict struct {
	Seen bool   `json:"seen"`
	Over bool   `json:"over"` // the mouse is over the element, or the element was removed
	By   string `json:"by"`
}

// hoverRounds is how often the mouse is moved over an element that does not receive the hover, such as one that moves away.
const hoverRounds = 5

// point sends mouse events to an element and repeats them until they reach it. The engine stops events that would hit
// another element.
func point(ctx context.Context, t *tab.Tab, target Target, sp spec, emit func(context.Context, Point) error, move bool) (Element, error) {
	last := status{S: "none"}
	path := t.PointerPath()
	for round := 0; ; round++ {
		sp.Round = round
		el, err := prepareAgain(ctx, t, target, sp, last)
		if err != nil {
			return el, err
		}
		got, err := deliver(ctx, t, el, emit, move)
		switch {
		case err == nil && got.By == "" && (!move && got.Seen || move && (got.Over || round >= hoverRounds)):
			return el, Settle(ctx, t)
		case err != nil && !tab.IsStale(err):
			if ctx.Err() != nil {
				return el, op.Errorf(op.Unavailable, "timed out: the page did not handle the event on %s in time; its script may be busy", el.What)
			}
			return el, err
		case err == nil:
			last = status{S: "wait", Element: el, Why: "covered by another element", By: got.By}
			if !move || got.By != "" {
				t.SetPointerPath(path) // the element may only show while the mouse is there
			}
			if got.By == "" {
				last.Why = "not reached by events at its position"
			}
		}
	}
}

// deliver sends the events once and returns where they arrived.
func deliver(ctx context.Context, t *tab.Tab, el Element, emit func(context.Context, Point) error, move bool) (verdict, error) {
	at := Point{X: el.X, Y: el.Y}
	if el.Frame != t.Main() {
		_, cover, err := OffsetOf(ctx, el.Frame, &at)
		if err != nil || cover != "" {
			return verdict{Seen: true, By: cover}, err
		}
		if !move {
			if got, err := moveOver(ctx, t, el, at); err != nil || !got.Seen || got.By != "" {
				return got, err
			}
		}
	}
	if err := Run(ctx, el.Frame, nil, "arm", el.ID, move); err != nil {
		return verdict{}, err
	}
	document := el.Frame.Document()
	err := emit(ctx, at)
	if err != nil && !tab.IsStale(err) {
		return verdict{}, err
	}
	if err != nil || el.Frame.Document() != document {
		return verdict{Seen: true, Over: true}, nil //nolint:nilerr // the events replaced the document
	}
	var got verdict
	if err := Run(ctx, el.Frame, &got, "disarm"); err != nil {
		if tab.IsStale(err) {
			return verdict{Seen: true, Over: true}, nil
		}
		return verdict{}, err
	}
	return got, nil
}

// moveOver moves the mouse over an element of a frame and returns where the events arrived. For a short time after scrolling,
// the browser may send events for the frame to the page around it; a click there would be lost.
func moveOver(ctx context.Context, t *tab.Tab, el Element, at Point) (verdict, error) {
	var got verdict
	if err := Run(ctx, el.Frame, nil, "arm", el.ID, true); err != nil {
		return got, err
	}
	if err := send(ctx, t, mouseEvent{Type: "mouseMoved", X: at.X - 1, Y: at.Y},
		mouseEvent{Type: "mouseMoved", X: at.X, Y: at.Y}); err != nil {
		return got, err
	}
	return got, Run(ctx, el.Frame, &got, "disarm")
}

// settleTime is how long an action waits for a navigation that it started.
const settleTime = 10 * time.Second

// Settle waits for the navigation that an action started. The next operation waits for a slow one.
func Settle(ctx context.Context, t *tab.Tab) error {
	if !t.Navigating() {
		return nil
	}
	inner, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if err := t.AwaitSettled(inner); err != nil && inner.Err() == nil {
		return err
	}
	return nil
}

// Fill replaces the text or value of a field.
func Fill(ctx context.Context, t *tab.Tab, target Target, text string) (Element, error) {
	for {
		el, err := prepare(ctx, t, target, spec{Need: fillable, Strict: true, Retarget: "control"})
		if err != nil {
			return el, err
		}
		var st status
		if err := Run(ctx, el.Frame, &st, "beginFill", el.ID, text); err != nil {
			if tab.IsStale(err) && ctx.Err() == nil {
				continue
			}
			return el, err
		}
		switch st.S {
		case "bad":
			return el, op.Errorf(op.Invalid, "%s", st.Why)
		case "stale":
			continue
		case "insert":
			if err := replaceSelection(ctx, t, text); err != nil {
				return el, err
			}
		}
		return el, Settle(ctx, t)
	}
}

// replaceSelection replaces the selected text with the same events as typing.
func replaceSelection(ctx context.Context, t *tab.Tab, text string) error {
	if text == "" {
		return PressKey(ctx, t, "Delete")
	}
	return insertText(ctx, t, text)
}

// Focus focuses an element and returns when it can receive keys.
func Focus(ctx context.Context, t *tab.Tab, target Target) (Element, error) {
	el, err := prepare(ctx, t, target, spec{Need: []string{"visible"}, Strict: true, Retarget: "control"})
	if err != nil {
		return el, err
	}
	return el, Run(ctx, el.Frame, nil, "focus", el.ID)
}

// Choice selects an option of a <select> by one of its properties.
type Choice struct {
	Value *string `json:"value,omitempty"`
	Label *string `json:"label,omitempty"`
	Index *int    `json:"index,omitempty"`
}

// Choose selects options and returns the selected values.
func Choose(ctx context.Context, t *tab.Tab, target Target, choices []Choice) ([]string, error) {
	last := status{S: "none"}
	for {
		el, err := prepare(ctx, t, target, spec{Need: choosable, Strict: true, Retarget: "control"})
		if err != nil {
			if last.S == "wait" && ctx.Err() != nil {
				err = explainTimeout(ctx, t, target, last)
			}
			return nil, err
		}
		var st struct {
			status
			Values []string `json:"values"`
		}
		if err := Run(ctx, el.Frame, &st, "choose", el.ID, choices); err != nil {
			if tab.IsStale(err) && ctx.Err() == nil {
				continue
			}
			return nil, err
		}
		switch st.S {
		case "bad":
			return nil, op.Errorf(op.Invalid, "%s", st.Why)
		case "done":
			return st.Values, Settle(ctx, t)
		}
		last = st.status
		if pause(ctx, 50*time.Millisecond) != nil { // the page may add the option later
			return nil, explainTimeout(ctx, t, target, last)
		}
	}
}

// Check checks or unchecks a checkbox, radio button or switch, by a click if necessary.
func Check(ctx context.Context, t *tab.Tab, target Target, want bool) error {
	el, err := prepare(ctx, t, target, spec{Need: attached, Strict: true, Retarget: "control"})
	if err != nil {
		return err
	}
	var state *struct{ Checked, Radio bool }
	if err := Run(ctx, el.Frame, &state, "checkedOf", el.ID); err != nil {
		return err
	}
	switch {
	case state == nil:
		return op.Errorf(op.Invalid, "%s is not a checkbox, radio button or switch", el.What)
	case state.Checked == want:
		return nil
	case state.Radio && !want:
		return op.Errorf(op.Invalid, "a radio button cannot be unchecked; check another button of its group")
	}
	// Click the element that was examined, or its label if the label covers it.
	held := Target{Listed: &Listed{Frame: el.Frame, Document: el.Frame.Document(), ID: el.ID}, Selector: target.Selector}
	if _, err := clickOrLabel(ctx, t, held); err != nil {
		return err
	}
	if err := Run(ctx, el.Frame, &state, "checkedOf", el.ID); err == nil && state != nil && state.Checked != want {
		return op.Errorf(op.Conflict, "clicked %s, but the page did not change its state", el.What)
	}
	return nil
}

// labelTime is how long a hidden checkbox may take to become visible before its label is clicked instead.
const labelTime = 300 * time.Millisecond

// clickOrLabel clicks a checkbox, or its label if the label covers it or the checkbox is hidden. It decides before the click:
// a click that timed out may have been sent, and a second one would undo it.
func clickOrLabel(ctx context.Context, t *tab.Tab, target Target) (Element, error) {
	var label int
	l := target.Listed
	if err := Run(ctx, l.Frame, &label, "labelOf", l.ID); err == nil && label != 0 {
		st, err := tryFrame(ctx, l.Frame, spec{Need: []string{"visible", "view", "hit"}, ID: l.ID, Patience: int(labelTime.Milliseconds())})
		if err == nil && st.S == "wait" {
			target.Listed = &Listed{Frame: l.Frame, Document: l.Document, ID: label}
		}
	}
	return Click(ctx, t, target, Press{Button: "left", Count: 1})
}

// ScrollTo scrolls an element into view.
func ScrollTo(ctx context.Context, t *tab.Tab, target Target) (Element, error) {
	return prepare(ctx, t, target, spec{Need: append([]string{"view"}, scrolled...), Strict: true})
}

// Upload sets the files of a file input, or of the file dialog that a click on the element opens.
func Upload(ctx context.Context, t *tab.Tab, target Target, files []string) error {
	el, err := prepare(ctx, t, target, spec{Need: attached, Strict: true, Retarget: "control"})
	if err != nil {
		return err
	}
	client := t.Browser().Client()
	var isInput bool
	if err := Run(ctx, el.Frame, &isInput, "isFileInput", el.ID); err != nil {
		return err
	}
	if isInput {
		object, err := handle(ctx, el.Frame, "held", el.ID)
		if err != nil {
			return err
		}
		return toFileError(client.Call(ctx, el.Frame.Session(), "DOM.setFileInputFiles",
			map[string]any{"files": files, "objectId": object.ObjectID}, nil))
	}
	restore, err := t.InterceptChooser(ctx)
	if err != nil {
		return err
	}
	defer restore()
	if _, err := Click(ctx, t, target, Press{Button: "left", Count: 1}); err != nil {
		return err
	}
	s, node, err := t.AwaitChooser(ctx)
	if err != nil {
		return op.Errorf(op.Invalid, "%s is not a file input, and a click on it did not open a file dialog", el.What)
	}
	return toFileError(client.Call(ctx, s, "DOM.setFileInputFiles", map[string]any{"files": files, "backendNodeId": node}, nil))
}

func toFileError(err error) error {
	if e, ok := errors.AsType[*cdp.Error](err); ok && strings.Contains(e.Message, "multiple") {
		return op.Errorf(op.Invalid, "the file input accepts only one file")
	}
	return err
}

// Scrolled is the position of a scrollable element.
type Scrolled struct {
	X     float64 `json:"x"`
	Y     float64 `json:"y"`
	AtEnd bool    `json:"at_end" doc:"Whether the end is reached"`
}

// Wheel turns the mouse wheel over an element, or over the center of the page, and returns when scrolling has ended.
func Wheel(ctx context.Context, t *tab.Tab, target *Target, dx, dy float64) (Scrolled, error) {
	f, id := t.Main(), 0
	var at Point
	if target != nil {
		el, err := ScrollTo(ctx, t, *target)
		if err != nil {
			return Scrolled{}, err
		}
		f, id, at = el.Frame, el.ID, Point{X: el.X, Y: el.Y}
		if _, _, err := OffsetOf(ctx, f, &at); err != nil {
			return Scrolled{}, err
		}
	} else {
		var size []float64
		if err := Evaluate(ctx, t, "[innerWidth, innerHeight]", &size); err != nil || len(size) != 2 {
			return Scrolled{}, err
		}
		at = Point{X: size[0] / 2, Y: size[1] / 2}
	}
	var from json.RawMessage
	var held struct {
		ID int `json:"id"`
	}
	if err := Run(ctx, f, &from, "scrollState", id, at.X, at.Y, dx, dy); err != nil {
		return Scrolled{}, err
	}
	if err := json.Unmarshal(from, &held); err != nil {
		return Scrolled{}, err
	}
	if err := send(ctx, t, mouseEvent{Type: "mouseWheel", X: at.X, Y: at.Y, DeltaX: dx, DeltaY: dy}); err != nil {
		return Scrolled{}, err
	}
	var out Scrolled
	return out, Run(ctx, f, &out, "scrollSettled", held.ID, from, dx, dy)
}
