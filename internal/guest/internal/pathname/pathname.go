// Package pathname resolves the paths that callers send to absolute ones.
//
// It owns the rules that all operations share: ~ is the home, other relative paths are relative
// to the workspace, and names that are not UTF-8, which JSON does not support, can still be
// addressed. It refuses invalid paths, and does not check whether a file exists.
package pathname

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Base has the folders that relative paths are resolved against.
type Base struct {
	Home      string
	Workspace string
}

// maxCompared limits the entries of a folder that are compared with a name that contains
// replacement characters.
const maxCompared = 100_000

// Resolve returns the clean absolute form of a path.
func (b Base) Resolve(path string) (string, error) {
	switch {
	case path == "":
		return "", &os.PathError{Op: "resolve", Path: path, Err: fmt.Errorf("the path is empty: %w", syscall.EINVAL)}
	case strings.IndexByte(path, 0) >= 0:
		return "", &os.PathError{Op: "resolve", Path: strings.ReplaceAll(path, "\x00", `\0`),
			Err: fmt.Errorf("the path contains a zero byte: %w", syscall.EINVAL)}
	case path == "~":
		path = b.Home
	case strings.HasPrefix(path, "~/"):
		path = b.Home + path[1:]
	case path[0] != '/':
		path = b.Workspace + "/" + path
	}
	path = filepath.Clean(path)
	if path[0] != '/' {
		return "", &os.PathError{Op: "resolve", Path: path,
			Err: fmt.Errorf("no home or workspace is configured; send an absolute path: %w", syscall.EINVAL)}
	}
	if strings.ContainsRune(path, '\uFFFD') {
		return resolveShown(path)
	}
	return path, nil
}

// resolveShown finds the file that a response shows under this path. A response shows bytes that
// are not UTF-8 as U+FFFD; without this function, such a file could be listed but not opened, moved
// or deleted.
func resolveShown(path string) (string, error) {
	at := "/"
	for part := range strings.SplitSeq(path[1:], "/") {
		next := filepath.Join(at, part)
		if strings.ContainsRune(part, '\uFFFD') {
			if _, err := os.Lstat(next); err != nil {
				found, err := findShown(at, part)
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

func findShown(dir, shown string) (string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return shown, nil
	}
	defer d.Close()
	var found []string
	for seen := 0; seen < maxCompared; {
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
		Err: fmt.Errorf("%d names that are not UTF-8 are shown like this one; rename them in a shell: %w", len(found), syscall.EINVAL)}
}

// Show returns a name for a response: every byte that is not UTF-8 becomes U+FFFD, as in
// encoding/json.
func Show(name string) string {
	return string([]rune(name))
}
