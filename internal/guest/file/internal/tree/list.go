package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/mode"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// ListIn names a folder and how to list it.
type ListIn struct {
	Path               string   `json:"path" doc:"Path of the folder"`
	Recursive          bool     `json:"recursive" default:"false" nullable:"true" doc:"Include subfolders"`
	ShowHidden         bool     `json:"show_hidden" default:"true" nullable:"true" doc:"Include names with a leading dot"`
	FileTypes          []string `json:"file_types" nullable:"true" doc:"List only files with these extensions, such as .py, and all folders"`
	MaxDepth           *int     `json:"max_depth" doc:"Maximum depth when recursive; 1 is the folder itself"`
	IncludeSize        bool     `json:"include_size" default:"true" nullable:"true" doc:"Include sizes"`
	IncludePermissions bool     `json:"include_permissions" default:"false" nullable:"true" doc:"Include permissions, such as -rw-r--r--"`
	SortBy             string   `json:"sort_by" default:"name" nullable:"true" doc:"Sort key: name, path, size, modified or type"`
	SortDesc           bool     `json:"sort_desc" default:"false" nullable:"true" doc:"Sort in descending order"`
}

// Info is one entry of a list.
type Info struct {
	Name         string  `json:"name"`
	Path         string  `json:"path"`
	IsDirectory  bool    `json:"is_directory" doc:"Also true for a link to a folder"`
	IsSymlink    bool    `json:"is_symlink"`
	Size         *int64  `json:"size" doc:"Bytes; null for folders"`
	ModifiedTime *string `json:"modified_time"`
	Permissions  *string `json:"permissions"`
	Extension    *string `json:"extension" doc:"With its dot"`
}

// ListOut is a list with counts of everything found, whether shown or not.
type ListOut struct {
	Path           string `json:"path" doc:"Absolute path"`
	Files          []Info `json:"files"`
	TotalCount     int    `json:"total_count"`
	DirectoryCount int    `json:"directory_count"`
	FileCount      int    `json:"file_count"`
	Truncated      bool   `json:"truncated" doc:"Whether there are more entries than are shown"`
}

// maxList limits the entries of one response.
const maxList = 50_000

// List lists a folder.
func (s *Service) List(ctx context.Context, in ListIn) (ListOut, error) {
	path, err := s.files.Resolve("list", in.Path)
	if err != nil {
		return ListOut{}, err
	}
	if info, err := os.Stat(path); err != nil {
		return ListOut{}, pyerr.From("list", path, err)
	} else if !info.IsDir() {
		return ListOut{}, pyerr.From("list", path, syscall.ENOTDIR)
	}
	order, known := ordering(in.SortBy, in.SortDesc)
	found := top[listed]{limit: maxList, order: func(a, b listed) int { return order(a.sortable, b.sortable) }}
	out := ListOut{Path: path}
	types := extensions(in.FileTypes)
	limit, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	w := &walker{root: path, depth: depth(in)}
	w.enter = func(rel string, _ int) bool { return in.ShowHidden || !hidden(rel) }
	w.visit = func(rel string, d fs.DirEntry) error {
		if !in.ShowHidden && hidden(rel) {
			return nil
		}
		l, ok := describe(path, rel, d)
		if !ok || !l.dir && types != nil && !slices.Contains(types, strings.ToLower(filepath.Ext(l.name))) {
			return nil
		}
		if l.dir {
			out.DirectoryCount++
		} else {
			out.FileCount++
		}
		found.add(l)
		return nil
	}
	err = w.run(limit)
	timedOut := limit.Err() != nil && ctx.Err() == nil
	if err != nil && !timedOut {
		return ListOut{}, pyerr.From("list", path, err)
	}
	for _, l := range found.trim() {
		out.Files = append(out.Files, l.info(in))
	}
	out.TotalCount, out.Truncated = found.total, timedOut || found.total > maxList
	w.hintOmissions(ctx, len(out.Files), found.total, timedOut)
	if !known {
		op.Hint(ctx, "unknown sort_by %q, sorted by path; use name, path, size, modified or type", in.SortBy)
	}
	return out, nil
}

func depth(in ListIn) int {
	switch {
	case !in.Recursive:
		return 1
	case in.MaxDepth != nil && *in.MaxDepth > 0:
		return *in.MaxDepth
	case in.MaxDepth != nil:
		return 1
	}
	return 0
}

func hidden(rel string) bool { return strings.HasPrefix(filepath.Base(rel), ".") }

// extensions normalizes extensions, which may lack their dot.
func extensions(types []string) []string {
	var out []string
	for _, t := range types {
		t = strings.ToLower(strings.TrimPrefix(t, "*"))
		if t != "" && !strings.HasPrefix(t, ".") {
			t = "." + t
		}
		out = append(out, t)
	}
	return out
}

// listed is an entry of a list.
type listed struct {
	sortable
	mode fs.FileMode
	link bool
}

// describe stats an entry; ok is false if it no longer exists.
func describe(root, rel string, d fs.DirEntry) (l listed, ok bool) {
	info, err := d.Info()
	if err != nil {
		return listed{}, !errors.Is(err, fs.ErrNotExist)
	}
	path := filepath.Join(root, rel)
	l.link = info.Mode()&fs.ModeSymlink != 0
	l.mode = info.Mode()
	if l.link {
		if to, err := os.Stat(path); err == nil { // a dangling link is listed as a link
			info = to
		}
	}
	l.sortable = sortable{path: path, name: d.Name(), dir: info.IsDir(), size: info.Size(), modified: info.ModTime()}
	return l, true
}

func (l listed) info(in ListIn) Info {
	i := Info{Name: pathname.Show(l.name), Path: pathname.Show(l.path), IsDirectory: l.dir, IsSymlink: l.link,
		ModifiedTime: new(stamp(l.modified))}
	if !l.dir {
		if in.IncludeSize {
			i.Size = &l.size
		}
		i.Extension = new(pathname.Show(filepath.Ext(l.name)))
	}
	if in.IncludePermissions {
		i.Permissions = new(mode.Permissions(l.mode))
	}
	return i
}
