package locate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// Target selects an element: by a selector, or from a previous list.
type Target struct {
	Selector string
	Listed   *Listed
}

// Listed is an element of a list that the caller received.
type Listed struct {
	Index    int
	Frame    *tab.Frame
	Document string // of the frame when it was listed
	ID       int
}

func (t Target) String() string {
	if t.Listed != nil {
		return fmt.Sprintf("element %d", t.Listed.Index)
	}
	return fmt.Sprintf("selector %q", t.Selector)
}

// Conditions that an element must meet before an action.
var (
	clickable = []string{"visible", "stable", "enabled", "view", "hit"}
	hoverable = []string{"visible", "stable", "view", "hit"}
	fillable  = []string{"visible", "enabled", "editable"}
	choosable = []string{"visible", "enabled"}
	scrolled  = []string{"stable"}
	attached  = []string{}
)

// Element is an element that is ready for an action.
type Element struct {
	Frame *tab.Frame
	ID    int     `json:"id"`
	X     float64 `json:"x"` // position to click, in the viewport of the frame
	Y     float64 `json:"y"`
	Box   Box     `json:"box"`
	Tag   string  `json:"tag"`
	What  string  `json:"what"`
}

// Box is a rectangle in the viewport.
type Box struct {
	X      float64 `json:"x"`
	Y      float64 `json:"y"`
	Width  float64 `json:"width"`
	Height float64 `json:"height"`
}

// spec is the argument of the engine's prepare function.
type spec struct {
	Selector string          `json:"selector,omitempty"`
	Parts    json.RawMessage `json:"parts,omitempty"`
	ID       int             `json:"id,omitempty"`
	Need     []string        `json:"need"`
	Strict   bool            `json:"strict"`
	Patience int             `json:"patience"`
	Round    int             `json:"round"`
	Retarget string          `json:"retarget,omitempty"`
	At       *Point          `json:"at,omitempty"`
}

// Point is a position.
type Point = tab.Point

// status is the result of the engine's prepare function.
type status struct {
	Element
	S     string          `json:"s"`
	Why   string          `json:"why"`
	By    string          `json:"by"`
	Count int             `json:"count"`
	List  []string        `json:"list"`
	Rest  json.RawMessage `json:"rest"`
}

// patience is how long the engine itself waits for an element that is attached but not ready.
const patience = 500 * time.Millisecond

// prepare waits until the target can be acted on. ctx limits the wait; then the error names the condition that was not met.
func prepare(ctx context.Context, t *tab.Tab, target Target, sp spec) (Element, error) {
	return prepareAgain(ctx, t, target, sp, status{S: "none"})
}

