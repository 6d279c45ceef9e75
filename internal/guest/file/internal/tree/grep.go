package tree

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/guest/internal/grep"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// GrepIn is what to search for, and where.
type GrepIn struct {
	Path            string   `json:"path" doc:"File or folder to search"`
	Pattern         string   `json:"pattern" doc:"Regular expression in ripgrep syntax"`
	Include         []string `json:"include" nullable:"true" doc:"Globs of files to search, such as *.py, in .gitignore syntax"`
	Exclude         []string `json:"exclude" nullable:"true" doc:"Globs of files and folders to exclude"`
	CaseInsensitive bool     `json:"case_insensitive" default:"false" nullable:"true" doc:"Ignore case"`
	FixedStrings    bool     `json:"fixed_strings" default:"false" nullable:"true" doc:"Treat the pattern as a literal string"`
	ContextBefore   int      `json:"context_before" default:"0" minimum:"0" maximum:"20" nullable:"true" doc:"Lines to show before each match"`
	ContextAfter    int      `json:"context_after" default:"0" minimum:"0" maximum:"20" nullable:"true" doc:"Lines to show after each match"`
	MaxResults      int      `json:"max_results" default:"500" minimum:"1" maximum:"10000" nullable:"true" doc:"Maximum number of matches"`
	MaxFileSize     string   `json:"max_file_size" default:"1M" nullable:"true" doc:"Skip larger files of a folder; K, M or G, such as 10M"`
	Multiline       bool     `json:"multiline" default:"false" nullable:"true" doc:"Match across lines; (?s) lets . match line breaks"`
	Offset          int      `json:"offset" default:"0" minimum:"0" nullable:"true" doc:"Number of matches to skip, for paging"`
	Type            *string  `json:"type" doc:"File type as named by ripgrep, such as py or js; several separated by commas"`
	Recursive       bool     `json:"recursive" default:"true" nullable:"true" doc:"Search subfolders"`
	IncludeHidden   bool     `json:"include_hidden" default:"false" nullable:"true" doc:"Include names with a leading dot"`
	Gitignore       bool     `json:"respect_gitignore" default:"false" nullable:"true" doc:"Respect .gitignore and .ignore files"`
}

// GrepMatch is one match.
type GrepMatch struct {
	File          string   `json:"file" doc:"Absolute path"`
	LineNumber    int      `json:"line_number" doc:"From 1"`
	LineContent   string   `json:"line_content"`
	Line          string   `json:"line" doc:"Same as line_content"`
	ContextBefore []string `json:"context_before"`
	ContextAfter  []string `json:"context_after"`
}

// GrepOut is one page of matches, ordered by path.
type GrepOut struct {
	Path          string      `json:"path" doc:"Absolute path"`
	Pattern       string      `json:"pattern"`
	Matches       []GrepMatch `json:"matches"`
	MatchCount    int         `json:"match_count" doc:"Number of matches on this page"`
	FilesSearched *int        `json:"files_searched" doc:"Always null: ripgrep does not report it"`
	FilesMatched  *int        `json:"files_matched" doc:"Number of files on this page"`
	Truncated     bool        `json:"truncated" doc:"Whether there are more matches; continue with a larger offset"`
}

// maxGrepFile limits max_file_size, since a line of the file must fit into memory.
const maxGrepFile = 64 << 20

// Grep searches file contents.
func (s *Service) Grep(ctx context.Context, in GrepIn) (GrepOut, error) {
	path, err := s.files.Resolve("grep", in.Path)
	if err != nil {
		return GrepOut{}, err
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = atomicfile.Irregular(path, info.Mode())
	}
	if err != nil {
		return GrepOut{}, pyerr.From("grep", path, err)
	}
	size, ok := parseSize(in.MaxFileSize)
	if !ok {
		return GrepOut{}, pyerr.New("grep", path, pyerr.Spec{Kind: pyerr.Target},
			"grep %s: invalid max_file_size %q; send a number with K, M or G, such as 10M", path, in.MaxFileSize)
	}
	if size > maxGrepFile {
		size = maxGrepFile
		op.Hint(ctx, "max_file_size is limited to 64M; larger files were skipped")
	}
	q := grep.Query{
		Root: path, Pattern: in.Pattern, Include: in.Include, Exclude: in.Exclude,
		IgnoreCase: in.CaseInsensitive, Fixed: in.FixedStrings, Multiline: in.Multiline, Shallow: !in.Recursive,
		Hidden: in.IncludeHidden, Ignore: in.Gitignore, Before: in.ContextBefore, After: in.ContextAfter,
		Offset: in.Offset, Max: in.MaxResults, MaxFileSize: size, Timeout: s.timeout,
	}
	if in.Type != nil && *in.Type != "" {
		q.Types = strings.Split(strings.ReplaceAll(*in.Type, " ", ""), ",")
	}
	res, err := s.grepEngine().Grep(ctx, q)
	if bad, ok := errors.AsType[*grep.PatternError](err); ok {
		return GrepOut{}, pyerr.New("grep", path, pyerr.Spec{Kind: pyerr.Target}, "grep %s: %s", path, bad.Msg)
	}
	if err != nil {
		return GrepOut{}, pyerr.From("grep", path, err)
	}
	if res.TimedOut {
		op.Hint(ctx, "the search timed out after %v; choose a deeper folder or a narrower include", s.timeout)
	}
	return grepOut(path, in.Pattern, res), nil
}

func grepOut(path, pattern string, res grep.Result) GrepOut {
	out := GrepOut{Path: path, Pattern: pattern, MatchCount: len(res.Matches), Truncated: res.Truncated}
	files := 0
	for i, m := range res.Matches {
		if i == 0 || m.File != res.Matches[i-1].File {
			files++
		}
		out.Matches = append(out.Matches, GrepMatch{File: pathname.Show(m.File), LineNumber: m.Line, LineContent: m.Text, Line: m.Text,
			ContextBefore: m.Before, ContextAfter: m.After})
	}
	out.FilesMatched = &files
	return out
}

// parseSize parses a number with an optional unit, K, M or G, of powers of 1024.
func parseSize(s string) (int64, bool) {
	s = strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(s)), "B")
	unit := int64(1)
	for i, u := range "KMG" {
		if t, ok := strings.CutSuffix(s, string(u)); ok {
			s, unit = t, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n <= 0 || n > 1<<40/unit*1024 {
		return 0, false
	}
	return n * unit, true
}
