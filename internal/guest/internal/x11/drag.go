package x11

import (
	"context"
	"fmt"

	"github.com/jezek/xgb/xfixes"
	"github.com/jezek/xgb/xproto"
)

// DragSource returns the window that data is being dragged from, or 0 while nothing is dragged. Applications own the
// selection XdndSelection for as long as a drag lasts; a pointer that only marks text or moves a slider owns nothing.
func (c *Conn) DragSource(ctx context.Context) (uint32, error) {
	return do(ctx, c, c.screen, func() (uint32, error) {
		owner, err := xproto.GetSelectionOwner(c.x, c.atoms.drag).Reply()
		if err != nil {
			return 0, fmt.Errorf("query drag source: %w", err)
		}
		return uint32(owner.Owner), nil
	})
}

// CursorSerial identifies the pointer's current shape. During a drag the shape tells whether the target accepts a drop.
// It is 0 on servers that cannot tell.
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
