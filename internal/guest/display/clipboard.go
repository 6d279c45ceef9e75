package display

import (
	"context"
	"errors"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/x11"
)

// None is an input without fields.
type None struct{}

// Clipboard is what was copied.
type Clipboard struct {
	Text string `json:"text" doc:"The text; empty when there is none"`
}

// GetClipboard reads the clipboard.
func (s *Service) GetClipboard(ctx context.Context, _ None) (Clipboard, error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return Clipboard{}, err
	}
	defer release()
	s.tell(ctx)
	text, err := d.conn.SelectionText(ctx, x11.Clipboard)
	if errors.Is(err, x11.ErrNoContent) {
		return Clipboard{}, nil
	}
	return Clipboard{Text: text}, s.explain(ctx, err)
}

// SetClipboardIn is what to copy.
type SetClipboardIn struct {
	Text string `json:"text" doc:"Text to put there; empty empties the clipboard"`
}

// SetClipboard fills or empties the clipboard.
func (s *Service) SetClipboard(ctx context.Context, in SetClipboardIn) (Clipboard, error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return Clipboard{}, err
	}
	defer release()
	s.tell(ctx)
	if in.Text == "" {
		err = d.conn.ClearSelection(ctx, x11.Clipboard)
	} else {
		_, err = d.conn.SetSelection(ctx, x11.Clipboard, x11.Text(in.Text))
	}
	if err != nil {
		return Clipboard{}, s.explain(ctx, err)
	}
	op.Say(ctx, "Clipboard set: %d bytes", len(in.Text))
	return Clipboard(in), nil
}
