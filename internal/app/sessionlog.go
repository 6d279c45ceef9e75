package app

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cove-sandbox/cove/internal/config"
)

// sessionLogNames are the folders of services that log sessions.
var sessionLogNames = []string{"activity", "bash"}

// openSessionLogs creates the folder of session logs, which only this user can read, and returns
// it. It moves logs from the state folder, where earlier versions stored them. If the folder cannot
// be used, it returns the state folder.
func openSessionLogs(c config.Aio, log *slog.Logger) string {
	if c.SessionLogs == c.State {
		return c.State
	}
	if err := createFolder(c.SessionLogs); err != nil {
		log.Warn("cannot use the folder of session logs; using the state folder", "error", err)
		return c.State
	}
	for _, name := range sessionLogNames {
		to := filepath.Join(c.SessionLogs, name)
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			if err := os.Rename(filepath.Join(c.State, name), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
				log.Warn("cannot move earlier session logs", "error", err)
			}
		}
	}
	return c.SessionLogs
}

// createFolder creates a folder that only this user can enter. It rejects a folder of another user,
// because all users may be able to write to its parent.
func createFolder(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a folder of this user; delete it, or set AIO_SESSION_LOGS", path)
	}
	return os.Chmod(path, 0o700)
}
