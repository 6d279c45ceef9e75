package display

import (
	"context"
	"errors"
	"fmt"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/x11"
)

// maxTries is how many displays in a row may turn out dead before a call gives up.
const maxTries = 3

// hold returns a display that has just answered, and keeps it until release.
func (s *Service) hold(ctx context.Context) (*desktop, func(), error) {
	for try := 1; ; try++ {
		d, release, err := s.desktop.Acquire(ctx)
		if err != nil {
			return nil, nil, s.explain(ctx, err)
		}
		if err = d.ping(ctx); err == nil {
			return d, release, nil
		}
		release()
		if ctx.Err() != nil || try == maxTries {
			return nil, nil, s.explain(ctx, err)
		}
		// Killed a moment ago, which is being noticed, or hung: either way the next round waits for another.
		if errors.Is(err, x11.ErrLost) {
			select {
			case <-d.Done():
			case <-ctx.Done():
			}
		} else {
			d.fail(errors.New("it hung: the X server did not answer any more"))
		}
	}
}

func (d *desktop) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.s.cfg.Hang)
	defer cancel()
	return d.conn.Ping(ctx)
}

// present puts the browser on the display before it is looked at or used, as callers of /v1/browser expect. A desktop
// without a browser is still one, so that is no failure, but worth a hint.
func (s *Service) present(ctx context.Context) (release func()) {
	if s.cfg.Browser == nil {
		return func() {}
	}
	_, release, err := s.cfg.Browser(ctx)
	if err != nil {
		hintf(ctx, "There is no browser on the display: %v.", err)
		return func() {}
	}
	return release
}

// tell lets the reply carry what happened to the display since the last one.
func (s *Service) tell(ctx context.Context) {
	s.mu.Lock()
	news := s.news
	s.news = ""
	s.mu.Unlock()
	if news != "" {
		hintf(ctx, "%s", news)
	}
}

// hintf adds to what the reply's hint says already.
func hintf(ctx context.Context, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if said := op.CallOf(ctx).Hint; said != "" {
		text = said + " " + text
	}
	op.Hint(ctx, "%s", text)
}

// explain turns an error of the display into one for the caller.
func (s *Service) explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, ok := op.AsError(err); ok {
		return err
	}
	if errors.Is(err, x11.ErrLost) {
		return op.Errorf(op.Unavailable, "the display ended in the middle of this; the next call has a new one: take a screenshot and go on from there")
	}
	return op.Errorf(op.Unavailable, "%w", err)
}
