package text

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/dlclark/regexp2/v2"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/line"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// SearchIn names a regular expression and a file.
type SearchIn struct {
	File  string `json:"file" doc:"Path of the file"`
	Regex string `json:"regex" doc:"Regular expression in the syntax of Python's re module"`
	Sudo  bool   `json:"sudo" default:"false" nullable:"true" doc:"Read as root"`
}

// SearchOut is the matching lines.
type SearchOut struct {
	File        string   `json:"file" doc:"Absolute path"`
	Matches     []string `json:"matches" doc:"Matching lines"`
	LineNumbers []int    `json:"line_numbers" doc:"Their line numbers, from 0"`
}

const (
	maxMatches   = 10_000
	maxMatchText = 8 << 20
	maxLineTime  = 2 * time.Second // for the match of one line
)

// Search finds lines that match a Python regular expression.
func (s *Service) Search(ctx context.Context, in SearchIn) (SearchOut, error) {
	path, err := s.files.Resolve("search", in.File)
	if err != nil {
		return SearchOut{}, err
	}
	re, err := compile(in.Regex)
	if err != nil {
		return SearchOut{}, pyerr.New("search", path, pyerr.Spec{Kind: pyerr.Target, Class: "re.error"},
			"search %s: invalid regular expression: %w", path, err)
	}
	src, err := s.files.Open(ctx, "search", path, in.Sudo)
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
			"search %s: timed out; avoid nested repetitions such as (a+)+, or use grep", path)
	}
	if err != nil {
		return SearchOut{}, pyerr.From("search", path, err)
	}
	if err := access.CheckText("search", path, []byte(strings.Join(out.Matches, ""))); err != nil {
		return SearchOut{}, err
	}
	return out, nil
}

var errSlow = errors.New("the regular expression is too slow")

func (s *Service) searchLines(ctx context.Context, re *regexp2.Regexp, src io.Reader, out *SearchOut) error {
	deadline := time.Now().Add(s.timeout)
	r := bufio.NewReaderSize(src, 64<<10)
	size := 0
	for n := 0; ; n++ {
		line, err := line.Next(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		// A match cannot be canceled, so its timeout also limits how long it outlives the request.
		if re.MatchTimeout = min(time.Until(deadline), maxLineTime); re.MatchTimeout <= 0 {
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
			op.Hint(ctx, "only the first %d matches are shown; use grep, which supports paging", len(out.Matches))
			return nil
		}
		out.Matches = append(out.Matches, line)
		out.LineNumbers = append(out.LineNumbers, n)
	}
}
