package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// DownloadIn names a file.
type DownloadIn struct {
	Path         string `query:"path" doc:"Path of the file"`
	ChangePolicy string `query:"change_policy" enum:"ignore,abort" default:"ignore" doc:"abort fails the download if the file changes"`
}

// Download streams a file.
func (s *Service) Download(ctx context.Context, in DownloadIn) (*op.Blob, error) {
	path, err := s.files.Resolve("download", in.Path)
	if err != nil {
		return nil, err
	}
	f, err := access.OpenRegular(path)
	if err != nil {
		if errors.Is(err, syscall.EISDIR) {
			return nil, pyerr.New("download", path, pyerr.Spec{Kind: pyerr.Target, Errno: syscall.EISDIR},
				"download %s: is a folder; use GET /v1/file/archive to download it", path)
		}
		return nil, pyerr.From("download", path, err)
	}
	if op.CallOf(ctx).Reader && !isStored(f) {
		f.Close()
		return nil, op.Errorf(op.Denied, "%s is not a stored file; read-only access does not include it", path)
	}
	blob, err := s.newBlob(path, f, in.ChangePolicy == "abort")
	if err != nil {
		f.Close()
		return nil, pyerr.From("download", path, err)
	}
	return blob, nil
}

// isStored reports whether a file is on a disk. Files of kernel file systems such as /proc expose
// the memory, environment and state of processes, also through other paths.
func isStored(f *os.File) bool {
	var at unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &at); err != nil {
		return false
	}
	switch at.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.CGROUP_SUPER_MAGIC,
		unix.CGROUP2_SUPER_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.NSFS_MAGIC:
		return false
	}
	return true
}

func (s *Service) newBlob(path string, f *os.File, abort bool) (*op.Blob, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := &op.Blob{Type: mime.TypeByExtension(strings.ToLower(filepath.Ext(path))), Name: pathname.Show(filepath.Base(path)),
		Size: info.Size(), ModTime: info.ModTime(), ETag: etag(info), Body: f}
	switch {
	case info.Size() == 0:
		// Files of /proc have content, but no size. They have no ranges.
		one := make([]byte, 1)
		if n, _ := f.ReadAt(one, 0); n > 0 {
			if abort && changed(f, info) {
				return nil, changedError(path) // it was empty when it was described
			}
			b.Size, b.ETag, b.Body = -1, "", struct{ io.ReadCloser }{f}
		}
	case abort && info.Size() <= maxStaged:
		if b.Body, err = s.stage(path, f, info); err != nil {
			return nil, err
		}
	case abort:
		b.Body = &unchangedFile{f, info}
	}
	return b, nil
}

// maxStaged limits the size of a file that is copied before the response starts, so that the
// status can report a change.
const maxStaged = 64 << 20

// stage copies a file that must not change to a temporary file that no other process can open.
func (s *Service) stage(path string, f *os.File, was fs.FileInfo) (io.ReadCloser, error) {
	dir := s.cfg.State
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	temp, err := os.CreateTemp(dir, "download-*")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(temp.Name()) // only this descriptor refers to it
	n, err := io.Copy(temp, f)
	if err == nil && (n != was.Size() || changed(f, was)) {
		err = changedError(path)
	}
	if err == nil {
		_, err = temp.Seek(0, io.SeekStart)
	}
	if err != nil {
		temp.Close()
		return nil, err
	}
	f.Close()
	return temp, nil
}

func changedError(path string) error {
	e, _ := op.AsError(pyerr.New("download", path, pyerr.Spec{Kind: pyerr.IO, Errno: syscall.EBUSY, Retryable: true},
		"download %s: the file changed during the download; retry, or set change_policy=ignore", path))
	e.Code = op.Conflict
	return e
}

// changed reports whether a file has changed since it was described. A replaced file has changed,
// too: its link count, and so its ctime, is different.
func changed(f *os.File, was fs.FileInfo) bool {
	current, err := f.Stat()
	if err != nil {
		return true
	}
	a, aok := was.Sys().(*syscall.Stat_t)
	b, bok := current.Sys().(*syscall.Stat_t)
	return !aok || !bok || a.Size != b.Size || a.Mtim != b.Mtim || a.Ctim != b.Ctim
}

// unchangedFile is a large file that must not change. If it changes, reading fails, which
// closes the connection.
//
// It does not embed the file: with the file's other methods, the kernel could send it
// (sendfile) without a call of Read.
type unchangedFile struct {
	file *os.File
	was  fs.FileInfo
}

func (s *unchangedFile) Read(b []byte) (int, error) {
	n, err := s.file.Read(b)
	if changed(s.file, s.was) {
		return 0, changedError(s.file.Name())
	}
	return n, err
}

func (s *unchangedFile) Seek(offset int64, whence int) (int64, error) {
	return s.file.Seek(offset, whence)
}

func (s *unchangedFile) Close() error { return s.file.Close() }

// etag changes with the file.
func etag(info fs.FileInfo) string {
	var inode uint64
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return fmt.Sprintf(`"%x-%x-%x"`, inode, info.Size(), info.ModTime().UnixNano())
}
