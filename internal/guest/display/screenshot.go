package display

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// jpegQuality is the default quality.
const jpegQuality = 80

// ScreenshotIn selects the format.
type ScreenshotIn struct {
	Format  string `query:"format" doc:"Image format" enum:"png,jpg,jpeg" default:"png"`
	Quality *int   `query:"quality" doc:"JPEG quality; default 80" minimum:"0" maximum:"100"`
}

// Screenshot captures the display.
func (s *Service) Screenshot(ctx context.Context, in ScreenshotIn) (*op.Blob, error) {
	defer s.holdBrowser(ctx)()
	blob, err := s.shoot(ctx, in)
	if errors.Is(err, x11.ErrLost) { // a screenshot changes nothing, so it can be repeated
		blob, err = s.shoot(ctx, in)
	}
	return blob, toOpError(ctx, err)
}

func (s *Service) shoot(ctx context.Context, in ScreenshotIn) (*op.Blob, error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	img, err := d.conn.Screenshot(ctx, x11.Shot{})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	media := "image/png"
	if in.Format == "png" {
		err = x11.EncodePNG(&b, img)
	} else {
		media = "image/jpeg"
		quality := jpegQuality
		if in.Quality != nil {
			quality = max(1, *in.Quality)
		}
		err = x11.EncodeJPEG(&b, img, quality)
	}
	if err != nil {
		return nil, err
	}
	width, height := strconv.Itoa(img.Rect.Dx()), strconv.Itoa(img.Rect.Dy())
	return &op.Blob{
		Type: media, Size: int64(b.Len()), Body: io.NopCloser(&b),
		Header: map[string]string{
			"X-Screen-Width": width, "X-Screen-Height": height, "X-Image-Width": width, "X-Image-Height": height,
			"Cache-Control": "no-store",
		},
	}, nil
}
