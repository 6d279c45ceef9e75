package file

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
	"sync"
	"syscall"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// UploadIn is a file and where it goes.
type UploadIn struct {
	File *op.File `form:"file" doc:"The file"`
	Path *string  `form:"path" doc:"Where it goes: a file, or a folder that exists or ends in a slash; nothing means the workspace"`
}

// UploadOut tells where it went.
type UploadOut struct {
	FilePath string `json:"file_path" doc:"Absolute path"`
	FileSize int64  `json:"file_size" doc:"Bytes"`
	Success  bool   `json:"success"`
}

// pieces are the buffers of uploads. Of the sizes from 32 KiB to 4 MiB, this one
// was the fastest.
var pieces = sync.Pool{New: func() any { b := make([]byte, 1<<20); return &b }}

// Upload streams a file to the disk. Until it is complete it is not seen.
func (s *Service) Upload(ctx context.Context, in UploadIn) (UploadOut, error) {
	path, err := s.destination("upload", in.Path, in.File.Name)
	if err != nil {
		return UploadOut{}, err
	}
	var size int64
	err = s.locked(ctx, path, func(target string) error {
		return replace(target, func(f *os.File) error {
			// Left to themselves, files are copied in pieces of 32 KiB, each a write
			// of its own.
			buf := pieces.Get().(*[]byte)
			defer pieces.Put(buf)
			var err error
			size, err = io.CopyBuffer(struct{ io.Writer }{f}, reading{ctx, in.File}, *buf)
			return err
		})
	})
	if err != nil {
		return UploadOut{}, pyerr.From("upload", path, err)
	}
	return UploadOut{FilePath: pathname.Show(path), FileSize: size, Success: true}, nil
}

// reading ends with the call.
type reading struct {
	ctx context.Context
	r   io.Reader
}

func (r reading) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		if _, ok := op.AsError(err); !ok {
			err = fmt.Errorf("the upload broke off; send it again: %w", err)
		}
	}
	return n, err
}

// destination is where an upload goes. Its own name counts only as a name: a
// folder in it is not believed.
func (s *Service) destination(operation string, path *string, name string) (string, error) {
	name = filepath.Base(strings.ReplaceAll(name, `\`, "/"))
	where := ""
	if path != nil {
		where = *path
	}
	if where == "" {
		where = "./"
	}
	full, err := s.resolve(operation, where)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(full)
	isFolder := err == nil && info.IsDir()
	if !strings.HasSuffix(where, "/") && !isFolder {
		return full, nil
	}
	if name == "." || name == ".." || name == "/" || name == "" {
		return "", refuse(operation, full, "the upload has no file name; say in path which file to write")
	}
	return filepath.Join(full, name), nil
}

// DownloadIn is a file to fetch.
type DownloadIn struct {
	Path         string `query:"path" doc:"Path of the file"`
	ChangePolicy string `query:"change_policy" enum:"ignore,abort" default:"ignore" doc:"What to do when the file changes meanwhile: abort answers 409, or cuts the connection of a large file"`
}

// Download streams a file.
func (s *Service) Download(_ context.Context, in DownloadIn) (*op.Blob, error) {
	path, err := s.resolve("download", in.Path)
	if err != nil {
		return nil, err
	}
	f, err := openRegular(path)
	if err != nil {
		if errors.Is(err, syscall.EISDIR) {
			return nil, pyerr.New("download", path, pyerr.Spec{Kind: pyerr.Target, Errno: syscall.EISDIR}, "download %s: it is a folder; GET /v1/file/archive packs it", path)
		}
		return nil, pyerr.From("download", path, err)
	}
	blob, err := s.blob(path, f, in.ChangePolicy == "abort")
	if err != nil {
		f.Close()
		return nil, pyerr.From("download", path, err)
	}
	return blob, nil
}

func (s *Service) blob(path string, f *os.File, abort bool) (*op.Blob, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := &op.Blob{Type: mime.TypeByExtension(strings.ToLower(filepath.Ext(path))), Name: pathname.Show(filepath.Base(path)),
		Size: info.Size(), ModTime: info.ModTime(), ETag: etag(info), Body: f}
	switch {
	case info.Size() == 0:
		// Files of /proc have no size, but content. Ranges of them make no sense.
		one := make([]byte, 1)
		if n, _ := f.ReadAt(one, 0); n > 0 {
			b.Size, b.ETag, b.Body = -1, "", struct{ io.ReadCloser }{f}
		}
	case abort && info.Size() <= maxStaged:
		if b.Body, err = s.stage(path, f, info); err != nil {
			return nil, err
		}
	case abort:
		b.Body = &steady{File: f, was: info}
	}
	return b, nil
}

// maxStaged is how large a file may be that is read before the answer begins, so
// that a change can still be told by its status.
const maxStaged = 64 << 20

// stage copies a file that must not change to one that nobody else can reach.
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
	_ = os.Remove(temp.Name()) // from now on only this descriptor keeps it
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
		"download %s: it changed meanwhile; try again, or allow it with change_policy=ignore", path))
	e.Code = op.Conflict
	return e
}

// changed tells whether a file is another one than when it was looked at. A file
// that was replaced counts too: its link count, and so its ctime, has changed.
func changed(f *os.File, was fs.FileInfo) bool {
	now, err := f.Stat()
	if err != nil {
		return true
	}
	a, aok := was.Sys().(*syscall.Stat_t)
	b, bok := now.Sys().(*syscall.Stat_t)
	return !aok || !bok || a.Size != b.Size || a.Mtim != b.Mtim || a.Ctim != b.Ctim
}

// steady is a large file that must not change. It fails when it does, which cuts
// the connection.
type steady struct {
	*os.File
	was fs.FileInfo
}

func (s *steady) Read(b []byte) (int, error) {
	n, err := s.File.Read(b)
	if changed(s.File, s.was) {
		return 0, changedError(s.Name())
	}
	return n, err
}

// WriteTo is hidden: it would pass Read by.
func (s *steady) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{s})
}

// etag changes with the file.
func etag(info fs.FileInfo) string {
	var inode uint64
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return fmt.Sprintf(`"%x-%x-%x"`, inode, info.Size(), info.ModTime().UnixNano())
}
