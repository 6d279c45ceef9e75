package browser

import (
	"context"
	"errors"
	"fmt"

	"github.com/cove-sandbox/cove/internal/cdp"
	"github.com/cove-sandbox/cove/internal/op"
)

// maxTries is how many browsers in a row may turn out dead before a call gives up.
const maxTries = 3

// hold returns a browser that has just answered, and keeps it until release.
func (s *Service) hold(ctx context.Context) (*chrome, func(), error) {
	for try := 1; ; try++ {
		c, release, err := s.chrome.Acquire(ctx)
		if err != nil {
			return nil, nil, s.explain(ctx, err)
		}
		if err = c.ping(ctx); err == nil {
			return c, release, nil
		}
		release()
		if ctx.Err() != nil || try == maxTries {
			return nil, nil, s.explain(ctx, err)
		}
		// Killed a moment ago, which is being noticed, or hung: either way the next round waits for another.
		if errors.Is(err, cdp.ErrClosed) {
			select {
			case <-c.Done():
			case <-ctx.Done():
			}
		} else {
			c.fail(hung(err))
		}
	}
}

// ping asks the browser for a sign of life.
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

// hung says why a browser that failed a ping is given up.
func hung(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("it hung: it did not answer any more")
	}
	return fmt.Errorf("it does not answer: %w", err)
}

// tell lets the reply carry what happened to the browser since the last one.
func (s *Service) tell(ctx context.Context) {
	s.mu.Lock()
	news := s.news
	s.news = ""
	s.mu.Unlock()
	if news == "" {
		return
	}
	if said := op.CallOf(ctx).Hint; said != "" {
		news = said + " " + news
	}
	op.Hint(ctx, "%s", news)
}

// explain turns an error of the browser into one for the caller.
func (s *Service) explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, ok := op.AsError(err); ok {
		return err
	}
	if errors.Is(err, cdp.ErrClosed) {
		return op.Errorf(op.Unavailable, "the browser ended in the middle of this; the next call has a new one: try again")
	}
	return op.Errorf(op.Unavailable, "%w", err)
}
