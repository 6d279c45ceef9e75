package cgroup

import (
	"context"
	"time"
)

// Poll calls check, with increasing pauses, until it returns true or an error, or ctx ends. It
// is for changes that the kernel does not announce, such as those of control groups.
func Poll(ctx context.Context, check func() (bool, error)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		if ok, err := check(); ok || err != nil {
			return err
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}
