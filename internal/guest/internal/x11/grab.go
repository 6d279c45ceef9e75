package x11

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/shm"
	"github.com/jezek/xgb/xfixes"
	"github.com/jezek/xgb/xproto"
	"golang.org/x/sys/unix"
)

// Shot selects what a screenshot shows.
type Shot struct {
	// Area is clipped to the screen. Empty means the whole screen.
	Area image.Rectangle
	// NoCursor omits the pointer.
	NoCursor bool
}

// Screenshot returns the pixels of the screen, all opaque. The image has the bounds of the area, in screen coordinates.
func (c *Conn) Screenshot(ctx context.Context, shot Shot) (*image.RGBA, error) {
	return c.take(ctx, shot, func(area image.Rectangle, raw []byte) *image.RGBA {
		img := image.NewRGBA(area)
		bgrxToRGBA(img.Pix, raw)
		return img
	})
}

// Thumbnail returns a reduced picture of the whole screen, at most width pixels wide. It is much faster than a screenshot,
// because it reads only the necessary pixels from shared memory.
func (c *Conn) Thumbnail(ctx context.Context, width int) (*image.RGBA, error) {
	return c.take(ctx, Shot{}, func(area image.Rectangle, raw []byte) *image.RGBA {
		return shrink(raw, area.Size(), width)
	})
}

// take grabs the screen and converts its pixels, which are in the server's format, with draw.
func (c *Conn) take(ctx context.Context, shot Shot, draw func(area image.Rectangle, raw []byte) *image.RGBA) (*image.RGBA, error) {
	return do(ctx, c, c.screen, func() (*image.RGBA, error) {
		for try := 0; ; try++ {
			img, err := c.grab(shot, draw)
			var xerr xgb.Error
			// Retry if a resize between the query of the size and the grab made the area invalid.
			if err == nil || try == 3 || !errors.As(err, &xerr) {
				return img, err
			}
		}
	})
}

func (c *Conn) grab(shot Shot, draw func(area image.Rectangle, raw []byte) *image.RGBA) (*image.RGBA, error) {
	size, err := c.size()
	if err != nil {
		return nil, err
	}
	area := image.Rectangle{Max: size}
	if !shot.Area.Empty() {
		if area = area.Intersect(shot.Area); area.Empty() {
			return nil, fmt.Errorf("take screenshot: area %v is outside the %dx%d screen", shot.Area, size.X, size.Y)
		}
	}
	var cursor xfixes.GetCursorImageCookie
	drawCursor := c.ext.xfixes && !shot.NoCursor
	if drawCursor {
		cursor = xfixes.GetCursorImage(c.x)
	}
	raw, err := c.grabRaw(area)
	if err != nil {
		return nil, fmt.Errorf("take screenshot: %w", err)
	}
	if want := 4 * area.Dx() * area.Dy(); len(raw) < want {
		return nil, fmt.Errorf("take screenshot: got %d bytes, want %d", len(raw), want)
	}
	if drawCursor {
		cur, err := cursor.Reply()
		if err != nil {
			return nil, fmt.Errorf("take screenshot: get cursor: %w", err)
		}
		blendCursor(raw, area, cur)
	}
	return draw(area, raw), nil
}

// grabRaw returns the area's pixels in the server's format, valid until the next call.
func (c *Conn) grabRaw(area image.Rectangle) ([]byte, error) {
	x, y, w, h := int16(area.Min.X), int16(area.Min.Y), uint16(area.Dx()), uint16(area.Dy())
	const allPlanes = 0xffffffff
	if n := area.Dx() * area.Dy() * 4; c.attach(n) {
		_, err := shm.GetImage(c.x, xproto.Drawable(c.root), x, y, w, h, allPlanes, xproto.ImageFormatZPixmap, c.shm.id, 0).Reply()
		if err != nil {
			return nil, err
		}
		return c.shm.mem[:n], nil
	}
	r, err := xproto.GetImage(c.x, xproto.ImageFormatZPixmap, xproto.Drawable(c.root), x, y, w, h, allPlanes).Reply()
	if err != nil {
		return nil, err
	}
	return r.Data, nil
}

// segment is memory that the server writes pictures to.
type segment struct {
	id      shm.Seg
	mem     []byte
	refused bool
}

// attach ensures that at least n bytes are shared with the server. It returns false if pictures must be sent over the socket:
// without the extension, without System V memory, or if the server runs as another user.
func (c *Conn) attach(n int) bool {
	s := &c.shm
	if !c.ext.shm || s.refused {
		return false
	}
	if len(s.mem) >= n {
		return true
	}
	if s.mem != nil {
		shm.Detach(c.x, s.id)
		s.free()
	}
	if err := c.share(n); err != nil {
		s.free()
		s.refused = true
		return false
	}
	return true
}

