package document

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/document/markdown"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// TestMain is also aio-markdown, if called by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "aio-markdown" {
		os.Exit(markdown.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	testenv.Main(m)
}

// newReader returns a reader with all programs.
func newReader(t testing.TB) Reader {
	t.Helper()
	runner := proc.New(proc.Config{})
	t.Cleanup(func() { must(t, runner.Close()) })
	self, err := os.Executable()
	must(t, err)
	helper := filepath.Join(t.TempDir(), "aio-markdown")
	must(t, os.Symlink(self, helper))
	return Reader{Runner: runner, Helper: Helper{Runner: runner, Program: func() string { return helper }}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func view(t testing.TB, path string, q Query) View {
	t.Helper()
	v, err := newReader(t).View(t.Context(), path, q)
	if err != nil {
		t.Fatalf("%s %+v: got %v, want no error", path, q, err)
	}
	return v
}

// shows checks which texts a view contains and which not.
func shows(t testing.TB, v View, has []string, not ...string) {
	t.Helper()
	for _, s := range has {
		if !strings.Contains(v.Text, s) {
			t.Errorf("%q is missing in\n%s", s, v.Text)
		}
	}
	for _, s := range not {
		if strings.Contains(v.Text, s) {
			t.Errorf("got %q in\n%s, want text without it", s, v.Text)
		}
	}
}

const report = `---
title: Quarterly report
author: Ada Example
---

# Results

Sales grew by *twelve* percent.

| Region | Units |
|--------|-------|
| North  | 1200  |
| South  | a\|b  |

# Outlook

- first point
- second point

::: notes
Say it slowly.
:::
`

func pandoc(t testing.TB, ext string) string {
	t.Helper()
	testenv.Need(t, "pandoc")
	in, out := put(t, "in.md", report), filepath.Join(t.TempDir(), "out"+ext)
	b, err := exec.Command("pandoc", in, "-o", out).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: got %s, want no error", err, b)
	}
	return out
}

func TestWord(t *testing.T) {
	t.Parallel()
	path := pandoc(t, ".docx")
	v := view(t, path, Query{Metadata: true})
	shows(t, v, []string{"# Quarterly report\n", "# Results\n", "Sales grew by twelve percent.",
		"| Region | Units |\n| --- | --- |\n| North | 1200 |", `a\|b`, "- first point\n- second point\n"})
	if v.Metadata["title"] != "Quarterly report" || v.Metadata["creator"] != "Ada Example" ||
		v.Metadata["page_count"] != 1 || v.Metadata["file_type"] != "docx" {
		t.Errorf("got %v, want title, creator, 1 page and file type docx", v.Metadata)
	}
}

func TestWordPages(t *testing.T) {
	t.Parallel()
	p := func(s string) string { return `<w:p><w:r>` + s + `</w:r></w:p>` }
	body := `<w:document xmlns:w="x"><w:body>` +
		p(`<w:t>one</w:t><w:br w:type="page"/>`) +
		p(`<w:t>two</w:t><w:br/><w:t>more</w:t>`) +
		p(`<w:lastRenderedPageBreak/><w:t>three</w:t>`) +
		`</w:body></w:document>`
	pages, err := wordPages([]byte(body))
	if err != nil || len(pages) != 3 || !strings.Contains(pages[1], "two\nmore") || strings.Contains(pages[2], "two") {
		t.Errorf(`got %q %v, want 3 pages, second page that contains "two\nmore" and third page without "two"`, pages, err)
	}
}

func TestSlides(t *testing.T) {
	t.Parallel()
	path := pandoc(t, ".pptx")
	v := view(t, path, Query{Metadata: true})
	n := v.Metadata["slide_count"].(int)
	if n < 3 {
		t.Fatalf("got %v, want at least 3", v.Metadata)
	}
	shows(t, v, []string{"## Slide 1 of", "### Quarterly report", "### Results", "| North | 1200 |", "first point",
		"Notes: ", "Say it slowly."})
	v = view(t, path, Query{Slides: []int{n, -1}})
	shows(t, v, []string{fmt.Sprintf("## Slide %d of %d", n, n), "second point"}, "North")
	if v.Metadata != nil {
		t.Errorf("not requested: got %v, want no metadata", v.Metadata)
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	v := view(t, put(t, "t.csv", "name;note\nada;\"a|b\nc\"\nbob;x\n"), Query{Metadata: true})
	shows(t, v, []string{"| name | note |\n| --- | --- |\n| ada | a\\|b<br>c |\n| bob | x |\n"})
	if v.Metadata["row_count"] != 3 || v.Metadata["column_count"] != 2 || v.Metadata["delimiter"] != ";" {
		t.Errorf(`got %v, want row_count 3, column_count 2 and delimiter ";"`, v.Metadata)
	}
	shows(t, view(t, put(t, "t.tsv", "a\tb\n1\t2\n3\t4\n"), Query{Rows: []int{3}}), []string{"| a | b |", "| 3 | 4 |"}, "| 1 | 2 |")
	shows(t, view(t, put(t, "e.csv", ""), Query{}), []string{"[empty]"})
	shows(t, view(t, put(t, "long.csv", "n\n"+strings.Repeat("x\n", 5000)), Query{}), []string{"[1000 of 5001 rows"})
}

func TestNotebook(t *testing.T) {
	t.Parallel()
	nb := `{"nbformat":4,"metadata":{"kernelspec":{"name":"python3"},"language_info":{"name":"python"}},"cells":[
	{"cell_type":"markdown","source":["# Title\n","text"]},
	{"cell_type":"code","source":"print(1)","outputs":[{"output_type":"stream","text":["1\n"]},
		{"output_type":"execute_result","data":{"text/plain":["42"],"image/png":"x"}}]},
	{"cell_type":"code","source":"1/0","outputs":[{"output_type":"error","ename":"ZeroDivisionError","evalue":"division by zero"}]}]}`
	path := put(t, "n.ipynb", nb)
	v := view(t, path, Query{Metadata: true})
	shows(t, v, []string{"## Cell 1 of 3 (markdown)", "# Title\ntext", "```python\nprint(1)\n```",
		"Output:\n```\n1\n```", "42\n[image/png]", "ZeroDivisionError: division by zero"})
	if v.Metadata["cell_count"] != 3 || v.Metadata["kernel"] != "python3" {
		t.Errorf(`got %v, want cell_count 3 and kernel "python3"`, v.Metadata)
	}
	shows(t, view(t, path, Query{Rows: []int{2, 2}}), []string{"print(1)"}, "Title", "1/0")
}

func TestImages(t *testing.T) {
	t.Parallel()
	picture := image.NewRGBA(image.Rect(0, 0, 30, 20))
	var b bytes.Buffer
	encode := func(enc func(io.Writer) error) string { b.Reset(); must(t, enc(&b)); return b.String() }
	le := binary.LittleEndian
	bmp := append([]byte("BM"), make([]byte, 24)...)
	le.PutUint32(bmp[18:], 30)
	le.PutUint32(bmp[22:], uint32(0xffffffff-19)) // from top to bottom
	webp := append([]byte("RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00"), 29, 0, 0, 19, 0, 0)
	tiff := []byte("II*\x00\x08\x00\x00\x00\x02\x00" + "\x00\x01\x03\x00\x01\x00\x00\x00\x1e\x00\x00\x00" +
		"\x01\x01\x04\x00\x01\x00\x00\x00\x14\x00\x00\x00")
	for name, content := range map[string]string{
		"p.png":  encode(func(w io.Writer) error { return png.Encode(w, picture) }),
		"p.jpg":  encode(func(w io.Writer) error { return jpeg.Encode(w, picture, nil) }),
		"p.gif":  encode(func(w io.Writer) error { return gif.Encode(w, picture, nil) }),
		"p.bmp":  string(bmp),
		"p.webp": string(webp),
		"p.tiff": string(tiff),
	} {
		v := view(t, put(t, name, content), Query{Metadata: true})
		if v.Metadata["width"] != 30 || v.Metadata["height"] != 20 {
			t.Errorf("%s: got %v, want width 30 and height 20", name, v.Metadata)
		}
		shows(t, v, []string{"30 × 20 pixels"})
	}
}

func TestDamagedDocuments(t *testing.T) {
	t.Parallel()
	for kind := range kinds {
		if kind == ".csv" || kind == ".tsv" || kind == ".pdf" {
			continue // any text is a table; PDF needs poppler
		}
		_, err := (Reader{}).View(t.Context(), put(t, "x"+kind, "this is not it"), Query{})
		if e, ok := op.AsError(err); !ok || e.Code != op.Invalid {
			t.Errorf("%s: got %v, want an error with code invalid", kind, err)
		}
	}
	if _, err := (Reader{}).View(t.Context(), "/none.pdf", Query{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want os.ErrNotExist", err)
	}
	if _, err := (Reader{}).View(t.Context(), put(t, "x.unknown", ""), Query{}); err == nil || Known("x.unknown") || !Known("X.PDF") {
		t.Errorf("got %v, known %v and %v, want an error, false and true", err, Known("x.unknown"), Known("X.PDF"))
	}
	runner := proc.New(proc.Config{Env: []string{"PATH=/nowhere"}})
	defer runner.Close()
	_, err := Reader{Runner: runner}.View(t.Context(), put(t, "x.pdf", "%PDF-"), Query{})
	if e, ok := op.AsError(err); !ok || e.Code != op.Unavailable || !strings.Contains(e.Msg, "poppler-utils") {
		t.Errorf(`missing program: got %v, want an error with code unavailable that contains "poppler-utils"`, err)
	}
	testenv.Need(t, "pdfinfo")
	real := proc.New(proc.Config{})
	defer real.Close()
	_, err = Reader{Runner: real}.View(t.Context(), put(t, "x.pdf", "this is not it"), Query{})
	if e, ok := op.AsError(err); !ok || e.Code != op.Invalid {
		t.Errorf("got %v, want an error with code invalid", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = (Reader{Runner: real}).View(ctx, put(t, "x.pdf", "x"), Query{}); err == nil {
		t.Error("canceled: got no error, want one")
	}
}

// at builds a word for the tests of layout: column and line in a grid of letters.
func at(x, y float64, text string) word {
	return word{x0: x * 6, x1: x*6 + float64(len([]rune(text)))*6, y0: y * 12, y1: y*12 + 10, text: text,
		block: int(y), line: int(y)*10 + int(x/20)}
}

func TestLayout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		words  []word
		want   string
		tables int
	}{
		{"table", []word{at(0, 0, "Before"), at(0, 2, "Name"), at(20, 2, "Count"), at(0, 3, "Apples"), at(24, 3, "3"),
			at(0, 4, "Pears"), at(23, 4, "14"), at(0, 6, "After")},
			"Before\n\n| Name | Count |\n| --- | --- |\n| Apples | 3 |\n| Pears | 14 |\n\nAfter", 1},
		{"list", []word{at(1, 0, "•"), at(4, 0, "one"), at(1, 1, "•"), at(4, 1, "two")}, "- one\n- two", 0},
		{"two columns of prose", []word{at(0, 0, strings.Repeat("left ", 10)),
			at(60, 0, strings.Repeat("right ", 10)), at(0, 1, strings.Repeat("left ", 10)), at(60, 1, strings.Repeat("right ", 10))}, "", 0},
		{"no words", nil, "", 0},
	} {
		got, n := layout(c.words)
		if n != c.tables || c.want != "" && got != c.want {
			t.Errorf("%s: got %d tables in\n%s, want %d tables and %q", c.name, n, got, c.tables, c.want)
		}
	}
}

func FuzzOffice(f *testing.F) {
	f.Add([]byte(`<w:document xmlns:w="x"><w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:document>`))
	f.Add([]byte(`<page><block><line><word xMin="1" yMin="1" xMax="2" yMax="2">a</word></line></block></page>`))
	f.Add([]byte(`{"cells":[{"source":[1],"outputs":[{"data":{"text/plain":3}}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = wordPages(b)
		if pages, err := parseBoxes(string(b)); err == nil {
			for _, p := range pages {
				layout(p)
			}
		}
		_, _ = (Reader{}).notebook(t.Context(), put(t, "n.ipynb", string(b)), Query{})
		_, _, _, _ = measure(bytes.NewReader(b))
	})
}
