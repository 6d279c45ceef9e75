package proc

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotFound means that a program does not exist. It is an [fs.ErrNotExist], too.
var ErrNotFound = fmt.Errorf("program not found: %w", fs.ErrNotExist)

// defaultPath is the PATH of an environment without one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Look finds the first of the named programs in the base environment's PATH.
func (r *Runner) Look(names ...string) (path string, ok bool) {
	for _, name := range names {
		if path, ok := look(name, searchPath(*r.env.Load())); ok {
			return path, true
		}
	}
	return "", false
}

// searchPath is the PATH of the first environment that has one. The last of
// several entries counts, as in most programs.
func searchPath(envs ...[]string) string {
	for _, env := range envs {
		for _, entry := range slices.Backward(env) {
			if path, ok := strings.CutPrefix(entry, "PATH="); ok {
				return path
			}
		}
	}
	return ""
}

// look finds a program like execvp, but ignores empty and relative PATH entries,
// which would run programs from the working directory.
func look(name, path string) (string, bool) {
	if name == "" {
		return "", false
	}
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	for _, dir := range filepath.SplitList(path) {
		if full := filepath.Join(dir, name); filepath.IsAbs(full) && executable(full) {
			return full, true
		}
	}
	return "", false
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil
}
