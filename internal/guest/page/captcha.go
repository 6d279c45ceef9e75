package page

import (
	"context"

	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// detectCaptcha looks for a captcha in the page and its frames, except in those of the captcha itself.
func detectCaptcha(ctx context.Context, t *tab.Tab) (Captcha, error) {
	out := Captcha{URL: t.URL()}
	err := inFrames(ctx, t, func(f *tab.Frame) error {
		if out.Detected {
			return nil
		}
		var c Captcha
		if err := locate.Run(ctx, f, &c, "detectCaptcha"); err != nil {
			return err
		}
		if c.Detected {
			c.URL = t.URL()
			out = c
		}
		return nil
	})
	return out, err
}
