package display

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// hold returns a display that responds, and keeps it running until release.
func (s *Service) hold(ctx context.Context) (*desktop, func(), error) {
	d, release, err := s.desktop.AcquireWorking(ctx, func(d *desktop) error {
		err := d.ping(ctx)
		// A server that was just killed ends by itself.
		if err != nil && ctx.Err() == nil && !errors.Is(err, x11.ErrLost) {
			d.End(errors.New("the X server stopped responding"))
		}
		return err
	})
	return d, release, toOpError(ctx, err)
}

func (d *desktop) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.s.cfg.Hang)
	defer cancel()
	return d.conn.Ping(ctx)
}

// holdBrowser starts the browser on the display before a screenshot or input, as callers of /v1/browser expect. The desktop
// works without a browser, so a failure only adds a hint.
func (s *Service) holdBrowser(ctx context.Context) (release func()) {
	if s.cfg.Browser == nil {
		return func() {}
	}
	_, release, err := s.cfg.Browser(ctx)
	if err != nil {
		addHint(ctx, "No browser runs on the display: %v.", err)
		return func() {}
	}
	return release
}

// hintRestart adds a hint to the response if the display was restarted since the last one.
func (s *Service) hintRestart(ctx context.Context) {
	s.mu.Lock()
	restarted := s.restarted
	s.restarted = ""
	s.mu.Unlock()
	if restarted != "" {
		addHint(ctx, "%s", restarted)
	}
}

// addHint appends a sentence to the hint of the response.
func addHint(ctx context.Context, format string, args ...any) {
	old := op.CallOf(ctx).Hint
	op.Hint(ctx, "%s", strings.TrimSpace(old+" "+fmt.Sprintf(format, args...)))
}

// toOpError converts an error of the display into one for the caller.
func toOpError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, ok := op.AsError(err); ok {
		return err
	}
	if errors.Is(err, x11.ErrLost) {
		return op.Errorf(op.Unavailable,
			"the display crashed during this call; the next call starts a new one, so take a screenshot to see its state")
	}
	return op.Errorf(op.Unavailable, "%w", err)
}
