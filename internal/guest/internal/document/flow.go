package document

import (
	"encoding/xml"
	"strings"
)

// flow converts the paragraphs and tables of an Office document to Markdown.
type flow struct {
	out                              *strings.Builder
	paragraph, run, table, row, cell string // element names

	prefix string // of the paragraph: a heading or list marker
	line   strings.Builder
	inRun  bool
	depth  int // of nested tables
	rows   [][]string
	cells  []string
	inCell strings.Builder
}

func (f *flow) start(e xml.StartElement) {
	switch e.Name.Local {
	case f.run:
		f.inRun = true
	case f.table:
		if f.depth++; f.depth == 1 {
			f.flush()
			f.rows = nil
		}
	case f.row:
		if f.depth == 1 {
			f.cells = nil
		}
	case f.cell:
		if f.depth == 1 {
			f.inCell.Reset()
		}
	}
}

func (f *flow) end(e xml.EndElement) {
	switch e.Name.Local {
	case f.run:
		f.inRun = false
	case f.paragraph:
		f.flush()
	case f.cell:
		if f.depth == 1 {
			f.cells = append(f.cells, strings.TrimSpace(f.inCell.String()))
		}
	case f.row:
		if f.depth == 1 {
			f.rows = append(f.rows, f.cells)
		}
	case f.table:
		if f.depth--; f.depth == 0 {
			f.out.WriteString(markdownTable(f.rows) + "\n")
		}
	}
}

func (f *flow) chars(s string) {
	if f.inRun {
		f.text(s)
	}
}

func (f *flow) text(s string) { f.line.WriteString(s) }

// flush ends a paragraph, which inside a table is a line of the cell.
func (f *flow) flush() {
	text := strings.TrimSpace(f.line.String())
	f.line.Reset()
	switch {
	case text == "":
	case f.depth > 0:
		if f.inCell.Len() > 0 {
			f.inCell.WriteByte('\n')
		}
		f.inCell.WriteString(text)
	case f.prefix == "- ":
		f.out.WriteString(f.prefix + text + "\n")
	default:
		f.out.WriteString(f.prefix + text + "\n\n")
	}
}
