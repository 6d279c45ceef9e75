// Package archive packs folders into tar.gz and zip streams and unpacks them.
//
// It owns the formats, and guarantees that an archive never writes outside its destination: all
// entries are opened through os.Root, and their number and size are limited. It refuses names
// that leave the destination, devices and set-uid bits.
package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Format of an archive.
type Format string

const (
	TarGz Format = "tar.gz"
	Zip   Format = "zip"
)

// Limits of one Unpack.
type Limits struct {
	Entries int   // files, folders and links
	Bytes   int64 // of all files, unpacked
	Packed  int64 // of the archive itself
}

var (
	// ErrTooLarge means that a limit was exceeded.
	ErrTooLarge = errors.New("archive is too large")
	// ErrMalformed means that the data is not an archive, or a damaged one.
	ErrMalformed = errors.New("not a readable archive")
	// ErrEscape means that an entry's name leaves the destination.
	ErrEscape = errors.New("entry leaves the destination")
)

// Summary is the size of a folder.
type Summary struct {
	Entries int
	Bytes   int64
	Skipped int // sockets, FIFOs and devices, which are not packed
}

// Survey walks the entries that Pack would pack and returns the first error, so that a caller knows
// it before the first byte is sent.
func Survey(ctx context.Context, root string) (Summary, error) {
	var s Summary
	err := walk(ctx, root, func(path, _ string, info fs.FileInfo) error {
		switch {
		case info.Mode().IsRegular():
			s.Bytes += info.Size()
			if err := checkReadable(path); err != nil {
				return err
			}
		case !info.IsDir() && info.Mode()&fs.ModeSymlink == 0:
			s.Skipped++
			return nil
		}
		s.Entries++
		return nil
	})
	return s, err
}

// walk visits root and all entries below it without following links. name is the path in the
// archive, which starts with the name of the root.
func walk(ctx context.Context, root string, visit func(path, name string, info fs.FileInfo) error) error {
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	base := filepath.Base(root)
	if base == "/" {
		base = "root"
	}
	return filepath.WalkDir(real, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted in the meantime
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(real, path)
		if err != nil {
			return err
		}
		return visit(path, filepath.Join(base, rel), info)
	})
}

// openFile opens a regular file, and checks its type again: a FIFO in its place would block the
// read.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: path, Err: fmt.Errorf("no longer a regular file: %w", fs.ErrInvalid)}
	}
	return f, nil
}

// boundedReader stops when the context ends or the limit is exceeded.
type boundedReader struct {
	ctx  context.Context
	r    io.Reader
	left *int64
}

func (b boundedReader) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	if *b.left -= int64(n); *b.left < 0 {
		return 0, ErrTooLarge
	}
	return n, err
}
