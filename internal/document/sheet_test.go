package document

import (
	"archive/zip"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/testenv"
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

// book is a workbook of sheets by their XML; more replaces or adds parts.
func book(t testing.TB, sheets []string, more map[string]any) string {
	t.Helper()
	content := map[string]any{
		"_rels/.rels": `<Relationships><Relationship Id="r" Type="http://x/officeDocument" Target="/xl/workbook.xml"/></Relationships>`,
	}
	var list, links strings.Builder
	for i, s := range sheets {
		fmt.Fprintf(&list, `<sheet name="S%d" sheetId="%d" r:id="rId%d"/>`, i+1, i+1, i+1)
		fmt.Fprintf(&links, `<Relationship Id="rId%d" Type="http://x/worksheet" Target="worksheets/sheet%d.xml"/>`, i+1, i+1)
		content[fmt.Sprintf("xl/worksheets/sheet%d.xml", i+1)] = `<worksheet><sheetData>` + s + `</sheetData><c r="A1"><v>not a cell</v></c></worksheet>`
	}
	content["xl/workbook.xml"] = `<workbook xmlns:r="http://r"><sheets>` + list.String() + `</sheets></workbook>`
	content["xl/_rels/workbook.xml.rels"] = `<Relationships>` + links.String() +
		`<Relationship Id="s" Type="http://x/sharedStrings" Target="sharedStrings.xml"/><Relationship Id="t" Type="http://x/styles" Target="styles.xml"/></Relationships>`
	content["xl/styles.xml"] = `<styleSheet/>`
	content["xl/SharedStrings.xml"] = `<sst><si><t>plain</t></si><si><r><t>rich </t></r><r><rPr/><t>text</t></r><rPh><t>spoken</t></rPh></si><si><t>a_x000D_b_x_</t></si></sst>`
	for name, c := range more {
		content[name] = c
	}
	return packed(t, "b.xlsx", content)
}

func TestSheets(t *testing.T) {
	t.Parallel()
	var fruit strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&fruit, `<row r="%d"><c r="A%d" t="inlineStr"><is><t>name%d</t></is></c><c r="B%d"><v>%d</v></c></row>`, i+1, i+1, i+1, i+1, i+1)
	}
	path := book(t, []string{fruit.String(), `<row r="2"><c r="B2" t="s"><v>0</v></c></row><row r="9"><c r="F9" s="1"/></row>`}, map[string]any{
		"docProps/core.xml": `<coreProperties xmlns:dc="http://dc"><dc:title>Harvest</dc:title><dc:creator>Ada</dc:creator></coreProperties>`,
	})
	v := view(t, path, Query{Metadata: true})
	shows(t, v, []string{"## Sheet S1", "|  | A | B |\n| --- | --- | --- |\n| 1 | name1 | 1 |", "[1000 of 1500 rows", "## Sheet S2", "| 1 |  |  |\n| 2 |  | plain |"}, "name1001", "not a cell")
	if v.Metadata["sheet_count"] != 2 || v.Metadata["title"] != "Harvest" || v.Metadata["creator"] != "Ada" {
		t.Errorf("%v", v.Metadata)
	}
	if s := v.Metadata["sheets"].([]map[string]any); s[0]["rows"] != 1500 || s[1]["rows"] != 2 || s[1]["columns"] != 2 {
		t.Errorf("empty rows and cells at the end were counted: %v", s)
	}
	shows(t, view(t, path, Query{Rows: []int{1400, 1401}}), []string{"| 1400 | name1400 |", "| 1401 | name1401 |"}, "name1402", "name1399", "S2")
	shows(t, view(t, path, Query{Rows: []int{1499, -1}}), []string{"| 1499 | name1499 |", "| 1500 | name1500 |"}, "name1498")
	shows(t, view(t, path, Query{Rows: []int{7}}), []string{"| 7 | name7 |"}, "name6", "name8")
	shows(t, view(t, path, Query{Sheet: "s2"}), []string{"| 2 |  | plain |"}, "S1")
	for _, q := range []Query{{Sheet: "None"}, {Rows: []int{0, 1}}, {Rows: []int{1501, 1502}}, {Rows: []int{5, 4}}, {Rows: []int{1, 2, 3}}} {
		if _, err := (Reader{}).View(t.Context(), path, q); err == nil {
			t.Errorf("%+v was taken", q)
		} else if _, ok := op.AsError(err); !ok {
			t.Errorf("%+v: %v is not safe to show", q, err)
		}
	}
}

