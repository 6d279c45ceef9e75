package grep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/proc"
)

// Ripgrep searches with the program rg.
type Ripgrep struct {
	Runner  *proc.Runner
	Program string // its path
}

// Grep searches with all cores first; files then come in any order. A search that
// yields far more than the page is started again in order, which lets it stop as
// soon as the page is full.
func (r Ripgrep) Grep(ctx context.Context, q Query) (Result, error) {
	if err := q.check(); err != nil {
		return Result{}, err
	}
	dir, target, err := place(q.Root)
	if err != nil {
		return Result{}, err
	}
	limit, cancel := withTimeout(ctx, q.Timeout)
	defer cancel()
	if q.Offset <= 10_000 && target == "." {
		f := newFirst(q)
		timedOut, err := r.run(ctx, limit, dir, r.args(q, target, false), q, f)
		if err != nil {
			return Result{}, err
		}
		if !f.gaveUp {
			out := f.result()
			out.TimedOut, out.Truncated = timedOut, out.Truncated || timedOut
			return out, nil
		}
	}
	p := &page{offset: q.Offset, max: q.Max}
	timedOut, err := r.run(ctx, limit, dir, r.args(q, target, true), q, p)
	if err != nil {
		return Result{}, err
	}
	out := p.result()
	out.TimedOut, out.Truncated = timedOut, out.Truncated || timedOut
	return out, nil
}

// place splits a root into the folder to search from, to which globs are
// relative, and what to search there.
func place(root string) (dir, target string, err error) {
	f, err := os.OpenFile(root, os.O_RDONLY|unix.O_NONBLOCK, 0) // rg is silent about a root that it may not read
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", "", err
	}
	if info.IsDir() {
		return root, ".", nil
	}
	return filepath.Dir(root), "./" + filepath.Base(root), nil
}

func (r Ripgrep) args(q Query, target string, ordered bool) []string {
	args := []string{"--no-config", "--no-messages", "--json", "--max-count", strconv.Itoa(q.need())}
	add := func(when bool, more ...string) {
		if when {
			args = append(args, more...)
		}
	}
	add(ordered, "--sort", "path")
	add(q.IgnoreCase, "--ignore-case")
	add(q.Fixed, "--fixed-strings")
	add(q.Multiline, "--multiline")
	add(q.Hidden, "--hidden")
	add(!q.Ignore, "--no-ignore")
	// Only files of the tree count, wherever it lies: results must not depend on
	// the user's own Git settings.
	add(q.Ignore, "--no-require-git", "--no-ignore-global", "--no-ignore-exclude", "--no-ignore-parent")
	add(q.Shallow, "--max-depth", "1")
	add(q.Before > 0, "--before-context", strconv.Itoa(q.Before))
	add(q.After > 0, "--after-context", strconv.Itoa(q.After))
	add(q.MaxFileSize > 0, "--max-filesize", strconv.FormatInt(q.MaxFileSize, 10))
	for _, t := range q.types() {
		args = append(args, "--type="+t)
	}
	for _, g := range q.Include {
		args = append(args, "--glob="+g)
	}
	for _, g := range q.Exclude {
		args = append(args, "--glob=!"+strings.TrimPrefix(g, "!"))
	}
	return append(args, "--regexp="+q.Pattern, "--", target)
}

// run feeds what rg reports to the sink. limit ends the search, ctx the call.
func (r Ripgrep) run(ctx, limit context.Context, dir string, args []string, q Query, to sink) (timedOut bool, err error) {
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	// The report is read here and not by the runner, which would not wait for one
	// line of it that takes long.
	report, out, err := os.Pipe()
	if err != nil {
		return false, fmt.Errorf("run ripgrep: %w", err)
	}
	defer report.Close()
	stderr := proc.NewCapture(4<<10, 0)
	p, err := r.Runner.Start(proc.Command{Path: r.Program, Args: args, Dir: dir, Stdout: out, Stderr: stderr, Grace: -1})
	out.Close()
	if err != nil {
		return false, fmt.Errorf("run ripgrep: %w", err)
	}
	defer p.Kill()
	defer context.AfterFunc(limit, func() { p.Kill() })()
	events := &reader{q: q, dir: dir, to: to}
	if err := events.readAll(report); err != nil {
		return false, fmt.Errorf("read ripgrep's report: %w", err)
	}
	if !events.done {
		<-p.Done()
	}
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case events.done:
		return false, nil
	case limit.Err() != nil:
		return true, nil
	case p.Exit().Code > 1 && !events.summary:
		return false, &PatternError{complaint(stderr.String())}
	}
	return false, nil
}

