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

// ErrNotFound is wrapped by Start when the program does not exist. It is an
// [fs.ErrNotExist] too.
var ErrNotFound = fmt.Errorf("program not found: %w", fs.ErrNotExist)

// defaultPath is where programs are looked for when no environment says so.
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

// searchPath is the PATH of the first environment that has one. Of several
// entries the last counts, as for most programs.
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

// look finds a program the way execvp does, except that an empty or relative
// PATH entry, which would run whatever lies in the working directory, counts for nothing.
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
