package x11

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jezek/xgb/randr"
	"github.com/jezek/xgb/xproto"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// paint draws random rectangles on the root window and returns the expected picture.
func paint(t testing.TB, c *Conn, size image.Point) *image.RGBA {
	t.Helper()
	want := image.NewRGBA(image.Rectangle{Max: size})
	gc, err := xproto.NewGcontextId(c.x)
	must(t, err)
	must(t, xproto.CreateGCChecked(c.x, gc, xproto.Drawable(c.root), xproto.GcSubwindowMode,
		[]uint32{xproto.SubwindowModeIncludeInferiors}).Check())
	defer xproto.FreeGC(c.x, gc)
	rnd := rand.New(rand.NewPCG(1, 2))
	area := want.Rect
	for range 200 {
		col := color.RGBA{uint8(rnd.Uint32()), uint8(rnd.Uint32()), uint8(rnd.Uint32()), 255}
		for y := area.Min.Y; y < area.Max.Y; y++ {
			for x := area.Min.X; x < area.Max.X; x++ {
				want.SetRGBA(x, y, col)
			}
		}
		xproto.ChangeGC(c.x, gc, xproto.GcForeground, []uint32{uint32(col.R)<<16 | uint32(col.G)<<8 | uint32(col.B)})
		xproto.PolyFillRectangle(c.x, xproto.Drawable(c.root), gc, []xproto.Rectangle{
			{X: int16(area.Min.X), Y: int16(area.Min.Y), Width: uint16(area.Dx()), Height: uint16(area.Dy())}})
		p := image.Pt(rnd.IntN(size.X), rnd.IntN(size.Y))
		area = image.Rectangle{p, p.Add(image.Pt(1+rnd.IntN(90), 1+rnd.IntN(90)))}.Intersect(want.Rect)
	}
	must(t, c.roundTrip())
	return want
}

func TestScreenshotShowsWhatWasDrawn(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct {
		name string
		args []string
	}{{"shared memory", nil}, {"socket", []string{"-extension", "MIT-SHM"}}} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, mode.args...)
			c := s.dial(t)
			ctx := testContext(t)
			want := paint(t, c, image.Pt(640, 480))
			got, err := c.Screenshot(ctx, Shot{NoCursor: true})
			must(t, err)
			if shared := c.shm.mem != nil; shared != (mode.args == nil) {
				t.Errorf("shared memory in use: %v, want shared %v", shared, (mode.args == nil))
			}
			if got.Rect != want.Rect || !bytes.Equal(got.Pix, want.Pix) {
				t.Errorf("the screenshot differs from what was drawn, want Rect %v and equal pixels", want.Rect)
			}
			part, err := c.Screenshot(ctx, Shot{NoCursor: true, Area: image.Rect(601, 33, 10_000, 66)})
			must(t, err)
			if part.Rect != image.Rect(601, 33, 640, 66) {
				t.Errorf("the part covers %v, want Rect %v", part.Rect, image.Rect(601, 33, 640, 66))
			}
			for y := part.Rect.Min.Y; y < part.Rect.Max.Y; y++ {
				for x := part.Rect.Min.X; x < part.Rect.Max.X; x++ {
					if part.RGBAAt(x, y) != want.RGBAAt(x, y) {
						t.Fatalf("the part at %d,%d is %v, want %v", x, y, part.RGBAAt(x, y), want.RGBAAt(x, y))
					}
				}
			}
			if _, err := c.Screenshot(ctx, Shot{Area: image.Rect(700, 0, 800, 10)}); err == nil {
				t.Error("an area outside of the screen was accepted, want an error")
			}
		})
	}
}

