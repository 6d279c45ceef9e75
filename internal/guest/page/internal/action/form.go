package action

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// FillFormIn lists fields.
type FillFormIn struct {
	Items []map[string]any `json:"items" doc:"Fields in order, each with selector or index, and text, value, checked, label or files"`
	driver.Where
}

// Filled is the number of filled fields.
type Filled struct {
	Filled int `json:"filled"`
}

// FillForm fills fields in order.
func (s *Service) FillForm(ctx context.Context, in FillFormIn) (*Filled, error) {
	out := &Filled{}
	limit := driver.ActionTime + time.Duration(len(in.Items))*time.Second
	err := s.d.VisitWith(ctx, in.Where, driver.Options{Limit: limit}, func(ctx context.Context, t *tab.Tab) error {
		for i, item := range in.Items {
			if err := s.fillItem(ctx, t, item); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
			out.Filled++
		}
		return nil
	})
	if err != nil {
		if e, ok := op.AsError(err); ok {
			return nil, &op.Error{Code: e.Code, Msg: fmt.Sprintf("filled %d of %d fields, then failed: %s",
				out.Filled, len(in.Items), err), Data: out, Err: e}
		}
		return nil, err
	}
	return out, nil
}

func (s *Service) fillItem(ctx context.Context, t *tab.Tab, item map[string]any) error {
	b, err := json.Marshal(item)
	if err != nil {
		return err
	}
	var f struct {
		Selector, Ref, Text, Label *string
		Index                      *int
		Value                      any
		Checked                    *bool
		Files                      []string
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return op.Errorf(op.Invalid, "invalid field: %w; send selector or index, and text, value or checked", err)
	}
	if f.Selector == nil {
		f.Selector = f.Ref
	}
	target, err := s.mustTarget(t, Pick{f.Selector, f.Index})
	if err != nil {
		return op.Errorf(op.Invalid, "the field has neither selector nor index")
	}
	if on, ok := f.Value.(bool); ok && f.Checked == nil {
		f.Checked = &on
	}
	switch {
	case f.Checked != nil:
		return locate.Check(ctx, t, target, *f.Checked)
	case f.Files != nil:
		return locate.Upload(ctx, t, target, f.Files)
	case f.Label != nil:
		_, err := locate.Choose(ctx, t, target, []locate.Choice{{Label: f.Label}})
		return err
	}
	text := ""
	switch {
	case f.Text != nil:
		text = *f.Text
	case f.Value != nil:
		text = fmt.Sprint(f.Value)
	default:
		return op.Errorf(op.Invalid, "the field has neither text nor value nor checked")
	}
	el, err := locate.Find(ctx, t, target, true)
	if err != nil {
		return err
	}
	if el.Tag == "select" {
		_, err := locate.Choose(ctx, t, target, []locate.Choice{{Value: &text}})
		return err
	}
	_, err = locate.Fill(ctx, t, target, text)
	return err
}
