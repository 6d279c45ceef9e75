package display

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// ActionIn is one of the actions below.
type ActionIn struct{ op.OneOf }

// Union lists the actions.
func (ActionIn) Union() (string, []any) {
	return "action_type", []any{
		MoveTo{}, MoveRel{}, Click{}, MouseDown{}, MouseUp{}, RightClick{}, DoubleClick{}, DragTo{}, DragRel{},
		Scroll{}, Typing{}, Press{}, KeyDown{}, KeyUp{}, Hotkey{}, Wait{},
	}
}

// MoveTo moves the pointer to a position.
type MoveTo struct {
	Kind string  `json:"action_type" const:"MOVE_TO"`
	X    float64 `json:"x" doc:"Horizontal position in pixels from the left edge of the display"`
	Y    float64 `json:"y" doc:"Vertical position in pixels from the top edge of the display"`
}

// MoveRel moves the pointer by an offset.
type MoveRel struct {
	Kind string  `json:"action_type" const:"MOVE_REL"`
	X    float64 `json:"x_offset" doc:"Pixels to the right; negative values move left"`
	Y    float64 `json:"y_offset" doc:"Pixels down; negative values move up"`
}

// Click presses and releases a button once or several times.
type Click struct {
	Kind   string   `json:"action_type" const:"CLICK"`
	X      *float64 `json:"x" doc:"Horizontal position; default: position of the pointer"`
	Y      *float64 `json:"y" doc:"Vertical position; default: position of the pointer"`
	Button string   `json:"button" doc:"Mouse button" enum:"left,right,middle" default:"left"`
	Clicks int      `json:"num_clicks" doc:"Number of clicks" enum:"1,2,3" default:"1"`
}

// MouseDown presses a button and keeps it down.
type MouseDown struct {
	Kind   string `json:"action_type" const:"MOUSE_DOWN"`
	Button string `json:"button" doc:"Mouse button" enum:"left,right,middle" default:"left"`
}

// MouseUp releases a button.
type MouseUp struct {
	Kind   string `json:"action_type" const:"MOUSE_UP"`
	Button string `json:"button" doc:"Mouse button" enum:"left,right,middle" default:"left"`
}

// RightClick clicks with the right button.
type RightClick struct {
	Kind string   `json:"action_type" const:"RIGHT_CLICK"`
	X    *float64 `json:"x" doc:"Horizontal position; default: position of the pointer"`
	Y    *float64 `json:"y" doc:"Vertical position; default: position of the pointer"`
}

// DoubleClick clicks twice with the left button.
type DoubleClick struct {
	Kind string   `json:"action_type" const:"DOUBLE_CLICK"`
	X    *float64 `json:"x" doc:"Horizontal position; default: position of the pointer"`
	Y    *float64 `json:"y" doc:"Vertical position; default: position of the pointer"`
}

// DragTo drags from the pointer's position to another one with the left button.
type DragTo struct {
	Kind string  `json:"action_type" const:"DRAG_TO"`
	X    float64 `json:"x" doc:"Target position in pixels from the left edge of the display"`
	Y    float64 `json:"y" doc:"Target position in pixels from the top edge of the display"`
}

// DragRel drags by an offset with the left button.
type DragRel struct {
	Kind string  `json:"action_type" const:"DRAG_REL"`
	X    float64 `json:"x_offset" doc:"Pixels to the right; negative values move left"`
	Y    float64 `json:"y_offset" doc:"Pixels down; negative values move up"`
}

// Scroll turns the wheel. Clients send either pixels, as computer-use models do, or a few steps of the wheel.
type Scroll struct {
	Kind string `json:"action_type" const:"SCROLL"`
	DX   int    `json:"dx" doc:"Distance to the right; negative values scroll left. Up to 10: wheel steps; above 10: pixels" default:"0"`
	DY   int    `json:"dy" doc:"Distance down; negative values scroll up. Up to 10: wheel steps; above 10: pixels" default:"0"`
}

// Typing enters text.
type Typing struct {
	Kind      string `json:"action_type" const:"TYPING"`
	Text      string `json:"text" doc:"Text to enter into the focused element" minLength:"1"`
	Clipboard *bool  `json:"use_clipboard" doc:"Paste the text and then restore the clipboard; false: type it key by key" default:"true"`
}

// Press presses and releases a key.
type Press struct {
	Kind string `json:"action_type" const:"PRESS"`
	Key  string `json:"key" doc:"Key name, such as enter, pagedown or f5, or a single character"`
}

// KeyDown presses a key and keeps it down.
type KeyDown struct {
	Kind string `json:"action_type" const:"KEY_DOWN"`
	Key  string `json:"key" doc:"Key name, such as shift"`
}

// KeyUp releases a key.
type KeyUp struct {
	Kind string `json:"action_type" const:"KEY_UP"`
	Key  string `json:"key" doc:"Key name, such as shift"`
}

// Hotkey presses keys in order and releases them in reverse order.
type Hotkey struct {
	Kind string   `json:"action_type" const:"HOTKEY"`
	Keys []string `json:"keys" doc:"Key names, such as ctrl and c" minItems:"1"`
}

// Wait waits.
type Wait struct {
	Kind    string  `json:"action_type" const:"WAIT"`
	Seconds float64 `json:"duration" doc:"Seconds to wait" exclusiveMinimum:"0"`
}

// ActionData is the result of an action.
type ActionData struct {
	Status string `json:"status" doc:"Always success"`
	Action string `json:"action_performed" doc:"Action type"`
}

// ActionOut is the response. Older clients read the two fields at its top level.
type ActionOut struct {
	op.Envelope
	Data   ActionData `json:"data"`
	Status string     `json:"status" doc:"Always success"`
	Action string     `json:"action_performed" doc:"Action type"`
}

// action is one type of input.
type action interface {
	kind() string
	perform(ctx context.Context, p *player) error
}

// Act performs an action. Actions run one at a time, so that their input is never interleaved.
func (s *Service) Act(ctx context.Context, in ActionIn) (ActionOut, error) {
	a, ok := in.Value.(action)
	if !ok {
		return ActionOut{}, op.Errorf(op.Invalid, "action_type is missing or unknown")
	}
	if err := s.act(ctx, a); err != nil {
		return ActionOut{}, err
	}
	s.hintRestart(ctx)
	data := ActionData{Status: "success", Action: a.kind()}
	return ActionOut{Envelope: op.SuccessEnvelope(ctx), Data: data, Status: data.Status, Action: data.Action}, nil
}

func (s *Service) act(ctx context.Context, a action) error {
	if w, ok := a.(*Wait); ok { // does not block other actions
		return sleep(ctx, op.Seconds(min(w.Seconds, maxWait.Seconds())))
	}
	defer s.holdBrowser(ctx)()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	d, release, err := s.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	if needsClipboard(a) {
		if err := d.endLoan(ctx); err != nil {
			return toOpError(ctx, err)
		}
	}
	return toOpError(ctx, a.perform(ctx, &player{d.conn, d.lend}))
}

// maxWait is longer than the lifetime of any connection, and prevents an overflow of the number of nanoseconds.
const maxWait = 30 * 24 * time.Hour

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
