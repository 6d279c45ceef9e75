package grep

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/text/encoding/unicode"
)

// Native searches in Go. It reads one file after the other.
type Native struct{}

// maxNative bounds a file that the Go engine holds in memory.
const maxNative = 64 << 20

// Grep walks the tree in the order of its paths and stops when the page is full.
func (Native) Grep(ctx context.Context, q Query) (Result, error) {
	if err := q.check(); err != nil {
		return Result{}, err
	}
	find, err := newFinder(q)
	if err != nil {
		return Result{}, err
	}
	filter, err := newFilter(q)
	if err != nil {
		return Result{}, err
	}
	info, err := os.Stat(q.Root)
	if err != nil {
		return Result{}, err
	}
	limit, cancel := withTimeout(ctx, q.Timeout)
	defer cancel()
	s := &search{q: q, find: find, filter: filter, to: &page{offset: q.Offset, max: q.Max}}
	if info.IsDir() {
		if _, err := os.ReadDir(q.Root); err != nil {
			return Result{}, err
		}
		s.folder(limit, "", 1, nil)
	} else {
		if info.Size() > maxNative {
			return Result{}, &PatternError{fmt.Sprintf("%s is larger than %d MiB, which needs ripgrep (Debian package ripgrep)", q.Root, maxNative>>20)}
		}
		f, err := os.OpenFile(q.Root, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return Result{}, err
		}
		f.Close()
		s.q.MaxFileSize = maxNative
		s.file(q.Root)
	}
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	out := s.to.result()
	if limit.Err() != nil {
		out.TimedOut, out.Truncated = true, true
	}
	return out, nil
}

func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

type search struct {
	q      Query
	find   finder
	filter filter
	to     sink
	buf    []byte
}

// folder searches a folder; it returns false when the search is over.
func (s *search) folder(ctx context.Context, rel string, depth int, ign *ignores) bool {
	entries, err := os.ReadDir(filepath.Join(s.q.Root, rel))
	if err != nil {
		return true // as ripgrep: what cannot be read is left out
	}
	if s.q.Ignore {
		ign = ign.below(s.q.Root, rel)
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return false
		}
		child := filepath.Join(rel, e.Name())
		if !s.filter.wants(child, e.IsDir(), ign) {
			continue
		}
		switch {
		case e.IsDir():
			if !s.q.Shallow && depth < maxDepth && !s.folder(ctx, child, depth+1, ign) {
				return false
			}
		case e.Type().IsRegular():
			if !s.file(filepath.Join(s.q.Root, child)) {
				return false
			}
		}
	}
	return true
}

// maxDepth ends a walk that a folder mounted into itself would keep going.
const maxDepth = 512

// blocked is how long a read may wait: a few files of /proc look regular and
// give nothing until something happens.
const blocked = time.Second

func (s *search) file(name string) bool {
	text, ok := s.read(name)
	if !ok || bytes.IndexByte(text, 0) >= 0 {
		return true
	}
	a := &assembler{file: name, before: s.q.Before, after: s.q.After, skip: s.to.skip()}
	if s.q.Multiline {
		s.across(a, text)
	} else {
		s.byLine(a, text)
	}
	return a.count == 0 || s.to.file(a)
}

func (s *search) read(name string) ([]byte, bool) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || s.q.MaxFileSize > 0 && info.Size() > s.q.MaxFileSize {
		return nil, false
	}
	_ = f.SetReadDeadline(time.Now().Add(blocked)) // a true file has none and needs none
	b := bytes.NewBuffer(s.buf[:0])
	n, err := b.ReadFrom(io.LimitReader(f, maxNative+1))
	s.buf = b.Bytes()
	if err != nil && n == 0 || n > maxNative {
		return nil, false
	}
	return decode(s.buf), true
}

// decode turns a text with a byte order mark into UTF-8.
func decode(b []byte) []byte {
	var order unicode.Endianness
	switch {
	case bytes.HasPrefix(b, []byte("\xEF\xBB\xBF")):
		return b[3:]
	case bytes.HasPrefix(b, []byte("\xFF\xFE")):
		order = unicode.LittleEndian
	case bytes.HasPrefix(b, []byte("\xFE\xFF")):
		order = unicode.BigEndian
	default:
		return b
	}
	text, err := unicode.UTF16(order, unicode.UseBOM).NewDecoder().Bytes(b)
	if err != nil {
		return b
	}
	return text
}

func (s *search) byLine(a *assembler, text []byte) {
	around := s.q.Before+s.q.After > 0
	for n := 1; len(text) > 0; n++ {
		end := bytes.IndexByte(text, '\n')
		line := text
		if end >= 0 {
			line = text[:end]
		}
		switch {
		case a.count < s.q.need() && s.find.matches(line):
			a.match(n, []string{string(line)})
		case around:
			a.context(n, string(line))
		}
		if end < 0 || a.bytes > 2*maxPage || a.count >= s.q.need() && len(a.open) == 0 {
			return
		}
		text = text[end+1:]
	}
}

type group struct {
	first int // number of its first line
	lines []string
}

// groups finds the matches of a text that may span lines. How many spans share
// a line cannot be known beforehand, so it asks for more until there are enough.
func (s *search) groups(text []byte) []group {
	whole := string(text)
	for limit := 4 * s.q.need(); ; limit *= 8 {
		var groups []group
		spans := s.find.spans(text, limit)
		split(whole, spans, func(before int, lines []string) {
			groups = append(groups, group{before + 1, lines})
		})
		// The last group may go on in spans not asked for yet.
		if len(spans) < limit || len(groups) > s.q.need() || limit > maxSpans {
			return groups
		}
	}
}

// maxSpans bounds the memory of one search across lines.
const maxSpans = 1 << 20

// across finds matches that may span lines and shows the lines around them.
func (s *search) across(a *assembler, text []byte) {
	groups := s.groups(text)
	if s.q.Before+s.q.After == 0 {
		for _, g := range groups {
			a.match(g.first, g.lines)
		}
		return
	}
	n := 1
	for l := range bytes.Lines(text) {
		for len(groups) > 0 && n >= groups[0].first+len(groups[0].lines) {
			groups = groups[1:]
		}
		switch {
		case len(groups) == 0 || n < groups[0].first:
			a.context(n, string(l))
		case n == groups[0].first:
			a.match(n, groups[0].lines)
		}
		n++
	}
}
