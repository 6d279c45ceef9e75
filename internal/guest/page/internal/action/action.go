// Package action acts on elements of pages: it clicks, types, fills forms, scrolls and drags.
package action

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/content"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// Service acts on elements of pages.
type Service struct {
	d    *driver.Driver
	page *content.Service
}

// New returns the service, which accepts the numbers of elements that page listed. It has no side effects.
func New(d *driver.Driver, page *content.Service) *Service { return &Service{d, page} }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(driver.Spec("browser_click", "POST /v1/browser/page/click", "click", "click",
			"Click an element or a point of the page. Waits until the element is visible, stable, enabled, in "+
				"view and not covered, then for the navigation that the click starts. Selectors are CSS, text=Save, "+
				"xpath=//a, role=button[name=\"Save\"], label=, placeholder=, testid=, or @e5 from a snapshot; "+
				"they can be joined by >> and narrowed by nth=0."), s.Click),
		op.New(driver.Spec("browser_fill", "POST /v1/browser/page/fill", "fill", "fill",
			"Replace the text or value of an input, textarea or editable element."), s.Fill),
		op.New(driver.Spec("browser_type", "POST /v1/browser/page/type", "type_text", "type",
			"Type text key by key into the focused element or a selected one."), s.Type),
		op.New(driver.Spec("browser_press_key", "POST /v1/browser/page/press_key", "press_key", "press-key",
			"Press a key, or a combination such as Control+A."), s.PressKey),
		op.New(driver.Spec("browser_hot_key", "POST /v1/browser/page/hot_key", "hot_key", "hot-key",
			"Press several keys together, such as Control and a."), s.HotKey),
		op.New(driver.Spec("browser_hover", "POST /v1/browser/page/hover", "hover", "hover",
			"Move the mouse over an element or a point of the page."), s.Hover),
		op.New(driver.Spec("browser_select", "POST /v1/browser/page/select_option", "select_option", "select-option",
			"Select options of a <select> by value, label or index."), s.SelectOption),
		op.New(driver.Spec("browser_check", "POST /v1/browser/page/check", "check", "check",
			"Check a checkbox, radio button or switch."), s.Check),
		op.New(driver.Spec("browser_uncheck", "POST /v1/browser/page/uncheck", "uncheck", "uncheck",
			"Uncheck a checkbox or switch."), s.Uncheck),
		op.New(driver.Spec("browser_upload_file", "POST /v1/browser/page/upload_file", "upload_file", "upload-file",
			"Set files of the sandbox in a file input or in the file dialog that an element opens."), s.UploadFile),
		op.New(driver.Spec("browser_fill_form", "POST /v1/browser/page/fill_form", "fill_form", "fill-form",
			"Fill several fields in order. Stops at the first error."), s.FillForm),
		op.New(driver.Spec("browser_scroll", "POST /v1/browser/page/scroll", "scroll", "scroll",
			"Scroll the page or an element with the mouse wheel."), s.Scroll),
		op.New(driver.Spec("browser_scroll_to", "POST /v1/browser/page/scroll_to", "scroll_to", "scroll-to",
			"Scroll the page to a position."), s.ScrollTo),
		op.New(driver.Spec("browser_scroll_to_element", "POST /v1/browser/page/scroll_to_element", "scroll_to_element",
			"scroll-to-element", "Scroll an element into view."), s.ScrollToElement),
		op.New(driver.Spec("browser_drag", "POST /v1/browser/page/drag", "drag", "drag", "Drag one element onto another."), s.Drag),
	}
}

// Pick selects an element.
type Pick struct {
	Selector *string `json:"selector" doc:"CSS, text=, xpath=, role=, label=, placeholder=, testid= or @e5" arg:"true" alias:"ref" short:"s"`
	Index    *int    `json:"index" doc:"Index of the element in the last list of elements"`
}

