package transfer

import (
	"context"
	"errors"
	"os"
	"strconv"
	"syscall"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// UnpackIn is an archive and its destination.
type UnpackIn struct {
	File      *op.File `form:"file" doc:"Archive: tar, tar.gz, tar.bz2, tar.zst or zip"`
	Path      *string  `form:"path" doc:"Folder to unpack into, created if missing; default is the workspace"`
	Overwrite bool     `form:"overwrite" default:"true" doc:"Replace existing files"`
	Strip     int      `form:"strip_components" default:"0" minimum:"0" maximum:"64" doc:"Number of leading folders to strip from each name"`
}

// UnpackOut reports what was unpacked.
type UnpackOut struct {
	Path    string            `json:"path" doc:"Absolute path of the folder"`
	Format  string            `json:"format" doc:"Format of the archive"`
	Files   int               `json:"files"`
	Folders int               `json:"folders"`
	Links   int               `json:"links"`
	Bytes   int64             `json:"bytes" doc:"Total size of all files"`
	Skipped []archive.Skipped `json:"skipped" doc:"Skipped entries with the reason; at most 100 are listed"`
}

// Unpack unpacks an uploaded archive.
func (s *Service) Unpack(ctx context.Context, in UnpackIn) (UnpackOut, error) {
	where := "./"
	if in.Path != nil && *in.Path != "" {
		where = *in.Path
	}
	path, err := s.files.Resolve("unpack", where)
	if err != nil {
		return UnpackOut{}, err
	}
	if err := os.MkdirAll(path, 0o777); err != nil {
		return UnpackOut{}, pyerr.From("unpack", path, err)
	}
	rep, err := archive.Unpack(ctx, uploadReader{ctx, in.File}, archive.Options{Dest: path, Spool: s.spoolDir(path),
		Limits: s.cfg.Unpack, Overwrite: in.Overwrite, Strip: in.Strip})
	out := UnpackOut{path, rep.Format, rep.Files, rep.Folders, rep.Links, rep.Bytes, rep.Skipped}
	if err == nil {
		return out, nil
	}
	done := ""
	if rep.Files > 0 {
		done = "; " + strconv.Itoa(rep.Files) + " files were already unpacked"
	}
	switch {
	case errors.Is(err, archive.ErrTooLarge):
		err = pyerr.New("unpack", path, pyerr.Spec{Kind: pyerr.Target, Errno: syscall.EFBIG}, "unpack %s: %w%s", path, err, done)
	case errors.Is(err, archive.ErrMalformed):
		err = pyerr.New("unpack", path, pyerr.Spec{Kind: pyerr.Decode, Class: "ValueError"}, "unpack %s: %w%s", path, err, done)
	case errors.Is(err, archive.ErrEscape):
		err = pyerr.New("unpack", path, pyerr.Spec{Kind: pyerr.Path}, "unpack %s: %w%s", path, err, done)
	}
	return UnpackOut{}, pyerr.From("unpack", access.FailedPath(path, err), err)
}

// spoolDir returns the folder for a zip file while it is unpacked.
func (s *Service) spoolDir(dest string) string {
	if s.cfg.State != "" && os.MkdirAll(s.cfg.State, 0o700) == nil {
		return s.cfg.State
	}
	return dest
}
