package transfer

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// ArchiveIn names a folder.
type ArchiveIn struct {
	Path   string `query:"path" doc:"Path of a folder or file"`
	Format string `query:"format" enum:"tar.gz,zip" default:"tar.gz" doc:"Archive format"`
}

// Archive packs a folder while sending it.
func (s *Service) Archive(ctx context.Context, in ArchiveIn) (*op.Blob, error) {
	path, err := s.files.Resolve("archive", in.Path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		return nil, access.Refuse("archive", path, "only files and folders can be archived")
	}
	sum, err := archive.Survey(ctx, path)
	if err != nil {
		return nil, pyerr.From("archive", access.FailedPath(path, err), err)
	}
	format := archive.Format(in.Format)
	media := "application/gzip"
	if format == archive.Zip {
		media = "application/zip"
	}
	name := filepath.Base(path)
	if name == "/" {
		name = "root"
	}
	r, w := io.Pipe()
	// The body outlives this call. It ends when it or the service is closed.
	packing, cancel := context.WithCancel(s.life)
	s.live.Go(func() {
		defer cancel()
		defer context.AfterFunc(packing, func() { w.CloseWithError(context.Canceled) })()
		err := archive.Pack(packing, w, path, format)
		if err != nil && packing.Err() == nil && !errors.Is(err, io.ErrClosedPipe) {
			s.cfg.Log.Warn("archive download failed", "path", path, "error", err)
		}
		w.CloseWithError(err)
	})
	return &op.Blob{Type: media, Name: pathname.Show(name) + "." + in.Format, Size: -1, Body: r,
		Header: map[string]string{"X-Archive-Entries": strconv.Itoa(sum.Entries), "X-Archive-Skipped": strconv.Itoa(sum.Skipped)}}, nil
}
