package display

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// ActionIn is one of the kinds of input below.
type ActionIn struct{ op.OneOf }

// Union lists the kinds.
func (ActionIn) Union() (string, []any) {
	return "action_type", []any{
		MoveTo{}, MoveRel{}, Click{}, MouseDown{}, MouseUp{}, RightClick{}, DoubleClick{}, DragTo{}, DragRel{},
		Scroll{}, Typing{}, Press{}, KeyDown{}, KeyUp{}, Hotkey{}, Wait{},
	}
}

// MoveTo puts the pointer somewhere.
type MoveTo struct {
	Kind string  `json:"action_type" const:"MOVE_TO"`
	X    float64 `json:"x" doc:"Pixels from the left edge of the display"`
	Y    float64 `json:"y" doc:"Pixels from the top edge of the display"`
}

// MoveRel moves the pointer from where it is.
type MoveRel struct {
	Kind string  `json:"action_type" const:"MOVE_REL"`
	X    float64 `json:"x_offset" doc:"Pixels to the right; negative: to the left"`
	Y    float64 `json:"y_offset" doc:"Pixels down; negative: up"`
}

// Click presses and releases a button, once or more often.
type Click struct {
	Kind   string   `json:"action_type" const:"CLICK"`
	X      *float64 `json:"x" doc:"Where; missing: where the pointer is"`
	Y      *float64 `json:"y" doc:"Where; missing: where the pointer is"`
	Button string   `json:"button" doc:"Which button" enum:"left,right,middle" default:"left"`
	Clicks int      `json:"num_clicks" doc:"How often" enum:"1,2,3" default:"1"`
}

// MouseDown presses a button and leaves it down.
type MouseDown struct {
	Kind   string `json:"action_type" const:"MOUSE_DOWN"`
	Button string `json:"button" doc:"Which button" enum:"left,right,middle" default:"left"`
}

// MouseUp releases a button.
type MouseUp struct {
	Kind   string `json:"action_type" const:"MOUSE_UP"`
	Button string `json:"button" doc:"Which button" enum:"left,right,middle" default:"left"`
}

// RightClick clicks with the right button.
type RightClick struct {
	Kind string   `json:"action_type" const:"RIGHT_CLICK"`
	X    *float64 `json:"x" doc:"Where; missing: where the pointer is"`
	Y    *float64 `json:"y" doc:"Where; missing: where the pointer is"`
}

// DoubleClick clicks twice with the left button.
type DoubleClick struct {
	Kind string   `json:"action_type" const:"DOUBLE_CLICK"`
	X    *float64 `json:"x" doc:"Where; missing: where the pointer is"`
	Y    *float64 `json:"y" doc:"Where; missing: where the pointer is"`
}

// DragTo holds the left button from where the pointer is to somewhere.
type DragTo struct {
	Kind string  `json:"action_type" const:"DRAG_TO"`
	X    float64 `json:"x" doc:"Where to, in pixels from the left edge"`
	Y    float64 `json:"y" doc:"Where to, in pixels from the top edge"`
}

// DragRel holds the left button over a distance.
type DragRel struct {
	Kind string  `json:"action_type" const:"DRAG_REL"`
	X    float64 `json:"x_offset" doc:"Pixels to the right; negative: to the left"`
	Y    float64 `json:"y_offset" doc:"Pixels down; negative: up"`
}

// Scroll turns the wheel, with pyautogui's signs.
type Scroll struct {
	Kind string `json:"action_type" const:"SCROLL"`
	DX   int    `json:"dx" doc:"Steps of the wheel to the right; negative: to the left" default:"0"`
	DY   int    `json:"dy" doc:"Steps of the wheel up; negative: down" default:"0"`
}

// Typing enters a text.
type Typing struct {
	Kind      string `json:"action_type" const:"TYPING"`
	Text      string `json:"text" doc:"Text to enter into what has the focus" minLength:"1"`
	Clipboard *bool  `json:"use_clipboard" doc:"Paste it at once, and put back what the clipboard held; false: key by key" default:"true"`
}

// Press presses and releases a key.
type Press struct {
	Kind string `json:"action_type" const:"PRESS"`
	Key  string `json:"key" doc:"Name of the key, such as enter, pagedown, f5, or a character"`
}

// KeyDown presses a key and leaves it down.
type KeyDown struct {
	Kind string `json:"action_type" const:"KEY_DOWN"`
	Key  string `json:"key" doc:"Name of the key, such as shift"`
}

// KeyUp releases a key.
type KeyUp struct {
	Kind string `json:"action_type" const:"KEY_UP"`
	Key  string `json:"key" doc:"Name of the key, such as shift"`
}

// Hotkey presses keys one after the other and releases them in reverse.
type Hotkey struct {
	Kind string   `json:"action_type" const:"HOTKEY"`
	Keys []string `json:"keys" doc:"Names of the keys, such as ctrl and c" minItems:"1"`
}

// Wait lets time pass.
type Wait struct {
	Kind    string  `json:"action_type" const:"WAIT"`
	Seconds float64 `json:"duration" doc:"Seconds to wait" exclusiveMinimum:"0"`
}

// ActionData says what was done.
type ActionData struct {
	Status string `json:"status" doc:"Always success"`
	Action string `json:"action_performed" doc:"Kind of the action"`
}

// ActionOut is the reply; older clients read the two fields at its top level.
type ActionOut struct {
	op.Envelope
	Data   ActionData `json:"data"`
	Status string     `json:"status" doc:"Always success"`
	Action string     `json:"action_performed" doc:"Kind of the action"`
}

// action is one kind of input.
type action interface {
	kind() string
	perform(ctx context.Context, p *player) error
}

// Act performs an action. Actions take turns: the input of one is never mixed with that of another.
func (s *Service) Act(ctx context.Context, in ActionIn) (ActionOut, error) {
	a, ok := in.Value.(action)
	if !ok {
		return ActionOut{}, op.Errorf(op.Invalid, "action_type names no kind of action")
	}
	if err := s.act(ctx, a); err != nil {
		return ActionOut{}, err
	}
	s.tell(ctx)
	data := ActionData{Status: "success", Action: a.kind()}
	return ActionOut{Envelope: op.Sealed(ctx), Data: data, Status: data.Status, Action: data.Action}, nil
}

func (s *Service) act(ctx context.Context, a action) error {
	if w, ok := a.(*Wait); ok { // holds nobody up
		return sleep(ctx, time.Duration(min(w.Seconds, maxWait.Seconds())*float64(time.Second)))
	}
	defer s.present(ctx)()
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
	return s.explain(ctx, a.perform(ctx, &player{d.conn}))
}

// maxWait is longer than any connection lives; it keeps the sum of nanoseconds in range.
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
