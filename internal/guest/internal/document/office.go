package document

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/document/office"
)

func (r Reader) slides(ctx context.Context, file string, q Query) (View, error) {
	p, err := openParts(file)
	if err != nil {
		return View{}, err
	}
	defer p.close()
	const show = "ppt/presentation.xml"
	b, err := p.read(show, maxPart)
	if err != nil {
		return View{}, err
	}
	links := p.links(show)
	var slides []string
	err = tokens(b, func(e xml.StartElement) {
		if e.Name.Local != "sldId" {
			return
		}
		for _, a := range e.Attr {
			if a.Name.Local == "id" && a.Name.Space != "" && links[a.Value] != "" {
				slides = append(slides, links[a.Value])
			}
		}
	}, func(xml.EndElement) {}, func(string) {})
	if err != nil {
		return View{}, damaged(file, err)
	}
	meta := map[string]any{"slide_count": len(slides)}
	p.properties(meta)
	if len(slides) == 0 {
		return View{"[no slides]\n", meta}, nil
	}
	first, last, err := span("slide_range", q.Slides, len(slides))
	if err != nil {
		return View{}, err
	}
	var out strings.Builder
	for i := first; i <= last && out.Len() <= maxText; i++ {
		if err := ctx.Err(); err != nil {
			return View{}, err
		}
		fmt.Fprintf(&out, "## Slide %d of %d\n\n", i, len(slides))
		if err := p.slide(&out, slides[i-1]); err != nil {
			return View{}, err
		}
	}
	meta["shown_slides"] = []int{first, last}
	return View{out.String(), meta}, nil
}

func (p parts) slide(out *strings.Builder, name string) error {
	b, err := p.read(name, maxPart)
	if err != nil {
		return err
	}
	f := &flow{out: out, paragraph: "p", run: "t", table: "tbl", row: "tr", cell: "tc"}
	title := false
	err = tokens(b, func(e xml.StartElement) {
		switch e.Name.Local {
		case "sp":
			title = false
		case "ph":
			title = strings.Contains(strings.ToLower(office.Attr(e, "type")), "title")
		case "p":
			if f.prefix = ""; title {
				f.prefix = "### "
			}
		case "br":
			f.text("\n")
		}
		f.start(e)
	}, f.end, f.chars)
	if err != nil {
		return damaged(p.path, err)
	}
	if notes := p.links(name)["type:notesSlide"]; notes != "" {
		if b, err := p.read(notes, maxPart); err == nil {
			n := &flow{out: new(strings.Builder), paragraph: "p", run: "t", table: "tbl", row: "tr", cell: "tc"}
			if tokens(b, n.start, n.end, n.chars) == nil && strings.TrimSpace(n.out.String()) != "" {
				out.WriteString("Notes: " + strings.TrimSpace(n.out.String()) + "\n\n")
			}
		}
	}
	return nil
}

func (r Reader) word(_ context.Context, file string, q Query) (View, error) {
	p, err := openParts(file)
	if err != nil {
		return View{}, err
	}
	defer p.close()
	b, err := p.read("word/document.xml", maxPart)
	if err != nil {
		return View{}, err
	}
	pages, err := wordPages(b)
	if err != nil {
		return View{}, damaged(file, err)
	}
	first, last, err := span("page_range", q.Pages, len(pages))
	if err != nil {
		return View{}, err
	}
	meta := map[string]any{"page_count": len(pages), "page_count_is": "by the page breaks in the document"}
	p.properties(meta)
	meta["shown_pages"] = []int{first, last}
	return View{strings.Join(pages[first-1:last], "\n"), meta}, nil
}

// wordPages splits the text of a document at its page breaks.
func wordPages(b []byte) ([]string, error) {
	var pages []string
	var out strings.Builder
	f := &flow{out: &out, paragraph: "p", run: "t", table: "tbl", row: "tr", cell: "tc"}
	turn := func() {
		f.flush()
		pages = append(pages, out.String())
		out.Reset()
	}
	err := tokens(b, func(e xml.StartElement) {
		switch e.Name.Local {
		case "pStyle":
			f.prefix = cmp.Or(heading(office.Attr(e, "val")), f.prefix)
		case "numPr":
			f.prefix = "- "
		case "tab":
			f.text("\t")
		case "br":
			if office.Attr(e, "type") == "page" && f.depth == 0 {
				turn()
			} else {
				f.text("\n")
			}
		case "lastRenderedPageBreak":
			if f.depth == 0 && (out.Len() > 0 || f.line.Len() > 0) {
				turn()
			}
		case "p":
			f.prefix = ""
		}
		f.start(e)
	}, f.end, f.chars)
	if err != nil {
		return nil, err
	}
	return append(pages, out.String()), nil
}

// heading returns the Markdown marker of a heading for a paragraph style.
func heading(style string) string {
	style = strings.ToLower(strings.ReplaceAll(style, " ", ""))
	if style == "title" {
		return "# "
	}
	if level, ok := strings.CutPrefix(style, "heading"); ok && len(level) == 1 && level[0] >= '1' && level[0] <= '6' {
		return strings.Repeat("#", int(level[0]-'0')) + " "
	}
	return ""
}