// target resolves a pick; ok is false if it selects no element.
func (s *Service) target(t *tab.Tab, p Pick) (target locate.Target, ok bool, err error) {
	switch {
	case p.Index != nil:
		listed, err := s.page.Listed(t, *p.Index)
		return locate.Target{Listed: listed}, true, err
	case p.Selector != nil && strings.TrimSpace(*p.Selector) != "":
		return locate.Target{Selector: *p.Selector}, true, nil
	}
	return locate.Target{}, false, nil
}

// mustTarget is target for operations that require an element.
func (s *Service) mustTarget(t *tab.Tab, p Pick) (locate.Target, error) {
	target, ok, err := s.target(t, p)
	if err == nil && !ok {
		err = errNoElement
	}
	return target, err
}

var errNoElement = op.Faults{{Type: "missing", Loc: []any{"body", "selector"}, Msg: "Select the element by selector or index"}}

// ClickIn selects what to click, and how.
type ClickIn struct {
	Pick
	X         *float64 `json:"x" doc:"Position in the viewport instead of an element"`
	Y         *float64 `json:"y" doc:"Position in the viewport instead of an element"`
	Button    string   `json:"button" doc:"Mouse button: left, right or middle" default:"left"`
	Count     int      `json:"click_count" doc:"Number of clicks; 2 is a double click" default:"1"`
	Modifiers []string `json:"modifiers,omitempty" doc:"Keys held during the click: Alt, Control, Meta, Shift"`
	driver.Where
}

// Clicked describes the element of an action.
type Clicked struct {
	Element string `json:"element,omitempty" doc:"Element of the action"`
	URL     string `json:"url" doc:"URL of the page after the action"`
}

