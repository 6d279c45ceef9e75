package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Check says what to verify.
type Check struct {
	Dir   string
	Key   []byte // the one the log was written with
	Known Mark   // a line noted elsewhere that must be there, or have been; zero: none
}

// Why a line is not as it was left.
type Why string

// What can be wrong with a log.
const (
	Changed    Why = "changed"
	Missing    Why = "missing"
	Reordered  Why = "reordered"
	Duplicated Why = "duplicated"
	Truncated  Why = "truncated"
)

// Place is where a line stands, or should.
type Place struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1
	Seq  uint64 `json:"seq"`
}

// Problem names the first line that is not as it was left.
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

// Report is what Verify found.
type Report struct {
	Files   int      `json:"files"`
	Lines   uint64   `json:"lines"`             // that are good, up to the first problem
	First   uint64   `json:"first"`             // sequence number of the first kept line
	Last    Mark     `json:"last"`              // of the last good line: worth noting elsewhere
	Synced  uint64   `json:"synced"`            // sequence number up to which the head vouches
	Torn    []Place  `json:"torn,omitempty"`    // where a crash tore a line, at most 1000
	Lost    uint64   `json:"lost"`              // entries that lines of the kind lost tell of
	Live    bool     `json:"live"`              // a writer was at work
	Problem *Problem `json:"problem,omitempty"` // nil: all is as it was left
}

const maxTorn = 1000

// Verify reads a whole log, which may be in use, and names the first line that is not as
// it was left. An error means that it could not look, and says nothing about the log.
func Verify(ctx context.Context, c Check) (Report, error) {
	for try := 0; ; try++ {
		v := verifier{Check: c, chain: newChain(c.Key)}
		err := v.run(ctx)
		// A file that is given away while it is read is no finding: look again.
		if errors.Is(err, errGone) && try < 5 {
			continue
		}
		if err != nil {
			return Report{}, fmt.Errorf("verify the audit log in %s: %w", c.Dir, err)
		}
		return v.report, nil
	}
}

var errGone = errors.New("files go away faster than they can be read")

type verifier struct {
	Check
	chain  chain
	report Report
	head   head
	files  []uint64

	begun bool
	seq   uint64 // of the last good line
	sum   digest
	line  int    // number of the current line in its file
	name  string // of the current file
}

func (v *verifier) run(ctx context.Context) error {
	var headErr error
	v.report.Live = isLocked(v.Dir)
	v.head, headErr = readHeadOf(v.Dir, v.Key)
	if errors.Is(headErr, ErrKey) {
		return headErr
	}
	var err error
	if v.files, err = listFiles(v.Dir); err != nil {
		return err
	}
	if errors.Is(headErr, os.ErrNotExist) && len(v.files) == 0 {
		return fmt.Errorf("there is no audit log: %w", os.ErrNotExist)
	}
	v.report.Files, v.report.Synced = len(v.files), v.head.Seq
	for i := range v.files {
		if err := v.file(ctx, i); err != nil {
			return err
		}
		if v.report.Problem != nil {
			break
		}
	}
	v.report.Last = Mark{Seq: v.seq, Hash: v.sum.String()}
	if !v.begun {
		v.report.Last.Hash = genesis.String()
	}
	if v.report.Problem == nil {
		v.end(headErr)
	}
	if v.report.Problem != nil && v.report.Live {
		if now, err := readHeadOf(v.Dir, v.Key); err == nil && now.Gone != v.head.Gone {
			return errGone
		}
	}
	return nil
}

// end checks what only the whole log can show.
func (v *verifier) end(headErr error) {
	switch {
	case headErr != nil:
		why := Changed
		if errors.Is(headErr, os.ErrNotExist) {
			why, headErr = Missing, errors.New("without it nobody can tell whether the end was cut off")
		}
		v.report.Problem = &Problem{Place{File: headName}, why, headErr.Error()}
	case v.seq < v.head.Seq:
		if v.name == "" {
			v.name = fileName(v.head.Gone.Seq + 1)
		}
		v.line++
		v.fail(Truncated, fmt.Sprintf("the log was on disk up to sequence number %d", v.head.Seq))
	case v.Known.Seq > v.seq:
		v.line++
		v.fail(Truncated, fmt.Sprintf("a line of sequence number %d is known", v.Known.Seq))
	}
}

func (v *verifier) fail(why Why, detail string) {
	v.report.Problem = &Problem{Place{v.name, v.line, v.seq + 1}, why, detail}
}