// TestThumbnail: a thumbnail is a reduced screenshot, and never larger than the screen.
func TestThumbnail(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"-extension", "MIT-SHM"}} {
		c := startServer(t, args...).dial(t)
		paint(t, c, image.Pt(640, 480))
		whole, err := c.Screenshot(testContext(t), Shot{})
		must(t, err)
		for _, width := range []int{1, 99, 320, 640, 5000} {
			got, err := c.Thumbnail(testContext(t), width)
			must(t, err)
			w := min(width, 640)
			h := max(1, 480*w/640)
			if got.Rect != image.Rect(0, 0, w, h) {
				t.Fatalf("width %d: got %v", width, got.Rect)
			}
			for y := range h {
				for x := range w {
					var want [3]int
					for _, at := range [4]image.Point{{0, 0}, {640 / w / 2, 0}, {0, 480 / h / 2}, {640 / w / 2, 480 / h / 2}} {
						p := whole.RGBAAt(min(x*640/w+at.X, 639), min(y*480/h+at.Y, 479))
						want[0], want[1], want[2] = want[0]+int(p.R), want[1]+int(p.G), want[2]+int(p.B)
					}
					if p := got.RGBAAt(x, y); int(p.R) != want[0]/4 || int(p.G) != want[1]/4 || int(p.B) != want[2]/4 || p.A != 255 {
						t.Fatalf("width %d at %d,%d: got %v, want %v / 4", width, x, y, p, want)
					}
				}
			}
		}
	}
}

func TestScreenshotHasCursor(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.dial(t)
	p := startProbe(t, s) // the root window shows no cursor until a client gives it one
	ctx := testContext(t)
	setCrosshair(t, p)
	// Include corners, where a part of the cursor is outside.
	for _, at := range []image.Point{{200, 100}, {0, 0}, {639, 479}} {
		must(t, c.Move(ctx, at))
		without, err := c.Screenshot(ctx, Shot{NoCursor: true})
		must(t, err)
		with, err := c.Screenshot(ctx, Shot{})
		must(t, err)
		var changed image.Rectangle
		for y := range 480 {
			for x := range 640 {
				if with.RGBAAt(x, y) != without.RGBAAt(x, y) {
					changed = changed.Union(image.Rect(x, y, x+1, y+1))
				}
			}
		}
		if changed.Empty() || !at.In(changed.Inset(-2)) || changed.Dx() > 64 || changed.Dy() > 64 {
			t.Errorf("pointer at %v: the cursor covers %v, want a small area around it", at, changed)
		}
	}
}

// setCrosshair gives the root window a cursor of the standard font.
func setCrosshair(t testing.TB, p *probe) {
	t.Helper()
	font, err := xproto.NewFontId(p.x)
	must(t, err)
	must(t, xproto.OpenFontChecked(p.x, font, uint16(len("cursor")), "cursor").Check())
	cur, err := xproto.NewCursorId(p.x)
	must(t, err)
	const crosshair = 34
	must(t, xproto.CreateGlyphCursorChecked(p.x, cur, font, font, crosshair, crosshair+1, 0xffff, 0, 0, 0xffff, 0xffff, 0xffff).Check())
	must(t, xproto.ChangeWindowAttributesChecked(p.x, p.root, xproto.CwCursor, []uint32{uint32(cur)}).Check())
	must(t, xproto.ChangeWindowAttributesChecked(p.x, p.window, xproto.CwCursor, []uint32{uint32(cur)}).Check())
}

func TestEncodedImagesDecodeToTheSame(t *testing.T) {
	t.Parallel()
	for _, size := range []image.Point{{1, 1}, {7, 5}, {129, 17}, {640, 480}} {
		img := image.NewRGBA(image.Rectangle{Max: size}.Add(image.Pt(3, 4)))
		rnd := rand.New(rand.NewPCG(3, 4))
		for i := range img.Pix {
			// Opaque; bands of noise and of one color with boundaries other than the encoder's; repeated rows.
			if img.Pix[i] = byte(rnd.Uint32()); i%4 == 3 || i/4/size.X%3 == 1 || i/4/size.X/37%2 == 1 {
				img.Pix[i] = 255
			}
		}
		var file bytes.Buffer
		must(t, EncodePNG(&file, img))
		back, err := png.Decode(&file)
		must(t, err)
		for y := range size.Y {
			for x := range size.X {
				if got, want := color.RGBAModel.Convert(back.At(x, y)), img.RGBAAt(x+3, y+4); got != want {
					t.Fatalf("%v: pixel %d,%d is %v, want %v", size, x, y, got, want)
				}
			}
		}
		must(t, EncodeJPEG(&file, img, 80))
		head, err := jpeg.DecodeConfig(&file)
		must(t, err)
		if head.Width != size.X || head.Height != size.Y {
			t.Errorf("%v: the jpeg is %dx%d, want Width %v, Height %v", size, head.Width, head.Height, size.X, size.Y)
		}
	}
	if EncodePNG(&bytes.Buffer{}, &image.RGBA{}) == nil {
		t.Error("an empty image was encoded")
	}
	for _, q := range []int{0, 101} {
		if EncodeJPEG(&bytes.Buffer{}, image.NewRGBA(image.Rect(0, 0, 1, 1)), q) == nil {
			t.Errorf("quality %d was accepted", q)
		}
	}
}

