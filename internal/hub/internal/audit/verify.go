package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Check selects what to verify.
type Check struct {
	Dir   string
	Key   []byte // with which the log was written
	Known Mark   // mark stored elsewhere, of a line that must exist or have existed; zero: none
}

// Why is the kind of a problem.
type Why string

// The kinds of problems.
const (
	Changed    Why = "changed"
	Missing    Why = "missing"
	Reordered  Why = "reordered"
	Duplicated Why = "duplicated"
	Truncated  Why = "truncated"
)

// Place is the place of a line, or of a missing line.
type Place struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1
	Seq  uint64 `json:"seq"`
}

// Problem is the first line that was changed after it was written.
type Problem struct {
	Place
	Why    Why    `json:"why"`
	Detail string `json:"detail"`
}

func (p Problem) String() string {
	if p.Line == 0 {
		return fmt.Sprintf("%s: %s: %s", p.File, p.Why, p.Detail)
	}
	return fmt.Sprintf("%s line %d (sequence number %d): %s: %s", p.File, p.Line, p.Seq, p.Why, p.Detail)
}

// Report is the result of Verify.
type Report struct {
	Files   int      `json:"files"`
	Lines   uint64   `json:"lines"`             // valid lines before the first problem
	First   uint64   `json:"first"`             // sequence number of the first remaining line
	Last    Mark     `json:"last"`              // last valid line; store it elsewhere
	Synced  uint64   `json:"synced"`            // last sequence number that the head covers
	Torn    []Place  `json:"torn,omitempty"`    // incomplete lines of crashes, at most 1000
	Lost    uint64   `json:"lost"`              // lost entries that the log reports
	Live    bool     `json:"live"`              // a writer has the log open
	Problem *Problem `json:"problem,omitempty"` // nil: the log is valid
}

const maxTorn = 1000

// Verify checks a whole log, which can be open, and reports the first line that was changed. An error means
// that the log could not be read.
func Verify(ctx context.Context, c Check) (Report, error) {
	for {
		v := verifier{Check: c}
		err := v.run(ctx)
		if err != nil {
			return Report{}, fmt.Errorf("verify the audit log in %q: %w", c.Dir, err)
		}
		// A file was pruned while the log was read: start again.
		if v.report.Problem != nil && v.report.Live {
			if now, err := readHead(c.Dir, c.Key); err == nil && now.Gone != v.head.Gone {
				continue
			}
		}
		return v.report, nil
	}
}

type verifier struct {
	Check
	report Report
	head   head
	at     position // after the last valid line; without a hash the next line can follow any
	file   string   // being read
	line   int      // number of the current line in it
}

func (v *verifier) run(ctx context.Context) error {
	v.report.Live = isLocked(v.Dir)
	h, headErr := readHead(v.Dir, v.Key)
	if errors.Is(headErr, ErrKey) {
		return headErr
	}
	files, err := listFiles(v.Dir)
	if err != nil {
		return err
	}
	if errors.Is(headErr, os.ErrNotExist) && len(files) == 0 {
		return fmt.Errorf("no audit log: %w", os.ErrNotExist)
	}
	v.head, v.report.Files, v.report.Synced = h, len(files), h.Seq
	v.at.Mark, v.file = h.Gone, fileName(h.Gone.Seq+1)
	if len(files) > 0 && (h.Hash == "" || files[0] <= h.Gone.Seq) {
		// There is no head, or files that it calls pruned are still there: the chain
		// shows whether they lead to the rest.
		v.at.Mark = Mark{Seq: files[0] - 1}
	}
	v.report.Last = v.at.Mark
	if err := v.readFiles(ctx, files); err != nil {
		return err
	}
	v.checkEnd(headErr)
	return nil
}

// checkEnd compares the end of the log with the head and the known line.
func (v *verifier) checkEnd(headErr error) {
	switch {
	case v.report.Problem != nil:
	case errors.Is(headErr, os.ErrNotExist):
		v.report.Problem = &Problem{Place{File: headName}, Missing, "without it a truncated end cannot be detected"}
	case headErr != nil:
		v.report.Problem = &Problem{Place{File: headName}, Changed, headErr.Error()}
	case v.at.Seq < v.head.Seq:
		v.fail(Truncated, fmt.Sprintf("the log was on disk up to sequence number %d", v.head.Seq))
	case v.at.Seq < v.Known.Seq:
		v.fail(Truncated, fmt.Sprintf("sequence number %d is known to have existed", v.Known.Seq))
	}
}

