package browser

import (
	"context"
	"errors"
	"fmt"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// hold returns a browser that responds, and keeps it running until release.
func (s *Service) hold(ctx context.Context) (*chrome, func(), error) {
	c, release, err := s.chrome.AcquireWorking(ctx, func(c *chrome) error {
		err := c.ping(ctx)
		// After ErrClosed the browser ends on its own.
		if err != nil && ctx.Err() == nil && !errors.Is(err, cdp.ErrClosed) {
			c.End(hung(err))
		}
		return err
	})
	return c, release, toOpError(ctx, err)
}

// ping checks that the browser responds.
func (c *chrome) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.Hang)
	defer cancel()
	return c.client.Call(ctx, cdp.Browser, "Browser.getVersion", nil, nil)
}

func (c *chrome) userAgent(ctx context.Context) (string, error) {
	var v struct {
		UserAgent string `json:"userAgent"`
	}
	err := c.client.Call(ctx, cdp.Browser, "Browser.getVersion", nil, &v)
	return v.UserAgent, err
}

// hung is why a browser that failed a ping is stopped.
func hung(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("it hung: it stopped responding")
	}
	return fmt.Errorf("it does not respond: %w", err)
}

// HintRestart adds a hint to the reply if the browser was restarted since the previous reply.
func (s *Service) HintRestart(ctx context.Context) {
	s.mu.Lock()
	text := s.restarted
	s.restarted = ""
	s.mu.Unlock()
	if text == "" {
		return
	}
	if hint := op.CallOf(ctx).Hint; hint != "" {
		text = hint + " " + text
	}
	op.Hint(ctx, "%s", text)
}

// toOpError turns an error of the browser into one for the caller.
func toOpError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, ok := op.AsError(err); ok {
		return err
	}
	if errors.Is(err, cdp.ErrClosed) {
		return op.Errorf(op.Unavailable, "the browser crashed during this call; retry, the next call starts a new browser")
	}
	return op.Errorf(op.Unavailable, "%w", err)
}
