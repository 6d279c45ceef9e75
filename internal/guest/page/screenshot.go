package page

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// ScreenshotIn says what to take a picture of.
type ScreenshotIn struct {
	FullPage  bool     `query:"full_page" doc:"The whole page, not only what is in view" default:"false" alias:"full"`
	Format    string   `query:"format" doc:"png, jpeg or jpg" default:"png"`
	Quality   *int     `query:"quality" doc:"Quality of a JPEG, from 0 to 100"`
	Selector  *string  `query:"selector" doc:"Only this element"`
	Mask      []string `query:"mask,omitempty" doc:"Selectors of elements to cover with a box"`
	Highlight bool     `query:"highlight" doc:"Number the interactive elements, as in the list of elements" default:"false"`
	Here
}

// maxPicture bounds the sides of a picture; the browser fails for larger ones.
const maxPicture = 16384

// Screenshot takes a picture.
func (s *Service) Screenshot(ctx context.Context, in ScreenshotIn) (*op.Blob, error) {
	format := strings.ToLower(in.Format)
	if format == "jpg" {
		format = "jpeg"
	}
	if format != "png" && format != "jpeg" {
		return nil, op.Errorf(op.Invalid, "invalid format %q; use png or jpeg", in.Format)
	}
	if in.Quality != nil && (*in.Quality < 0 || *in.Quality > 100) {
		return nil, op.Errorf(op.Invalid, "invalid quality %d; use 0 to 100", *in.Quality)
	}
	var picture []byte
	err := s.visit(ctx, in.where(), func(ctx context.Context, t *tab.Tab) (err error) {
		picture, err = s.capture(ctx, t, in, format)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &op.Blob{Type: "image/" + format, Size: int64(len(picture)), Body: io.NopCloser(bytes.NewReader(picture))}, nil
}

func (s *Service) capture(ctx context.Context, t *tab.Tab, in ScreenshotIn, format string) ([]byte, error) {
	params := map[string]any{"format": format, "captureBeyondViewport": in.FullPage}
	if format == "jpeg" {
		params["quality"] = 80
		if in.Quality != nil {
			params["quality"] = *in.Quality
		}
	} else {
		params["optimizeForSpeed"] = true
	}
	if in.Selector != nil && *in.Selector != "" {
		clip, err := elementClip(ctx, t, *in.Selector)
		if err != nil {
			return nil, err
		}
		params["clip"], params["captureBeyondViewport"] = clip, true
	} else if in.FullPage {
		clip, err := pageClip(ctx, t)
		if err != nil {
			return nil, err
		}
		params["clip"] = clip
	}
	undo, err := s.decorate(ctx, t, in)
	if err != nil {
		return nil, err
	}
	defer undo()
	var r struct {
		Data string `json:"data"`
	}
	if err := t.Call(ctx, "Page.captureScreenshot", params, &r); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(r.Data)
}

type clip struct {
	locate.Box
	Scale float64 `json:"scale"`
}

func elementClip(ctx context.Context, t *tab.Tab, selector string) (clip, error) {
	el, err := locate.ScrollTo(ctx, t, locate.Target{Selector: selector})
	if err != nil {
		return clip{}, err
	}
	at, _, err := locate.OffsetOf(ctx, el.Frame, nil)
	if err != nil {
		return clip{}, err
	}
	var scroll []float64
	if err := locate.Evaluate(ctx, t, "[scrollX, scrollY]", &scroll); err != nil {
		return clip{}, err
	}
	var box locate.Box
	if err := locate.Run(ctx, el.Frame, &box, "boxOf", el.ID); err != nil {
		return clip{}, err
	}
	if box.Width < 1 || box.Height < 1 {
		return clip{}, op.Errorf(op.Invalid, "%s is not visible: it has no size", el.What)
	}
	return clip{locate.Box{X: at.X + box.X*at.SX + scroll[0], Y: at.Y + box.Y*at.SY + scroll[1],
		Width: box.Width * at.SX, Height: box.Height * at.SY}, 1}, nil
}

func pageClip(ctx context.Context, t *tab.Tab) (clip, error) {
	var r struct {
		Content locate.Box `json:"cssContentSize"`
	}
	if err := t.Call(ctx, "Page.getLayoutMetrics", nil, &r); err != nil {
		return clip{}, err
	}
	return clip{locate.Box{Width: min(r.Content.Width, maxPicture), Height: min(r.Content.Height, maxPicture)}, 1}, nil
}

// decorate draws numbers and masks, until the result is called.
func (s *Service) decorate(ctx context.Context, t *tab.Tab, in ScreenshotIn) (func(), error) {
	if !in.Highlight && len(in.Mask) == 0 {
		return func() {}, nil
	}
	undo := func() {
		for _, f := range t.Frames() {
			_ = locate.Run(context.WithoutCancel(ctx), f, nil, "removeDrawings")
		}
	}
	if in.Highlight {
		if _, err := s.list(ctx, t); err != nil {
			return undo, err
		}
		s.mu.Lock()
		list := s.listed[t.ID]
		s.mu.Unlock()
		type mark struct {
			ID int `json:"id"`
			N  int `json:"n"`
		}
		marks := map[*tab.Frame][]mark{}
		for _, l := range list {
			marks[l.Frame] = append(marks[l.Frame], mark{l.ID, l.Index})
		}
		for f, m := range marks {
			if err := locate.Run(ctx, f, nil, "drawNumbers", m); err != nil && f == t.Main() {
				undo()
				return nil, err
			}
		}
	}
	if len(in.Mask) > 0 {
		for _, f := range t.Frames() {
			if err := locate.Run(ctx, f, nil, "drawMasks", in.Mask, "#ff00ff"); err != nil && f == t.Main() {
				undo()
				return nil, op.Errorf(op.Invalid, "cannot mask: %w", err)
			}
		}
	}
	return undo, nil
}
