package file

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"unicode/utf8"
)

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
		out, over, err := readLines(src, from, count, s.cfg.MaxRead)
		if over {
			err = s.tooLarge("the range")
		}
		return out, err
	}
	return s.readFromEnd(src, from, to, end != nil)
}

// readLines reads count lines after skipping some; a negative count means all. It
// stops past the limit and reports that it is over.
func readLines(src io.Reader, skip, count int, limit int64) (out []byte, over bool, err error) {
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

// dropLines drops n lines. It returns what follows them, and how many are still to be dropped.
func dropLines(b []byte, n int) ([]byte, int) {
	if have := bytes.Count(b, []byte{'\n'}); have < n {
		return nil, n - have
	}
	for ; n > 0; n-- {
		b = b[bytes.IndexByte(b, '\n')+1:]
	}
	return b, 0
}

// takeLines returns up to n lines and how many are still wanted; all if n is negative.
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

// chomp removes the final line break.
func chomp(b []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(b, []byte{'\n'}), []byte{'\r'})
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
		last, _, err = lastLines(at, size, -to, size)
	case hasEnd:
		last, err = lineOffset(at, size, to)
	}
	if err != nil {
		return nil, err
	}
	if from < 0 {
		var far bool
		// No range can reach further than this.
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

// seekable returns the source with its size. A source without one is read whole.
func (s *Service) seekable(src io.Reader) (io.ReaderAt, int64, error) {
	if f, ok := src.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Size() > 0 {
			return f, info.Size(), nil
		}
	}
	b, err := s.readAll(src)
	return bytes.NewReader(b), int64(len(b)), err
}

// lineOffset is the offset of the nth line.
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

// lastLines is the offset of the last n lines. It reads backwards, and gives up when it
// has read more than the limit.
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
			b = bytes.TrimSuffix(b, []byte{'\n'}) // it ends the last line and starts none
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

// readLine returns a line without its line break. It keeps only the start of a very long one.
func readLine(r *bufio.Reader) (string, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && long == nil {
			return string(chomp(part)), nil
		}
		if room := maxLine - len(long); room > 0 {
			long = append(long, part[:min(room, len(part))]...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err == nil:
			return trimPartialRune(chomp(long)), nil
		case errors.Is(err, io.EOF) && len(long) > 0:
			return trimPartialRune(long), nil
		default:
			return "", err
		}
	}
}

// trimPartialRune drops a character that was cut in half.
func trimPartialRune(b []byte) string {
	if len(b) >= maxLine {
		for i := 1; i < utf8.UTFMax && i < len(b); i++ {
			if utf8.RuneStart(b[len(b)-i]) {
				if !utf8.FullRune(b[len(b)-i:]) {
					b = b[:len(b)-i]
				}
				break
			}
		}
	}
	return string(b)
}
