package document

import (
	"archive/zip"
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// packed writes a zip of parts; a func writes its part as a stream.
func packed(t testing.TB, name string, content map[string]any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	z := zip.NewWriter(f)
	for name, c := range content {
		method := zip.Deflate
		if c == "" {
			method = zip.Store
		}
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		must(t, err)
		switch c := c.(type) {
		case string:
			_, err = io.WriteString(w, c)
		case func(io.Writer):
			b := bufio.NewWriter(w)
			c(b)
			err = b.Flush()
		}
		must(t, err)
	}
	must(t, z.Close())
	return path
}

const (
	mainSpace    = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
	relationType = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
)

func relations(list string) string {
	return `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">` + list + `</Relationships>`
}

func workbookXML(inner string) string {
	return `<workbook xmlns="` + mainSpace + `" xmlns:r="` + strings.TrimSuffix(relationType, "/") + `">` + inner + `</workbook>`
}

func styleSheet(inner string) string {
	return `<styleSheet xmlns="` + mainSpace + `">` + inner + `</styleSheet>`
}

// book writes a workbook with sheets given as XML; more replaces or adds parts.
func book(t testing.TB, sheets []string, more map[string]any) string {
	t.Helper()
	content := map[string]any{
		"_rels/.rels": relations(`<Relationship Id="r" Type="` + relationType + `officeDocument" Target="/xl/workbook.xml"/>`),
	}
	var list, links strings.Builder
	for i, s := range sheets {
		fmt.Fprintf(&list, `<sheet name="S%d" sheetId="%d" r:id="rId%d"/>`, i+1, i+1, i+1)
		fmt.Fprintf(&links, `<Relationship Id="rId%d" Type="%sworksheet" Target="worksheets/sheet%d.xml"/>`, i+1, relationType, i+1)
		content[fmt.Sprintf("xl/worksheets/sheet%d.xml", i+1)] = `<worksheet xmlns="` + mainSpace + `"><sheetData>` +
			s + `</sheetData><c r="A1"><v>not a cell</v></c></worksheet>`
	}
	content["xl/workbook.xml"] = workbookXML("<sheets>" + list.String() + "</sheets>")
	content["xl/_rels/workbook.xml.rels"] = relations(links.String() + `<Relationship Id="s" Type="` + relationType +
		`sharedStrings" Target="sharedStrings.xml"/><Relationship Id="t" Type="` + relationType + `styles" Target="styles.xml"/>`)
	content["xl/styles.xml"] = `<styleSheet xmlns="` + mainSpace + `"/>`
	content["xl/SharedStrings.xml"] = `<sst xmlns="` + mainSpace + `"><si><t>plain</t></si>` +
		`<si><r><t>rich </t></r><r><rPr/><t>text</t></r><rPh><t>spoken</t></rPh></si><si><t>a_x000D_b_x_</t></si></sst>`
	for name, c := range more {
		content[name] = c
	}
	return packed(t, "b.xlsx", content)
}

func TestSheets(t *testing.T) {
	t.Parallel()
	var fruit strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&fruit, `<row r="%d"><c r="A%d" t="inlineStr"><is><t>name%d</t></is></c><c `+
			`r="B%d"><v>%d</v></c></row>`, i+1, i+1, i+1, i+1, i+1)
	}
	path := book(t, []string{fruit.String(),
		`<row r="2"><c r="B2" t="s"><v>0</v></c></row><row r="9"><c r="F9" s="1"/></row>`}, map[string]any{
		"docProps/core.xml": `<coreProperties xmlns:dc="http://dc"><dc:title>Harvest</dc:title><dc:creator>Ada</dc:creator></coreProperties>`,
	})
	v := view(t, path, Query{Metadata: true})
	shows(t, v, []string{"## Sheet S1", "|  | A | B |\n| --- | --- | --- |\n| 1 | name1 | 1 |", "[1000 of 1500 rows",
		"## Sheet S2", "| 1 |  |  |\n| 2 |  | plain |"}, "name1001", "not a cell")
	if v.Metadata["sheet_count"] != 2 || v.Metadata["title"] != "Harvest" || v.Metadata["creator"] != "Ada" {
		t.Errorf(`got %v, want sheet_count 2, title "Harvest" and creator "Ada"`, v.Metadata)
	}
	if s := v.Metadata["sheets"].([]map[string]any); s[0]["rows"] != 1500 || s[1]["rows"] != 2 || s[1]["columns"] != 2 {
		t.Errorf("empty rows and cells at the end were counted: got %v, want first rows 1500, second rows 2 and second columns 2", s)
	}
	shows(t, view(t, path, Query{Rows: []int{1400, 1401}}), []string{"| 1400 | name1400 |", "| 1401 | name1401 |"},
		"name1402", "name1399", "S2")
	shows(t, view(t, path, Query{Rows: []int{1499, -1}}), []string{"| 1499 | name1499 |", "| 1500 | name1500 |"}, "name1498")
	shows(t, view(t, path, Query{Rows: []int{7}}), []string{"| 7 | name7 |"}, "name6", "name8")
	shows(t, view(t, path, Query{Sheet: "s2"}), []string{"| 2 |  | plain |"}, "S1")
	for _, q := range []Query{{Sheet: "None"}, {Rows: []int{0, 1}}, {Rows: []int{1501, 1502}}, {Rows: []int{5, 4}}, {Rows: []int{1, 2, 3}}} {
		if _, err := newReader(t).View(t.Context(), path, q); err == nil {
			t.Errorf("%+v: got no error, want one", q)
		} else if _, ok := op.AsError(err); !ok {
			t.Errorf("%+v: got %v, want an error that is safe to show", q, err)
		}
	}
}

