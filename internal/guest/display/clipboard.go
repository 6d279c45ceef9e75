package display

import (
	"context"
	"errors"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// Clipboard is the content of the clipboard.
type Clipboard struct {
	Text string `json:"text" doc:"Text on the clipboard; empty if there is none"`
}

// GetClipboard reads the clipboard.
func (s *Service) GetClipboard(ctx context.Context, _ op.None) (Clipboard, error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return Clipboard{}, err
	}
	defer release()
	s.hintRestart(ctx)
	if err := d.endLoan(ctx); err != nil {
		return Clipboard{}, toOpError(ctx, err)
	}
	text, err := d.conn.SelectionText(ctx, x11.Clipboard)
	if errors.Is(err, x11.ErrNoContent) {
		return Clipboard{}, nil
	}
	return Clipboard{Text: text}, toOpError(ctx, err)
}

// SetClipboardIn is the new content.
type SetClipboardIn struct {
	Text string `json:"text" doc:"New text; empty text clears the clipboard"`
}

// SetClipboard sets or clears the clipboard.
func (s *Service) SetClipboard(ctx context.Context, in SetClipboardIn) (Clipboard, error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return Clipboard{}, err
	}
	defer release()
	s.hintRestart(ctx)
	if err := d.endLoan(ctx); err != nil {
		return Clipboard{}, toOpError(ctx, err)
	}
	if in.Text == "" {
		err = d.conn.ClearSelection(ctx, x11.Clipboard)
	} else {
		_, err = d.conn.SetSelection(ctx, x11.Clipboard, x11.Text(in.Text))
	}
	if err != nil {
		return Clipboard{}, toOpError(ctx, err)
	}
	op.Say(ctx, "Clipboard set: %d bytes", len(in.Text))
	return Clipboard(in), nil
}
