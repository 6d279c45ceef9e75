// Package document reads files that are not plain text, by page, sheet, row, slide or cell:
// PDF, Excel, PowerPoint, Word, CSV, notebooks and images.
//
// It owns the text form and the metadata of each format. It runs poppler's programs for PDF and
// aio-markdown for Excel, and reads all other formats itself. Views are limited; a truncated view
// says how to request the rest.
package document

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Query selects the part of a document to show. Ranges are [first, last], from 1 and inclusive;
// -1 as the last is the end; an empty range means everything.
type Query struct {
	Pages    []int
	Sheet    string
	Rows     []int
	Slides   []int
	Metadata bool
}

// View is a part of a document as text.
type View struct {
	Text     string
	Metadata map[string]any // nil unless requested
}

// Reader shows documents.
type Reader struct {
	Runner *proc.Runner
	Helper Helper
}

const (
	maxText = 1 << 20   // bytes of one view
	maxPart = 64 << 20  // bytes of one part of a zip, unpacked
	maxFile = 256 << 20 // bytes of a document
	maxRows = 1000      // rows shown without a range
)

// kinds maps extensions to readers.
var kinds = map[string]func(Reader, context.Context, string, Query) (View, error){
	".pdf":  Reader.pdf,
	".xlsx": Reader.sheet, ".xlsm": Reader.sheet, ".xltx": Reader.sheet,
	".pptx": Reader.slides,
	".docx": Reader.word,
	".csv":  Reader.table, ".tsv": Reader.table,
	".ipynb": Reader.notebook,
	".png":   Reader.image, ".jpg": Reader.image, ".jpeg": Reader.image, ".gif": Reader.image,
	".webp": Reader.image, ".bmp": Reader.image, ".tif": Reader.image, ".tiff": Reader.image,
}

// Known reports whether a file is a document, by its extension.
func Known(path string) bool {
	_, ok := kinds[ext(path)]
	return ok
}

func ext(path string) string { return strings.ToLower(filepath.Ext(path)) }

// View shows part of a document.
func (r Reader) View(ctx context.Context, path string, q Query) (View, error) {
	show, ok := kinds[ext(path)]
	if !ok {
		return View{}, op.Errorf(op.Invalid, "%s has an unsupported format; read it as text or convert it to Markdown", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return View{}, err
	}
	if !info.Mode().IsRegular() {
		return View{}, op.Errorf(op.Invalid, "%s is not a regular file", path)
	}
	if info.Size() > maxFile {
		return View{}, op.Errorf(op.TooLarge, "%s is too large to view (%d bytes, limit %d); download it instead", path, info.Size(), maxFile)
	}
	v, err := show(r, ctx, path, q)
	if err != nil {
		return View{}, err
	}
	v.Text = truncate(v.Text)
	if !q.Metadata {
		v.Metadata = nil
	} else {
		v.Metadata["file_size"] = info.Size()
		v.Metadata["file_type"] = strings.TrimPrefix(ext(path), ".")
	}
	return v, nil
}

func truncate(s string) string {
	if len(s) <= maxText {
		return s
	}
	s = strings.ToValidUTF8(s[:maxText], "")
	return s + "\n\n[truncated; request a smaller range to see the rest]\n"
}

// damaged returns the error for a file that does not match its extension.
func damaged(path string, err error) error {
	return op.Errorf(op.Invalid, "%s cannot be read as %s: %w", path, strings.TrimPrefix(ext(path), "."), err)
}

// span checks a range against the total and returns it from 1, inclusive.
func span(what string, r []int, total int) (first, last int, err error) {
	first, last = 1, total
	switch len(r) {
	case 0:
		return first, last, nil
	case 1:
		first, last = r[0], r[0]
	case 2:
		if first = r[0]; r[1] != -1 {
			last = min(r[1], total)
		}
	default:
		return 0, 0, op.Errorf(op.Invalid, "%s must be [first, last], got %d numbers", what, len(r))
	}
	if first < 1 || first > total || last < first {
		return 0, 0, op.Errorf(op.Invalid, "%s %v is out of range: 1 to %d", what, r, total)
	}
	return first, last, nil
}

// limitedRead reads all of r, up to a limit.
func limitedRead(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("larger than %d bytes", limit)
	}
	return b, err
}

// markdownTable formats rows as a table, with the first as its header.
func markdownTable(rows [][]string) string {
	width := 0
	for _, r := range rows {
		width = max(width, len(r))
	}
	if width == 0 {
		return ""
	}
	var b strings.Builder
	writeTable(&b, width, slices.Values(rows))
	return b.String()
}

// writeTable writes rows, the first of which is the header, until the view is full.
func writeTable(b *strings.Builder, width int, rows iter.Seq[[]string]) {
	clean := strings.NewReplacer("|", `\|`, "\r\n", "<br>", "\n", "<br>")
	head := true
	for r := range rows {
		b.WriteByte('|')
		for c := 0; c < width && b.Len() <= maxText; c++ {
			b.WriteByte(' ')
			if c < len(r) {
				_, _ = clean.WriteString(b, strings.TrimSpace(r[c])) // never fails
			}
			b.WriteString(" |")
		}
		b.WriteByte('\n')
		if head {
			b.WriteString("|" + strings.Repeat(" --- |", width) + "\n")
			head = false
		}
		if b.Len() > maxText {
			return
		}
	}
}
