package editor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/line"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/mode"
	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

const (
	maxView  = 1 << 20 // bytes of text
	maxShown = 2000    // entries of a folder
)

func (s *Service) view(ctx context.Context, path string, in EditIn) (EditOut, error) {
	info, err := os.Stat(path)
	if err != nil {
		return EditOut{}, err
	}
	if info.IsDir() {
		if len(in.ViewRange) > 0 {
			return EditOut{}, access.Refuse("view", path, "view_range applies to files only; omit it for a folder")
		}
		return s.viewFolder(path)
	}
	if asDocument(path, in) {
		return s.viewDocument(ctx, path, in)
	}
	return s.viewText(path, info, in)
}

// asDocument reports whether to show a document rather than text. A file that can be edited as
// text is shown as text, unless the request selects a part of the document.
func asDocument(path string, in EditIn) bool {
	if !document.Known(path) || len(in.ViewRange) > 0 {
		return false
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".csv", ".tsv":
		return len(in.RowRange) > 0 || in.EnableMetadata
	}
	return true
}

func (s *Service) viewDocument(ctx context.Context, path string, in EditIn) (EditOut, error) {
	if s.viewer == nil {
		return EditOut{}, access.Refuse("view", path, "documents cannot be viewed here; download the file")
	}
	q := document.Query{Pages: in.PageRange, Rows: in.RowRange, Slides: in.SlideRange, Metadata: in.EnableMetadata}
	if in.SheetName != nil {
		q.Sheet = *in.SheetName
	}
	v, err := s.viewer.View(ctx, path, q)
	if err != nil {
		return EditOut{}, err
	}
	return EditOut{Output: v.Text, PrevExist: true, Metadata: v.Metadata}, nil
}

func (s *Service) viewText(path string, info os.FileInfo, in EditIn) (EditOut, error) {
	first, count := 1, -1
	switch r := in.ViewRange; {
	case len(r) == 0:
	case len(r) != 2 || r[0] < 1 || r[1] != -1 && r[1] < r[0]:
		return EditOut{}, access.Refuse("view", path, "invalid view_range %v; send [first, last] with lines from 1, and -1 for the end", r)
	default:
		if first = r[0]; r[1] != -1 {
			count = r[1] - r[0] + 1
		}
	}
	f, err := access.OpenRegular(path)
	if err != nil {
		return EditOut{}, err
	}
	defer f.Close()
	text, cut, err := line.Read(f, first-1, count, maxView)
	if err != nil {
		return EditOut{}, err
	}
	if cut {
		text = line.TrimPartial(text)
	}
	if err := access.CheckText("view", path, text); err != nil {
		return EditOut{}, err
	}
	if len(text) == 0 && first > 1 {
		return EditOut{}, access.Refuse("view", path, "view_range starts at line %d, past the end of the file", first)
	}
	lines := strings.Split(string(text), "\n")
	if len(text) == 0 {
		lines = nil
	}
	out := EditOut{PrevExist: true, Output: fmt.Sprintf("%s with line numbers:\n%s", pathname.Show(path), number(lines, first))}
	if cut {
		out.Output += fmt.Sprintf("[truncated after line %d; use view_range to see more]\n", first+len(lines)-1)
	}
	if in.EnableMetadata {
		out.Metadata = map[string]any{
			"file_size":     info.Size(),
			"modified_time": info.ModTime().UTC().Format(time.RFC3339Nano),
			"permissions":   mode.Permissions(info.Mode()),
		}
	}
	return out, nil
}

// viewFolder lists a folder two levels deep, without hidden names.
func (s *Service) viewFolder(path string) (EditOut, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return EditOut{}, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, up to two levels deep, without hidden names:\n", pathname.Show(path))
	shown, hiddenCount := 0, 0
	show := func(rel string, dir bool) {
		if shown++; shown > maxShown {
			return
		}
		line := pathname.Show(filepath.Join(path, rel))
		if dir {
			line += "/"
		}
		b.WriteString(line + "\n")
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			hiddenCount++
			continue
		}
		show(e.Name(), e.IsDir())
		if !e.IsDir() || shown > maxShown {
			continue
		}
		below, err := os.ReadDir(filepath.Join(path, e.Name()))
		if err != nil {
			continue // the folder itself is listed
		}
		for _, c := range below {
			if !strings.HasPrefix(c.Name(), ".") {
				show(filepath.Join(e.Name(), c.Name()), c.IsDir())
			}
		}
	}
	if shown > maxShown {
		fmt.Fprintf(&b, "[%d more; view a deeper folder]\n", shown-maxShown)
	}
	if hiddenCount > 0 {
		fmt.Fprintf(&b, "[%d hidden]\n", hiddenCount)
	}
	return EditOut{PrevExist: true, Output: b.String()}, nil
}
