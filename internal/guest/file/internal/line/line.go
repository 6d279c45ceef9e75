// Package line finds, reads, counts and trims lines of text in files of any size.
package line

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// Max is the number of bytes that Next returns of a line.
const Max = 1 << 20

// Read reads count lines after skipping some; a negative count means all. It stops when it
// exceeds the limit, and reports that.
func Read(src io.Reader, skip, count int, limit int64) (out []byte, exceeded bool, err error) {
	buf := make([]byte, 128<<10)
	for count != 0 {
		n, err := src.Read(buf)
		chunk := buf[:n]
		if skip > 0 {
			chunk, skip = drop(chunk, skip)
		}
		if skip == 0 {
			taken, left := take(chunk, count)
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
	return Chomp(out), false, nil
}

// drop drops n lines. It returns what follows them, and the number of lines left to drop.
func drop(b []byte, n int) ([]byte, int) {
	if have := bytes.Count(b, []byte{'\n'}); have < n {
		return nil, n - have
	}
	for ; n > 0; n-- {
		b = b[bytes.IndexByte(b, '\n')+1:]
	}
	return b, 0
}

// take returns up to n lines, all if n is negative, and the number of lines left to take.
func take(b []byte, n int) ([]byte, int) {
	if n < 0 {
		return b, n
	}
	rest, left := drop(b, n)
	if left > 0 {
		return b, left
	}
	return b[:len(b)-len(rest)], 0
}

// Chomp removes a final line break.
func Chomp(b []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(b, []byte{'\n'}), []byte{'\r'})
}

// Offset returns the offset of the nth line, from 0.
func Offset(f io.ReaderAt, size int64, n int) (int64, error) {
	buf := make([]byte, 128<<10)
	for at := int64(0); at < size && n > 0; {
		got, err := f.ReadAt(buf, at)
		rest, left := drop(buf[:got], n)
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

// Last returns the offset of the last n lines. It reads backwards, and stops when it
// exceeds the limit.
func Last(f io.ReaderAt, size int64, n int, limit int64) (at int64, exceeded bool, err error) {
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
			b = bytes.TrimSuffix(b, []byte{'\n'}) // it ends the last line and does not start another
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

// Next returns the next line without its line break, truncated to Max bytes.
func Next(r *bufio.Reader) (string, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && long == nil {
			return string(Chomp(part)), nil
		}
		if room := Max - len(long); room > 0 {
			long = append(long, part[:min(room, len(part))]...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err == nil:
			return trimPartialRune(Chomp(long)), nil
		case errors.Is(err, io.EOF) && len(long) > 0:
			return trimPartialRune(long), nil
		default:
			return "", err
		}
	}
}

// trimPartialRune drops a last character that was truncated.
func trimPartialRune(b []byte) string {
	if len(b) >= Max {
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

// TrimPartial drops a last line that was truncated, unless it is the only one.
func TrimPartial(b []byte) []byte {
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		return Chomp(b[:i+1])
	}
	return []byte(trimPartialRune(b))
}

// Count returns the number of lines, including a last one without line break.
func Count(s string) int {
	n := strings.Count(s, "\n")
	if s != "" && !strings.HasSuffix(s, "\n") {
		n++
	}
	return n
}
