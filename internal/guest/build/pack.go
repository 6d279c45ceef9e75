package build

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// PackIn selects files.
type PackIn struct {
	Sources []string `json:"sources" minItems:"1" maxItems:"1000" doc:"Patterns of paths"`
}

// Pack returns a tar archive of the files that the patterns match, with their paths. A source that is a link stands for
// its target; other links stay links.
func (s *Service) Pack(ctx context.Context, in PackIn) (*op.Blob, error) {
	var matched []string
	for _, p := range in.Sources {
		clean := filepath.Clean("/" + p)
		found, err := filepath.Glob(filepath.Join(escape(s.Root), clean))
		if err != nil {
			return nil, op.Errorf(op.Invalid, "copy %.100q: invalid pattern", p)
		}
		if len(found) == 0 {
			return nil, op.Errorf(op.NotFound, "copy %.100q: no such file in the stage", p)
		}
		matched = append(matched, found...)
	}
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		tw := tar.NewWriter(w)
		err := s.pack(ctx, tw, matched)
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err)
	}()
	return &op.Blob{Type: "application/x-tar", Size: -1, Body: packed{r, cancel}}, nil
}

// packed is an archive that is written while it is read.
type packed struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (p packed) Close() error {
	p.cancel()
	return p.PipeReader.Close()
}

func (s *Service) pack(ctx context.Context, tw *tar.Writer, matched []string) error {
	seen := map[string]bool{}
	skip := []string{}
	for _, name := range notSaved {
		skip = append(skip, filepath.Join(s.Root, name))
	}
	for _, top := range matched {
		real, err := filepath.EvalSymlinks(top)
		if err != nil {
			return err
		}
		err = filepath.WalkDir(real, func(path string, d fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(real, path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(s.Root, filepath.Join(top, rel))
			if err != nil {
				return err
			}
			if slices.Contains(skip, path) || name == "." || seen[name] || strings.HasPrefix(d.Name(), stagingPrefix) {
				if d.IsDir() && name != "." && !seen[name] {
					return fs.SkipDir
				}
				return nil
			}
			seen[name] = true
			return addFile(tw, path, name)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addFile adds a file, folder or link to an archive.
func addFile(tw *tar.Writer, path, name string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	link := ""
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		if link, err = os.Readlink(path); err != nil {
			return err
		}
	case !mode.IsRegular() && !mode.IsDir():
		return nil // sockets, devices and FIFOs
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname = name, "", ""
	if !info.Mode().IsRegular() {
		if info.IsDir() {
			h.Name += "/"
		}
		return tw.WriteHeader(h)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(tw, f, h.Size)
	if errors.Is(err, io.EOF) {
		return errors.New(path + " became shorter while it was copied to another stage")
	}
	return err
}
