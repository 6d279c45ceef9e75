package document

import (
	"context"
	"encoding/xml"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/document/office"
)

// A PDF file has words at positions, but no tables. The functions below find tables: rows of words
// with the same wide gaps.

// word is text at a position of a page; y grows downwards.
type word struct {
	x0, y0, x1, y1 float64
	text           string
	block          int
	line           int
}

func (w word) height() float64 { return w.y1 - w.y0 }
func (w word) middle() float64 { return (w.y0 + w.y1) / 2 }

// cell is a run of words in a row without wide gaps.
type cell struct {
	x0, x1 float64
	words  []int
}

type row struct {
	y, height float64
	cells     []cell
}

const (
	gap     = 0.5 // minimum between two cells, relative to the height of the text
	spread  = 2.8 // maximum between two rows, likewise
	maxCell = 40  // average characters in a cell of a table; columns of prose have more
)

// PDFMarkdown returns the text of a PDF, with its tables and lists as Markdown, and the number
// of tables.
func (r Reader) PDFMarkdown(ctx context.Context, path string) (text string, tables int, err error) {
	boxes, err := r.poppler(ctx, "pdftotext", "-enc", "UTF-8", "-bbox-layout", "--", path, "-")
	if err != nil {
		return "", 0, err
	}
	pages, err := parseBoxes(boxes)
	if err != nil {
		return "", 0, damaged(path, err)
	}
	var out []string
	for _, words := range pages {
		text, n := layout(words)
		tables += n
		if text != "" {
			out = append(out, text)
		}
	}
	return strings.Join(out, "\n\n") + "\n", tables, nil
}

// parseBoxes parses the positions of words from pdftotext, page by page.
func parseBoxes(s string) ([][]word, error) {
	var pages [][]word
	var words []word
	block, line := 0, 0
	var current *word
	err := tokens([]byte(s), func(e xml.StartElement) {
		switch e.Name.Local {
		case "page":
			words = nil
		case "block":
			block++
		case "line":
			line++
		case "word":
			num := func(name string) float64 { f, _ := strconv.ParseFloat(office.Attr(e, name), 64); return f }
			current = &word{num("xMin"), num("yMin"), num("xMax"), num("yMax"), "", block, line}
		}
	}, func(e xml.EndElement) {
		switch e.Name.Local {
		case "word":
			if current != nil && strings.TrimSpace(current.text) != "" {
				words = append(words, *current)
			}
			current = nil
		case "page":
			pages = append(pages, words)
		}
	}, func(text string) {
		if current != nil {
			current.text += text
		}
	})
	return pages, err
}

// layout formats the words of a page. A table takes the place of its first word in reading order.
func layout(words []word) (string, int) {
	rows := toRows(words)
	owner := map[int]int{} // word → table
	var tables []string
	count := 0
	for i := 0; i < len(rows); {
		n, columns := run(rows[i:])
		if n == 0 {
			i++
			continue
		}
		text, isTable := grid(words, rows[i:i+n], columns)
		if text != "" {
			for _, r := range rows[i : i+n] {
				for _, c := range r.cells {
					for _, w := range c.words {
						owner[w] = len(tables)
					}
				}
			}
			tables = append(tables, text)
			if isTable {
				count++
			}
		}
		i += n
	}
	return prose(words, owner, tables), count
}

// toRows groups words into rows, and splits each row at its wide gaps.
func toRows(words []word) []row {
	order := make([]int, len(words))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmpFloat(words[a].middle(), words[b].middle()) })
	var groups [][]int
	for _, i := range order {
		if n := len(groups); n > 0 {
			first := words[groups[n-1][0]]
			if words[i].middle()-first.middle() < 0.5*min(first.height(), words[i].height()) {
				groups[n-1] = append(groups[n-1], i)
				continue
			}
		}
		groups = append(groups, []int{i})
	}
	var rows []row
	for _, g := range groups {
		slices.SortFunc(g, func(a, b int) int { return cmpFloat(words[a].x0, words[b].x0) })
		r := row{y: words[g[0]].middle(), height: words[g[0]].height()}
		for _, i := range g {
			if n := len(r.cells); n > 0 && words[i].x0-r.cells[n-1].x1 < gap*r.height {
				c := &r.cells[n-1]
				c.x1, c.words = max(c.x1, words[i].x1), append(c.words, i)
				continue
			}
			r.cells = append(r.cells, cell{words[i].x0, words[i].x1, []int{i}})
		}
		rows = append(rows, r)
	}
	return rows
}

func cmpFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// run returns the number of rows from the first that have the same columns, and those columns.
// Fewer than two rows are not a table.
func run(rows []row) (int, []cell) {
	if len(rows[0].cells) < 2 {
		return 0, nil
	}
	columns := slices.Clone(rows[0].cells)
	n := 1
	for n < len(rows) && rows[n].y-rows[n-1].y < spread*rows[n].height {
		merged, ok := widen(columns, rows[n])
		if !ok {
			break
		}
		// A row with one cell is a line of prose, unless the table continues after it.
		if len(rows[n].cells) < 2 {
			if n+1 >= len(rows) || len(rows[n+1].cells) < 2 {
				break
			}
			if after, ok := widen(merged, rows[n+1]); !ok || len(after) > len(merged) {
				break
			}
		}
		columns = merged
		n++
	}
	if n < 2 {
		return 0, nil
	}
	return n, columns
}

// widen extends columns by the cells of another row. It fails if a cell overlaps two columns,
// or two cells one column.
func widen(columns []cell, r row) ([]cell, bool) {
	out := slices.Clone(columns)
	taken := map[int]bool{}
	for _, c := range r.cells {
		hit, ok := place(columns, c, gap*r.height)
		switch {
		case !ok || taken[hit]:
			return nil, false
		case hit < 0:
			out = append(out, c)
		default:
			taken[hit] = true
			out[hit].x0, out[hit].x1 = min(out[hit].x0, c.x0), max(out[hit].x1, c.x1)
		}
	}
	slices.SortFunc(out, func(a, b cell) int { return cmpFloat(a.x0, b.x0) })
	for i := 1; i < len(out); i++ {
		if out[i].x0 < out[i-1].x1 {
			return nil, false
		}
	}
	return out, true
}

// place returns the column that a cell overlaps or is close to; -1 if there is none. It fails
// if there are two.
func place(columns []cell, c cell, near float64) (hit int, ok bool) {
	for _, slack := range []float64{0, near} {
		hit = -1
		for i, col := range columns {
			if c.x0 < col.x1+slack && c.x1 > col.x0-slack {
				if hit >= 0 {
					return 0, false
				}
				hit = i
			}
		}
		if hit >= 0 {
			break
		}
	}
	return hit, true
}

// grid formats rows as a list if they start with bullets, otherwise as a table. The text is
// empty if they are columns of prose.
func grid(words []word, rows []row, columns []cell) (text string, isTable bool) {
	var table [][]string
	letters, cells, bullets := 0, 0, 0
	for _, r := range rows {
		line := make([]string, len(columns))
		for _, c := range r.cells {
			text := join(words, c.words)
			letters, cells = letters+len([]rune(text)), cells+1
			if i, ok := place(columns, c, gap*r.height); ok && i >= 0 {
				line[i] = strings.TrimSpace(line[i] + " " + text)
			}
		}
		if bullet(line[0]) {
			bullets++
		}
		table = append(table, line)
	}
	switch {
	case bullets*2 > len(rows):
		var b strings.Builder
		for _, line := range table {
			mark := "  " // continues the previous line
			if bullet(line[0]) {
				mark = "- "
			} else {
				line[0] = strings.TrimSpace(line[0])
			}
			rest := strings.TrimSpace(strings.Join(line[1:], " "))
			if mark == "  " {
				rest = strings.TrimSpace(line[0] + " " + rest)
			}
			b.WriteString(mark + rest + "\n")
		}
		return b.String(), false
	case letters > maxCell*cells:
		return "", false
	}
	return markdownTable(table), true
}

func bullet(s string) bool {
	switch s {
	case "•", "◦", "▪", "‣", "–", "-", "*", "·", "●", "○", "■", "\uf0b7":
		return true
	}
	return false
}

func join(words []word, which []int) string {
	var parts []string
	for _, i := range which {
		parts = append(parts, words[i].text)
	}
	return strings.Join(parts, " ")
}

// prose writes lines in reading order, with the tables among them. Larger text is a heading.
func prose(words []word, owner map[int]int, tables []string) string {
	var heights []float64
	for _, w := range words {
		heights = append(heights, w.height())
	}
	slices.Sort(heights)
	var b strings.Builder
	written := map[int]bool{}
	block := -1
	for i := 0; i < len(words); {
		end := i
		for end < len(words) && words[end].line == words[i].line {
			end++
		}
		var line []string
		for ; i < end; i++ {
			table, in := owner[i]
			if !in {
				line = append(line, words[i].text)
			} else if !written[table] {
				written[table] = true
				b.WriteString("\n\n" + tables[table] + "\n")
			}
		}
		if len(line) == 0 {
			continue
		}
		if words[end-1].block != block {
			block = words[end-1].block
			b.WriteByte('\n')
		}
		text := strings.Join(line, " ")
		if words[end-1].height() > 1.25*heights[len(heights)/2] && len(text) < 100 {
			text = "\n## " + text + "\n"
		}
		b.WriteString(text + "\n")
	}
	return squeeze(b.String())
}

// squeeze collapses empty lines.
func squeeze(s string) string {
	for strings.Contains(s, "\n\n\n") {
		s = strings.ReplaceAll(s, "\n\n\n", "\n\n")
	}
	return strings.TrimSpace(s)
}
