package display

import (
	"bytes"
	"context"
	"image"

	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// Glance returns a small JPEG picture of the display, nil if none runs. It neither starts the display nor keeps it running.
func (s *Service) Glance(ctx context.Context, width int) ([]byte, error) {
	s.mu.Lock()
	d := s.last
	s.mu.Unlock()
	if d == nil || d.Ended() {
		return nil, nil
	}
	img, err := d.conn.Screenshot(ctx, x11.Shot{})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = x11.EncodeJPEG(&b, shrink(img, width), 50)
	return b.Bytes(), err
}

// shrink returns a smaller picture. It averages four pixels for each, which is enough for a glance.
func shrink(img *image.RGBA, width int) *image.RGBA {
	from := img.Rect.Size()
	if from.X <= width || from.X == 0 {
		return img
	}
	height := max(1, from.Y*width/from.X)
	out := image.NewRGBA(image.Rect(0, 0, width, height))
	stepX, stepY := from.X/width/2, from.Y/height/2
	for y := range height {
		top := y * from.Y / height * img.Stride
		below := min(y*from.Y/height+stepY, from.Y-1) * img.Stride
		for x := range width {
			left := 4 * (x * from.X / width)
			right := 4 * min(x*from.X/width+stepX, from.X-1)
			at := y*out.Stride + 4*x
			for c := range 3 {
				out.Pix[at+c] = byte((int(img.Pix[top+left+c]) + int(img.Pix[top+right+c]) + int(img.Pix[below+left+c]) + int(img.Pix[below+right+c])) / 4)
			}
			out.Pix[at+3] = 0xff
		}
	}
	return out
}