// prepareAgain is prepare for an element that was in the state last.
func prepareAgain(ctx context.Context, t *tab.Tab, target Target, sp spec, last status) (Element, error) {
	for round := sp.Round; ; round++ {
		sp.Round = round
		st, err := tryFrames(ctx, t, target, sp)
		switch {
		case err != nil && ctx.Err() != nil:
			return Element{}, explainTimeout(ctx, t, target, last)
		case err != nil && !tab.IsStale(err):
			return Element{}, err
		case err == nil && st.S == "ok":
			return st.Element, nil
		case err == nil && (st.S == "bad" || st.S == "many" || st.S == "stale"):
			return Element{}, refuse(target, st)
		case err == nil:
			last = st
			if st.Why == "not visible" {
				if err := restoreHover(ctx, t); err != nil && !tab.IsStale(err) && ctx.Err() == nil {
					return Element{}, err
				}
			}
		}
		if err := t.Check(); err != nil {
			return Element{}, err
		}
		// The page may be between two documents, or may add the element later.
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return Element{}, explainTimeout(ctx, t, target, last)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tryFrames searches each frame for the target, the main frame first, and returns the most specific status.
func tryFrames(ctx context.Context, t *tab.Tab, target Target, sp spec) (status, error) {
	if l := target.Listed; l != nil {
		if t.Frame(l.Frame.ID) != l.Frame || l.Frame.Document() != l.Document {
			return status{S: "stale"}, nil
		}
		sp.ID, sp.Patience = l.ID, int(patience.Milliseconds())
		return tryFrame(ctx, l.Frame, sp)
	}
	sp.Selector = target.Selector
	frames := t.Frames()
	best := status{S: "none"}
	for _, f := range frames {
		sp.Patience = 0
		if len(frames) == 1 {
			sp.Patience = int(patience.Milliseconds())
		}
		st, err := tryFrame(ctx, f, sp)
		if err != nil {
			if ctx.Err() != nil || f == frames[0] {
				return status{}, err
			}
			continue
		}
		switch st.S {
		case "ok", "bad", "many":
			return st, nil
		case "wait":
			if best.S == "none" {
				best = st
			}
		}
	}
	return best, nil
}

// frameTime limits the query of a child frame, which may not respond.
const frameTime = 3 * time.Second

func tryFrame(ctx context.Context, f *tab.Frame, sp spec) (status, error) {
	var st status
	if f.Document() == "" && f != f.Tab().Main() {
		return status{S: "none"}, nil // a frame without a document, for example because it is blocked
	}
	inner := ctx
	if f != f.Tab().Main() {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeout(ctx, frameTime)
		defer cancel()
	}
	if err := Run(inner, f, &st, "prepare", sp); err != nil {
		return st, err
	}
	st.Frame = f
	if st.S != "frame" {
		return st, nil
	}
	next, err := ContentFrame(ctx, f, st.ID)
	if err != nil || next == nil {
		return status{S: "none"}, err
	}
	sp.Selector, sp.Parts = "", st.Rest
	return tryFrame(ctx, next, sp)
}

// ContentFrame returns the frame that an iframe element shows.
func ContentFrame(ctx context.Context, f *tab.Frame, id int) (*tab.Frame, error) {
	node, err := describeNode(ctx, f, id)
	if err != nil {
		return nil, err
	}
	return f.Tab().Frame(node.FrameID), nil
}

type node struct {
	FrameID   string `json:"frameId"`
	BackendID int64  `json:"backendNodeId"`
}

func describeNode(ctx context.Context, f *tab.Frame, id int) (node, error) {
	var r struct {
		Node node `json:"node"`
	}
	object, err := handle(ctx, f, "held", id)
	if err != nil {
		return r.Node, err
	}
	err = f.Tab().Browser().Client().Call(ctx, f.Session(), "DOM.describeNode", map[string]any{"objectId": object.ObjectID}, &r)
	return r.Node, err
}

// refuse returns the error for a target for which waiting is useless.
func refuse(target Target, st status) error {
	switch st.S {
	case "bad":
		return op.Errorf(op.Invalid, "%s", st.Why)
	case "many":
		return op.Errorf(op.Conflict, "%s matches %d elements; make it more specific or append >> nth=0. First "+
			"matches:\n  %s", target, st.Count, strings.Join(st.List, "\n  "))
	}
	if target.Listed != nil {
		return op.Errorf(op.NotFound, "%s is stale: the page has changed since its elements were listed; list them again", target)
	}
	return op.Errorf(op.NotFound, "%s is stale; find the element again", target)
}

// explainTimeout returns an error that names the condition that was not met in time.
func explainTimeout(ctx context.Context, t *tab.Tab, target Target, last status) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return context.Canceled
	}
	if last.S == "wait" {
		by := ""
		if last.By != "" {
			by = ": " + last.By
		}
		return op.Errorf(op.Unavailable, "timed out: %s matches %s, but it is %s%s", target, last.What, last.Why, by)
	}
	return &NotFoundError{Target: target}
}

// NotFoundError means that no element matches a target.
type NotFoundError struct{ Target Target }

func (e *NotFoundError) Error() string { return fmt.Sprintf("no element matches %s", e.Target) }

// Find waits until an element is attached to the page, and visible if requested.
func Find(ctx context.Context, t *tab.Tab, target Target, visible bool) (Element, error) {
	need := attached
	if visible {
		need = []string{"visible"}
	}
	return prepare(ctx, t, target, spec{Need: need, Strict: true})
}

// State is the state of the first element that matches a selector.
type State struct{ Attached, Visible bool }

