package content

import (
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// element is an interactive element.
type element struct {
	Index       int        `json:"index"`
	ID          int        `json:"id,omitempty"`
	Tag         string     `json:"tag"`
	Text        string     `json:"text"`
	Role        string     `json:"role"`
	Name        string     `json:"name"`
	Href        *string    `json:"href"`
	Placeholder *string    `json:"placeholder"`
	Type        *string    `json:"type"`
	Value       *string    `json:"value"`
	Checked     *bool      `json:"checked"`
	Box         locate.Box `json:"bounding_box"`
	Visible     bool       `json:"is_visible"`
	Enabled     bool       `json:"is_enabled"`
	Selector    string     `json:"selector"`
	Frame       string     `json:"frame,omitempty" doc:"URL of the frame, unless it is the main frame"`
}

// Elements lists interactive elements.
func (s *Service) Elements(ctx context.Context, in driver.Here) ([]element, error) {
	out := []element{}
	err := s.d.Visit(ctx, in.Where(), func(ctx context.Context, t *tab.Tab) (err error) {
		out, _, err = s.list(ctx, t)
		return err
	})
	return out, err
}

// list lists the elements of a tab and stores the list.
func (s *Service) list(ctx context.Context, t *tab.Tab) ([]element, []locate.Listed, error) {
	out, known := []element{}, []locate.Listed{}
	err := locate.EachFrame(ctx, t, func(f *tab.Frame) error {
		document := f.Document()
		var list []element
		if err := locate.Run(ctx, f, &list, "listElements"); err != nil {
			return err
		}
		var at locate.Offset
		if f != t.Main() {
			var err error
			if at, _, err = locate.OffsetOf(ctx, f, nil); err != nil {
				return nil //nolint:nilerr // the frame is not shown
			}
		}
		for _, e := range list {
			known = append(known, locate.Listed{Index: len(out), Frame: f, Document: document, ID: e.ID})
			e.Index, e.ID = len(out), 0
			if f != t.Main() {
				e.Frame = f.URL()
				e.Box = at.Box(e.Box)
			}
			out = append(out, e)
		}
		return nil
	})
	s.lists.Set(t, known)
	return out, known, err
}

// List lists the interactive elements of a tab, as the operation does.
func (s *Service) List(ctx context.Context, t *tab.Tab) ([]locate.Listed, error) {
	_, known, err := s.list(ctx, t)
	return known, err
}

// Listed returns an element of the last list.
func (s *Service) Listed(t *tab.Tab, index int) (*locate.Listed, error) {
	list, ok := s.lists.Get(t)
	if !ok {
		return nil, op.Errorf(op.NotFound, "the elements of this tab have not been listed; list them first")
	}
	if index < 0 || index >= len(list) {
		return nil, op.Errorf(op.NotFound, "no element %d: the last list has %d elements; list the elements again", index, len(list))
	}
	return &list[index], nil
}
