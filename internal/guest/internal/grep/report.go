package grep

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxReport limits a line of rg's report. Longer lines are dropped.
const maxReport = 96 << 20

// reportReader reads rg's report while rg writes it.
type reportReader struct {
	q   Query
	dir string
	to  sink

	rest    []byte // of an unfinished line
	drop    bool   // until the end of the line
	current *builder
	done    bool // the sink needs no more
	summary bool
}

// readAll reads until the end of the report, or until the sink needs no more.
func (r *reportReader) readAll(from io.Reader) error {
	buf := make([]byte, 128<<10)
	for {
		n, err := from.Read(buf)
		if werr := r.take(buf[:n]); werr != nil || r.done {
			return werr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *reportReader) take(b []byte) error {
	for len(b) > 0 && !r.done {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			if r.drop = r.drop || len(r.rest)+len(b) > maxReport; r.drop {
				r.rest = nil
			} else {
				r.rest = append(r.rest, b...)
			}
			return nil
		}
		raw := b[:i]
		if len(r.rest) > 0 {
			raw = append(r.rest, raw...)
			r.rest = r.rest[:0]
		}
		if !r.drop {
			if err := r.handle(raw); err != nil {
				return err
			}
		}
		r.drop, b = false, b[i+1:]
	}
	return nil
}

type event struct {
	Type string `json:"type"`
	Data struct {
		Path         text   `json:"path"`
		Lines        text   `json:"lines"`
		Line         int    `json:"line_number"`
		BinaryOffset *int64 `json:"binary_offset"`
		Submatches   []struct {
			Start int `json:"start"`
			End   int `json:"end"`
		} `json:"submatches"`
	} `json:"data"`
}

// text is a string, or bytes if they are not UTF-8.
type text struct {
	Text  *string `json:"text"`
	Bytes []byte  `json:"bytes"`
}

func (t text) String() string {
	if t.Text != nil {
		return *t.Text
	}
	return string(t.Bytes)
}

func (r *reportReader) handle(raw []byte) error {
	var e event
	// The spans within a line are not needed, and a line of a minified file can have more spans
	// than text. Within a string the quotes would be escaped.
	if i := bytes.Index(raw, []byte(`,"submatches":[`)); i >= 0 && !r.q.Multiline {
		raw = append(raw[:i], "}}"...)
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return err
	}
	if r.current == nil && e.Type != "begin" && e.Type != "summary" {
		return errors.New("a line does not belong to a file")
	}
	switch e.Type {
	case "begin":
		r.current = &builder{file: filepath.Join(r.dir, e.Data.Path.String()), before: r.q.Before, after: r.q.After, skip: r.to.skip()}
	case "context":
		r.current.addContext(e.Data.Line, e.Data.Lines.String())
	case "match":
		r.match(e)
	case "end":
		b := r.current
		r.current = nil
		// A file in which rg finds binary data after its first matches counts as binary.
		if e.Data.BinaryOffset == nil && b.count > 0 {
			r.done = !r.to.addFile(b)
		}
	case "summary":
		r.summary = true
	}
	return nil
}

func (r *reportReader) match(e event) {
	lines := e.Data.Lines.String()
	if r.current.bytes > 2*maxPage {
		return
	}
	if !r.q.Multiline || !strings.Contains(strings.TrimSuffix(lines, "\n"), "\n") {
		r.current.addMatch(e.Data.Line, []string{lines})
		return
	}
	splitMatches(lines, r.spans(e, lines), func(before int, match []string) { r.current.addMatch(e.Data.Line+before, match) })
}

// spans returns the matches within the lines of one event. rg puts neighbors into one event and
// omits spans near its end. So they are searched again if package regexp gives the same results:
// its \w, \d, \s and \b match only ASCII.
func (r *reportReader) spans(e event, lines string) []span {
	expr := r.q.Pattern
	if r.q.Fixed {
		expr = regexp.QuoteMeta(expr)
	}
	var spans []span
	if re, err := compilePattern(expr, r.q.IgnoreCase); err == nil && (isASCII(lines) || !strings.ContainsAny(expr, `\`)) {
		for _, at := range re.FindAllStringIndex(lines, -1) {
			spans = append(spans, span{at[0], at[1]})
		}
		return spans
	}
	for _, s := range e.Data.Submatches {
		spans = append(spans, span{s.Start, s.End})
	}
	return spans
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// span is the position of a match in a text of several lines.
type span struct{ start, end int }

// splitMatches splits the lines of a text into matches; spans that share a line are one match. It
// calls yield with the number of lines before the match and the lines of the match.
func splitMatches(text string, spans []span, yield func(before int, lines []string)) {
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" && len(lines) > 1 {
		lines = lines[:len(lines)-1]
	}
	at, end := 0, len(lines[0]) // spans are in order, so the line never goes back
	lineOf := func(offset int) int {
		for at+1 < len(lines) && end <= offset {
			at++
			end += len(lines[at])
		}
		return at
	}
	first, last := -1, -1
	for _, s := range spans {
		from := lineOf(s.start)
		to := lineOf(max(s.start, s.end-1))
		switch {
		case first < 0:
			first, last = from, to
		case from <= last:
			last = max(last, to)
		default:
			yield(first, lines[first:last+1])
			first, last = from, to
		}
	}
	if first >= 0 {
		yield(first, lines[first:last+1])
	}
}
