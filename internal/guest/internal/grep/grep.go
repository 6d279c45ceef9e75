// Package grep searches a tree of files for a pattern, as ripgrep does.
//
// It has two engines: ripgrep, and a fallback in Go for machines without it. The fallback returns
// the same results as ripgrep. For a query that it does not support, it returns an error that
// names the package to install. Matches are ordered by path, so that paging is stable. Memory
// and time are limited.
package grep

import (
	"context"
	"strings"
	"time"
)

// Query selects what to search for, and where.
type Query struct {
	Root    string // absolute path of a folder or a file
	Pattern string

	Include []string // globs as in .gitignore; if there are any, a file must match one
	Exclude []string
	Types   []string // ripgrep's names of file types

	IgnoreCase bool
	Fixed      bool // the pattern is a literal string
	Multiline  bool // a match may span lines
	Shallow    bool // only files directly in the folder
	Hidden     bool // include names with a leading dot
	Ignore     bool // respect the .gitignore and .ignore files of the tree

	Before, After int
	Offset, Max   int
	MaxFileSize   int64 // larger files of a folder are skipped; 0: no limit
	Timeout       time.Duration
}

// Match is one matching line, or with Multiline the lines of one match.
type Match struct {
	File   string // absolute
	Line   int    // number of its first line, from 1
	Text   string
	Before []string
	After  []string
}

// Result is one page of matches, ordered by path.
type Result struct {
	Matches   []Match
	Truncated bool // there are, or may be, more
	TimedOut  bool
}

// Engine searches. An error of type *PatternError is the caller's fault.
type Engine interface {
	Grep(ctx context.Context, q Query) (Result, error)
}

// PatternError describes an invalid query.
type PatternError struct{ Msg string }

func (e *PatternError) Error() string { return e.Msg }

const (
	// maxText limits the text of one line, since a minified file has lines of megabytes.
	maxText = 8 << 10
	// maxPage limits the text of one page.
	maxPage = 16 << 20
	// maxOffset limits the offset of a page.
	maxOffset = 1_000_000
)

// need returns the number of matches required for the page: one more than it shows, to know
// whether there are more.
func (q Query) need() int { return q.Offset + q.Max + 1 }

var errLineBreak = &PatternError{"the pattern contains a line break; set multiline to search across lines"}

func (q Query) check() error {
	if q.Offset > maxOffset {
		return &PatternError{"the offset is too large; narrow the search with path, include or pattern"}
	}
	if !q.Multiline && q.Fixed && strings.Contains(q.Pattern, "\n") {
		return errLineBreak
	}
	return nil
}

func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// less orders paths component by component, like a depth-first walk that sorts each folder.
func less(a, b string) bool {
	for i := 0; i < len(a) && i < len(b); i++ {
		if x, y := a[i], b[i]; x != y {
			return x == '/' || y != '/' && x < y
		}
	}
	return len(a) < len(b)
}

// cleanLine prepares a line for a response: without line break, valid UTF-8 and limited.
func cleanLine(line string) string {
	line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
	truncated := len(line) > maxText
	if truncated {
		line = line[:maxText]
	}
	line = strings.ToValidUTF8(line, "\uFFFD")
	if truncated {
		line = strings.TrimRight(line, "\uFFFD") + "… [truncated]"
	}
	return line
}
