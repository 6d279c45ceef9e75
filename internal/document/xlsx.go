package document

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Limits of the format itself; a file beyond them is damaged or hostile.
const (
	maxSheetRows    = 1 << 20
	maxSheetColumns = 1 << 14
	maxCellText     = 32767 * 4 // bytes
	maxSheets       = 4096
)

// workbook is what an Excel file says about itself, without the cells: those are
// read as a stream, and of its shared strings only the ones that are shown are held.
type workbook struct {
	parts
	sheets   []worksheet
	strings  string // name of the part with the shared strings; empty: none
	date1904 bool
	styles   []int          // number format by a cell's style
	codes    map[int]string // number formats of its own
	formats  map[int]format // by number, as they are used
}

type worksheet struct{ name, part string }

// sheetCell is one value. A shared string is named by its place and filled in later.
type sheetCell struct {
	column int // from 1
	text   string
	shared int // -1: text holds the value
}

type sheetRow struct {
	number int
	cells  []sheetCell
}

func openWorkbook(ctx context.Context, p parts) (*workbook, error) {
	w := &workbook{parts: p, codes: map[int]string{}, formats: map[int]format{}}
	book := cmp.Or(p.links("")["type:officeDocument"], "xl/workbook.xml")
	links := p.links(book)
	err := p.scan(ctx, book, func(t xml.Token) error {
		e, _ := t.(xml.StartElement)
		switch e.Name.Local {
		case "workbookPr":
			w.date1904 = truth(attr(e, "date1904"))
		case "sheet":
			for _, a := range e.Attr {
				if a.Name.Local == "id" && a.Name.Space != "" && links[a.Value] != "" {
					w.sheets = append(w.sheets, worksheet{attr(e, "name"), links[a.Value]})
				}
			}
			if len(w.sheets) > maxSheets {
				return fmt.Errorf("more than %d sheets", maxSheets)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	w.strings = links["type:sharedStrings"]
	if part := links["type:styles"]; part != "" {
		err = w.readStyles(ctx, part)
	}
	return w, err
}

func truth(s string) bool { return s == "1" || s == "true" || s == "on" }

func (w *workbook) names() []string {
	var out []string
	for _, s := range w.sheets {
		out = append(out, s.name)
	}
	return out
}

func (w *workbook) readStyles(ctx context.Context, part string) error {
	b, err := w.read(part, maxSmall)
	if err != nil {
		return err
	}
	cells := false
	err = scan(ctx, bytes.NewReader(b), func(t xml.Token) error {
		switch e := t.(type) {
		case xml.StartElement:
			switch e.Name.Local {
			case "numFmt":
				if id, err := strconv.Atoi(attr(e, "numFmtId")); err == nil && len(w.codes) < 4096 {
					w.codes[id] = attr(e, "formatCode")
				}
			case "cellXfs":
				cells = true
			case "xf":
				if cells {
					id, _ := strconv.Atoi(attr(e, "numFmtId")) // none: General
					w.styles = append(w.styles, id)
				}
			}
		case xml.EndElement:
			if e.Name.Local == "cellXfs" {
				return errStop
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		return damaged(w.path, err)
	}
	return err
}

// show writes a number as its style wants it.
func (w *workbook) show(raw, style string) string {
	id := 0
	if s, err := strconv.Atoi(style); err == nil && s >= 0 && s < len(w.styles) {
		id = w.styles[s]
	}
	f, ok := w.formats[id]
	if !ok {
		code, own := w.codes[id]
		if !own {
			code = builtin(id)
		}
		f = parseFormat(code, w.date1904)
		w.formats[id] = f
	}
	return f.show(raw)
}

// rows streams the rows of a sheet that have cells, mostly by number. The cells
// are only valid during the call.
func (w *workbook) rows(ctx context.Context, part string, visit func(sheetRow)) error {
	p := cellParser{book: w, visit: visit}
	return w.scan(ctx, part, p.token)
}

// cellParser turns the tokens of a sheet into rows.
type cellParser struct {
	book  *workbook
	visit func(sheetRow)

	row           sheetRow
	column        int
	kind, style   string
	value, inline textOf
	formula       textOf
	hasFormula    bool
	into          *textOf // what text belongs to now
	phonetic      bool    // inside of a note on how to pronounce the text
}

// textOf collects text up to what a cell can hold.
type textOf struct{ strings.Builder }

func (t *textOf) add(b []byte) {
	if t.Len()+len(b) > maxCellText {
		b = bytes.ToValidUTF8(b[:max(maxCellText-t.Len(), 0)], nil)
	}
	t.Write(b)
}

func (p *cellParser) token(t xml.Token) error {
	switch t := t.(type) {
	case xml.StartElement:
		return p.start(t)
	case xml.CharData:
		if p.into != nil {
			p.into.add(t)
		}
	case xml.EndElement:
		switch t.Name.Local {
		case "v", "f", "t":
			p.into = nil
		case "rPh":
			p.phonetic = false
		case "c":
			p.endCell()
		case "row":
			if len(p.row.cells) > 0 {
				p.visit(p.row)
			}
		case "sheetData":
			return errStop
		}
	}
	return nil
}

func (p *cellParser) start(e xml.StartElement) error {
	switch e.Name.Local {
	case "row":
		n := p.row.number + 1
		if r := attr(e, "r"); r != "" {
			n, _ = strconv.Atoi(r)
		}
		if n < 1 || n > maxSheetRows {
			return fmt.Errorf("a row has the number %d", n)
		}
		p.row, p.column = sheetRow{n, p.row.cells[:0]}, 0
	case "c":
		p.column++
		if r := attr(e, "r"); r != "" {
			p.column = columnNumber(r)
		}
		if p.column < 1 || p.column > maxSheetColumns || p.row.number == 0 {
			return errors.New("a cell stands outside of the sheet")
		}
		p.kind, p.style = attr(e, "t"), attr(e, "s")
		p.value.Reset()
		p.inline.Reset()
		p.formula.Reset()
		p.hasFormula = false
	case "v":
		p.into = &p.value
	case "f":
		p.into, p.hasFormula = &p.formula, true
	case "rPh":
		p.phonetic = true
	case "t":
		if !p.phonetic {
			p.into = &p.inline
		}
	}
	return nil
}

// endCell notes a cell that shows something. A formula that was never computed,
// as programs leave it that write files without Excel, shows itself.
func (p *cellParser) endCell() {
	c := sheetCell{column: p.column, shared: -1}
	switch raw := p.value.String(); p.kind {
	case "s":
		if n, err := strconv.Atoi(strings.TrimSpace(raw)); err == nil && n >= 0 {
			c.shared = n
		}
	case "inlineStr":
		c.text = unescape(p.inline.String())
	case "b":
		if c.text = "FALSE"; truth(strings.TrimSpace(raw)) {
			c.text = "TRUE"
		}
		if raw == "" {
			c.text = ""
		}
	case "str":
		c.text = unescape(raw)
	case "", "n":
		c.text = p.book.show(strings.TrimSpace(raw), p.style)
	default: // errors, dates in words
		c.text = raw
	}
	if c.text == "" && p.formula.Len() > 0 && p.value.Len() == 0 {
		c.text = "=" + p.formula.String()
	}
	if c.text != "" || c.shared >= 0 || p.hasFormula {
		p.row.cells = append(p.row.cells, c)
	}
}

// resolve fills in the shared strings of rows in one pass.
func (w *workbook) resolve(ctx context.Context, rows []sheetRow) error {
	wanted := map[int]string{}
	last := -1
	for _, r := range rows {
		for _, c := range r.cells {
			if c.shared >= 0 {
				wanted[c.shared] = ""
				last = max(last, c.shared)
			}
		}
	}
	if last < 0 || w.strings == "" {
		return nil
	}
	n := 0
	var text textOf
	in, phonetic := false, false
	err := w.scan(ctx, w.strings, func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "si":
				text.Reset()
			case "rPh":
				phonetic = true
			case "t":
				in = !phonetic
			}
		case xml.CharData:
			if in {
				text.add(t)
			}
		case xml.EndElement:
			switch t.Name.Local {
			case "t":
				in = false
			case "rPh":
				phonetic = false
			case "si":
				if _, ok := wanted[n]; ok {
					wanted[n] = unescape(text.String())
				}
				if n++; n > last {
					return errStop
				}
			}
		}
		return nil
	})
	for _, r := range rows {
		for i, c := range r.cells {
			if c.shared >= 0 {
				r.cells[i].text = wanted[c.shared]
			}
		}
	}
	return err
}

// unescape resolves _x000D_, which is how the format writes characters that XML cannot hold.
func unescape(s string) string {
	if !strings.Contains(s, "_x") {
		return s
	}
	var b strings.Builder
	for {
		i := strings.Index(s, "_x")
		if i < 0 || i+7 > len(s) {
			return b.String() + s
		}
		b.WriteString(s[:i])
		n, err := strconv.ParseUint(s[i+2:i+6], 16, 16)
		if err != nil || s[i+6] != '_' {
			b.WriteString("_x")
			s = s[i+2:]
			continue
		}
		b.WriteRune(rune(n))
		s = s[i+7:]
	}
}

// columnNumber reads the letters of a reference such as AB12; 0 when there are none.
func columnNumber(ref string) int {
	n := 0
	for _, r := range strings.ToUpper(ref) {
		if r < 'A' || r > 'Z' || n > maxSheetColumns {
			break
		}
		n = n*26 + int(r-'A') + 1
	}
	return n
}

// columnName is the inverse: 28 is AB.
func columnName(n int) string {
	var b []byte
	for ; n > 0; n = (n - 1) / 26 {
		b = append(b, byte('A'+(n-1)%26))
	}
	slices.Reverse(b)
	return string(b)
}