// Probe returns the current state of a selector.
func Probe(ctx context.Context, t *tab.Tab, selector string) (State, error) {
	var out State
	for _, f := range t.Frames() {
		st, err := probeFrame(ctx, f, selector, nil)
		if err != nil {
			if ctx.Err() != nil || !tab.IsStale(err) {
				return out, err
			}
			continue
		}
		switch st.S {
		case "bad":
			return out, op.Errorf(op.Invalid, "%s", st.Why)
		case "ok":
			out.Attached = true
			if st.Visible {
				out.Visible = true
				return out, nil
			}
		}
	}
	return out, nil
}

type probed struct {
	S       string          `json:"s"`
	Why     string          `json:"why"`
	ID      int             `json:"id"`
	Rest    json.RawMessage `json:"rest"`
	Visible bool            `json:"visible"`
}

func probeFrame(ctx context.Context, f *tab.Frame, selector string, parts json.RawMessage) (probed, error) {
	var st probed
	if err := Run(ctx, f, &st, "probe", selector, parts); err != nil || st.S != "frame" {
		return st, err
	}
	next, err := ContentFrame(ctx, f, st.ID)
	if err != nil || next == nil {
		return probed{S: "none"}, err
	}
	return probeFrame(ctx, next, "", st.Rest)
}

// Offset is the position of the viewport of a frame in that of the page, and its scale.
type Offset struct {
	X  float64 `json:"x"`
	Y  float64 `json:"y"`
	SX float64 `json:"sx"`
	SY float64 `json:"sy"`
}

// Box converts a rectangle of the frame to one of the page.
func (o Offset) Box(b Box) Box {
	return Box{X: o.X + b.X*o.SX, Y: o.Y + b.Y*o.SY, Width: b.Width * o.SX, Height: b.Height * o.SY}
}

// owner finds the iframe element of a frame in its parent and returns the id that the engine assigned to it.
func owner(ctx context.Context, f *tab.Frame) (parent *tab.Frame, id int, err error) {
	t := f.Tab()
	if parent = t.Frame(f.Parent); parent == nil {
		return nil, 0, errors.New("the frame was removed from the page")
	}
	client, s := t.Browser().Client(), parent.Session()
	var own struct {
		Node int64 `json:"backendNodeId"`
	}
	if err = client.Call(ctx, s, "DOM.getFrameOwner", map[string]any{"frameId": f.ID}, &own); err != nil {
		return nil, 0, err
	}
	_, context, _, err := parent.Context(ctx)
	if err != nil {
		return nil, 0, err
	}
	if err := Run(ctx, parent, nil, "removeDrawings"); err != nil { // loads the engine
		return nil, 0, err
	}
	var r struct {
		Object Remote `json:"object"`
	}
	err = client.Call(ctx, s, "DOM.resolveNode", map[string]any{"backendNodeId": own.Node, "executionContextId": context}, &r)
	if err != nil {
		return nil, 0, err
	}
	var held struct {
		Result struct {
			Value int `json:"value"`
		} `json:"result"`
	}
	err = client.Call(ctx, s, "Runtime.callFunctionOn", map[string]any{
		"objectId": r.Object.ObjectID, "functionDeclaration": "function() { return cove.hold(this) }", "returnByValue": true,
	}, &held)
	return parent, held.Result.Value, err
}

// OffsetOf computes the position of a frame in the page. If at is not nil, it is converted to a point of the page, and the
// second result describes what covers one of the frames there.
func OffsetOf(ctx context.Context, f *tab.Frame, at *Point) (Offset, string, error) {
	out := Offset{SX: 1, SY: 1}
	for f.Parent != "" && f != f.Tab().Main() {
		parent, id, err := owner(ctx, f)
		if err != nil {
			return out, "", err
		}
		var o Offset
		if err := Run(ctx, parent, &o, "contentOffset", id); err != nil {
			return out, "", err
		}
		out = Offset{X: o.X + out.X*o.SX, Y: o.Y + out.Y*o.SY, SX: out.SX * o.SX, SY: out.SY * o.SY}
		if at != nil {
			at.X, at.Y = o.X+at.X*o.SX, o.Y+at.Y*o.SY
			var cover string
			if err := Run(ctx, parent, &cover, "coverOf", id, at.X, at.Y); err != nil || cover != "" {
				return out, cover, err
			}
		}
		f = parent
	}
	return out, "", nil
}