func TestKindsOfCells(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, cell, want string }{
		{"shared", `<c t="s"><v>0</v></c>`, "plain"},
		{"rich text without its pronunciation", `<c t="s"><v>1</v></c>`, "rich text"},
		{"escaped characters", `<c t="s"><v>2</v></c>`, "a\rb_x_"},
		{"a shared string that is missing", `<c t="s"><v>99</v></c>`, ""},
		{"inline", `<c t="inlineStr"><is><r><t>in</t></r><r><t>line &amp; more</t></r><rPh><t>no</t></rPh></is></c>`, "inline & more"},
		{"CDATA", `<c t="str"><v><![CDATA[a<b]]></v></c>`, "a<b"},
		{"true", `<c t="b"><v>1</v></c>`, "TRUE"},
		{"false", `<c t="b"><v>0</v></c>`, "FALSE"},
		{"error", `<c t="e"><f>1/0</f><v>#DIV/0!</v></c>`, "#DIV/0!"},
		{"computed number", `<c><f>1+1</f><v>2</v></c>`, "2"},
		{"computed text", `<c t="str"><f>A1</f><v>text</v></c>`, "text"},
		{"formula that was never computed", `<c><f>SUM(A1:A2)</f></c>`, "=SUM(A1:A2)"},
		{"date in words", `<c t="d"><v>2024-02-29T10:00:00</v></c>`, "2024-02-29T10:00:00"},
		{"number", `<c><v>0.30000000000000004</v></c>`, "0.3"},
		{"large number", `<c><v>1.5E+25</v></c>`, "1.5E+25"},
		{"no number", `<c><v>many</v></c>`, "many"},
		{"prefixed names", `<x:c xmlns:x="y" t="b"><x:v>1</x:v></x:c>`, "TRUE"},
	}
	var rows strings.Builder
	for _, c := range cases {
		rows.WriteString("<row>" + c.cell + `<c t="b"><v>1</v></c></row>`)
	}
	lines := strings.Split(view(t, book(t, []string{rows.String()}, nil), Query{}).Text, "\n")[4:]
	for i, c := range cases {
		if want := fmt.Sprintf("| %d | %s | TRUE |", i+1, c.want); lines[i] != want {
			t.Errorf("%s: got %q, want %q", c.name, lines[i], want)
		}
	}
}