func TestResizeToAnySize(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.dial(t)
	ctx := testContext(t)
	for _, size := range []image.Point{{1280, 1024}, {777, 333}, {1920, 1080}, {801, 601}, {801, 601}, {333, 2000}, {640, 480}} {
		must(t, c.Resize(ctx, size.X, size.Y))
		got, err := c.Size(ctx)
		must(t, err)
		img, err := c.Screenshot(ctx, Shot{})
		must(t, err)
		if got != size || img.Rect.Size() != size {
			t.Errorf("resized to %v: the size is %v, a screenshot's %v, want %v, Size %v", size, got, img.Rect.Size(), size, size)
		}
	}
	for _, bad := range []image.Point{{0, 100}, {-1, 100}, {100, 1 << 20}, {1 << 40, 100}} {
		if err := c.Resize(ctx, bad.X, bad.Y); err == nil || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("resize to %v: %v, want an error containing \"out of range\"", bad, err)
		}
	}
	res, err := randr.GetScreenResourcesCurrent(c.x, c.root).Reply()
	must(t, err)
	if n := strings.Count(string(res.Names), modePrefix); n > 1 {
		t.Errorf("%d video modes were left behind, want at most 1", n)
	}
}

func TestScreenshotsDuringResizesAndInput(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	c := s.dial(t)
	ctx := testContext(t)
	stop := make(chan struct{})
	var all sync.WaitGroup
	loop := func(fn func(i int) error) {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := fn(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	loop(func(i int) error { return c.Move(ctx, image.Pt(i%300, i%200)) })
	loop(func(i int) error { return c.Type(ctx, "a世", 0) })
	loop(func(i int) error { _, err := c.SetSelection(ctx, Clipboard, Text("x")); return err })
	loop(func(i int) error { _, err := c.Screenshot(ctx, Shot{}); return err })
	// A second client resizes without notifying the first one.
	other := s.dial(t)
	for i := range 40 {
		must(t, other.Resize(ctx, 300+i*17%900, 300+i*29%700))
	}
	close(stop)
	all.Wait()
}

func TestNoSharedMemoryIsLeft(t *testing.T) {
	s := startServer(t)
	c := s.dial(t)
	ctx := testContext(t)
	for i := range 5 {
		must(t, c.Resize(ctx, 700+100*i, 500))
		_, err := c.Screenshot(ctx, Shot{})
		must(t, err)
		if n := segmentsOf(t, os.Getpid()); n != 1 {
			t.Errorf("%d segments exist while one is in use, want 1", n)
		}
	}
	must(t, c.Close())
	// The server detaches when it detects the end.
	testenv.Poll(t, "no segment exists", func() bool { return segmentsOf(t, os.Getpid()) == 0 })
	if _, err := c.Screenshot(context.Background(), Shot{}); err == nil {
		t.Error("a closed connection took a screenshot")
	}
}

// segmentsOf counts the existing System V segments of a process.
func segmentsOf(t testing.TB, pid int) int {
	t.Helper()
	table, err := os.ReadFile(filepath.Join("/proc", "sysvipc", "shm"))
	must(t, err)
	n := 0
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == strconv.Itoa(pid) {
			n++
		}
	}
	return n
}
