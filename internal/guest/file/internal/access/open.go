package access

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

// Open opens a regular file for reading, as root if sudo is set.
func (f *Files) Open(ctx context.Context, operation, path string, sudo bool) (io.ReadCloser, error) {
	if f.NeedsSudo(sudo) {
		r, err := f.sudoRead(ctx, path)
		return r, pyerr.From(operation, path, err)
	}
	file, err := OpenRegular(path)
	if err != nil {
		return nil, pyerr.From(operation, path, err)
	}
	return file, nil
}

// readTimeout limits a read: some files of /proc and /sys look regular, but block until an
// event occurs.
const readTimeout = 2 * time.Second

// OpenRegular opens a regular file for reading. It never blocks on a FIFO.
func OpenRegular(path string) (*os.File, error) {
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
	_ = f.SetReadDeadline(time.Now().Add(readTimeout)) // a file on a disk supports no deadline and needs none
	return f, nil
}

// CheckText returns an error if content is not UTF-8, and so cannot be part of a response.
func CheckText(operation, path string, b []byte) error {
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

// TooLarge returns the error for something that exceeds the read limit.
func (f *Files) TooLarge(what string) error {
	return fmt.Errorf("%s is larger than %d MiB; read a range of lines or download it: %w", what, f.cfg.MaxRead>>20, syscall.EFBIG)
}

// ReadAll reads everything up to the read limit.
func (f *Files) ReadAll(src io.Reader) ([]byte, error) {
	var b bytes.Buffer
	if file, ok := src.(*os.File); ok {
		if info, err := file.Stat(); err == nil {
			if info.Size() > f.cfg.MaxRead {
				return nil, f.TooLarge("the file")
			}
			b.Grow(int(info.Size()) + bytes.MinRead)
		}
	}
	if _, err := b.ReadFrom(io.LimitReader(src, f.cfg.MaxRead+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > f.cfg.MaxRead {
		return nil, f.TooLarge("the file")
	}
	return b.Bytes(), nil
}

// Load reads a complete file.
func (f *Files) Load(ctx context.Context, operation, path string, sudo bool) ([]byte, error) {
	src, err := f.Open(ctx, operation, path, sudo)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	b, err := f.ReadAll(src)
	if err == nil {
		err = src.Close()
	}
	if errors.Is(err, syscall.EFBIG) {
		err = fmt.Errorf("the file is larger than %d MiB, the limit of this operation; use sed in a shell: %w", f.cfg.MaxRead>>20, syscall.EFBIG)
	}
	return b, pyerr.From(operation, path, err)
}