// Click clicks an element or a point.
func (s *Service) Click(ctx context.Context, in ClickIn) (*Clicked, error) {
	button := strings.ToLower(in.Button)
	if button != "left" && button != "right" && button != "middle" {
		return nil, op.Errorf(op.Invalid, "invalid button %q; use left, right or middle", in.Button)
	}
	if in.Count < 1 || in.Count > 3 {
		return nil, op.Errorf(op.Invalid, "invalid click_count %d; use 1, 2 or 3", in.Count)
	}
	press := locate.Press{Button: button, Count: in.Count, Keys: in.Modifiers}
	if in.Index == nil && in.Selector == nil && (in.X == nil || in.Y == nil) {
		return nil, op.Faults{{Type: "missing", Loc: []any{"body", "selector"},
			Msg: "Select what to click by selector, by index, or by x and y"}}
	}
	out := &Clicked{}
	err := s.d.Visit(ctx, in.Where, func(ctx context.Context, t *tab.Tab) error {
		target, ok, err := s.target(t, in.Pick)
		switch {
		case err != nil:
			return err
		case !ok && (in.X == nil || in.Y == nil):
			return errNoElement
		case !ok:
			err = locate.ClickAt(ctx, t, locate.Point{X: *in.X, Y: *in.Y}, press)
		default:
			var el locate.Element
			el, err = locate.Click(ctx, t, target, press)
			out.Element = el.What
		}
		out.URL = t.URL()
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// FillIn is a field and its new text.
type FillIn struct {
	Pick
	Text string `json:"text" doc:"New text or value" alias:"value" arg:"true"`
	driver.Where
}

// Fill replaces the text of a field.
func (s *Service) Fill(ctx context.Context, in FillIn) (*Clicked, error) {
	fill := func(ctx context.Context, t *tab.Tab, target locate.Target) (locate.Element, error) {
		return locate.Fill(ctx, t, target, in.Text)
	}
	return s.onElement(ctx, in.Where, in.Pick, fill)
}

// onElement runs an action on an element.
func (s *Service) onElement(ctx context.Context, w driver.Where, p Pick,
	act func(context.Context, *tab.Tab, locate.Target) (locate.Element, error)) (*Clicked, error) {
	if p.Index == nil && (p.Selector == nil || strings.TrimSpace(*p.Selector) == "") {
		return nil, errNoElement
	}
	out := &Clicked{}
	err := s.d.Visit(ctx, w, func(ctx context.Context, t *tab.Tab) error {
		target, err := s.mustTarget(t, p)
		if err != nil {
			return err
		}
		el, err := act(ctx, t, target)
		out.Element, out.URL = el.What, t.URL()
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// TypeIn is text to type.
type TypeIn struct {
	Text  string  `json:"text" doc:"Text to type"`
	Delay float64 `json:"delay" doc:"Milliseconds between keys" default:"0"`
	Pick
	Submit bool `json:"submit" doc:"Press Enter after the text" default:"false"`
	driver.Where
}

// Type types text.
func (s *Service) Type(ctx context.Context, in TypeIn) (*Clicked, error) {
	delay := time.Duration(min(max(in.Delay, 0), 60_000) * float64(time.Millisecond))
	if in.Timeout == nil {
		in.Timeout = new((driver.ActionTime + time.Duration(len(in.Text))*(delay+20*time.Millisecond)).Seconds())
	}
	return s.onFocus(ctx, in.Where, in.Pick, func(ctx context.Context, t *tab.Tab) error {
		err := locate.TypeText(ctx, t, in.Text, delay)
		if err == nil && in.Submit {
			err = locate.PressKey(ctx, t, "Enter")
		}
		return err
	})
}

// onFocus runs an action of the keyboard after it focused the element that p selects, if any.
func (s *Service) onFocus(ctx context.Context, w driver.Where, p Pick, act func(context.Context, *tab.Tab) error) (*Clicked, error) {
	out := &Clicked{}
	err := s.d.Visit(ctx, w, func(ctx context.Context, t *tab.Tab) error {
		target, ok, err := s.target(t, p)
		if err != nil {
			return err
		}
		if ok {
			el, err := locate.Focus(ctx, t, target)
			if err != nil {
				return err
			}
			out.Element = el.What
		}
		if err := act(ctx, t); err != nil && !tab.IsStale(err) {
			return err
		}
		err = locate.Settle(ctx, t)
		out.URL = t.URL()
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// PressKeyIn is a key.
type PressKeyIn struct {
	Key string `json:"key" doc:"Key such as Enter, Tab, ArrowDown or a, or a combination such as Control+A"`
	Pick
	driver.Where
}

// PressKey presses a key.
func (s *Service) PressKey(ctx context.Context, in PressKeyIn) (*Clicked, error) {
	return s.onFocus(ctx, in.Where, in.Pick, func(ctx context.Context, t *tab.Tab) error { return locate.PressKey(ctx, t, in.Key) })
}

// HotKeyIn is several keys.
type HotKeyIn struct {
	Keys []string `json:"keys" doc:"Keys, pressed in this order and released in reverse order"`
	Pick
	driver.Where
}

// HotKey presses keys together.
func (s *Service) HotKey(ctx context.Context, in HotKeyIn) (*Clicked, error) {
	if len(in.Keys) == 0 || len(in.Keys) > 10 {
		return nil, op.Errorf(op.Invalid, "keys has %d names; send 1 to 10, such as [\"Control\", \"a\"]", len(in.Keys))
	}
	return s.onFocus(ctx, in.Where, in.Pick, func(ctx context.Context, t *tab.Tab) error { return locate.PressKeys(ctx, t, in.Keys) })
}

// HoverIn selects where to move the mouse.
type HoverIn struct {
	Pick
	X *float64 `json:"x" doc:"Position in the viewport instead of an element"`
	Y *float64 `json:"y" doc:"Position in the viewport instead of an element"`
	driver.Where
}

// Hover moves the mouse.
func (s *Service) Hover(ctx context.Context, in HoverIn) (*Clicked, error) {
	if in.Index == nil && in.Selector == nil && in.X != nil && in.Y != nil {
		out := &Clicked{}
		err := s.d.Visit(ctx, in.Where, func(ctx context.Context, t *tab.Tab) error {
			out.URL = t.URL()
			return locate.HoverAt(ctx, t, locate.Point{X: *in.X, Y: *in.Y})
		})
		if err != nil {
			return nil, err
		}
		return out, nil
	}
	return s.onElement(ctx, in.Where, in.Pick, locate.Hover)
}

// SelectIn selects a <select> element and its options.
type SelectIn struct {
	Selector string   `json:"selector" doc:"Selector of the <select>"`
	Value    *string  `json:"value" doc:"Value or label of the option"`
	Label    *string  `json:"label" doc:"Label of the option"`
	Index    *int     `json:"index" doc:"Index of the option, from 0"`
	Values   []string `json:"values,omitempty" doc:"Values or labels of several options; an empty list clears the selection"`
	driver.Where
}

// Selected are the values of the selected options.
type Selected struct {
	Values []string `json:"values"`
}

// SelectOption selects options.
func (s *Service) SelectOption(ctx context.Context, in SelectIn) (*Selected, error) {
	var choices []locate.Choice
	if in.Value != nil || in.Label != nil || in.Index != nil {
		choices = append(choices, locate.Choice{Value: in.Value, Label: in.Label, Index: in.Index})
	}
	for _, v := range in.Values {
		choices = append(choices, locate.Choice{Value: &v})
	}
	if len(choices) == 0 && in.Values == nil {
		return nil, op.Errorf(op.Invalid, "no option is selected; send value, label, index or values")
	}
	if choices == nil {
		choices = []locate.Choice{}
	}
	out := &Selected{}
	err := s.d.Visit(ctx, in.Where, func(ctx context.Context, t *tab.Tab) (err error) {
		out.Values, err = locate.Choose(ctx, t, locate.Target{Selector: in.Selector}, choices)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// CheckIn selects a checkbox.
type CheckIn struct {
	Selector string `json:"selector" doc:"Selector of the checkbox, radio button or switch, or of its label"`
	driver.Where
}

// Checked is the state of a checkbox.
type Checked struct {
	Checked bool `json:"checked"`
}

// Check checks a checkbox.
func (s *Service) Check(ctx context.Context, in CheckIn) (*Checked, error) {
	return s.setChecked(ctx, in, true)
}

// Uncheck unchecks a checkbox.
func (s *Service) Uncheck(ctx context.Context, in CheckIn) (*Checked, error) {
	return s.setChecked(ctx, in, false)
}

func (s *Service) setChecked(ctx context.Context, in CheckIn, want bool) (*Checked, error) {
	err := s.d.Visit(ctx, in.Where, func(ctx context.Context, t *tab.Tab) error {
		return locate.Check(ctx, t, locate.Target{Selector: in.Selector}, want)
	})
	if err != nil {
		return nil, err
	}
	return &Checked{want}, nil
}

// UploadIn selects a file input and files.
type UploadIn struct {
	Selector string   `json:"selector" doc:"Selector of the file input or of the element that opens a file dialog"`
	Files    []string `json:"files" doc:"Paths of files in the sandbox"`
	driver.Where
}

// Uploaded lists the files that were set.
type Uploaded struct {
	Files []string `json:"files"`
}

// UploadFile sets the files of a file input.
func (s *Service) UploadFile(ctx context.Context, in UploadIn) (*Uploaded, error) {
	paths := []string{}
	for _, f := range in.Files {
		path, err := s.d.Resolve(f)
		if err != nil {
			return nil, err
		}
		if info, err := os.Stat(path); err != nil {
			return nil, op.Errorf(op.NotFound, "cannot upload %q: %w", path, err)
		} else if info.IsDir() {
			return nil, op.Errorf(op.Invalid, "cannot upload %q: it is a folder; send the paths of its files", path)
		}
		paths = append(paths, path)
	}
	err := s.d.Visit(ctx, in.Where, func(ctx context.Context, t *tab.Tab) error {
		return locate.Upload(ctx, t, locate.Target{Selector: in.Selector}, paths)
	})
	if err != nil {
		return nil, err
	}
	return &Uploaded{paths}, nil
}
