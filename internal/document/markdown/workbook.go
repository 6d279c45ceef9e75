package markdown

import (
	"archive/zip"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/xuri/excelize/v2"

	"github.com/cove-sandbox/cove/internal/document/office"
)

const (
	maxUnpacked = 1 << 30   // bytes of all parts of a workbook, since a small zip can unpack to any size
	maxCell     = 32767 * 4 // bytes of a cell: Excel allows 32767 characters
	maxSheets   = 4096
)

// readWorkbook reads part of an Excel file. Cells are shown as Excel formats them, except that
// dates in a local format become unambiguous: yyyy-mm-dd.
func readWorkbook(q office.Query) (office.Workbook, error) {
	uncomputed, err := checkParts(q.Path)
	if err != nil {
		return office.Workbook{}, err
	}
	f, err := excelize.OpenFile(q.Path, excelize.Options{UnzipSizeLimit: maxUnpacked, ShortDatePattern: "yyyy-mm-dd"})
	if err != nil {
		return office.Workbook{}, err
	}
	defer f.Close()
	book := office.Workbook{Names: f.GetSheetList()}
	if len(book.Names) > maxSheets {
		return office.Workbook{}, fmt.Errorf("the workbook has more than %d sheets", maxSheets)
	}
	names := book.Names
	switch {
	case q.Sheet != "":
		i := slices.IndexFunc(names, func(name string) bool { return strings.EqualFold(name, q.Sheet) })
		if i < 0 {
			return book, nil
		}
		names = names[i : i+1]
	case q.FirstSheet && len(names) > 1:
		names = names[:1]
	}
	r := sheetReader{file: f, query: q, left: q.MaxText, uncomputed: uncomputed}
	for _, name := range names {
		sheet, err := r.read(name)
		if err != nil {
			return office.Workbook{}, fmt.Errorf("sheet %q: %w", name, err)
		}
		book.Sheets = append(book.Sheets, sheet)
	}
	return book, nil
}

// checkParts finds errors in the parts that hold cells, since excelize would show a damaged sheet
// up to the damage. It reports whether there are formulas without a value, as in files that
// programs other than Excel wrote.
func checkParts(path string) (uncomputed bool, err error) {
	z, err := zip.OpenReader(path)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return false, err
	}
	defer z.Close()
	total := uint64(0)
	for _, part := range z.File {
		if total += part.UncompressedSize64; part.UncompressedSize64 > maxUnpacked || total > maxUnpacked {
			return false, fmt.Errorf("the workbook unpacks to more than %d bytes", maxUnpacked)
		}
	}
	for _, part := range z.File {
		name := strings.ToLower(strings.ReplaceAll(part.Name, `\`, "/"))
		if name != "xl/sharedstrings.xml" && !(strings.HasPrefix(name, "xl/worksheets/") && strings.HasSuffix(name, ".xml")) {
			continue
		}
		found, err := checkPart(part)
		if err != nil {
			return false, fmt.Errorf("%s: %w", part.Name, err)
		}
		uncomputed = uncomputed || found
	}
	return uncomputed, nil
}

func checkPart(part *zip.File) (uncomputed bool, err error) {
	r, err := part.Open()
	if err != nil {
		return false, err
	}
	defer r.Close()
	var formula, value, inValue bool
	size := 0
	err = office.Scan(context.Background(), r, func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "c", "si":
				formula, value, size = false, false, 0
			case "f":
				formula = true
			case "v":
				inValue = true
			}
		case xml.CharData:
			value = value || inValue && len(t) > 0
			if size += len(t); size > maxCell {
				return fmt.Errorf("the text of a cell is larger than %d bytes", maxCell)
			}
		case xml.EndElement:
			switch t.Name.Local {
			case "v":
				inValue = false
			case "c", "si":
				size = 0
				uncomputed = uncomputed || formula && !value
			}
		}
		return nil
	})
	return uncomputed, err
}

type sheetReader struct {
	file       *excelize.File
	query      office.Query
	left       int  // bytes of text that may still be returned
	uncomputed bool // there may be formulas without a value

	merged []excelize.MergeCell // of the current sheet
}

// read reads a sheet row by row to its end, to count its rows and columns.
func (r *sheetReader) read(name string) (office.Sheet, error) {
	sheet := office.Sheet{Name: name}
	rows, err := r.file.Rows(name)
	for _, bad := range []error{excelize.ErrSheetNameLength, excelize.ErrSheetNameInvalid,
		excelize.ErrSheetNameSingleQuote, excelize.ErrSheetNameBlank} {
		if errors.Is(err, bad) {
			sheet.Problem = bad.Error() + "; rename the sheet"
			return sheet, nil
		}
	}
	if err != nil {
		return sheet, err
	}
	defer rows.Close()
	if r.uncomputed {
		if r.merged, err = r.file.GetMergeCells(name, true); err != nil {
			return sheet, err
		}
	}
	for n := 1; rows.Next(); n++ {
		cells, err := rows.Columns()
		if err != nil {
			return sheet, err
		}
		if len(cells) == 0 {
			continue
		}
		sheet.Rows, sheet.Columns = n, max(sheet.Columns, len(cells))
		if n < r.query.First || n > r.query.Last || r.left <= 0 {
			continue
		}
		if err := r.fillFormulas(name, n, cells); err != nil {
			return sheet, err
		}
		sheet.Content = append(sheet.Content, office.Row{Number: n, Cells: r.truncate(cells)})
	}
	return sheet, rows.Error()
}

// fillFormulas fills cells whose formula has no value with the formula.
func (r *sheetReader) fillFormulas(sheet string, row int, cells []string) error {
	if !r.uncomputed {
		return nil
	}
	for i, text := range cells {
		if text != "" {
			continue
		}
		name, err := excelize.CoordinatesToCellName(i+1, row)
		if err != nil {
			return err
		}
		formula, err := r.file.GetCellFormula(sheet, name)
		if err != nil {
			return err
		}
		if formula == "" {
			continue
		}
		covered, err := r.isCovered(i+1, row)
		if err != nil {
			return err
		}
		if !covered {
			cells[i] = "=" + formula
		}
	}
	return nil
}

// isCovered reports whether a cell is hidden by the first cell of a merged range. excelize returns
// the formula of that cell for it.
func (r *sheetReader) isCovered(column, row int) (bool, error) {
	for _, m := range r.merged {
		left, top, err := excelize.CellNameToCoordinates(m.GetStartAxis())
		if err != nil {
			return false, err
		}
		right, bottom, err := excelize.CellNameToCoordinates(m.GetEndAxis())
		if err != nil {
			return false, err
		}
		if column >= left && column <= right && row >= top && row <= bottom {
			return column != left || row != top, nil
		}
	}
	return false, nil
}

// truncate limits the text of a row.
func (r *sheetReader) truncate(cells []string) []string {
	for i, text := range cells {
		if r.left -= len(text) + len("  |"); r.left <= 0 {
			return cells[:i+1]
		}
	}
	return cells
}
