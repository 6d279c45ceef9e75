package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// UploadIn is a file and its destination.
type UploadIn struct {
	File *op.File `form:"file" doc:"The file"`
	Path *string  `form:"path" doc:"Destination: a file, an existing folder, or a path that ends with a slash; default is the workspace"`
}

// UploadOut reports where the file is.
type UploadOut struct {
	FilePath string `json:"file_path" doc:"Absolute path"`
	FileSize int64  `json:"file_size" doc:"Bytes"`
	Success  bool   `json:"success"`
}

// uploadBuffers holds the buffers of uploads. Of the sizes from 32 KiB to 4 MiB, 1 MiB is the
// fastest.
var uploadBuffers = sync.Pool{New: func() any { b := make([]byte, 1<<20); return &b }}

// Upload streams a file to disk. It appears only when it is complete.
func (s *Service) Upload(ctx context.Context, in UploadIn) (UploadOut, error) {
	path, err := s.destination("upload", in.Path, in.File.Name)
	if err != nil {
		return UploadOut{}, err
	}
	var size int64
	err = s.files.WithLock(ctx, path, func(target string) error {
		return access.Replace(target, func(f *os.File) error {
			// io.Copy would write only 32 KiB at a time.
			buf := uploadBuffers.Get().(*[]byte)
			defer uploadBuffers.Put(buf)
			var err error
			size, err = io.CopyBuffer(struct{ io.Writer }{f}, uploadReader{ctx, in.File}, *buf)
			return err
		})
	})
	if err != nil {
		return UploadOut{}, pyerr.From("upload", path, err)
	}
	return UploadOut{FilePath: pathname.Show(path), FileSize: size, Success: true}, nil
}

// uploadReader reads an upload until the call ends.
type uploadReader struct {
	ctx context.Context
	r   io.Reader
}

func (r uploadReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		if _, ok := op.AsError(err); !ok {
			err = fmt.Errorf("the upload was interrupted; send it again: %w", err)
		}
	}
	return n, err
}

// destination returns the path of an upload. Folders in the name that the client sent are ignored.
func (s *Service) destination(operation string, path *string, name string) (string, error) {
	name = filepath.Base(strings.ReplaceAll(name, `\`, "/"))
	where := ""
	if path != nil {
		where = *path
	}
	if where == "" {
		where = "./"
	}
	full, err := s.files.Resolve(operation, where)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(full)
	isFolder := err == nil && info.IsDir()
	if !strings.HasSuffix(where, "/") && !isFolder {
		return full, nil
	}
	if name == "." || name == ".." || name == "/" || name == "" {
		return "", access.Refuse(operation, full, "the upload has no file name; send the file to write in path")
	}
	return filepath.Join(full, name), nil
}
