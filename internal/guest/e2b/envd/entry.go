package envd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
)

// Types of files.
const (
	kindFile   = "FILE_TYPE_FILE"
	kindFolder = "FILE_TYPE_DIRECTORY"
)

// entry describes a file or folder.
type entry struct {
	Name        string            `json:"name,omitempty"`
	Type        string            `json:"type,omitempty"`
	Path        string            `json:"path,omitempty"`
	Size        int64             `json:"size,string,omitempty"`
	Mode        uint32            `json:"mode,omitempty"`
	Permissions string            `json:"permissions,omitempty"`
	Owner       string            `json:"owner,omitempty"`
	Group       string            `json:"group,omitempty"`
	Modified    string            `json:"modifiedTime,omitempty"`
	Target      *string           `json:"symlinkTarget,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// describe returns the entry of a path. A symbolic link has the type and mode of its target.
func describe(path string) (entry, error) { return (&describer{}).describe(path) }

// describer describes paths, and caches the names of users and groups.
type describer struct{ users, groups map[int]string }

func (d *describer) describe(path string) (entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return entry{}, err
	}
	e := entry{
		Name: filepath.Base(path), Path: path, Size: info.Size(), Permissions: info.Mode().String(),
		Modified: info.ModTime().UTC().Format(time.RFC3339Nano), Mode: uint32(info.Mode().Perm()),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if info.IsDir() && e.Size == 0 {
			e.Size = int64(st.Blksize) //nolint:unconvert // 32 bits on arm64; some filesystems report no size, which clients expect
		}
		e.Owner, e.Group = cachedName(&d.users, userNames, int(st.Uid)), cachedName(&d.groups, groupNames, int(st.Gid))
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := filepath.EvalSymlinks(path)
		if err != nil {
			target = path // the link is broken
		}
		e.Target = &target
		if to, err := os.Stat(path); err == nil {
			info = to
			e.Mode, e.Size = uint32(info.Mode().Perm()), info.Size()
		}
	}
	switch {
	case info.IsDir():
		e.Type = kindFolder
	case info.Mode().IsRegular():
		e.Type = kindFile
		e.Metadata = readMetadata(path)
	}
	return e, nil
}

// The files that name users and groups.
const (
	userNames  = "/etc/passwd"
	groupNames = "/etc/group"
)

func cachedName(known *map[int]string, file string, id int) string {
	if *known == nil {
		*known = map[int]string{}
	}
	name, ok := (*known)[id]
	if !ok {
		name = findName(file, id)
		(*known)[id] = name
	}
	return name
}

// findName returns the first name of an ID, or the ID itself. The standard library caches the name of the current user, which
// prepare may change.
func findName(file string, id int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return strconv.Itoa(id)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(line, ":", 4); len(f) == 4 && f[2] == strconv.Itoa(id) {
			return f[0]
		}
	}
	return strconv.Itoa(id)
}

// fileError converts an error of the file system into one for the caller.
func fileError(path string, err error) error {
	if e, ok := errors.AsType[*connect.Error](err); ok {
		return e
	}
	code := connect.Internal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return connect.Errorf(connect.NotFound, "path %q does not exist", path)
	case errors.Is(err, fs.ErrExist):
		code = connect.AlreadyExists
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		code = connect.PermissionDenied
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG),
		errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.ELOOP):
		code = connect.InvalidArgument
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = connect.ResourceExhausted
	}
	cause := err
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		cause = p.Err
	}
	return connect.Errorf(code, "path %q: %v", path, cause)
}

// Metadata of a file is stored as extended attributes.
const (
	metadataPrefix = "user.e2b."
	maxMetadata    = 4 << 10
)

// readMetadata returns the metadata of a file, or nil if it has none.
func readMetadata(path string) map[string]string {
	names := make([]byte, 64<<10)
	n, err := unix.Listxattr(path, names)
	if err != nil || n == 0 {
		return nil
	}
	var all map[string]string
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		key, ok := strings.CutPrefix(name, metadataPrefix)
		if !ok {
			continue
		}
		value := make([]byte, maxMetadata)
		size, err := unix.Getxattr(path, name, value)
		if err != nil {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[key] = string(value[:size])
	}
	return all
}

// writeMetadata replaces the metadata of a file.
func writeMetadata(path string, all map[string]string) error {
	for key := range readMetadata(path) {
		if _, keep := all[key]; !keep {
			if err := unix.Removexattr(path, metadataPrefix+key); err != nil && !errors.Is(err, unix.ENODATA) {
				return err
			}
		}
	}
	for key, value := range all {
		if err := unix.Setxattr(path, metadataPrefix+key, []byte(value), 0); err != nil {
			return &fs.PathError{Op: "set metadata", Path: path, Err: err}
		}
	}
	return nil
}
