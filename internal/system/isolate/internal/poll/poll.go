// Package poll waits for what the kernel does not announce.
package poll

import (
	"context"
	"time"
)

// Until calls ask, ever less often, until it returns true or an error, or ctx ends.
func Until(ctx context.Context, ask func() (bool, error)) error {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		wait.Reset(pause)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-wait.C:
		}
	}
}
