// Package pathname turns the paths that callers send into absolute ones.
//
// It owns the three rules that every operation shares (absolute stays, ~ is the
// home, everything else is below the workspace) and how a name that is not UTF-8,
// which JSON cannot carry, is reached all the same. It refuses paths that no file
// can have; whether a file exists is not its business.
package pathname

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Base is what relative paths are resolved against.
type Base struct {
	Home      string
	Workspace string
}

// maxAlike bounds how many entries of a folder are looked at for a name that
// came with replacement characters.
const maxAlike = 100_000

// Resolve returns the clean absolute form of a path.
func (b Base) Resolve(path string) (string, error) {
	switch {
	case path == "":
		return "", &os.PathError{Op: "resolve", Path: path, Err: fmt.Errorf("the path is empty: %w", syscall.EINVAL)}
	case strings.IndexByte(path, 0) >= 0:
		return "", &os.PathError{Op: "resolve", Path: strings.ReplaceAll(path, "\x00", `\0`), Err: fmt.Errorf("the path holds a zero byte: %w", syscall.EINVAL)}
	case path == "~":
		path = b.Home
	case strings.HasPrefix(path, "~/"):
		path = b.Home + path[1:]
	case path[0] != '/':
		path = b.Workspace + "/" + path
	}
	path = filepath.Clean(path)
	if path[0] != '/' {
		return "", &os.PathError{Op: "resolve", Path: path, Err: fmt.Errorf("neither home nor workspace is known; send an absolute path: %w", syscall.EINVAL)}
	}
	if strings.ContainsRune(path, '\uFFFD') {
		return alike(path)
	}
	return path, nil
}

// alike finds the one file whose name, shown as UTF-8, is the given one. A reply
// shows bytes that are not UTF-8 as U+FFFD; without this, what a listing shows
// could not be opened, moved or deleted.
func alike(path string) (string, error) {
	at := "/"
	for part := range strings.SplitSeq(path[1:], "/") {
		next := filepath.Join(at, part)
		if strings.ContainsRune(part, '\uFFFD') {
			if _, err := os.Lstat(next); err != nil {
				found, err := lookalike(at, part)
				if err != nil {
					return "", err
				}
				next = filepath.Join(at, found)
			}
		}
		at = next
	}
	return at, nil
}

func lookalike(dir, shown string) (string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return shown, nil
	}
	defer d.Close()
	var found []string
	for seen := 0; seen < maxAlike; {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			if Show(name) == shown {
				found = append(found, name)
			}
		}
		if seen += len(names); err != nil {
			break
		}
	}
	switch len(found) {
	case 0:
		return shown, nil
	case 1:
		return found[0], nil
	}
	return "", &os.PathError{Op: "resolve", Path: filepath.Join(dir, shown),
		Err: fmt.Errorf("%d names that are not UTF-8 look like this one; rename them in a shell: %w", len(found), syscall.EINVAL)}
}

// Show is the form of a name that a reply can carry: every byte that is not UTF-8
// becomes U+FFFD, as encoding/json does it.
func Show(name string) string {
	return string([]rune(name))
}