func (c *Conn) share(n int) error {
	s := &c.shm
	key, err := unix.SysvShmGet(unix.IPC_PRIVATE, n, unix.IPC_CREAT|0o600)
	if err != nil {
		return err
	}
	s.mem, err = unix.SysvShmAttach(key, 0, 0)
	// Linux allows the server to attach to a segment that is already marked for removal. Marking it early means that it is removed
	// even if this process is killed.
	if _, rerr := unix.SysvShmCtl(key, unix.IPC_RMID, nil); err == nil {
		err = rerr
	}
	if err != nil {
		return err
	}
	if s.id, err = shm.NewSegId(c.x); err != nil {
		return err
	}
	return shm.AttachChecked(c.x, s.id, uint32(key), false).Check()
}

// free releases the memory. No grab may be in progress.
func (s *segment) free() {
	if s.mem != nil {
		// Fails only for memory that is not attached.
		_ = unix.SysvShmDetach(s.mem)
		s.mem = nil
	}
}

// checkPixels refuses displays with a pixel format that bgrxToRGBA does not support.
func checkPixels(setup *xproto.SetupInfo, screen *xproto.ScreenInfo) error {
	bits := byte(0)
	for _, f := range setup.PixmapFormats {
		if f.Depth == screen.RootDepth {
			bits = f.BitsPerPixel
		}
	}
	for _, d := range screen.AllowedDepths {
		for _, v := range d.Visuals {
			if v.VisualId == screen.RootVisual && bits == 32 && setup.ImageByteOrder == xproto.ImageOrderLSBFirst &&
				v.RedMask == 0xff0000 && v.GreenMask == 0xff00 && v.BlueMask == 0xff {
				return nil
			}
		}
	}
	return fmt.Errorf("unsupported display depth %d with %d bits per pixel; start the X server with -depth 24", screen.RootDepth, bits)
}

// bgrxToRGBA converts len(dst) bytes, two pixels at a time.
func bgrxToRGBA(dst, src []byte) {
	i := 0
	for ; i+8 <= len(dst); i += 8 {
		v := binary.LittleEndian.Uint64(src[i : i+8])
		v = v&0x0000ff000000ff00 | v>>16&0x000000ff000000ff | v&0x000000ff000000ff<<16 | 0xff000000ff000000
		binary.LittleEndian.PutUint64(dst[i:i+8], v)
	}
	for ; i+4 <= len(dst); i += 4 {
		dst[i], dst[i+1], dst[i+2], dst[i+3] = src[i+2], src[i+1], src[i], 0xff
	}
}

// blendCursor draws the pointer, whose colors are premultiplied, over pixels in the server's format.
func blendCursor(raw []byte, area image.Rectangle, cur *xfixes.GetCursorImageReply) {
	w, h := int(cur.Width), int(cur.Height)
	if len(cur.CursorImage) < w*h {
		return
	}
	origin := image.Pt(int(cur.X)-int(cur.Xhot), int(cur.Y)-int(cur.Yhot))
	visible := image.Rect(0, 0, w, h).Add(origin).Intersect(area)
	for y := visible.Min.Y; y < visible.Max.Y; y++ {
		for x := visible.Min.X; x < visible.Max.X; x++ {
			argb := cur.CursorImage[(y-origin.Y)*w+x-origin.X]
			rest := 255 - argb>>24
			p := raw[4*((y-area.Min.Y)*area.Dx()+x-area.Min.X):][:3]
			for i, shift := range [3]uint{0, 8, 16} {
				p[i] = byte(min(255, argb>>shift&0xff+(uint32(p[i])*rest+127)/255))
			}
		}
	}
}

// shrink returns a smaller picture of pixels in the server's format. Each pixel is the average of four, which is sufficient for
// a thumbnail.
func shrink(raw []byte, from image.Point, width int) *image.RGBA {
	width = max(1, min(width, from.X))
	height := max(1, from.Y*width/from.X)
	out := image.NewRGBA(image.Rect(0, 0, width, height))
	stepX, stepY := from.X/width/2, from.Y/height/2
	for y := range height {
		top := raw[4*from.X*(y*from.Y/height):]
		below := raw[4*from.X*min(y*from.Y/height+stepY, from.Y-1):]
		to := out.Pix[y*out.Stride:][:out.Stride]
		for x := range width {
			left := 4 * (x * from.X / width)
			right := 4 * min(x*from.X/width+stepX, from.X-1)
			a, b := spread(top[left:]), spread(top[right:])
			c, d := spread(below[left:]), spread(below[right:])
			v := (a + b + c + d) >> 2
			to[4*x], to[4*x+1], to[4*x+2], to[4*x+3] = byte(v>>32), byte(v>>16), byte(v), 0xff
		}
	}
	return out
}

// spread returns the three colors of a pixel, with room for the sum of several pixels.
func spread(pixel []byte) uint64 {
	v := uint64(binary.LittleEndian.Uint32(pixel))
	return v&0xff | v&0xff00<<8 | v&0xff0000<<16
}
