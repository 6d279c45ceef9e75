package markdown

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"html"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/xuri/excelize/v2"

	"github.com/cove-sandbox/cove/internal/document/office"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// save writes a workbook with what fill adds to it.
func save(t testing.TB, fill func(f *excelize.File)) string {
	t.Helper()
	f := excelize.NewFile()
	defer f.Close()
	fill(f)
	path := filepath.Join(t.TempDir(), "b.xlsx")
	must(t, f.SaveAs(path))
	return path
}

func TestReadWorkbook(t *testing.T) {
	path := save(t, func(f *excelize.File) {
		must(t, f.SetCellValue("Sheet1", "A1", "plain"))
		must(t, f.SetCellValue("Sheet1", "C3", 1.5))
		must(t, f.SetCellFormula("Sheet1", "B2", "SUM(C3:C4)"))
		kind, area := excelize.STCellFormulaTypeShared, "D1:D3"
		must(t, f.SetCellFormula("Sheet1", "D1", "A1*2", excelize.FormulaOpts{Type: &kind, Ref: &area}))
		must(t, f.SetCellFormula("Sheet1", "A5", "NOW()"))
		must(t, f.SetCellValue("Sheet1", "C5", "next to merged cells"))
		must(t, f.MergeCell("Sheet1", "A5", "B5"))
		_, err := f.NewSheet("Second")
		must(t, err)
		must(t, f.SetCellValue("Second", "A1", "two"))
	})
	first := office.Sheet{Name: "Sheet1", Rows: 5, Columns: 4, Content: []office.Row{
		{Number: 1, Cells: []string{"plain", "", "", "=A1*2"}},
		{Number: 2, Cells: []string{"", "=SUM(C3:C4)", "", "=A2*2"}},
		{Number: 3, Cells: []string{"", "", "1.5", "=A3*2"}},
		{Number: 5, Cells: []string{"=NOW()", "", "next to merged cells"}},
	}}
	second := office.Sheet{Name: "Second", Rows: 1, Columns: 1, Content: []office.Row{{Number: 1, Cells: []string{"two"}}}}
	third := first
	third.Content = first.Content[2:3]
	for name, c := range map[string]struct {
		q    office.Query
		want []office.Sheet
	}{
		"all":       {office.Query{First: 1, Last: 9, MaxText: 1000}, []office.Sheet{first, second}},
		"one sheet": {office.Query{Sheet: "SECOND", First: 1, Last: 9, MaxText: 1000}, []office.Sheet{second}},
		"no sheet":  {office.Query{Sheet: "none", First: 1, Last: 9, MaxText: 1000}, nil},
		"a range":   {office.Query{FirstSheet: true, First: 3, Last: 4, MaxText: 1000}, []office.Sheet{third}},
	} {
		c.q.Path = path
		query, err := json.Marshal(c.q)
		must(t, err)
		var out bytes.Buffer
		if err := runWorkbook(bytes.NewReader(query), &out); err != nil {
			t.Errorf("%s: got error %v, want none", name, err)
			continue
		}
		var got office.Workbook
		must(t, json.Unmarshal(out.Bytes(), &got))
		if diff := cmp.Diff(office.Workbook{Names: []string{"Sheet1", "Second"}, Sheets: c.want}, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

func TestTextIsBounded(t *testing.T) {
	path := save(t, func(f *excelize.File) {
		row := []any{strings.Repeat("x", 40), strings.Repeat("y", 40), strings.Repeat("z", 40)}
		must(t, f.SetSheetRow("Sheet1", "A1", &row))
		must(t, f.SetSheetRow("Sheet1", "A2", &row))
	})
	got, err := readWorkbook(office.Query{Path: path, First: 1, Last: 9, MaxText: 60})
	must(t, err)
	if s := got.Sheets[0]; s.Rows != 2 || s.Columns != 3 || len(s.Content) != 1 || len(s.Content[0].Cells) != 2 {
		t.Errorf("got %+v, want the first two cells of a sheet of 2 rows and 3 columns", s)
	}
}

// Sheets and number formats are untrusted: reading them ends, and does not crash.
func FuzzWorkbook(f *testing.F) {
	const space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
	f.Add(`<row r="2"><c r="B2" s="1" t="n"><f>A1</f><v>1</v></c></row>`, `yyyy-mm-dd;@`)
	f.Add(`<row><c t="s"><v>0</v></c><c t="inlineStr"><is><t>x</t></is></c></row>`, `_($* #,##0.00_);[Red]0.0E+0`)
	f.Add(`<row r="9"><c s="1"><v>-1e300</v></c></row><row r="-2"><c r="A0"/></row>`, `[h]:mm:ss.000"`)
	template := save(f, func(*excelize.File) {})
	f.Fuzz(func(t *testing.T, sheet, code string) {
		path := filepath.Join(t.TempDir(), "b.xlsx")
		replaceParts(t, template, path, map[string]string{
			"xl/worksheets/sheet1.xml": `<worksheet xmlns="` + space + `"><sheetData>` + sheet + `</sheetData></worksheet>`,
			"xl/styles.xml": `<styleSheet xmlns="` + space + `"><numFmts><numFmt numFmtId="164" formatCode="` +
				html.EscapeString(code) + `"/></numFmts><cellXfs><xf/><xf numFmtId="164"/></cellXfs></styleSheet>`,
		})
		query, err := json.Marshal(office.Query{Path: path, First: 1, Last: 1000, MaxText: 1 << 20})
		must(t, err)
		_ = runWorkbook(bytes.NewReader(query), io.Discard)
	})
}

func replaceParts(t testing.TB, from, to string, parts map[string]string) {
	t.Helper()
	in, err := zip.OpenReader(from)
	must(t, err)
	defer in.Close()
	f, err := os.Create(to)
	must(t, err)
	defer f.Close()
	out := zip.NewWriter(f)
	for _, part := range in.File {
		if parts[part.Name] == "" {
			must(t, out.Copy(part))
		}
	}
	for name, content := range parts {
		w, err := out.Create(name)
		must(t, err)
		_, err = io.WriteString(w, content)
		must(t, err)
	}
	must(t, out.Close())
}
