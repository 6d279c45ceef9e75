package tree

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// GlobIn names a folder and a pattern.
type GlobIn struct {
	Path            string   `json:"path" doc:"Folder to search"`
	Pattern         string   `json:"pattern" doc:"Glob relative to the folder; ** matches any depth, {a,b} either alternative"`
	Exclude         []string `json:"exclude" nullable:"true" doc:"Globs to exclude; one without a slash matches names"`
	IncludeHidden   bool     `json:"include_hidden" default:"false" nullable:"true" doc:"Include names with a leading dot"`
	FilesOnly       bool     `json:"files_only" default:"true" nullable:"true" doc:"Exclude folders"`
	IncludeMetadata bool     `json:"include_metadata" default:"true" nullable:"true" doc:"Include size and modification time"`
	MaxResults      int      `json:"max_results" default:"5000" minimum:"1" maximum:"50000" nullable:"true" doc:"Maximum number of results"`
	SortBy          string   `json:"sort_by" default:"path" nullable:"true" doc:"Sort key: path, name, size, modified or type"`
	SortDesc        bool     `json:"sort_desc" default:"false" nullable:"true" doc:"Sort in descending order"`
}

// GlobFile is one match.
type GlobFile struct {
	Path         string  `json:"path"`
	Name         string  `json:"name"`
	IsDirectory  bool    `json:"is_directory"`
	Size         *int64  `json:"size"`
	ModifiedTime *string `json:"modified_time"`
}

// GlobOut is the matches.
type GlobOut struct {
	Path       string     `json:"path" doc:"Absolute path of the folder"`
	Pattern    string     `json:"pattern"`
	Files      []GlobFile `json:"files"`
	TotalCount int        `json:"total_count" doc:"Number of matches, whether shown or not"`
	Truncated  bool       `json:"truncated"`
}

// Glob finds files by a pattern.
func (s *Service) Glob(ctx context.Context, in GlobIn) (GlobOut, error) {
	path, err := s.files.Resolve("glob", in.Path)
	if err != nil {
		return GlobOut{}, err
	}
	found, known, truncated, err := s.match(ctx, "glob", path, in)
	if err != nil {
		return GlobOut{}, err
	}
	out := GlobOut{Path: path, Pattern: in.Pattern, TotalCount: found.total, Truncated: truncated}
	for _, l := range found.trim() {
		g := GlobFile{Path: pathname.Show(l.path), Name: pathname.Show(l.name), IsDirectory: l.dir}
		if in.IncludeMetadata {
			g.ModifiedTime = new(stamp(l.modified))
			if !l.dir {
				g.Size = &l.size
			}
		}
		out.Files = append(out.Files, g)
	}
	if !known {
		op.Hint(ctx, "unknown sort_by %q, sorted by path; use path, name, size, modified or type", in.SortBy)
	}
	return out, nil
}

// match walks the part of a tree that a pattern can match.
func (s *Service) match(ctx context.Context, operation, path string, in GlobIn) (found *top[listed], known, truncated bool, err error) {
	p, err := newPattern(operation, path, in)
	if err != nil {
		return nil, false, false, err
	}
	order, known := ordering(in.SortBy, in.SortDesc)
	found = &top[listed]{limit: in.MaxResults, order: func(a, b listed) int { return order(a.sortable, b.sortable) }}
	if info, err := os.Stat(path); err != nil {
		return nil, false, false, pyerr.From(operation, path, err)
	} else if !info.IsDir() {
		return nil, false, false, pyerr.From(operation, path, syscall.ENOTDIR)
	}
	if info, err := os.Stat(p.root); err != nil || !info.IsDir() {
		return found, known, false, nil // the folder in the pattern does not exist
	}
	limit, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	w := &walker{root: p.root, depth: p.depth}
	w.enter = func(rel string, _ int) bool { return p.enters(rel) }
	w.visit = func(rel string, d fs.DirEntry) error {
		if !p.matches(rel) {
			return nil
		}
		if l, ok := describe(p.root, rel, d); ok && !(in.FilesOnly && l.dir) {
			found.add(l)
		}
		return nil
	}
	err = w.run(limit)
	timedOut := limit.Err() != nil && ctx.Err() == nil
	if err != nil && !timedOut {
		return nil, false, false, pyerr.From(operation, p.root, err)
	}
	w.hintOmissions(ctx, min(found.total, in.MaxResults), found.total, timedOut)
	return found, known, timedOut || found.total > in.MaxResults, nil
}

