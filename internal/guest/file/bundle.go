package file

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/cove-sandbox/cove/internal/archive"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pathname"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// ArchiveIn is a folder to fetch.
type ArchiveIn struct {
	Path   string `query:"path" doc:"Path of the folder, or of one file"`
	Format string `query:"format" enum:"tar.gz,zip" default:"tar.gz" doc:"Kind of archive"`
}

// Archive packs a folder while it is sent.
func (s *Service) Archive(ctx context.Context, in ArchiveIn) (*op.Blob, error) {
	path, err := s.resolve("archive", in.Path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		return nil, refuse("archive", path, "only files and folders can be packed")
	}
	sum, err := archive.Survey(ctx, path)
	if err != nil {
		return nil, pyerr.From("archive", unreadable(path, err), err)
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
	// The body outlives this call: it ends with its reader, or with the service.
	packing, cancel := context.WithCancel(s.life)
	s.live.Go(func() {
		defer cancel()
		defer context.AfterFunc(packing, func() { w.CloseWithError(context.Canceled) })()
		err := archive.Pack(packing, w, path, format)
		if err != nil && packing.Err() == nil && !errors.Is(err, io.ErrClosedPipe) {
			s.cfg.Log.Warn("archive cut off", "path", path, "error", err)
		}
		w.CloseWithError(err)
	})
	return &op.Blob{Type: media, Name: pathname.Show(name) + "." + in.Format, Size: -1, Body: r,
		Header: map[string]string{"X-Archive-Entries": strconv.Itoa(sum.Entries), "X-Archive-Skipped": strconv.Itoa(sum.Skipped)}}, nil
}

// unreadable is the path that an error is about.
func unreadable(path string, err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok && filepath.IsAbs(e.Path) {
		return e.Path
	}
	return path
}

// UnpackIn is an archive and where its content goes.
type UnpackIn struct {
	File      *op.File `form:"file" doc:"The archive: tar, tar.gz, tar.bz2, tar.zst or zip"`
	Path      *string  `form:"path" doc:"Folder to unpack into, made if it is not there; nothing means the workspace"`
	Overwrite bool     `form:"overwrite" default:"true" doc:"Replace files that exist"`
	Strip     int      `form:"strip_components" default:"0" minimum:"0" maximum:"64" doc:"Leading folders to leave out of every name"`
}

// UnpackOut tells what was unpacked.
type UnpackOut struct {
	Path    string            `json:"path" doc:"Absolute path of the folder"`
	Format  string            `json:"format" doc:"What the archive was"`
	Files   int               `json:"files"`
	Folders int               `json:"folders"`
	Links   int               `json:"links"`
	Bytes   int64             `json:"bytes" doc:"Size of all files"`
	Skipped []archive.Skipped `json:"skipped" doc:"Entries that were left out, and why; at most a hundred"`
}

// Unpack unpacks an upload.
func (s *Service) Unpack(ctx context.Context, in UnpackIn) (UnpackOut, error) {
	where := "./"
	if in.Path != nil && *in.Path != "" {
		where = *in.Path
	}
	path, err := s.resolve("unpack", where)
	if err != nil {
		return UnpackOut{}, err
	}
	if err := os.MkdirAll(path, 0o777); err != nil {
		return UnpackOut{}, pyerr.From("unpack", path, err)
	}
	rep, err := archive.Unpack(ctx, reading{ctx, in.File}, archive.Options{Dest: path, Spool: s.spool(path), Limits: s.cfg.Unpack, Overwrite: in.Overwrite, Strip: in.Strip})
	out := UnpackOut{path, rep.Format, rep.Files, rep.Folders, rep.Links, rep.Bytes, rep.Skipped}
	if err == nil {
		return out, nil
	}
	so := ""
	if rep.Files > 0 {
		so = "; " + strconv.Itoa(rep.Files) + " files had been unpacked by then"
	}
	switch {
	case errors.Is(err, archive.ErrTooLarge):
		err = pyerr.New("unpack", path, pyerr.Spec{Kind: pyerr.Target, Errno: syscall.EFBIG}, "unpack %s: %w%s", path, err, so)
	case errors.Is(err, archive.ErrMalformed):
		err = pyerr.New("unpack", path, pyerr.Spec{Kind: pyerr.Decode, Class: "ValueError"}, "unpack %s: %w%s", path, err, so)
	case errors.Is(err, archive.ErrEscape):
		err = pyerr.New("unpack", path, pyerr.Spec{Kind: pyerr.Path}, "unpack %s: refused, %w%s", path, err, so)
	}
	return UnpackOut{}, pyerr.From("unpack", unreadable(path, err), err)
}

// spool is where a zip is kept while it is unpacked.
func (s *Service) spool(dest string) string {
	if s.cfg.State != "" && os.MkdirAll(s.cfg.State, 0o700) == nil {
		return s.cfg.State
	}
	return dest
}
