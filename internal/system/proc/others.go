package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// EndOthers kills all processes of a PID namespace except this one and the first, which must be its parent. It requires
// root in the namespace.
func EndOthers(ctx context.Context) error {
	if os.Geteuid() != 0 || os.Getppid() != 1 {
		return errors.New("end all other processes: not the root server of a sandbox")
	}
	tick := time.NewTicker(pollPause)
	defer tick.Stop()
	for {
		// One call for all processes, so that no fork can escape it.
		if err := syscall.Kill(-1, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end all other processes: %w", err)
		}
		table, err := processes()
		if err != nil {
			return fmt.Errorf("end all other processes: %w", err)
		}
		if !slices.ContainsFunc(table, func(e entry) bool { return e.pid != 1 && e.pid != os.Getpid() && !e.zombie }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
