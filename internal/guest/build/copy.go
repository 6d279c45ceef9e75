package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
)

// CopyIn is an archive, and which of its files to copy where.
type CopyIn struct {
	Sources string   `form:"sources" doc:"Patterns of paths in the archive, as a JSON list"`
	To      string   `form:"to" doc:"Absolute path; a folder if it ends with / or if there are several sources"`
	Owner   string   `form:"owner" default:"" doc:"Name or ID, with an optional group after a colon; default root"`
	Mode    string   `form:"mode" default:"" pattern:"^([0-7]{3,4})?$" doc:"Mode of all files and folders in octal; default: theirs"`
	Keep    bool     `form:"keep" default:"false" doc:"Keep the owners of the archive unless owner is set, and all links"`
	Unpack  bool     `form:"unpack" default:"false" doc:"Unpack files that are tar archives"`
	File    *op.File `form:"file" doc:"The archive"`
}

// CopyOut is the result of Copy.
type CopyOut struct {
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"`
	Skipped []string `json:"skipped" doc:"Links and special files that were not copied, with the reason"`
}

// stagingPrefix begins the names of folders for unpacked files. They are in the root folder, because files are moved
// from there.
const stagingPrefix = ".cove-copy-"

// Copy unpacks an archive and moves selected files to their destination, with the rules of COPY in a Dockerfile.
func (s *Service) Copy(ctx context.Context, in CopyIn) (out CopyOut, err error) {
	var sources []string
	if err := json.Unmarshal([]byte(in.Sources), &sources); err != nil || len(sources) == 0 {
		return out, op.Errorf(op.Invalid, "sources: expected a JSON list of patterns")
	}
	if !filepath.IsAbs(in.To) {
		return out, op.Errorf(op.Invalid, "to %.80q: use an absolute path", in.To)
	}
	u, err := lookup(in.Owner)
	if err != nil {
		return out, err
	}
	if in.File == nil {
		return out, op.Errorf(op.Invalid, "file: the archive is missing")
	}
	staging, err := os.MkdirTemp(s.Staging, stagingPrefix)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(staging)) }()
	report, err := archive.Unpack(ctx, in.File, archive.Options{Dest: staging, Spool: s.Staging, Limits: s.Limits, Untrusted: true,
		Exact: true, AnyLinks: in.Keep})
	if err != nil {
		return out, explain(err)
	}
	for _, k := range report.Skipped {
		out.Skipped = append(out.Skipped, k.Name+": "+k.Reason)
	}
	if err := os.Chmod(staging, 0o755); err != nil { // of a folder that is created for all files
		return out, err
	}
	m := &mover{uid: int(u.UID), gid: int(u.GID), keep: in.Keep && in.Owner == "", out: &out}
	if in.Unpack {
		m.unpack = func(from, to string) (bool, error) { return s.unpackTo(ctx, m, from, to, in.Owner == "") }
	}
	if in.Mode != "" {
		mode, err := strconv.ParseUint(in.Mode, 8, 32)
		if err != nil {
			return out, op.Errorf(op.Invalid, "mode %q: use octal digits", in.Mode)
		}
		m.mode = modeOf(uint32(mode))
	}
	return out, ofDestination(m.moveAll(staging, sources, in.To))
}

// ofDestination turns an error of the file system at the destination, which the caller chooses, into one for the caller.
func ofDestination(err error) error {
	if _, shown := op.AsError(err); shown || err == nil {
		return err
	}
	_, inPath := errors.AsType[*fs.PathError](err)
	_, inLink := errors.AsType[*os.LinkError](err)
	if inPath || inLink {
		return op.Errorf(op.Invalid, "copy: %w", err)
	}
	return err
}

// unpackTo unpacks a file into a folder, if it is a tar archive.
func (s *Service) unpackTo(ctx context.Context, m *mover, from, to string, keep bool) (done bool, err error) {
	f, err := os.Open(from)
	if err != nil {
		return false, err
	}
	defer f.Close()
	head := make([]byte, 6)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	switch head = head[:n]; {
	case bytes.HasPrefix(head, []byte("PK")):
		return false, nil
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		return false, op.Errorf(op.Invalid, "unpack %.200s: archives with xz are unsupported; use gzip, bzip2 or zstd", filepath.Base(from))
	}
	staging, err := os.MkdirTemp(s.Staging, stagingPrefix)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(staging)) }()
	report, err := archive.Unpack(ctx, f, archive.Options{Dest: staging, Limits: s.Limits, Untrusted: true, Exact: true, AnyLinks: true})
	switch entries := report.Files + report.Folders + report.Links; {
	case errors.Is(err, archive.ErrMalformed) && entries == 0:
		return false, nil // an ordinary file
	case err != nil:
		return false, explain(err)
	}
	for _, k := range report.Skipped {
		m.out.Skipped = append(m.out.Skipped, k.Name+": "+k.Reason)
	}
	if err := os.Chmod(staging, 0o755); err != nil {
		return false, err
	}
	inner := *m
	inner.keep = keep
	return true, inner.merge(staging, filepath.Clean(to))
}

