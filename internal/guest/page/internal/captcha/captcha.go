// Package captcha detects captchas on pages and waits until a person has solved them.
package captcha

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// Service detects captchas.
type Service struct{ d *driver.Driver }

// New returns the service. It has no side effects.
func New(d *driver.Driver) *Service { return &Service{d} }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(driver.ReadOnly(driver.Spec("browser_captcha_detect", "GET /v1/browser/captcha/detect", "detect_captcha",
			"captcha-detect", "Detect an unsolved captcha on the page.")), s.DetectCaptcha),
		op.New(driver.Spec("browser_captcha_wait", "POST /v1/browser/captcha/wait", "wait_for_captcha", "captcha-wait",
			"Wait until a person has solved the captcha on the page."), s.WaitForCaptcha),
	}
}

// Captcha describes a captcha.
type Captcha struct {
	Detected bool    `json:"detected"`
	Type     *string `json:"type" doc:"Type such as recaptcha, hcaptcha, turnstile, cloudflare, arkose, geetest or image"`
	Selector *string `json:"selector"`
	SiteKey  *string `json:"site_key"`
	URL      string  `json:"url"`
}

// DetectCaptcha detects a captcha.
func (s *Service) DetectCaptcha(ctx context.Context, in driver.Here) (*Captcha, error) {
	out := &Captcha{}
	err := s.d.Visit(ctx, in.Where(), func(ctx context.Context, t *tab.Tab) (err error) {
		*out, err = detect(ctx, t)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// WaitForCaptchaIn limits the wait.
type WaitForCaptchaIn struct {
	Timeout      float64 `json:"timeout" doc:"Timeout in seconds" default:"60"`
	PollInterval float64 `json:"poll_interval" doc:"Polling interval in seconds" default:"2"`
	Tab          *int    `json:"tab" doc:"Index of the tab; default: the active tab" minimum:"0"`
}

// Resolved reports whether the captcha was solved.
type Resolved struct {
	Resolved bool `json:"resolved"`
}

// WaitForCaptcha waits until the page has no unsolved captcha.
func (s *Service) WaitForCaptcha(ctx context.Context, in WaitForCaptchaIn) (*Resolved, error) {
	out := &Resolved{}
	limit := in.Timeout + driver.ActionTime.Seconds()
	end := time.Now().Add(driver.Seconds(in.Timeout))
	where := driver.Where{Tab: in.Tab, Timeout: &limit}
	err := s.d.VisitWith(ctx, where, driver.Options{Wait: true}, func(ctx context.Context, t *tab.Tab) error {
		every := max(driver.Seconds(in.PollInterval), 50*time.Millisecond)
		return driver.Poll(ctx, every, func() (bool, error) {
			c, err := detect(ctx, t)
			if err != nil && !tab.IsStale(err) {
				return false, err
			}
			out.Resolved = err == nil && !c.Detected
			return out.Resolved || time.Now().Add(every).After(end), nil
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// detect searches the page and its frames for a captcha.
func detect(ctx context.Context, t *tab.Tab) (Captcha, error) {
	out := Captcha{URL: t.URL()}
	err := locate.EachFrame(ctx, t, func(f *tab.Frame) error {
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
