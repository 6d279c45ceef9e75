package file

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// SearchIn is an expression and a file.
type SearchIn struct {
	File  string `json:"file" doc:"Path of the file"`
	Regex string `json:"regex" doc:"Regular expression as in Python's re module"`
	Sudo  bool   `json:"sudo" default:"false" nullable:"true" doc:"Read as root"`
}

// SearchOut is the lines that match.
type SearchOut struct {
	File        string   `json:"file" doc:"Absolute path"`
	Matches     []string `json:"matches" doc:"The lines that match"`
	LineNumbers []int    `json:"line_numbers" doc:"Their numbers, from 0"`
}

const (
	maxMatches   = 10_000
	maxMatchText = 8 << 20
	maxLine      = 1 << 20
)

// Search finds lines by an expression of Python's kind.
func (s *Service) Search(ctx context.Context, in SearchIn) (SearchOut, error) {
	path, err := s.resolve("search", in.File)
	if err != nil {
		return SearchOut{}, err
	}
	re, err := compile(in.Regex)
	if err != nil {
		return SearchOut{}, pyerr.New("search", path, pyerr.Spec{Kind: pyerr.Target, Class: "re.error"}, "search %s: the expression is not valid: %w", path, err)
	}
	src, err := s.open(ctx, "search", path, in.Sudo)
	if err != nil {
		return SearchOut{}, err
	}
	defer src.Close()
	out := SearchOut{File: path}
	err = s.searchLines(ctx, re, src, &out)
	if err == nil {
		err = src.Close()
	}
	if errors.Is(err, errSlow) {
		return SearchOut{}, pyerr.New("search", path, pyerr.Spec{Kind: pyerr.IO, Class: "TimeoutError"},
			"search %s: the expression took longer than %v; avoid nested repetitions such as (a+)+, or use grep", path, s.cfg.SearchTime)
	}
	if err != nil {
		return SearchOut{}, pyerr.From("search", path, err)
	}
	if err := checkText("search", path, []byte(strings.Join(out.Matches, ""))); err != nil {
		return SearchOut{}, err
	}
	return out, nil
}

var errSlow = errors.New("the expression is too slow")

func (s *Service) searchLines(ctx context.Context, re *regexp2.Regexp, src io.Reader, out *SearchOut) error {
	deadline := time.Now().Add(s.cfg.SearchTime)
	r := bufio.NewReaderSize(src, 64<<10)
	size := 0
	for n := 0; ; n++ {
		line, err := readLine(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if re.MatchTimeout = time.Until(deadline); re.MatchTimeout <= 0 {
			return errSlow
		}
		ok, err := re.MatchString(line)
		if err != nil {
			return errSlow
		}
		if !ok {
			continue
		}
		if size += len(line); len(out.Matches) == maxMatches || size > maxMatchText {
			op.Hint(ctx, "only the first %d matches are shown; use grep, which has pages", len(out.Matches))
			return nil
		}
		out.Matches = append(out.Matches, line)
		out.LineNumbers = append(out.LineNumbers, n)
	}
}

// readLine returns a line without its end. Of a very long one it keeps the
// beginning.
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
			return whole(chomp(long)), nil
		case errors.Is(err, io.EOF) && len(long) > 0:
			return whole(long), nil
		default:
			return "", err
		}
	}
}

// whole leaves out a character that was cut in half.
func whole(b []byte) string {
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
