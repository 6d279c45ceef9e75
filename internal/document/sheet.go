package document

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/xuri/excelize/v2"

	"github.com/cove-sandbox/cove/internal/op"
)

func (r Reader) sheet(ctx context.Context, path string, q Query) (View, error) {
	f, err := excelize.OpenFile(path, excelize.Options{UnzipSizeLimit: 1 << 30, UnzipXMLSizeLimit: 16 << 20})
	if err != nil {
		return View{}, damaged(path, err)
	}
	defer f.Close()
	names := f.GetSheetList()
	shown := names
	if q.Sheet != "" {
		if i, err := f.GetSheetIndex(q.Sheet); err != nil || i < 0 {
			return View{}, op.Errorf(op.NotFound, "%s has no sheet %q; it has: %s", path, q.Sheet, strings.Join(names, ", "))
		}
		shown = []string{q.Sheet}
	} else if len(q.Rows) > 0 && len(names) > 1 {
		shown = names[:1]
	}
	var b strings.Builder
	var sheets []map[string]any
	for _, name := range shown {
		if err := ctx.Err(); err != nil {
			return View{}, err
		}
		rows, columns, err := showSheet(&b, f, name, q.Rows)
		if err != nil {
			return View{}, err
		}
		sheets = append(sheets, map[string]any{"name": name, "rows": rows, "columns": columns})
	}
	meta := map[string]any{"sheet_count": len(names), "sheet_names": names, "sheets": sheets}
	if p, err := f.GetDocProps(); err == nil {
		fill(meta, map[string]string{"title": p.Title, "creator": p.Creator, "created": p.Created, "modified": p.Modified, "subject": p.Subject})
	}
	return View{b.String(), meta}, nil
}

func fill(meta map[string]any, props map[string]string) {
	for k, v := range props {
		if v != "" {
			meta[k] = v
		}
	}
}

// showSheet writes rows of a sheet with their numbers and the columns' letters,
// so that what is seen can be named in a formula or the next range.
func showSheet(b *strings.Builder, f *excelize.File, name string, want []int) (total, columns int, err error) {
	total, columns, err = countRows(f, name)
	if err != nil {
		return 0, 0, damaged(name, err)
	}
	fmt.Fprintf(b, "## Sheet %s\n\n", name)
	if total == 0 {
		b.WriteString("[empty]\n\n")
		return 0, 0, nil
	}
	first, last, err := span("row_range", want, total)
	if err != nil {
		return 0, 0, err
	}
	if len(want) == 0 {
		last = min(last, maxRows)
	}
	rows, err := f.Rows(name)
	if err != nil {
		return 0, 0, damaged(name, err)
	}
	defer rows.Close()
	head := []string{""}
	for c := 1; c <= columns; c++ {
		letter, err := excelize.ColumnNumberToName(c)
		if err != nil {
			return 0, 0, err
		}
		head = append(head, letter)
	}
	table := [][]string{head}
	for n := 1; n <= last && rows.Next(); n++ {
		cells, err := rows.Columns()
		if err != nil {
			return 0, 0, damaged(name, err)
		}
		if n >= first {
			table = append(table, append([]string{fmt.Sprint(n)}, cells...))
		}
	}
	b.WriteString(markdownTable(table))
	if last < total && len(want) == 0 {
		fmt.Fprintf(b, "\n[%d of %d rows; ask for the others with row_range]\n", last, total)
	}
	b.WriteByte('\n')
	return total, columns, rows.Error()
}

func countRows(f *excelize.File, name string) (total, columns int, err error) {
	rows, err := f.Rows(name)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	seen := 0
	for rows.Next() {
		seen++
		cells, err := rows.Columns()
		if err != nil {
			return 0, 0, err
		}
		if len(cells) > 0 {
			total = seen // empty rows at the end do not count
			columns = max(columns, len(cells))
		}
	}
	return total, columns, rows.Error()
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
