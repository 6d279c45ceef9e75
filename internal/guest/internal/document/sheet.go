package document

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/document/office"
)

const (
	// sheetTimeout limits the reading of one workbook.
	sheetTimeout = 60 * time.Second
	// maxBook limits the helper's response: text as JSON, where a byte can take six.
	maxBook = 6*maxText + 4<<20
)

func (r Reader) sheet(ctx context.Context, path string, q Query) (View, error) {
	p, err := openParts(path)
	if err != nil {
		return View{}, err
	}
	defer p.close()
	part := office.Query{Path: path, Sheet: q.Sheet, First: 1, Last: maxRows, MaxText: maxText}
	if n := len(q.Rows); n > 0 {
		part.FirstSheet, part.First, part.Last = true, q.Rows[0], q.Rows[n-1]
		if part.Last == -1 {
			part.Last = office.MaxRows
		}
	}
	book, err := r.readWorkbook(ctx, part)
	if err != nil {
		return View{}, err
	}
	if q.Sheet != "" && len(book.Sheets) == 0 {
		return View{}, op.Errorf(op.NotFound, "%s has no sheet %q; it has: %s", path, q.Sheet, strings.Join(book.Names, ", "))
	}
	var b strings.Builder
	var sheets []map[string]any
	for _, s := range book.Sheets {
		if err := writeSheet(&b, s, q.Rows); err != nil {
			return View{}, err
		}
		sheets = append(sheets, map[string]any{"name": s.Name, "rows": s.Rows, "columns": s.Columns})
	}
	meta := map[string]any{"sheet_count": len(book.Names), "sheet_names": book.Names, "sheets": sheets}
	p.properties(meta)
	return View{b.String(), meta}, nil
}

// readWorkbook queries the helper. The helper unpacks large parts into a folder that is removed
// even if the helper is killed.
func (r Reader) readWorkbook(ctx context.Context, q office.Query) (office.Workbook, error) {
	query, err := json.Marshal(q)
	if err != nil {
		return office.Workbook{}, err
	}
	temp, err := os.MkdirTemp("", "workbook-*")
	if err != nil {
		return office.Workbook{}, fmt.Errorf("unpack the workbook: %w", err)
	}
	defer os.RemoveAll(temp)
	limit, cancel := context.WithTimeout(ctx, sheetTimeout)
	defer cancel()
	out, err := r.Helper.Run(limit, "read "+q.Path, Job{Stdin: bytes.NewReader(query), MaxOutput: maxBook,
		TempDir: temp, Args: []string{"-workbook"}})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return office.Workbook{}, op.Errorf(op.Unavailable,
			"reading %s timed out after %v; request one sheet with sheet_name", q.Path, sheetTimeout)
	}
	if err != nil {
		return office.Workbook{}, err
	}
	var book office.Workbook
	if err := json.Unmarshal(out, &book); err != nil {
		return office.Workbook{}, damaged(q.Path, err)
	}
	return book, nil
}

// writeSheet writes rows with their numbers and the letters of the columns, so that a formula or
// the next range can refer to them.
func writeSheet(b *strings.Builder, s office.Sheet, rows []int) error {
	fmt.Fprintf(b, "## Sheet %s\n\n", s.Name)
	switch {
	case s.Problem != "":
		fmt.Fprintf(b, "[cannot be read: %s]\n\n", s.Problem)
		return nil
	case s.Rows == 0:
		b.WriteString("[empty]\n\n")
		return nil
	}
	first, last, err := span("row_range", rows, s.Rows)
	if err != nil {
		return err
	}
	more := len(rows) == 0 && last > maxRows
	if more {
		last = maxRows
	}
	writeTable(b, s.Columns+1, numberedRows(s, first, last))
	if more {
		fmt.Fprintf(b, "\n[%d of %d rows; use row_range to see the others]\n", last, s.Rows)
	}
	b.WriteByte('\n')
	return nil
}

// numberedRows yields a header of letters, then all rows of the range, including empty ones.
func numberedRows(s office.Sheet, first, last int) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		line := make([]string, s.Columns+1)
		for c := 1; c <= s.Columns; c++ {
			line[c] = columnName(c)
		}
		if !yield(line) {
			return
		}
		rows := s.Content
		for n := first; n <= last; n++ {
			clear(line)
			line[0] = strconv.Itoa(n)
			if len(rows) > 0 && rows[0].Number == n {
				copy(line[1:], rows[0].Cells)
				rows = rows[1:]
			}
			if !yield(line) {
				return
			}
		}
	}
}

// columnName returns the letters of a column: AB for 28.
func columnName(n int) string {
	name := ""
	for ; n > 0; n = (n - 1) / 26 {
		name = string(rune('A'+(n-1)%26)) + name
	}
	return name
}