// file checks one file against what came before it.
func (v *verifier) file(ctx context.Context, i int) error {
	f, err := v.open(i)
	if err != nil {
		return err
	}
	defer f.Close()
	v.name, v.line = fileName(v.files[i]), 0
	s := newScanner(f, 0)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		line, whole, err := s.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		v.line++
		if !whole {
			v.part(i, len(line) == maxLine)
			return nil
		}
		if err := v.check(i, line); err != nil || v.report.Problem != nil {
			return err
		}
	}
}

func (v *verifier) open(i int) (*os.File, error) {
	f, err := os.Open(filepath.Join(v.Dir, fileName(v.files[i])))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errGone
	}
	return f, err
}

// part judges a line without an end.
func (v *verifier) part(i int, long bool) {
	switch {
	case long:
		v.fail(Changed, "it is longer than a line can be")
	case i < len(v.files)-1 || v.seq < v.head.Seq:
		v.fail(Truncated, "the file ends in the middle of it")
	case v.report.Live:
		// It is being written.
	default:
		v.tear(v.seq + 1)
	}
}

func (v *verifier) tear(seq uint64) {
	if len(v.report.Torn) < maxTorn {
		v.report.Torn = append(v.report.Torn, Place{v.name, v.line, seq})
	}
}

// check takes a line that follows the one before, and names what is wrong with another.
func (v *verifier) check(i int, line []byte) error {
	k, err := v.chain.open(line)
	if err == nil && !v.begun {
		v.begin(k)
	}
	switch {
	case err != nil:
		if !v.begun {
			v.seq = v.files[i] - 1
		}
		detail := err.Error()
		if v.seq >= v.head.Seq && v.begun {
			detail += " (it is after what was known to be on disk, where a power cut can do this too)"
		}
		v.fail(Changed, detail)
		return nil
	case k.seq <= v.seq:
		v.fail(Duplicated, fmt.Sprintf("it is line %d once more", k.seq))
		return nil
	case k.seq > v.seq+1:
		return v.gap(i, k.seq)
	case k.prev != v.sum:
		v.fail(Changed, "it does not follow the line before it: one of the two was written anew")
		return nil
	}
	return v.take(k, line)
}

// begin decides whether the log may begin with this line.
func (v *verifier) begin(k link) {
	gone := v.head.Gone
	v.seq, v.sum = gone.Seq, genesis
	if v.head.Hash == "" { // without a head, which is told at the end
		v.seq = k.seq - 1
	}
	if gone.Hash != "" {
		v.sum = digest([]byte(gone.Hash))
	}
	switch {
	case k.seq == 1:
		v.seq, v.sum = 0, genesis
	case k.seq <= v.seq || v.head.Hash == "":
		// Files that are to be given away are still there. The line after them shows
		// whether they lead to where the rest begins.
		v.seq, v.sum = k.seq-1, k.prev
	}
	v.begun, v.report.First = true, k.seq
}

// take accepts a line.
func (v *verifier) take(k link, line []byte) error {
	known := func(m Mark) bool { return m.Seq != k.seq || m.Hash == k.sum.String() }
	switch {
	case !known(v.Known):
		v.fail(Changed, "it is not the line that is known")
		return nil
	case v.head.Hash != "" && !known(Mark{v.head.Seq, v.head.Hash}):
		v.fail(Changed, "it is not the line that the head names")
		return nil
	}
	v.seq, v.sum = k.seq, k.sum
	v.report.Lines++
	if !isOwn(line) {
		return nil
	}
	l, err := parse(line)
	if err != nil {
		return err
	}
	switch l.Kind {
	case KindLost:
		v.report.Lost += l.Count
	case KindTorn:
		v.tear(l.Seq)
	}
	return nil
}

// gap tells a line that is gone from one that stands further behind.
func (v *verifier) gap(i int, found uint64) error {
	want := v.seq + 1
	c := newChain(v.Key)
	for ; i < len(v.files); i++ {
		later, err := v.holds(i, want, &c)
		if err != nil {
			return err
		}
		if later {
			v.fail(Reordered, fmt.Sprintf("line %d stands here, and %d in %s behind it", found, want, fileName(v.files[i])))
			return nil
		}
	}
	v.fail(Missing, fmt.Sprintf("after %d comes %d", v.seq, found))
	return nil
}

func (v *verifier) holds(i int, want uint64, c *chain) (bool, error) {
	f, err := v.open(i)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for s := newScanner(f, 0); ; {
		line, whole, err := s.next()
		if errors.Is(err, io.EOF) || err == nil && !whole {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if k, err := c.open(line); err == nil && k.seq == want {
			return true, nil
		}
	}
}
