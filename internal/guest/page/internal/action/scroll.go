package action

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// ScrollIn is a direction and a distance.
type ScrollIn struct {
	Direction string `json:"direction" doc:"up, down, left or right" default:"down"`
	Amount    int    `json:"amount" doc:"Pixels" default:"300"`
	Pick
	driver.Where
}

// Scroll scrolls with the mouse wheel.
func (s *Service) Scroll(ctx context.Context, in ScrollIn) (*locate.Scrolled, error) {
	d, ok := map[string][2]float64{"up": {0, -1}, "down": {0, 1}, "left": {-1, 0}, "right": {1, 0}}[strings.ToLower(in.Direction)]
	if !ok {
		return nil, op.Errorf(op.Invalid, "invalid direction %q; use up, down, left or right", in.Direction)
	}
	out := &locate.Scrolled{}
	err := s.d.Visit(ctx, in.Where, func(ctx context.Context, t *tab.Tab) error {
		target, ok, err := s.target(t, in.Pick)
		if err != nil {
			return err
		}
		over := &target
		if !ok {
			over = nil
		}
		*out, err = locate.Wheel(ctx, t, over, d[0]*float64(in.Amount), d[1]*float64(in.Amount))
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ScrollToIn is a position of the page.
type ScrollToIn struct {
	X int `json:"x" doc:"Pixels from the left" default:"0"`
	Y int `json:"y" doc:"Pixels from the top" default:"0"`
	driver.Where
}

// ScrollTo scrolls to a position.
func (s *Service) ScrollTo(ctx context.Context, in ScrollToIn) (*locate.Scrolled, error) {
	return s.scrolled(ctx, in.Where, func(ctx context.Context, t *tab.Tab) error {
		return locate.Evaluate(ctx, t, fmt.Sprintf("scrollTo({left: %d, top: %d, behavior: 'instant'})", in.X, in.Y), nil)
	})
}

// ScrollToElement scrolls an element into view.
func (s *Service) ScrollToElement(ctx context.Context, in CheckIn) (*locate.Scrolled, error) {
	return s.scrolled(ctx, in.Where, func(ctx context.Context, t *tab.Tab) error {
		_, err := locate.ScrollTo(ctx, t, locate.Target{Selector: in.Selector})
		return err
	})
}

func (s *Service) scrolled(ctx context.Context, w driver.Where, act func(context.Context, *tab.Tab) error) (*locate.Scrolled, error) {
	out := &locate.Scrolled{}
	err := s.d.Visit(ctx, w, func(ctx context.Context, t *tab.Tab) error {
		if err := act(ctx, t); err != nil {
			return err
		}
		return locate.Evaluate(ctx, t,
			"({x: scrollX, y: scrollY, at_end: scrollY + innerHeight >= document.documentElement.scrollHeight - 1})", out)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// DragIn selects the element to drag, and the element to drop it on.
type DragIn struct {
	Selector string `json:"selector" doc:"Selector of the element to drag"`
	To       string `json:"target" doc:"Selector of the element to drop it on"`
	driver.Where
}

// Drag drags an element onto another.
func (s *Service) Drag(ctx context.Context, in DragIn) (*Clicked, error) {
	return s.onElement(ctx, in.Where, Pick{Selector: &in.Selector},
		func(ctx context.Context, t *tab.Tab, from locate.Target) (locate.Element, error) {
			return locate.Element{}, locate.Drag(ctx, t, from, locate.Target{Selector: in.To})
		})
}