func TestNumberFormats(t *testing.T) {
	t.Parallel()
	cases := []struct{ code, raw, want string }{
		{"", "1234.5", "1234.5"}, {"General", "-0.1", "-0.1"}, {"General", "1E-10", "0.0000000001"},
		{"0", "2.5", "3"}, {"0.00", "2.675", "2.68"}, {"0.00", "9.999", "10.00"}, {"000", "7", "007"}, {"0.0##", "1.25", "1.25"},
		{"#,##0", "1234567", "1,234,567"}, {"#,##0.00", "-1234.5", "-1,234.50"}, {"#,##0;(#,##0)", "-1234", "(1,234)"},
		{"0%", "0.125", "13%"}, {"0.0%", "-0.1234", "-12.3%"}, {`0.0,,"M"`, "12345678", "12.3M"}, {"0.00E+00", "12345", "1.23E+04"},
		{`[$€-407]\ #,##0.00`, "1234.5", "€ 1,234.50"}, {`_($* #,##0.00_);_($* (#,##0.00);_($* "-"??_);_(@_)`, "-5",
			"$(5.00)"}, {`[Red]0.0"°"`, "21.55", "21.6°"},
		{"# ?/?", "0.5", "0 1/2"}, {"[>100]0;0.0", "5", "5"}, {`000\-0000`, "5551234", "555-1234"},
		{"##0.0E+0", "12345", "12345"}, {"@", "12", "12"},
		{"yyyy-mm-dd", "45350", "2024-02-28"}, {"d-mmm-yy", "45351", "29-Feb-24"},
		{"dddd, mmmm d", "45351", "Thursday, February 29"}, {"mmmmm", "45351", "F"},
		{"yyyy-mm-dd;@", "45351", "2024-02-29"}, {"[$-409]m/d/yyyy h:mm AM/PM;@", "45351.5", "2/29/2024 12:00 PM"},
		{"h:mm:ss", "0.999999", "0:00:00"}, {"hh:mm:ss.000", "0.75", "18:00:00.000"}, {"mm:ss.0", "0.001", "01:26.4"},
		{"[h]:mm", "1.5", "36:00"}, {"[mm]:ss", "0.5", "720:00"},
		{"mmm yyyy", "45351", "Feb 2024"}, {"yyyy-mm-dd", "60", "1900-02-29"}, {"yyyy-mm-dd", "59", "1900-02-28"},
		{"yyyy-mm-dd", "61", "1900-03-01"}, {"m/d/yy", "0.5", "1/0/00"},
		{"yyyy", "-1", "-1"},
	}
	var codes, styles, rows strings.Builder
	for i, c := range cases {
		fmt.Fprintf(&codes, `<numFmt numFmtId="%d" formatCode="%s"/>`, 200+i, html.EscapeString(c.code))
		fmt.Fprintf(&styles, `<xf numFmtId="%d"/>`, 200+i)
		fmt.Fprintf(&rows, `<row><c s="%d"><v>%s</v></c></row>`, i+1, c.raw)
	}
	path := book(t, []string{rows.String()}, map[string]any{
		"xl/styles.xml": styleSheet("<numFmts>" + codes.String() + `</numFmts><cellXfs><xf numFmtId="0"/>` + styles.String() + "</cellXfs>")})
	lines := strings.Split(view(t, path, Query{}).Text, "\n")[4:]
	for i, c := range cases {
		if want := fmt.Sprintf("| %d | %s |", i+1, c.want); lines[i] != want {
			t.Errorf("%s of %s: got %q, want %q", c.code, c.raw, lines[i], want)
		}
	}
}