// pattern is a glob, prepared for a walk.
type pattern struct {
	root    string // folder of the part without wildcards
	base    string // that part
	glob    string // the rest
	depth   int    // maximum depth of a match; 0: no limit
	hidden  bool
	dots    []string // parts of the glob with a leading dot
	exclude []string
}

func newPattern(operation, path string, in GlobIn) (pattern, error) {
	invalid := func(glob string) error {
		return pyerr.New(operation, path, pyerr.Spec{Kind: pyerr.Path}, "%s %s: invalid pattern %q; close every [ and {", operation, path, glob)
	}
	if in.Pattern == "" || !doublestar.ValidatePattern(in.Pattern) {
		return pattern{}, invalid(in.Pattern)
	}
	for _, e := range in.Exclude {
		if !doublestar.ValidatePattern(e) {
			return pattern{}, invalid(e)
		}
	}
	base, glob := doublestar.SplitPattern(strings.TrimSuffix(in.Pattern, "/"))
	p := pattern{glob: glob, hidden: in.IncludeHidden, exclude: in.Exclude, root: base, base: base}
	if !filepath.IsAbs(base) {
		p.root = filepath.Join(path, base)
	}
	if !strings.Contains(glob, "**") && !strings.Contains(glob, "{") {
		p.depth = strings.Count(glob, "/") + 1
	}
	for part := range strings.SplitSeq(glob, "/") {
		if strings.HasPrefix(part, ".") {
			p.dots = append(p.dots, part)
		}
	}
	return p, nil
}

func (p pattern) matches(rel string) bool {
	ok, err := doublestar.Match(p.glob, rel)
	return err == nil && ok && p.enters(rel)
}

// enters reports whether a name passes the rules that also apply to parent folders.
func (p pattern) enters(rel string) bool {
	name := filepath.Base(rel)
	if strings.HasPrefix(name, ".") && !p.hidden && !anyMatch(p.dots, name) {
		return false
	}
	for _, e := range p.exclude {
		what := name
		if strings.Contains(e, "/") {
			what = filepath.Join(p.base, rel)
		}
		if ok, err := doublestar.Match(e, what); err == nil && ok {
			return false
		}
	}
	return true
}

func anyMatch(globs []string, name string) bool {
	for _, g := range globs {
		if ok, err := doublestar.Match(g, name); err == nil && ok {
			return true
		}
	}
	return false
}

// FindIn names a folder and a simple glob.
type FindIn struct {
	Path string `json:"path" doc:"Folder to search"`
	Glob string `json:"glob" doc:"Glob relative to the folder, such as *.py or **/*.py"`
}

// FindOut is the matching paths.
type FindOut struct {
	Path  string   `json:"path" doc:"Absolute path of the folder"`
	Files []string `json:"files" doc:"Absolute paths, sorted"`
}

// maxFind limits the paths of one response.
const maxFind = 10_000

// Find finds files and folders by a simple glob.
func (s *Service) Find(ctx context.Context, in FindIn) (FindOut, error) {
	path, err := s.files.Resolve("find", in.Path)
	if err != nil {
		return FindOut{}, err
	}
	found, _, _, err := s.match(ctx, "find", path, GlobIn{Pattern: in.Glob, MaxResults: maxFind})
	if err != nil {
		return FindOut{}, err
	}
	out := FindOut{Path: path}
	for _, l := range found.trim() {
		out.Files = append(out.Files, pathname.Show(l.path))
	}
	return out, nil
}