func TestKindsOfCells(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, cell, want string }{
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
		{"number", `<c><v> 0.30000000000000004 </v></c>`, "0.3"},
		{"large number", `<c><v>1.5E+25</v></c>`, "1.5E+25"},
		{"no number", `<c><v>many</v></c>`, "many"},
		{"prefixed names", `<x:c xmlns:x="y" t="b"><x:v>1</x:v></x:c>`, "TRUE"},
	} {
		v := view(t, book(t, []string{"<row>" + c.cell + `<c t="b"><v>1</v></c></row>`}, nil), Query{})
		shows(t, v, []string{"| 1 | " + c.want + " | TRUE |"})
		if t.Failed() {
			t.Fatal(c.name)
		}
	}
}

func TestNumberFormats(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code, raw, want string
	}{
		{"", "1234.5", "1234.5"}, {"General", "-0.1", "-0.1"}, {"General", "1E-10", "1E-10"}, {`General" units"`, "-2.5", "-2.5 units"},
		{"0", "2.5", "3"}, {"0", "-0.4", "0"}, {"0.00", "1.005", "1.01"}, {"0.00", "9.999", "10.00"}, {"000", "7", "007"}, {"0.0##", "1.25", "1.25"}, {"#.##", "0.5", ".5"},
		{"#,##0", "1234567", "1,234,567"}, {"#,##0.00", "-1234.5", "-1,234.50"}, {"#,##0;(#,##0)", "-1234", "(1,234)"}, {`0;-0;"none"`, "0", "none"},
		{"0%", "0.125", "13%"}, {"0.0%", "-0.1234", "-12.3%"}, {`0.0,,"M"`, "12345678", "12.3M"}, {"0.00E+00", "12345", "1.23E+04"}, {"0.0E-0", "0.00012", "1.2E-4"},
		{`[$€-407]\ #,##0.00`, "1234.5", "€ 1,234.50"}, {`_($* #,##0.00_);_($* (#,##0.00);_($* "-"??_);_(@_)`, "-5", "$(5.00)"}, {`[Red]0.0"°"`, "21.55", "21.6°"},
		{"# ?/?", "0.5", "0.5"}, {"[>100]0;0.0", "5", "5"}, {`000\-0000`, "5551234", "5551234"}, {"##0.0E+0", "12345", "12345"}, {"0.0.0", "1", "1"}, {`"open`, "1", "1"}, {"@", "12", "12"},
		{"yyyy-mm-dd", "45350", "2024-02-28"}, {"d-mmm-yy", "45351", "29-Feb-24"}, {"dddd, mmmm d", "45351", "Thursday, February 29"}, {"mmmmm", "45351", "F"},
		{"yyyy-mm-dd;@", "45351", "2024-02-29"}, {"[$-409]m/d/yyyy h:mm AM/PM;@", "45351.5", "2/29/2024 12:00 PM"}, {"h:mm a/p", "0.0", "12:00 A"},
		{"h:mm:ss", "0.999999", "0:00:00"}, {"hh:mm:ss.000", "0.5000115740", "12:00:01.000"}, {"mm:ss.0", "0.001", "01:26.4"}, {"[h]:mm", "1.5", "36:00"}, {"[mm]:ss", "0.5", "720:00"},
		{"mmm yyyy", "45351", "Feb 2024"}, {"yyyy-mm-dd", "60", "1900-02-29"}, {"yyyy-mm-dd", "59", "1900-02-28"}, {"yyyy-mm-dd", "61", "1900-03-01"}, {"m/d/yy", "0.5", "1/0/00"},
		{"yyyy", "-1", "-1"}, {"yyyy", "1E9", "1000000000"}, {"yyyy 0", "5", "5"}, {"ggge", "5", "5"}, {strings.Repeat("0", 300), "1", "1"},
	} {
		got := parseFormat(c.code, false).show(c.raw)
		if strings.TrimSpace(got) != c.want {
			t.Errorf("%s of %s: %q, want %q", c.code, c.raw, got, c.want)
		}
	}
	if got := parseFormat("yyyy-mm-dd", true).show("0"); got != "1904-01-01" {
		t.Error(got)
	}
}

