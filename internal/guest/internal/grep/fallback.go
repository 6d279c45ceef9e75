package grep

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// Fallback searches in Go, one file at a time and line by line. Its patterns are those of package
// regexp: \w, \d, \s and \b match only ASCII.
type Fallback struct{}

const (
	// maxFallbackFile limits the size of a file, which is held in memory.
	maxFallbackFile = 64 << 20
	// maxDepth limits the depth of folders, since one may be mounted into itself.
	maxDepth = 512
	// readTimeout limits a read: some files of /proc look regular, but block until an event occurs.
	readTimeout = time.Second
)

// Grep walks the tree in the order of its paths and stops when the page is full.
func (Fallback) Grep(ctx context.Context, q Query) (Result, error) {
	if err := q.check(); err != nil {
		return Result{}, err
	}
	s := &search{q: q, page: &page{offset: q.Offset, max: q.Max}}
	if err := s.compile(); err != nil {
		return Result{}, err
	}
	root, err := os.OpenFile(q.Root, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return Result{}, err
	}
	info, err := root.Stat()
	root.Close()
	if err != nil {
		return Result{}, err
	}
	limit, cancel := withTimeout(ctx, q.Timeout)
	defer cancel()
	switch {
	case info.IsDir():
		s.searchFolder(limit, "", 1)
	case info.Size() > maxFallbackFile:
		return Result{}, needsRipgrep("searching a file larger than 64 MiB")
	default:
		s.q.MaxFileSize = 0 // it applies only to the files of a folder
		s.searchFile(q.Root)
	}
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	out := s.page.result()
	if limit.Err() != nil {
		out.TimedOut, out.Truncated = true, true
	}
	return out, nil
}

func needsRipgrep(what string) error {
	return &PatternError{what + " requires ripgrep, which is not installed; install the Debian package ripgrep"}
}

type search struct {
	q         Query
	re        *regexp.Regexp
	globs     []rule // the last that matches decides
	including bool   // a file must match a glob of Include
	page      *page
	buf       []byte
}

// setOperator matches ripgrep's set operations in character classes, which package regexp would
// read as plain characters.
const setOperator = `\[[^\]]*(&&|~~)`

// compile prepares the pattern and globs, and refuses queries that only ripgrep supports.
func (s *search) compile() error {
	q := s.q
	switch {
	case q.Multiline:
		return needsRipgrep("multiline")
	case q.Ignore:
		return needsRipgrep("respecting .gitignore")
	case len(q.Types) > 0:
		return &PatternError{"type requires ripgrep, which is not installed; use include, such as *.py, or install the Debian package ripgrep"}
	}
	expr := q.Pattern
	if q.Fixed {
		expr = regexp.QuoteMeta(expr)
	} else if found, err := regexp.MatchString(setOperator, expr); err == nil && found {
		return needsRipgrep("a set operation within [ ]")
	}
	var err error
	if s.re, err = compilePattern(expr, q.IgnoreCase); err != nil {
		return err
	}
	if tree, err := syntax.Parse(expr, syntax.Perl); err == nil && hasLineBreak(tree) {
		return errLineBreak
	}
	for _, glob := range q.Include {
		s.globs = append(s.globs, newRule(glob))
		s.including = s.including || !strings.HasPrefix(glob, "!")
	}
	for _, glob := range q.Exclude {
		s.globs = append(s.globs, newRule("!"+strings.TrimPrefix(glob, "!")))
	}
	for _, r := range s.globs {
		if !doublestar.ValidatePattern(r.glob) {
			return &PatternError{"invalid glob: " + r.glob}
		}
	}
	return nil
}

func compilePattern(expr string, ignoreCase bool) (*regexp.Regexp, error) {
	flags := "(?m)"
	if ignoreCase {
		flags = "(?mi)"
	}
	re, err := regexp.Compile(flags + expr)
	if err != nil {
		return nil, &PatternError{"regex parse error: " + strings.TrimPrefix(err.Error(), "error parsing regexp: ")}
	}
	return re, nil
}

func hasLineBreak(re *syntax.Regexp) bool {
	if re.Op == syntax.OpLiteral && strings.ContainsRune(string(re.Rune), '\n') {
		return true
	}
	for _, sub := range re.Sub {
		if hasLineBreak(sub) {
			return true
		}
	}
	return false
}

// rule is a glob of the form that .gitignore has.
type rule struct {
	glob     string // matched against the path below the root
	excludes bool
	dirOnly  bool
}

func newRule(text string) rule {
	var r rule
	text, r.excludes = strings.CutPrefix(text, "!")
	text, r.dirOnly = strings.CutSuffix(strings.TrimPrefix(text, `\`), "/")
	r.glob = strings.TrimPrefix(text, "/")
	if !strings.Contains(text, "/") {
		r.glob = "**/" + r.glob
	}
	return r
}

func (r rule) matches(rel string, dir bool) bool {
	if r.dirOnly && !dir {
		return false
	}
	// "x/**" matches what is in x, not x itself.
	if folder, ok := strings.CutSuffix(r.glob, "/**"); ok && folder != "**" && doublestar.MatchUnvalidated(folder, rel) {
		return false
	}
	return doublestar.MatchUnvalidated(r.glob, rel)
}

// wants reports whether to search a file or enter a folder.
func (s *search) wants(rel string, dir bool) bool {
	for i := len(s.globs) - 1; i >= 0; i-- {
		if s.globs[i].matches(rel, dir) {
			return !s.globs[i].excludes
		}
	}
	if s.including && !dir {
		return false
	}
	return s.q.Hidden || !strings.HasPrefix(filepath.Base(rel), ".")
}

// searchFolder returns false when the search is over.
func (s *search) searchFolder(ctx context.Context, rel string, depth int) bool {
	entries, _ := os.ReadDir(filepath.Join(s.q.Root, rel)) // like ripgrep, leave out what cannot be read
	for _, e := range entries {
		if ctx.Err() != nil {
			return false
		}
		child := filepath.Join(rel, e.Name())
		if !s.wants(child, e.IsDir()) {
			continue
		}
		switch {
		case e.IsDir():
			if !s.q.Shallow && depth < maxDepth && !s.searchFolder(ctx, child, depth+1) {
				return false
			}
		case e.Type().IsRegular():
			if !s.searchFile(filepath.Join(s.q.Root, child)) {
				return false
			}
		}
	}
	return true
}

// searchFile returns false when the page is full.
func (s *search) searchFile(name string) bool {
	text, ok := s.read(name)
	if !ok || bytes.IndexByte(text, 0) >= 0 {
		return true
	}
	b := &builder{file: name, before: s.q.Before, after: s.q.After, skip: s.page.skip()}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if b.count < s.q.need() && s.re.Match(bytes.TrimSuffix(line, []byte("\n"))) {
			b.addMatch(n, []string{string(line)})
		} else if s.q.Before+s.q.After > 0 {
			b.addContext(n, string(line))
		}
		if b.bytes > 2*maxPage || b.count >= s.q.need() && len(b.open) == 0 {
			break
		}
	}
	return b.count == 0 || s.page.addFile(b)
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
	_ = f.SetReadDeadline(time.Now().Add(readTimeout)) // a file on a disk supports no deadline and needs none
	b := bytes.NewBuffer(s.buf[:0])
	n, err := b.ReadFrom(io.LimitReader(f, maxFallbackFile+1))
	s.buf = b.Bytes()
	if err != nil && n == 0 || n > maxFallbackFile {
		return nil, false
	}
	return bytes.TrimPrefix(s.buf, []byte("\xEF\xBB\xBF")), true
}
