package x11

import (
	"context"
	"errors"
	"fmt"
	"image"
	"strings"

	"github.com/jezek/xgb/randr"
	"github.com/jezek/xgb/xproto"
)

// modePrefix marks the video modes that Resize created, so that it can remove them, even after a reconnect.
const modePrefix = "cove-"

// Size returns the screen's current width and height.
func (c *Conn) Size(ctx context.Context) (image.Point, error) {
	return do(ctx, c, c.screen, c.size)
}

func (c *Conn) size() (image.Point, error) {
	g, err := xproto.GetGeometry(c.x, xproto.Drawable(c.root)).Reply()
	if err != nil {
		return image.Point{}, fmt.Errorf("query screen size: %w", err)
	}
	return image.Pt(int(g.Width), int(g.Height)), nil
}

// Resize changes the size of the screen within the server's range. Applications are notified, and a window manager adapts
// maximized windows. Several monitors become one.
func (c *Conn) Resize(ctx context.Context, width, height int) error {
	_, err := do(ctx, c, c.screen, func() (struct{}, error) {
		if err := c.resize(width, height); err != nil {
			return struct{}{}, fmt.Errorf("resize screen to %dx%d: %w", width, height, err)
		}
		return struct{}{}, nil
	})
	return err
}

func (c *Conn) resize(width, height int) error {
	if !c.ext.randr {
		return errors.New("the X server lacks the RANDR extension")
	}
	limits, err := randr.GetScreenSizeRange(c.x, c.root).Reply()
	if err != nil {
		return err
	}
	if width < int(limits.MinWidth) || width > int(limits.MaxWidth) || height < int(limits.MinHeight) || height > int(limits.MaxHeight) {
		return fmt.Errorf("size out of range; use a size from %dx%d to %dx%d",
			limits.MinWidth, limits.MinHeight, limits.MaxWidth, limits.MaxHeight)
	}
	old, err := c.size()
	if err != nil || old == image.Pt(width, height) {
		return err
	}
	res, err := randr.GetScreenResourcesCurrent(c.x, c.root).Reply()
	if err != nil {
		return err
	}
	output, crtc, err := c.firstMonitor(res)
	if err != nil {
		return err
	}
	mode, err := c.mode(res, output, width, height)
	if err != nil {
		return err
	}
	// The screen must always contain the monitor: set the union first, then the monitor, then the exact size.
	if union := image.Pt(max(width, old.X), max(height, old.Y)); union != old {
		if err := c.setScreenSize(union.X, union.Y); err != nil {
			return err
		}
	}
	if err := c.setCrtc(res, crtc, mode, output); err != nil {
		return err
	}
	if err := c.setScreenSize(width, height); err != nil {
		return err
	}
	c.dropModes(res, output, mode)
	if now, err := c.size(); err != nil || now != image.Pt(width, height) {
		return errors.Join(err, fmt.Errorf("the screen has size %dx%d: another client resized it at the same time; retry", now.X, now.Y))
	}
	return nil
}

// firstMonitor returns the first connected output and its controller, and disables all other controllers.
func (c *Conn) firstMonitor(res *randr.GetScreenResourcesCurrentReply) (randr.Output, randr.Crtc, error) {
	for _, output := range res.Outputs {
		info, err := randr.GetOutputInfo(c.x, output, res.ConfigTimestamp).Reply()
		if err != nil {
			return 0, 0, err
		}
		if info.Connection != randr.ConnectionConnected || len(info.Crtcs) == 0 {
			continue
		}
		crtc := info.Crtc
		if crtc == 0 {
			crtc = info.Crtcs[0]
		}
		for _, other := range res.Crtcs {
			if other == crtc {
				continue
			}
			state, err := randr.GetCrtcInfo(c.x, other, res.ConfigTimestamp).Reply()
			if err != nil {
				return 0, 0, err
			}
			if state.Mode != 0 {
				if err := c.setCrtc(res, other, 0); err != nil {
					return 0, 0, err
				}
			}
		}
		return output, crtc, nil
	}
	return 0, 0, errors.New("the display has no connected output")
}

// mode finds or creates a video mode of this size and adds it to the output.
func (c *Conn) mode(res *randr.GetScreenResourcesCurrentReply, output randr.Output, width, height int) (randr.Mode, error) {
	var mode randr.Mode
	for _, m := range res.Modes {
		if int(m.Width) == width && int(m.Height) == height {
			mode = randr.Mode(m.Id)
			break
		}
	}
	if mode == 0 {
		name := fmt.Sprintf("%s%dx%d", modePrefix, width, height)
		made, err := randr.CreateMode(c.x, c.root, randr.ModeInfo{
			Width: uint16(width), Height: uint16(height), DotClock: uint32(width) * uint32(height) * 60,
			Htotal: uint16(width), Vtotal: uint16(height), NameLen: uint16(len(name)),
		}, name).Reply()
		if err != nil {
			return 0, fmt.Errorf("create video mode: %w", err)
		}
		mode = made.Mode
	}
	if err := randr.AddOutputModeChecked(c.x, output, mode).Check(); err != nil {
		return 0, fmt.Errorf("add video mode to output: %w", err)
	}
	return mode, nil
}

// dropModes removes the modes of earlier resizes, which would accumulate in the server.
func (c *Conn) dropModes(res *randr.GetScreenResourcesCurrentReply, output randr.Output, current randr.Mode) {
	names := string(res.Names)
	for _, m := range res.Modes {
		n := min(int(m.NameLen), len(names))
		name := names[:n]
		names = names[n:]
		if mode := randr.Mode(m.Id); mode != current && strings.HasPrefix(name, modePrefix) {
			randr.DeleteOutputMode(c.x, output, mode)
			randr.DestroyMode(c.x, mode)
		}
	}
}

func (c *Conn) setCrtc(res *randr.GetScreenResourcesCurrentReply, crtc randr.Crtc, mode randr.Mode, outputs ...randr.Output) error {
	r, err := randr.SetCrtcConfig(c.x, crtc, 0, res.ConfigTimestamp, 0, 0, mode, randr.RotationRotate0, outputs).Reply()
	if err != nil {
		return fmt.Errorf("set video mode: %w", err)
	}
	if r.Status != randr.SetConfigSuccess {
		return fmt.Errorf("set video mode: the server returned status %d", r.Status)
	}
	return nil
}

// setScreenSize keeps the resolution at 96 dots per inch, so that applications do not change their scale.
func (c *Conn) setScreenSize(width, height int) error {
	mm := func(px int) uint32 { return uint32(max(1, px*254/960)) }
	err := randr.SetScreenSizeChecked(c.x, c.root, uint16(width), uint16(height), mm(width), mm(height)).Check()
	if err != nil {
		return fmt.Errorf("set screen size: %w", err)
	}
	return nil
}
