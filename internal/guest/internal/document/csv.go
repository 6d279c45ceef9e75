package document

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"strings"
)

// table shows a CSV file; its first row is the header of every part.
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
		text += fmt.Sprintf("\n[%d of %d rows; use row_range to see the others]\n", last, total)
	}
	meta["columns"] = rows[0]
	return View{text, meta}, nil
}

// eachRow reads a CSV file from its start; if visit is nil, it only counts.
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

// delimiter guesses the delimiter from the first line.
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
	best, highest := ',', strings.Count(line, ",")
	for _, c := range ";\t|" {
		if n := strings.Count(line, string(c)); n > highest {
			best, highest = c, n
		}
	}
	return best, nil
}