func TestStylesOfCells(t *testing.T) {
	t.Parallel()
	styles := styleSheet(`<numFmts><numFmt numFmtId="164" formatCode="0.0&quot; km&quot;"/></numFmts>
		<cellStyleXfs><xf numFmtId="9"/></cellStyleXfs>
		<cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/><xf numFmtId="10"/><xf numFmtId="12"/></cellXfs>`)
	row := `<row><c s="1"><v>45351</v></c><c s="2"><v>3</v></c><c s="3"><v>0.5</v></c><c s="4"><v>0.5</v></c><c s="77"><v>1</v></c></row>`
	shows(t, view(t, book(t, []string{row}, map[string]any{"xl/styles.xml": styles}), Query{}),
		[]string{"| 1 | 2024-02-29 | 3.0 km | 50.00% | 0 1/2 | 1 |"})
	workbook := workbookXML(`<workbookPr date1904="1"/><sheets><sheet name="Old Mac" sheetId="1" ` +
		`r:id="rId1"/><sheet name="Chart" sheetId="2" r:id="rId2"/></sheets>`)
	path := book(t, []string{row, ""}, map[string]any{"xl/styles.xml": styles, "xl/workbook.xml": workbook,
		"xl/worksheets/sheet2.xml": `<chartsheet><drawing/></chartsheet>`})
	shows(t, view(t, path, Query{}), []string{"## Sheet Old Mac", "| 2028-03-01 |", "## Sheet Chart\n\n[empty]"})
	long := strings.Repeat("x", 35) // some programs write names that Excel does not allow
	workbook = workbookXML(`<sheets><sheet name="` + long + `" sheetId="1" r:id="rId1"/><sheet name="Good" sheetId="2" r:id="rId2"/></sheets>`)
	path = book(t, []string{row, row}, map[string]any{"xl/styles.xml": styles, "xl/workbook.xml": workbook})
	shows(t, view(t, path, Query{}), []string{"## Sheet " + long + "\n\n[cannot be read: ", "rename the sheet", "## Sheet Good\n\n|  | A |"})
}