func TestStylesOfCells(t *testing.T) {
	t.Parallel()
	styles := `<styleSheet><numFmts><numFmt numFmtId="164" formatCode="0.0&quot; km&quot;"/></numFmts><cellStyleXfs><xf numFmtId="9"/></cellStyleXfs>
		<cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/><xf numFmtId="10"/><xf numFmtId="12"/></cellXfs></styleSheet>`
	row := `<row><c s="1"><v>45351</v></c><c s="2"><v>3</v></c><c s="3"><v>0.5</v></c><c s="4"><v>0.5</v></c><c s="77"><v>1</v></c></row>`
	shows(t, view(t, book(t, []string{row}, map[string]any{"xl/styles.xml": styles}), Query{}), []string{"| 1 | 2024-02-29 | 3.0 km | 50.00% | 0.5 | 1 |"})
	workbook := `<workbook xmlns:r="http://r"><workbookPr date1904="1"/><sheets><sheet name="Old Mac" r:id="rId1"/><sheet name="Chart" r:id="rId2"/></sheets></workbook>`
	path := book(t, []string{row, ""}, map[string]any{"xl/styles.xml": styles, "xl/workbook.xml": workbook, "xl/worksheets/sheet2.xml": `<chartsheet><drawing/></chartsheet>`})
	shows(t, view(t, path, Query{}), []string{"## Sheet Old Mac", "| 2028-03-01 |", "## Sheet Chart\n\n[empty]"})
}

// TestLongSheet reads a sheet of which nobody could hold every cell.
func TestLongSheet(t *testing.T) {
	t.Parallel()
	const rows = 200_000
	path := book(t, []string{""}, map[string]any{
		"xl/worksheets/sheet1.xml": func(w io.Writer) {
			_, _ = io.WriteString(w, `<worksheet><sheetData>`)
			for i := 1; i <= rows; i++ {
				fmt.Fprintf(w, `<row r="%d"><c r="A%d" t="s"><v>%d</v></c><c r="C%d"><v>%d</v></c></row>`, i, i, i-1, i, i)
			}
			_, _ = io.WriteString(w, `</sheetData></worksheet>`)
		},
		"xl/SharedStrings.xml": func(w io.Writer) {
			_, _ = io.WriteString(w, `<sst>`)
			for i := 1; i <= rows; i++ {
				fmt.Fprintf(w, `<si><t>string number %d</t></si>`, i)
			}
			_, _ = io.WriteString(w, `</sst>`)
		},
	})
	v := view(t, path, Query{Rows: []int{rows - 1, -1}})
	shows(t, v, []string{"| 199999 | string number 199999 |  | 199999 |\n| 200000 | string number 200000 |  | 200000 |"}, "199998")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Reader{}).View(ctx, path, Query{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
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
	const sheet, open = "xl/worksheets/sheet1.xml", "<worksheet><sheetData>"
	for _, c := range []struct {
		name, part string
		content    any
		want       string
	}{
		{"a bomb of text", sheet, repeat(open+"<row><c><v>", " ", 5<<20, ""), "larger than"},
		{"a bomb of attributes", sheet, repeat(open+"<row ", `a="b" `, 1<<20, ""), "larger than"},
		{"deep nesting", sheet, repeat(open, "<a>", 4096, ""), "nested"},
		{"entities", sheet, `<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>` + open + `<row><c t="str"><v>&b;</v></c></row></sheetData></worksheet>`, "entity"},
		{"an external entity", sheet, `<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>` + open + `<row><c t="str"><v>&a;</v></c></row></sheetData></worksheet>`, "entity"},
		{"a row too far", sheet, open + `<row r="1048577"/>`, "row"},
		{"a row before the first", sheet, open + `<row r="-3"/>`, "row"},
		{"a column too far", sheet, open + `<row><c r="XFE1"/></row>`, "outside"},
		{"a column of many letters", sheet, open + `<row><c r="` + strings.Repeat("Z", 100) + `"/></row>`, "outside"},
		{"a cell in no row", sheet, open + `<c r="A1"/>`, "outside"},
		{"a sheet cut short", sheet, open + `<row><c><v>1`, "EOF"},
		{"no sheet", sheet, "", ""},
		{"too many sheets", "xl/workbook.xml", repeat(`<workbook xmlns:r="r">`, `<sheet name="a" r:id="rId1"/>`, 5000, "</workbook>"), "sheets"},
		{"bad styles", "xl/styles.xml", "<styleSheet>", "EOF"},
	} {
		v, err := (Reader{}).View(t.Context(), book(t, []string{""}, map[string]any{c.part: c.content}), Query{})
		if c.want == "" && err == nil {
			continue
		}
		if e, ok := op.AsError(err); !ok || e.Code != op.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v %.100q", c.name, err, v.Text)
		}
	}
}

