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

	"github.com/cove-sandbox/cove/internal/atomicfile"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// ReadIn is a file and a range of its lines.
type ReadIn struct {
	File      string `json:"file" doc:"Path of the file"`
	StartLine *int   `json:"start_line" doc:"First line, from 0; negative counts from the end"`
	EndLine   *int   `json:"end_line" doc:"Line to stop before; negative counts from the end; nothing means the last line too"`
	Sudo      bool   `json:"sudo" default:"false" nullable:"true" doc:"Read as root"`
}

// ReadOut is text.
type ReadOut struct {
	Content string `json:"content" doc:"The text; of a range, without the last line's end"`
	File    string `json:"file" doc:"Absolute path"`
}

// Read returns text. Only the range is held in memory.
func (s *Service) Read(ctx context.Context, in ReadIn) (ReadOut, error) {
	path, err := s.resolve("read", in.File)
	if err != nil {
		return ReadOut{}, err
	}
	src, err := s.open(ctx, "read", path, in.Sudo)
	if err != nil {
		return ReadOut{}, err
	}
	defer src.Close()
	text, err := s.readRange(src, in.StartLine, in.EndLine)
	if err == nil {
		err = src.Close()
	}
	if err != nil {
		return ReadOut{}, pyerr.From("read", path, err)
	}
	if err := checkText("read", path, text); err != nil {
		return ReadOut{}, err
	}
	return ReadOut{Content: string(text), File: path}, nil
}

// open opens a regular file for reading, as root where asked.
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

// stuck is how long a read may wait: some files of /proc and /sys look regular,
// and give nothing until something happens.
const stuck = 2 * time.Second

// openRegular opens a file without ever waiting for a FIFO's other end.
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
	_ = f.SetReadDeadline(time.Now().Add(stuck)) // a true file has none and needs none
	return f, nil
}

// checkText makes sure that content can stand in a reply.
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
	return pyerr.New(operation, path, pyerr.Spec{Kind: pyerr.Decode, Hint: "GET /v1/file/download gives the bytes as they are"},
		"%s %s: it is not UTF-8 text (byte 0x%02x at offset %d); download it instead", operation, path, b[at], at)
}

// tooLarge is the failure of something that would not fit into memory.
func (s *Service) tooLarge(what string) error {
	return fmt.Errorf("%s has more than %d MiB; read a range of lines, or download it: %w", what, s.cfg.MaxRead>>20, syscall.EFBIG)
}

func (s *Service) readRange(src io.Reader, start, end *int) ([]byte, error) {
	if start == nil && end == nil {
		return s.readAll(src)
	}
	from, to := 0, -1
	if start != nil {
		from = *start
	}
	if end != nil {
		to = *end
	}
	if from >= 0 && (end == nil || to >= 0) {
		count := -1
		if end != nil {
			count = max(0, to-from)
		}
		out, over, err := forward(src, from, count, s.cfg.MaxRead)
		if over {
			err = s.tooLarge("the range")
		}
		return out, err
	}
	return s.fromEnd(src, from, to, end != nil)
}

