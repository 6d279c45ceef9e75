package display

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/x11"
)

// jpegQuality is used where the caller names none.
const jpegQuality = 80

// ScreenshotIn says how the picture is to come.
type ScreenshotIn struct {
	Format  string `query:"format" doc:"File format of the picture" enum:"png,jpg,jpeg" default:"png"`
	Quality *int   `query:"quality" doc:"Quality of a JPEG; 80 when missing" minimum:"0" maximum:"100"`
}

// Screenshot takes a picture of the display.
func (s *Service) Screenshot(ctx context.Context, in ScreenshotIn) (*op.Blob, error) {
	defer s.present(ctx)()
	blob, err := s.shoot(ctx, in)
	if errors.Is(err, x11.ErrLost) { // looking changes nothing, so it can be done again
		blob, err = s.shoot(ctx, in)
	}
	return blob, s.explain(ctx, err)
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