// complaint is what rg says about a query, on one line.
func complaint(stderr string) string {
	text := strings.Join(strings.Fields(stderr), " ")
	if text == "" {
		text = "ripgrep refused the search; check pattern, type and globs"
	}
	return text
}

// maxReport bounds one line of rg's report. A longer one is dropped.
const maxReport = 96 << 20

// reader takes rg's report as it is written.
type reader struct {
	q   Query
	dir string
	to  sink

	rest    []byte // of an unfinished line
	drop    bool   // until the end of the line
	now     *assembler
	done    bool // the sink has enough
	summary bool
}

// readAll reads until the end of the report, or until the sink has enough.
func (r *reader) readAll(from io.Reader) error {
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

func (r *reader) take(b []byte) error {
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
		text := b[:i]
		if len(r.rest) > 0 {
			text = append(r.rest, text...)
			r.rest = r.rest[:0]
		}
		if !r.drop {
			if err := r.event(text); err != nil {
				return err
			}
		}
		r.drop, b = false, b[i+1:]
	}
	return nil
}

type report struct {
	Type string `json:"type"`
	Data struct {
		Path         words  `json:"path"`
		Lines        words  `json:"lines"`
		Line         int    `json:"line_number"`
		BinaryOffset *int64 `json:"binary_offset"`
		Submatches   []struct {
			Start int `json:"start"`
			End   int `json:"end"`
		} `json:"submatches"`
	} `json:"data"`
}

// words are text, or bytes when they are not UTF-8.
type words struct {
	Text  *string `json:"text"`
	Bytes []byte  `json:"bytes"`
}

func (w words) String() string {
	if w.Text != nil {
		return *w.Text
	}
	return string(w.Bytes)
}

func (r *reader) event(text []byte) error {
	var e report
	// The spans within a line are of no use here, and a line of a minified file has
	// more of them than text. Within a string the quotes would be escaped.
	if i := bytes.Index(text, []byte(`,"submatches":[`)); i >= 0 && !r.q.Multiline {
		text = append(text[:i], "}}"...)
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return err
	}
	if r.now == nil && e.Type != "begin" && e.Type != "summary" {
		return errors.New("a line belongs to no file")
	}
	switch e.Type {
	case "begin":
		r.now = &assembler{file: filepath.Join(r.dir, e.Data.Path.String()), before: r.q.Before, after: r.q.After, skip: r.to.skip()}
	case "context":
		r.now.context(e.Data.Line, e.Data.Lines.String())
	case "match":
		r.match(e)
	case "end":
		a := r.now
		r.now = nil
		// A file that turns out to be binary after its first matches counts as
		// binary from its beginning.
		if e.Data.BinaryOffset == nil && a.count > 0 {
			r.done = !r.to.file(a)
		}
	case "summary":
		r.summary = true
	}
	return nil
}

func (r *reader) match(e report) {
	text := e.Data.Lines.String()
	if r.now.bytes > 2*maxPage {
		return
	}
	if !r.q.Multiline || !strings.Contains(strings.TrimSuffix(text, "\n"), "\n") {
		r.now.match(e.Data.Line, []string{text})
		return
	}
	split(text, r.spans(e, text), func(before int, lines []string) { r.now.match(e.Data.Line+before, lines) })
}

// spans are the matches within the lines of one report. rg puts neighbours into
// one report and leaves out spans near its end, so they are looked for again
// where Go understands the pattern.
func (r *reader) spans(e report, text string) []span {
	if find, err := newFinder(r.q); err == nil {
		return find.spans([]byte(text), -1)
	}
	spans := make([]span, len(e.Data.Submatches))
	for i, s := range e.Data.Submatches {
		spans[i] = span{s.Start, s.End}
	}
	return spans
}
