//go:build unix

package archive

import (
	"os"

	"golang.org/x/sys/unix"
)

// openFlags prevent following links and blocking on FIFOs.
const openFlags = unix.O_NONBLOCK | unix.O_NOFOLLOW

// checkReadable reports whether a file can be opened, without opening it.
func checkReadable(path string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK, unix.AT_EACCESS); err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	return nil
}
