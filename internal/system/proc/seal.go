package proc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SealMemory prevents other programs of the same user from reading the memory and environment of
// this process, from tracing it and from copying its descriptors. It does not affect child processes.
func SealMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("seal the memory of the server: %w", err)
	}
	return nil
}
