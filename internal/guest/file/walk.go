package file

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// walker visits a tree. It reads folders piece by piece, so that its memory does
// not grow with their size, and does not follow links.
type walker struct {
	root   string
	depth  int                              // 1: only the root's own entries; 0: no limit
	enter  func(rel string, depth int) bool // whether to go into a folder; nil: into all
	visit  func(rel string, d fs.DirEntry) error
	closed int // folders that could not be read
}

// chunk is how many entries are read at once.
const chunk = 1024

var errStop = errors.New("enough")

// run walks; a root that cannot be read is an error, a folder below it is not.
func (w *walker) run(ctx context.Context) error {
	type folder struct {
		rel   string
		depth int
	}
	pending := []folder{{"", 1}}
	for len(pending) > 0 {
		f := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		err := w.folder(ctx, f.rel, func(rel string) {
			if (w.depth == 0 || f.depth < w.depth) && (w.enter == nil || w.enter(rel, f.depth)) {
				pending = append(pending, folder{rel, f.depth + 1})
			}
		})
		switch {
		case errors.Is(err, errStop):
			return nil
		case err != nil && (f.rel == "" || ctx.Err() != nil):
			return err
		case err != nil:
			w.closed++
		}
	}
	return nil
}

func (w *walker) folder(ctx context.Context, rel string, push func(rel string)) error {
	d, err := os.Open(filepath.Join(w.root, rel))
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		entries, err := d.ReadDir(chunk)
		for _, e := range entries {
			child := filepath.Join(rel, e.Name())
			if err := w.visit(child, e); err != nil {
				return err
			}
			if e.IsDir() {
				push(child)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// tell hints at what a listing does not show.
func (w *walker) tell(ctx context.Context, shown, total int, timedOut bool) {
	var parts []string
	if timedOut {
		parts = append(parts, "the time limit was reached before everything was seen; choose a deeper folder")
	}
	if shown < total {
		parts = append(parts, "not everything is shown; choose a deeper folder or a narrower pattern")
	}
	if w.closed > 0 {
		parts = append(parts, "some folders could not be read")
	}
	if len(parts) > 0 {
		op.Hint(ctx, "%s", strings.Join(parts, "; "))
	}
}

// best keeps the first items of an order while any number of them comes by.
type best[T any] struct {
	limit int
	order func(a, b T) int
	items []T
	total int
}

func (b *best[T]) add(v T) {
	b.total++
	if b.items = append(b.items, v); len(b.items) >= 2*b.limit+chunk {
		b.trim()
	}
}

func (b *best[T]) trim() []T {
	slices.SortFunc(b.items, b.order)
	if len(b.items) > b.limit {
		clear(b.items[b.limit:])
		b.items = b.items[:b.limit]
	}
	return b.items
}

// sortable is what files can be ordered by.
type sortable struct {
	path, name string
	dir        bool
	size       int64
	modified   time.Time
}

// ordering makes a comparison by one of the words that callers use. ok is false
// for an unknown word, which orders by path.
func ordering(by string, desc bool) (order func(a, b sortable) int, ok bool) {
	key := func(a, b sortable) int { return 0 }
	ok = true
	switch strings.ToLower(by) {
	case "", "path":
	case "name":
		key = func(a, b sortable) int { return cmp.Compare(a.name, b.name) }
	case "size":
		key = func(a, b sortable) int { return cmp.Compare(a.size, b.size) }
	case "modified", "modified_time", "mtime", "time", "date":
		key = func(a, b sortable) int { return a.modified.Compare(b.modified) }
	case "type", "extension":
		key = func(a, b sortable) int {
			if a.dir != b.dir {
				if a.dir {
					return -1
				}
				return 1
			}
			return cmp.Compare(filepath.Ext(a.name), filepath.Ext(b.name))
		}
	default:
		ok = false
	}
	return func(a, b sortable) int {
		c := cmp.Or(key(a, b), cmp.Compare(a.path, b.path))
		if desc {
			return -c
		}
		return c
	}, ok
}

// stamp is how times are written in replies.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
