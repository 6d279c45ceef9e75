package document

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

func (r Reader) sheet(ctx context.Context, path string, q Query) (View, error) {
	p, err := openParts(path)
	if err != nil {
		return View{}, err
	}
	defer p.close()
	book, err := openWorkbook(ctx, p)
	if err != nil {
		return View{}, err
	}
	names := book.names()
	shown := book.sheets
	if q.Sheet != "" {
		i := slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(name, q.Sheet) })
		if i < 0 {
			return View{}, op.Errorf(op.NotFound, "%s has no sheet %q; it has: %s", path, q.Sheet, strings.Join(names, ", "))
		}
		shown = book.sheets[i : i+1]
	} else if len(q.Rows) > 0 && len(names) > 1 {
		shown = shown[:1]
	}
	views, err := book.view(ctx, shown, q.Rows)
	if err != nil {
		return View{}, err
	}
	var b strings.Builder
	var sheets []map[string]any
	for _, v := range views {
		v.write(&b)
		sheets = append(sheets, map[string]any{"name": v.name, "rows": v.total, "columns": v.columns})
	}
	meta := map[string]any{"sheet_count": len(names), "sheet_names": names, "sheets": sheets}
	p.properties(meta)
	return View{b.String(), meta}, nil
}

// sheetView is what is shown of a sheet: rows first to last of those there are.
type sheetView struct {
	name           string
	rows           []sheetRow
	total, columns int // of the sheet
	first, last    int
	more           bool // there are others, which were not asked for
}

// view reads each sheet once, and then the strings that they share. No more is
// held than fits into a text.
func (w *workbook) view(ctx context.Context, sheets []worksheet, want []int) ([]sheetView, error) {
	var views []sheetView
	var rows []sheetRow
	size := 0
	for _, s := range sheets {
		v, err := w.viewSheet(ctx, s, want, &size)
		if err != nil {
			return nil, err
		}
		views = append(views, v)
		rows = append(rows, v.rows...)
	}
	return views, w.resolve(ctx, rows)
}

func (w *workbook) viewSheet(ctx context.Context, s worksheet, want []int, size *int) (sheetView, error) {
	v := sheetView{name: s.name}
	first, last := 1, maxRows
	if len(want) > 0 {
		if first, last = want[0], want[len(want)-1]; last == -1 {
			last = maxSheetRows
		}
	}
	err := w.rows(ctx, s.part, func(r sheetRow) {
		v.total = max(v.total, r.number) // empty rows at the end do not count
		for _, c := range r.cells {
			v.columns = max(v.columns, c.column)
		}
		if r.number < first || r.number > last || *size > maxText {
			return
		}
		for _, c := range r.cells {
			*size += len(c.text) + len("  |")
		}
		v.rows = append(v.rows, sheetRow{r.number, slices.Clone(r.cells)})
	})
	if err != nil || v.total == 0 {
		return v, err
	}
	v.first, v.last, err = span("row_range", want, v.total)
	if len(want) == 0 && v.last > maxRows {
		v.last, v.more = maxRows, true
	}
	return v, err
}

// write shows the rows with their numbers and the columns' letters, so that what
// is seen can be named in a formula or the next range.
func (v sheetView) write(b *strings.Builder) {
	fmt.Fprintf(b, "## Sheet %s\n\n", v.name)
	if v.total == 0 {
		b.WriteString("[empty]\n\n")
		return
	}
	writeTable(b, v.columns+1, v.numbered())
	if v.more {
		fmt.Fprintf(b, "\n[%d of %d rows; ask for the others with row_range]\n", v.last, v.total)
	}
	b.WriteByte('\n')
}

// numbered yields a head of letters, then the rows, those without cells too.
func (v sheetView) numbered() iter.Seq[[]string] {
	rows := v.rows
	slices.SortStableFunc(rows, func(a, b sheetRow) int { return cmp.Compare(a.number, b.number) })
	return func(yield func([]string) bool) {
		line := make([]string, v.columns+1)
		for c := 1; c <= v.columns; c++ {
			line[c] = columnName(c)
		}
		if !yield(line) {
			return
		}
		for n := v.first; n <= v.last; n++ {
			clear(line)
			line[0] = strconv.Itoa(n)
			for ; len(rows) > 0 && rows[0].number <= n; rows = rows[1:] {
				for _, c := range rows[0].cells {
					line[c.column] = c.text
				}
			}
			if !yield(line) {
				return
			}
		}
	}
}

// table shows a CSV file; its first row is the head of every part.
func (r Reader) table(ctx context.Context, path string, q Query) (View, error) {
	f, err := os.Open(path)
	if err != nil {
		return View{}, err
	}
	defer f.Close()
	comma, err := delimiter(f, path)
	if err != nil {
		return View{}, err
	}
	total, columns, err := eachRow(ctx, f, comma, nil)
	if err != nil {
		return View{}, damaged(path, err)
	}
	meta := map[string]any{"row_count": total, "column_count": columns, "delimiter": string(comma)}
	if total == 0 {
		return View{"[empty]\n", meta}, nil
	}
	first, last, err := span("row_range", q.Rows, total)
	if err != nil {
		return View{}, err
	}
	if len(q.Rows) == 0 {
		last = min(last, maxRows)
	}
	var rows [][]string
	_, _, err = eachRow(ctx, f, comma, func(n int, row []string) bool {
		if n == 1 || n >= first && n <= last {
			rows = append(rows, row)
		}
		return n < last
	})
	if err != nil {
		return View{}, damaged(path, err)
	}
	text := markdownTable(rows)
	if last < total && len(q.Rows) == 0 {
		text += fmt.Sprintf("\n[%d of %d rows; ask for the others with row_range]\n", last, total)
	}
	meta["columns"] = rows[0]
	return View{text, meta}, nil
}

// eachRow reads a CSV file from its start; it counts when visit is nil.
func eachRow(ctx context.Context, f *os.File, comma rune, visit func(n int, row []string) bool) (total, columns int, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, 0, err
	}
	r := csv.NewReader(f)
	r.Comma, r.FieldsPerRecord, r.LazyQuotes, r.ReuseRecord = comma, -1, true, visit == nil
	for {
		row, err := r.Read()
		if err == io.EOF {
			return total, columns, nil
		}
		if err != nil {
			return total, columns, err
		}
		total++
		columns = max(columns, len(row))
		if visit != nil && !visit(total, row) {
			return total, columns, nil
		}
		if total%1024 == 0 && ctx.Err() != nil {
			return total, columns, ctx.Err()
		}
	}
}

// delimiter guesses what separates the columns from the first line.
func delimiter(f *os.File, path string) (rune, error) {
	if ext(path) == ".tsv" {
		return '\t', nil
	}
	head := make([]byte, 8<<10)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return 0, err
	}
	line, _, _ := strings.Cut(string(head[:n]), "\n")
	best, most := ',', strings.Count(line, ",")
	for _, c := range ";\t|" {
		if n := strings.Count(line, string(c)); n > most {
			best, most = c, n
		}
	}
	return best, nil
}
