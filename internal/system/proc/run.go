package proc

import (
	"context"
	"fmt"
	"io"
)

// Result is the outcome of Run.
type Result struct {
	Exit                         Exit
	Stdout, Stderr               []byte // with a marker in the middle if bytes were dropped
	DroppedStdout, DroppedStderr int64
}

// defaultLimit is the number of bytes that Run keeps of each stream.
const defaultLimit = 1 << 20

// Run starts a command, keeps the beginning and the end of its output, and waits
// for it. A nonzero exit code is not an error. When ctx ends first, Run kills the
// whole group and returns the output so far. It does not keep streams that the
// command redirects. Background processes of the command keep running, as after
// Start; their later output is dropped.
func (r *Runner) Run(ctx context.Context, c Command) (Result, error) {
	if err := context.Cause(ctx); err != nil {
		return Result{Exit: notEnded}, fmt.Errorf("run %s: %w", c.Path, err)
	}
	limit := c.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	var out, errs *Capture
	if c.TTY == nil {
		out, errs = captureTo(&c.Stdout, limit), captureTo(&c.Stderr, limit)
	}
	p, err := r.Start(c)
	if err != nil {
		return Result{Exit: notEnded}, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
		err = fmt.Errorf("run %s: %w", c.Path, context.Cause(ctx))
	}
	res := Result{Exit: p.Exit()}
	res.Stdout, res.DroppedStdout = out.take()
	res.Stderr, res.DroppedStderr = errs.take()
	return res, err
}

func captureTo(w *io.Writer, limit int) *Capture {
	if *w != nil {
		return nil
	}
	c := NewCapture(limit/2, limit-limit/2)
	*w = c
	return c
}