// fail records the first problem, at the current line.
func (v *verifier) fail(why Why, detail string) {
	if v.report.Problem == nil {
		v.report.Problem = &Problem{Place{v.file, v.line, v.at.Seq + 1}, why, detail}
	}
}

// readFiles checks the lines of files, beginning at the current position of the first one. After a gap it only
// searches the missing line, which may have been moved.
func (v *verifier) readFiles(ctx context.Context, files []uint64) error {
	for i, first := range files {
		offset := int64(0)
		if first == v.at.File {
			offset = v.at.Offset
		}
		if v.report.Problem == nil {
			v.file, v.line = fileName(first), 0
		}
		rest, err := eachLine(v.Dir, first, offset, func(b []byte, end int64) error {
			v.checkLine(b, position{File: first, Start: end - int64(len(b)) - 1, Offset: end})
			return ctx.Err()
		})
		if errors.Is(err, os.ErrNotExist) {
			v.fail(Missing, "the file was removed")
		} else if err != nil {
			return err
		}
		v.checkRest(rest, i == len(files)-1)
	}
	return nil
}

// checkRest checks the data after the last newline of a file.
func (v *verifier) checkRest(rest []byte, last bool) {
	v.line++
	switch {
	case len(rest) == 0 || v.report.Problem != nil:
	case len(rest) == maxLine:
		v.fail(Changed, "the line is longer than any line of an audit log")
	case !last || v.at.Seq < v.head.Seq:
		v.fail(Truncated, "the file ends in the middle of the line")
	case !v.report.Live: // otherwise it is being written
		v.addTorn(v.at.Seq + 1)
	}
}

func (v *verifier) addTorn(seq uint64) {
	if len(v.report.Torn) < maxTorn {
		v.report.Torn = append(v.report.Torn, Place{v.file, v.line, seq})
	}
}

// checkLine accepts the line after the last valid one, or records the problem.
func (v *verifier) checkLine(b []byte, at position) {
	p := v.report.Problem
	if p != nil && p.Why != Missing {
		return
	}
	l, err := key(v.Key).check(b)
	if p != nil {
		if err == nil && l.Seq == p.Seq {
			p.Why, p.Detail = Reordered, fmt.Sprintf("%s; line %d is further on in %s", p.Detail, l.Seq, fileName(at.File))
		}
		return
	}
	v.line++
	isOther := func(m Mark) bool { return m.Seq == l.Seq && m.Hash != "" && m.Hash != l.Hash }
	switch {
	case err != nil && v.at.Seq >= v.head.Seq:
		v.fail(Changed, err.Error()+" (the line was not synced to disk; a power failure can also cause this)")
	case err != nil:
		v.fail(Changed, err.Error())
	case l.Seq <= v.at.Seq:
		v.fail(Duplicated, fmt.Sprintf("line %d appears again", l.Seq))
	case l.Seq > v.at.Seq+1:
		v.fail(Missing, fmt.Sprintf("line %d follows line %d", l.Seq, v.at.Seq))
	case l.Prev != v.at.Hash && v.at.Hash != "":
		v.fail(Changed, "the line does not continue the previous one: one of the two was rewritten")
	case isOther(v.Known):
		v.fail(Changed, "the line differs from the known one")
	case isOther(v.head.Mark):
		v.fail(Changed, "the line differs from the one that the head names")
	default:
		at.Mark = Mark{l.Seq, l.Hash}
		v.accept(l, at)
	}
}

func (v *verifier) accept(l Line, at position) {
	v.at, v.report.Last = at, at.Mark
	if v.report.Lines++; v.report.Lines == 1 {
		v.report.First = l.Seq
	}
	switch l.Kind {
	case KindLost:
		v.report.Lost += l.Count
	case KindTorn:
		v.addTorn(l.Seq)
	}
}
