package text

import (
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/line"
)

// readRange reads the lines from start up to, but not including, end. Negative numbers
// count from the last line.
func (s *Service) readRange(src io.Reader, start, end *int) ([]byte, error) {
	if start == nil && end == nil {
		return s.files.ReadAll(src)
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
		out, exceeded, err := line.Read(src, from, count, s.files.MaxRead())
		if exceeded {
			err = s.files.TooLarge("the range")
		}
		return out, err
	}
	return s.readFromEnd(src, from, to, end != nil)
}

// readFromEnd reads a range with a start or end that counts from the last line.
func (s *Service) readFromEnd(src io.Reader, from, to int, hasEnd bool) ([]byte, error) {
	at, size, err := s.seekable(src)
	if err != nil {
		return nil, err
	}
	var first int64
	last := size
	switch {
	case hasEnd && to < 0:
		last, _, err = line.Last(at, size, -to, size)
	case hasEnd:
		last, err = line.Offset(at, size, to)
	}
	if err != nil {
		return nil, err
	}
	if from < 0 {
		var exceeded bool
		// No range can reach further than this.
		if first, exceeded, err = line.Last(at, size, -from, size-last+s.files.MaxRead()); exceeded {
			err = s.files.TooLarge("the range")
		}
	} else {
		first, err = line.Offset(at, size, from)
	}
	if err != nil {
		return nil, err
	}
	if last <= first {
		return nil, nil
	}
	if last-first > s.files.MaxRead() {
		return nil, s.files.TooLarge("the range")
	}
	b := make([]byte, last-first)
	n, err := at.ReadAt(b, first)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return line.Chomp(b[:n]), nil
}

// seekable returns the source with its size. A source without one is read whole.
func (s *Service) seekable(src io.Reader) (io.ReaderAt, int64, error) {
	if f, ok := src.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Size() > 0 {
			return f, info.Size(), nil
		}
	}
	b, err := s.files.ReadAll(src)
	return bytes.NewReader(b), int64(len(b)), err
}