// explain turns an error of an untrusted archive into one for the caller.
func explain(err error) error {
	switch {
	case errors.Is(err, archive.ErrTooLarge):
		return op.Errorf(op.TooLarge, "unpack files: %w", err)
	case errors.Is(err, archive.ErrMalformed), errors.Is(err, archive.ErrEscape), errors.Is(err, fs.ErrExist):
		return op.Errorf(op.Invalid, "unpack files: %w", err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return op.Errorf(op.Exhausted, "unpack files: the disk of the build is full; raise its disk limit")
	}
	return err
}

// modeOf converts the bits of chmod.
func modeOf(bits uint32) *fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	for bit, m := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= m
		}
	}
	return &mode
}

func lookupGroup(name string) (uint32, error) {
	text := name
	if g, err := user.LookupGroup(name); err == nil {
		text = g.Gid
	}
	id, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, op.Errorf(op.Invalid, "invalid group: '%.60s'", name)
	}
	return uint32(id), nil
}

// mover moves files to their destination.
type mover struct {
	uid, gid int
	keep     bool // the owners of the files
	mode     *fs.FileMode
	unpack   func(from, to string) (done bool, err error) // nil: never
	out      *CopyOut
}

// moveAll moves what the patterns match. A folder stands for its content.
func (m *mover) moveAll(staging string, patterns []string, to string) error {
	var matched []string
	for _, p := range patterns {
		clean := strings.TrimPrefix(filepath.Clean("/"+p), "/")
		if clean == "" {
			matched = append(matched, staging)
			continue
		}
		if p != "/" && !filepath.IsLocal(strings.TrimPrefix(p, "/")) {
			return op.Errorf(op.Invalid, "copy %.100q: the source is outside the uploaded files", p)
		}
		found, err := filepath.Glob(filepath.Join(escape(staging), clean))
		if err != nil {
			return op.Errorf(op.Invalid, "copy %.100q: invalid pattern", p)
		}
		if len(found) == 0 {
			return op.Errorf(op.NotFound, "copy %.100q: no uploaded file matches", p)
		}
		slices.Sort(found)
		matched = append(matched, found...)
	}
	folder := strings.HasSuffix(to, "/") || len(matched) > 1
	for _, from := range matched {
		info, err := os.Lstat(from)
		if err != nil {
			return err
		}
		if info.IsDir() {
			if err := m.merge(from, filepath.Clean(to)); err != nil {
				return err
			}
			continue
		}
		if m.unpack != nil && info.Mode().IsRegular() {
			if done, err := m.unpack(from, to); done || err != nil {
				if err != nil {
					return err
				}
				continue
			}
		}
		target := filepath.Clean(to)
		if at, err := os.Stat(target); folder || err == nil && at.IsDir() {
			target = filepath.Join(target, filepath.Base(from))
		}
		if err := makeFolders(filepath.Dir(target), m.uid, m.gid); err != nil {
			return err
		}
		if err := m.place(from, target); err != nil {
			return err
		}
	}
	return nil
}

// escape quotes a path for patterns.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// merge moves the content of a folder into another, which is created if it is missing.
func (m *mover) merge(from, to string) error {
	if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
		if err := makeFolders(filepath.Dir(to), m.uid, m.gid); err != nil {
			return err
		}
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		info, err := os.Stat(from)
		if err != nil {
			return err
		}
		if err := m.own(to, info); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			err = m.merge(source, target)
		} else {
			err = m.place(source, target)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// place moves one file or link. It replaces files and links, but not folders.
func (m *mover) place(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if at, err := os.Lstat(to); err == nil && at.IsDir() {
		return op.Errorf(op.Invalid, "copy to %.200s: it is a folder", to)
	}
	if err := m.own(from, info); err != nil {
		return err
	}
	err = os.Rename(from, to)
	if errors.Is(err, syscall.EXDEV) { // a sandbox without an image has several overlays
		err = m.copyFile(from, to, info)
	}
	if err != nil {
		return fmt.Errorf("copy to %s: %w", to, explain(err))
	}
	m.out.Files++
	if info.Mode().IsRegular() {
		m.out.Bytes += info.Size()
	}
	return nil
}

// own sets owner and mode. Changing the owner drops special bits, so the mode comes last.
func (m *mover) own(path string, info fs.FileInfo) error {
	uid, gid := m.uid, m.gid
	if st, ok := info.Sys().(*syscall.Stat_t); ok && m.keep {
		uid, gid = int(st.Uid), int(st.Gid)
	}
	if err := chown(path, uid, gid); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	if m.mode != nil {
		return os.Chmod(path, *m.mode)
	}
	return os.Chmod(path, info.Mode().Perm())
}

// copyFile copies a file or link to another filesystem.
func (m *mover) copyFile(from, to string, info fs.FileInfo) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err == nil {
			err = os.Symlink(target, to)
		}
		return errors.Join(err, m.own(to, info))
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Close()); err != nil {
		return err
	}
	if err := m.own(to, info); err != nil {
		return err
	}
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}
