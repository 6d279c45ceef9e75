package tree

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// walker visits a tree. It reads folders in chunks, so that its memory does not grow with
// their size, and does not follow links.
type walker struct {
	root       string
	depth      int                              // 1: only the entries of the root; 0: no limit
	enter      func(rel string, depth int) bool // whether to enter a folder; nil: enter all
	visit      func(rel string, d fs.DirEntry) error
	unreadable int // folders that could not be read
}

// chunk is the number of entries read at once.
const chunk = 1024

var errStop = errors.New("stop")

// run walks the tree. A root that cannot be read is an error, a folder below it is not.
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
			w.unreadable++
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

// hintOmissions adds a hint about what a list omits.
func (w *walker) hintOmissions(ctx context.Context, shown, total int, timedOut bool) {
	var parts []string
	if timedOut {
		parts = append(parts, "the search timed out; choose a deeper folder")
	}
	if shown < total {
		parts = append(parts, "the list is truncated; choose a deeper folder or a narrower pattern")
	}
	if w.unreadable > 0 {
		parts = append(parts, "some folders could not be read")
	}
	if len(parts) > 0 {
		op.Hint(ctx, "%s", strings.Join(parts, "; "))
	}
}