// A sheet with more cells than fit into a view can be read to its end.
func TestLongSheet(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	path := book(t, []string{""}, map[string]any{
		"xl/worksheets/sheet1.xml": func(w io.Writer) {
			_, _ = io.WriteString(w, `<worksheet xmlns="`+mainSpace+`"><sheetData>`)
			for i := 1; i <= rows; i++ {
				fmt.Fprintf(w, `<row r="%d"><c r="A%d" t="s"><v>%d</v></c><c r="C%d"><v>%d</v></c></row>`, i, i, i-1, i, i)
			}
			_, _ = io.WriteString(w, `</sheetData></worksheet>`)
		},
		"xl/SharedStrings.xml": func(w io.Writer) {
			_, _ = io.WriteString(w, `<sst xmlns="`+mainSpace+`">`)
			for i := 1; i <= rows; i++ {
				fmt.Fprintf(w, `<si><t>string number %d</t></si>`, i)
			}
			_, _ = io.WriteString(w, `</sst>`)
		},
	})
	v := view(t, path, Query{Rows: []int{rows - 1, -1}})
	shows(t, v, []string{"| 19999 | string number 19999 |  | 19999 |\n| 20000 | string number 20000 |  | 20000 |"}, "19998")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newReader(t).View(ctx, path, Query{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestHostileWorkbooks(t *testing.T) {
	t.Parallel()
	repeat := func(head, s string, n int, tail string) func(io.Writer) {
		return func(w io.Writer) {
			_, _ = io.WriteString(w, head)
			for block := strings.Repeat(s, 1024); n > 0; n -= 1024 {
				_, _ = io.WriteString(w, block)
			}
			_, _ = io.WriteString(w, tail)
		}
	}
	const sheet, open, end = "xl/worksheets/sheet1.xml", `<worksheet xmlns="` + mainSpace + `"><sheetData>`, "</sheetData></worksheet>"
	for _, c := range []struct {
		name, part string
		content    any
		want       string
	}{
		{"a bomb of text", sheet, repeat(open+"<row><c><v>", " ", 5<<20, ""), "larger than"},
		{"a bomb of attributes", sheet, repeat(open+"<row ", `a="`+strings.Repeat("b", 1000)+`" `, 8<<10, ""), "larger than"},
		{"deep nesting", sheet, repeat(open, "<a>", 4096, ""), "nested"},
		{"entities", sheet, `<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>` + open +
			`<row><c t="str"><v>&b;</v></c></row></sheetData></worksheet>`, "entity"},
		{"an external entity", sheet, `<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>` + open +
			`<row><c t="str"><v>&a;</v></c></row></sheetData></worksheet>`, "entity"},
		{"a row too far", sheet, open + `<row r="1048577"/>` + end, "row"},
		{"a column too far", sheet, open + `<row><c r="XFE1"><v>1</v></c></row>` + end, "column"},
		{"a column of many letters", sheet, open + `<row><c r="` + strings.Repeat("Z", 100) + `1"/></row>` + end, "column"},
		{"a row before the first", sheet, open + `<row r="-3"><c><v>1</v></c></row>` + end, ""},
		{"a cell in no row", sheet, open + `<c r="A1"><v>1</v></c>` + end, ""},
		{"a cell with too much text", sheet, open + `<row><c t="str"><v>` + strings.Repeat("x", 1<<18) + `</v></c></row>` + end, "larger than"},
		{"a number format that is no format", "xl/styles.xml",
			styleSheet(`<numFmts><numFmt numFmtId="164" formatCode="[[;;;&quot;\\"/></numFmts><cellXfs><xf/></cellXfs>`), ""},
		{"a truncated sheet", sheet, open + `<row><c><v>1`, "EOF"},
		{"no sheet", sheet, "", ""},
		{"too many sheets", "xl/workbook.xml", repeat(strings.TrimSuffix(workbookXML("<sheets>"), "</workbook>"),
			`<sheet name="a" sheetId="1" r:id="rId1"/>`, 5000, "</sheets></workbook>"), "sheets"},
		{"bad styles", "xl/styles.xml", `<styleSheet xmlns="` + mainSpace + `">`, "EOF"},
	} {
		v, err := newReader(t).View(t.Context(), book(t, []string{""}, map[string]any{c.part: c.content}), Query{})
		if c.want == "" && err == nil {
			continue
		}
		if e, ok := op.AsError(err); !ok || e.Code != op.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %.100q, want an error with %q", c.name, err, v.Text, c.want)
		}
	}
}

func TestWideCellsAreTruncated(t *testing.T) {
	t.Parallel()
	var row strings.Builder
	for range 3000 {
		row.WriteString(`<c t="s"><v>0</v></c>`)
	}
	long := `<sst xmlns="` + mainSpace + `"><si><t>` + strings.Repeat("é", 32767) + `</t></si></sst>`
	path := book(t, []string{"<row>" + row.String() + "</row>"}, map[string]any{"xl/SharedStrings.xml": long})
	if v := view(t, path, Query{}); len(v.Text) > maxText+100 || !strings.Contains(v.Text, "[truncated;") {
		t.Errorf("got %d bytes, want at most about %d, and a note that they were truncated", len(v.Text), maxText)
	}
}

func TestTooManyFilesInside(t *testing.T) {
	t.Parallel()
	content := map[string]any{}
	for i := range 9000 {
		content[fmt.Sprintf("%01000d", i)] = ""
	}
	_, err := (Reader{}).View(t.Context(), packed(t, "many.docx", content), Query{})
	if err == nil || !strings.Contains(err.Error(), "too many files in the archive") {
		t.Errorf(`got %v, want an error that contains "too many files in the archive"`, err)
	}
	_, err = (Reader{}).View(t.Context(), put(t, "old.xlsx", "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"+strings.Repeat("x", 1000)), Query{})
	if e, ok := op.AsError(err); !ok || e.Code != op.Invalid || !strings.Contains(e.Msg, "password") {
		t.Errorf(`got %v, want an error with code invalid that contains "password"`, err)
	}
}

// Workbooks of another program can be read.
func TestSheetOfLibreOffice(t *testing.T) {
	t.Parallel()
	testenv.Engine(t)
	testenv.Need(t, "soffice")
	in := put(t, "in.csv", "Name,Day,Share,Amount,Sum\nÄpfel,2024-02-29,12.5%,1234.5,=1+2\n\"two\nlines\",1999-12-31,100%,-3,=TRUE()\n")
	out := filepath.Dir(in)
	cmd := exec.Command("soffice", "-env:UserInstallation=file://"+t.TempDir(), "--headless",
		"--infilter=CSV:44,34,76,1,,1033,false,true,false,false,false,0,false,true", "--convert-to", "xlsx", "--outdir", out, in)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: got %s, want no error", err, b)
	}
	v := view(t, filepath.Join(out, "in.xlsx"), Query{Metadata: true})
	shows(t, v, []string{"## Sheet in", "| 1 | Name | Day | Share | Amount | Sum |", "| 2 | Äpfel | ",
		"2024-02-29 | 12.50% | 1234.5 | =1+2 |", "two<br>lines"})
}