func (s *Service) readAll(src io.Reader) ([]byte, error) {
	var b bytes.Buffer
	if f, ok := src.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			if info.Size() > s.cfg.MaxRead {
				return nil, s.tooLarge("it")
			}
			b.Grow(int(info.Size()) + bytes.MinRead)
		}
	}
	if _, err := b.ReadFrom(io.LimitReader(src, s.cfg.MaxRead+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > s.cfg.MaxRead {
		return nil, s.tooLarge("it")
	}
	return b.Bytes(), nil
}

// forward reads count lines after skipping some; a negative count is all. It
// stops beyond the limit and says so.
func forward(src io.Reader, skip, count int, limit int64) (out []byte, over bool, err error) {
	buf := make([]byte, 128<<10)
	for count != 0 {
		n, err := src.Read(buf)
		chunk := buf[:n]
		if skip > 0 {
			chunk, skip = dropLines(chunk, skip)
		}
		if skip == 0 {
			taken, left := takeLines(chunk, count)
			out, count = append(out, taken...), left
		}
		if int64(len(out)) > limit {
			return out, true, nil
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
	}
	return chomp(out), false, nil
}

// dropLines leaves out lines and returns what follows them and how many are
// still to be left out.
func dropLines(b []byte, n int) ([]byte, int) {
	if have := bytes.Count(b, []byte{'\n'}); have < n {
		return nil, n - have
	}
	for ; n > 0; n-- {
		b = b[bytes.IndexByte(b, '\n')+1:]
	}
	return b, 0
}

// takeLines returns up to n lines and how many are still wanted; all when n is
// negative.
func takeLines(b []byte, n int) ([]byte, int) {
	if n < 0 {
		return b, n
	}
	rest, left := dropLines(b, n)
	if left > 0 {
		return b, left
	}
	return b[:len(b)-len(rest)], 0
}

// chomp leaves out the end of the last line.
func chomp(b []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(b, []byte{'\n'}), []byte{'\r'})
}

// fromEnd reads a range of which one end counts from the last line.
func (s *Service) fromEnd(src io.Reader, from, to int, hasEnd bool) ([]byte, error) {
	at, size, err := s.seekable(src)
	if err != nil {
		return nil, err
	}
	var first int64
	last := size
	switch {
	case hasEnd && to < 0:
		last, _, err = lastLines(at, size, -to, size)
	case hasEnd:
		last, err = lineOffset(at, size, to)
	}
	if err != nil {
		return nil, err
	}
	if from < 0 {
		var far bool
		// Looking further than a range can reach would be for nothing.
		if first, far, err = lastLines(at, size, -from, size-last+s.cfg.MaxRead); far {
			err = s.tooLarge("the range")
		}
	} else {
		first, err = lineOffset(at, size, from)
	}
	if err != nil {
		return nil, err
	}
	if last <= first {
		return nil, nil
	}
	if last-first > s.cfg.MaxRead {
		return nil, s.tooLarge("the range")
	}
	b := make([]byte, last-first)
	n, err := at.ReadAt(b, first)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return chomp(b[:n]), nil
}

// seekable is the source with its size; one that has none is read whole.
func (s *Service) seekable(src io.Reader) (io.ReaderAt, int64, error) {
	if f, ok := src.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Size() > 0 {
			return f, info.Size(), nil
		}
	}
	b, err := s.readAll(src)
	return bytes.NewReader(b), int64(len(b)), err
}

// lineOffset is where the nth line begins.
func lineOffset(f io.ReaderAt, size int64, n int) (int64, error) {
	buf := make([]byte, 128<<10)
	for at := int64(0); at < size && n > 0; {
		got, err := f.ReadAt(buf, at)
		rest, left := dropLines(buf[:got], n)
		at += int64(got - len(rest))
		if left == 0 {
			return at, nil
		}
		n = left
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if got == 0 {
			break
		}
	}
	if n > 0 {
		return size, nil
	}
	return 0, nil
}

// lastLines is where the last n lines begin. It reads from the end, and gives up
// when it has read more than the limit.
func lastLines(f io.ReaderAt, size int64, n int, limit int64) (at int64, far bool, err error) {
	buf := make([]byte, 64<<10)
	for end := size; end > 0; {
		if size-end > limit {
			return 0, true, nil
		}
		start := max(0, end-int64(len(buf)))
		b := buf[:end-start]
		if _, err := f.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, false, err
		}
		if end == size {
			b = bytes.TrimSuffix(b, []byte{'\n'}) // it ends the last line and begins none
		}
		for i := bytes.LastIndexByte(b, '\n'); i >= 0; i = bytes.LastIndexByte(b[:i], '\n') {
			if n--; n == 0 {
				return start + int64(i) + 1, false, nil
			}
		}
		end = start
	}
	return 0, false, nil
}