func TestWideCellsAreCut(t *testing.T) {
	t.Parallel()
	var row strings.Builder
	for range 3000 {
		row.WriteString(`<c t="s"><v>0</v></c>`)
	}
	long := `<sst><si><t>` + strings.Repeat("é", 1<<20) + `</t></si></sst>`
	path := book(t, []string{"<row>" + row.String() + "</row>"}, map[string]any{"xl/SharedStrings.xml": long})
	if v := view(t, path, Query{}); len(v.Text) > maxText+100 || !strings.Contains(v.Text, "cut here") {
		t.Errorf("%d bytes", len(v.Text))
	}
}

func TestTooManyFilesInside(t *testing.T) {
	t.Parallel()
	content := map[string]any{}
	for i := range 9000 {
		content[fmt.Sprintf("%01000d", i)] = ""
	}
	_, err := (Reader{}).View(t.Context(), packed(t, "many.docx", content), Query{})
	if err == nil || !strings.Contains(err.Error(), "too many files inside") {
		t.Errorf("%v", err)
	}
	_, err = (Reader{}).View(t.Context(), put(t, "old.xlsx", "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"+strings.Repeat("x", 1000)), Query{})
	if e, ok := op.AsError(err); !ok || e.Code != op.Invalid || !strings.Contains(e.Msg, "password") {
		t.Errorf("%v", err)
	}
}

// TestSheetOfLibreOffice reads what another program wrote.
func TestSheetOfLibreOffice(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "soffice")
	in := put(t, "in.csv", "Name,Day,Share,Amount,Sum\nÄpfel,2024-02-29,12.5%,1234.5,=1+2\n\"two\nlines\",1999-12-31,100%,-3,=TRUE()\n")
	out := filepath.Dir(in)
	cmd := exec.Command("soffice", "-env:UserInstallation=file://"+t.TempDir(), "--headless", "--infilter=CSV:44,34,76,1,,1033,false,true,false,false,false,0,false,true", "--convert-to", "xlsx", "--outdir", out, in)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	v := view(t, filepath.Join(out, "in.xlsx"), Query{Metadata: true})
	shows(t, v, []string{"## Sheet in", "| 1 | Name | Day | Share | Amount | Sum |", "| 2 | Äpfel | ", "2024-02-29 | 12.50% | 1234.5 | =1+2 |", "two<br>lines"})
}

func FuzzSheet(f *testing.F) {
	f.Add(`<row r="2"><c r="B2" s="1" t="n"><f>A1</f><v>1</v></c></row>`, `yyyy-mm-dd;@`, "45351.5")
	f.Add(`<row><c t="s"><v>0</v></c><c t="inlineStr"><is><t>x</t></is></c></row>`, `_($* #,##0.00_);[Red]0.0E+0`, "-1e300")
	f.Add(`<c/>`, `[h]:mm:ss.000"`, "0.99999999")
	f.Fuzz(func(t *testing.T, sheet, code, raw string) {
		p := cellParser{book: &workbook{formats: map[int]format{}}, visit: func(sheetRow) {}}
		_ = scan(t.Context(), strings.NewReader(sheet), p.token)
		for _, old := range []bool{false, true} {
			_ = parseFormat(code, old).show(raw)
		}
		_ = unescape(sheet)
	})
}
