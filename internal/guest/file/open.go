package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// open opens a regular file for reading, as root if asked to.
func (s *Service) open(ctx context.Context, operation, path string, sudo bool) (io.ReadCloser, error) {
	if sudo && !s.isRoot {
		r, err := s.sudoRead(ctx, path)
		return r, pyerr.From(operation, path, err)
	}
	f, err := openRegular(path)
	if err != nil {
		return nil, pyerr.From(operation, path, err)
	}
	return f, nil
}

// readTimeout bounds a read: some files of /proc and /sys look regular, and block until
// something happens.
const readTimeout = 2 * time.Second

// openRegular opens a file and never blocks on a FIFO.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, atomicfile.Irregular(path, info.Mode())
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = atomicfile.Irregular(path, info.Mode())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	_ = f.SetReadDeadline(time.Now().Add(readTimeout)) // an ordinary file has none and needs none
	return f, nil
}

// checkText checks that content can be part of a reply.
func checkText(operation, path string, b []byte) error {
	if utf8.Valid(b) {
		return nil
	}
	at := 0
	for at < len(b) {
		r, n := utf8.DecodeRune(b[at:])
		if r == utf8.RuneError && n <= 1 {
			break
		}
		at += n
	}
	return pyerr.New(operation, path, pyerr.Spec{Kind: pyerr.Decode, Hint: "use GET /v1/file/download for the raw bytes"},
		"%s %s: not UTF-8 text (byte 0x%02x at offset %d); download it instead", operation, path, b[at], at)
}

// tooLarge is the error for something that does not fit into memory.
func (s *Service) tooLarge(what string) error {
	return fmt.Errorf("%s is larger than %d MiB; read a range of lines or download it: %w", what, s.cfg.MaxRead>>20, syscall.EFBIG)
}

func (s *Service) readAll(src io.Reader) ([]byte, error) {
	var b bytes.Buffer
	if f, ok := src.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			if info.Size() > s.cfg.MaxRead {
				return nil, s.tooLarge("the file")
			}
			b.Grow(int(info.Size()) + bytes.MinRead)
		}
	}
	if _, err := b.ReadFrom(io.LimitReader(src, s.cfg.MaxRead+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > s.cfg.MaxRead {
		return nil, s.tooLarge("the file")
	}
	return b.Bytes(), nil
}

// load reads a whole file.
func (s *Service) load(ctx context.Context, operation, path string, sudo bool) ([]byte, error) {
	src, err := s.open(ctx, operation, path, sudo)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	b, err := s.readAll(src)
	if err == nil {
		err = src.Close()
	}
	if errors.Is(err, syscall.EFBIG) {
		err = fmt.Errorf("the file is larger than %d MiB, too large to edit here; use sed in a shell: %w", s.cfg.MaxRead>>20, syscall.EFBIG)
	}
	return b, pyerr.From(operation, path, err)
}
