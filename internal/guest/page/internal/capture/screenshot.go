// Package capture takes screenshots and records videos of pages.
package capture

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/content"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Service takes screenshots and records videos.
type Service struct {
	d      *driver.Driver
	page   *content.Service
	runner *proc.Runner

	mu    sync.Mutex
	video *video // the latest recording
}

// New returns the service, which numbers elements as page lists them and encodes videos with a program of runner. It has no
// side effects.
func New(d *driver.Driver, page *content.Service, runner *proc.Runner) *Service {
	return &Service{d: d, page: page, runner: runner}
}

// Close ends the recording.
func (s *Service) Close() error {
	s.mu.Lock()
	v := s.video
	s.mu.Unlock()
	if v != nil {
		v.stop()
	}
	return nil
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	screenshot := driver.ReadOnly(driver.Spec("browser_page_screenshot", "GET /v1/browser/page/screenshot", "page_screenshot",
		"screenshot", "Take a screenshot of the visible part of the page, the whole page, or one element. Elements "+
			"can be numbered or masked."))
	screenshot.Produces, screenshot.Content = "image/png", op.ContentAPI
	return []op.Op{
		op.New(screenshot, s.Screenshot),
		op.New(driver.Spec("browser_page_record", "POST /v1/browser/page/record", "page_record", "record",
			"Record the page as a video: once for a duration, or from start to stop. The format is MP4, or WebM if "+
				"the file name ends in .webm."), s.Record),
	}
}

// ScreenshotIn are options of a screenshot.
type ScreenshotIn struct {
	FullPage  bool     `query:"full_page" doc:"Capture the whole page instead of its visible part" default:"false" alias:"full"`
	Format    string   `query:"format" doc:"png, jpeg or jpg" default:"png"`
	Quality   *int     `query:"quality" doc:"JPEG quality, from 0 to 100"`
	Selector  *string  `query:"selector" doc:"Capture only this element"`
	Mask      []string `query:"mask,omitempty" doc:"Selectors of elements to cover with a box"`
	Highlight bool     `query:"highlight" doc:"Draw the index of each interactive element" default:"false"`
	driver.Here
}

// maxSide is the maximum width and height of a screenshot; the browser fails above it.
const maxSide = 16384

// Screenshot takes a screenshot.
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
	var image []byte
	err := s.d.Visit(ctx, in.Where(), func(ctx context.Context, t *tab.Tab) (err error) {
		image, err = s.capture(ctx, t, in, format)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &op.Blob{Type: "image/" + format, Size: int64(len(image)), Body: io.NopCloser(bytes.NewReader(image))}, nil
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
	return clip{locate.Box{Width: min(r.Content.Width, maxSide), Height: min(r.Content.Height, maxSide)}, 1}, nil
}

// decorate draws numbers and masks until the result is called.
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
		list, err := s.page.List(ctx, t)
		if err != nil {
			return undo, err
		}
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
				return nil, op.Errorf(op.Invalid, "cannot mask elements: %w", err)
			}
		}
	}
	return undo, nil
}
