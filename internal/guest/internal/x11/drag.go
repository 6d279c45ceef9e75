package x11

import (
	"context"
	"fmt"

	"github.com/jezek/xgb/xfixes"
	"github.com/jezek/xgb/xproto"
)

// DragSource returns the source window of the current drag, or 0. Applications own the selection XdndSelection during a drag;
// selecting text or moving a slider does not claim it.
func (c *Conn) DragSource(ctx context.Context) (uint32, error) {
	return do(ctx, c, c.screen, func() (uint32, error) {
		owner, err := xproto.GetSelectionOwner(c.x, c.atoms.drag).Reply()
		if err != nil {
			return 0, fmt.Errorf("query drag source: %w", err)
		}
		return uint32(owner.Owner), nil
	})
}

// CursorSerial identifies the pointer's current shape. During a drag, the shape shows whether the target accepts a drop. It is 0
// if the server does not support the query.
func (c *Conn) CursorSerial(ctx context.Context) (uint32, error) {
	if !c.ext.xfixes {
		return 0, nil
	}
	return do(ctx, c, c.screen, func() (uint32, error) {
		cursor, err := xfixes.GetCursorImage(c.x).Reply()
		if err != nil {
			return 0, fmt.Errorf("query cursor: %w", err)
		}
		return cursor.CursorSerial, nil
	})
}
