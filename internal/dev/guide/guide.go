// Package guide renders the Markdown below docs into the page that both programs serve at
// /guide, and finds the code blocks in it. It runs when goldens are written and in tests: a
// program holds only the finished page.
package guide

import (
	"bytes"
	"fmt"
	"html"
	"io/fs"
	"path"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	"github.com/cove-sandbox/cove/internal/api/card"
)

// Part is a titled list of chapters.
type Part struct {
	Title    string
	Chapters []string // paths below docs
}

// Parts is the order of the guide. The reference consists of pages outside the guide.
var Parts = []Part{
	{"Begin", []string{"guide/start.md", "guide/ways.md", "guide/many.md", "guide/interfaces.md"}},
	{"Capabilities", []string{"guide/terminal.md", "guide/files.md", "guide/code.md", "guide/browser.md",
		"guide/desktop.md", "guide/mcp.md", "guide/ports.md", "guide/egress.md", "guide/skills.md", "guide/disks.md",
		"guide/templates.md"}},
	{"Operate", []string{"guide/deploy.md", "guide/tenants.md", "operation.md", "security.md", "guide/limits.md"}},
	{"Coming from", []string{"guide/compare.md", "guide/from-aio.md", "e2b.md", "guide/from-docker.md", "guide/from-agent-sandbox.md"}},
	{"Reference", []string{"mcp.md", "pages.md", "settings.md", "settings-hub.md", "errors.md"}},
}

// chapter is one parsed file.
type chapter struct {
	path, id, title string
	source          []byte
	tree            ast.Node
	sections        []section
}

type section struct{ id, title string }

// Render returns the page. It fails for a chapter that is missing, not listed or not titled,
// and for a link that leads nowhere.
func Render(docs fs.FS) ([]byte, error) {
	chapters, err := load(docs)
	if err != nil {
		return nil, err
	}
	byPath := map[string]*chapter{}
	for _, c := range chapters {
		byPath[c.path] = c
	}
	var body bytes.Buffer
	for i, c := range chapters {
		if err := c.resolveLinks(docs, byPath); err != nil {
			return nil, err
		}
		fmt.Fprintf(&body, "<section class=\"chapter\" id=\"%s\" aria-labelledby=\"%[1]s-title\">\n", c.id)
		if err := c.write(&body, docs); err != nil {
			return nil, fmt.Errorf("render %s: %w", c.path, err)
		}
		if i+1 < len(chapters) {
			fmt.Fprintf(&body, "<p class=\"next\">Next: <a href=\"#%s\">%s</a></p>\n", chapters[i+1].id, html.EscapeString(chapters[i+1].title))
		}
		body.WriteString("</section>\n")
	}
	page := strings.NewReplacer("{{icon}}", card.Icon, "{{logo}}", strings.Replace(card.Logo, "<svg", `<svg class="logo"`, 1),
		"{{contents}}", contents(chapters), "{{chapters}}", body.String()).Replace(frame)
	return []byte(page), nil
}

const frame = `<!doctype html>
<html lang="en">
<head>
<!-- Written by make gen from the Markdown below docs. -->
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{{icon}}
<title>Guide – Cove</title>
<link rel="stylesheet" href="ui/ui.css">
<link rel="stylesheet" href="guide/guide.css">
</head>
<body>
<header>
  <a class="brand" href="./" aria-label="Cove">{{logo}}</a>
  <h1><a href="#start">Guide</a></h1>
  <search><input id="search" type="search" placeholder="Search" aria-label="Search the guide" autocomplete="off"></search>
  <a class="button plain" href="v1/docs">API</a>
</header>
<div id="frame">
<nav id="contents" aria-label="Chapters">
{{contents}}</nav>
<main>
<div id="found" role="status" hidden></div>
{{chapters}}</main>
</div>
<script type="module" src="guide/guide.js"></script>
</body>
</html>
`

func contents(chapters []*chapter) string {
	var b strings.Builder
	next := chapters
	for _, p := range Parts {
		fmt.Fprintf(&b, "<h2>%s</h2>\n<ul>\n", p.Title)
		for _, c := range next[:len(p.Chapters)] {
			fmt.Fprintf(&b, "<li><a href=\"#%s\">%s</a>", c.id, html.EscapeString(c.title))
			if len(c.sections) > 0 {
				b.WriteString("\n<ul>\n")
				for _, s := range c.sections {
					fmt.Fprintf(&b, "<li><a href=\"#%s\">%s</a></li>\n", s.id, html.EscapeString(s.title))
				}
				b.WriteString("</ul>")
			}
			b.WriteString("</li>\n")
		}
		b.WriteString("</ul>\n")
		next = next[len(p.Chapters):]
	}
	return b.String()
}

func load(docs fs.FS) ([]*chapter, error) {
	listed := map[string]bool{}
	var chapters []*chapter
	for _, p := range Parts {
		for _, name := range p.Chapters {
			listed[name] = true
			source, err := fs.ReadFile(docs, name)
			if err != nil {
				return nil, err
			}
			c, err := parse(name, source)
			if err != nil {
				return nil, err
			}
			chapters = append(chapters, c)
		}
	}
	names, err := fs.Glob(docs, "guide/*.md")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !listed[name] {
			return nil, fmt.Errorf("%s is not a chapter: list it in internal/dev/guide", name)
		}
	}
	return chapters, nil
}

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
)

func parse(name string, source []byte) (*chapter, error) {
	c := &chapter{path: name, id: strings.TrimSuffix(path.Base(name), ".md"), source: source}
	if name == "mcp.md" {
		c.id = "mcp-reference" // the guide has a chapter of that name
	}
	c.tree = markdown.Parser().Parse(text.NewReader(source))
	var drop []ast.Node
	err := ast.Walk(c.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.HTMLBlock, *ast.RawHTML:
			drop = append(drop, n) // comments; nothing else may be written as markup
		case *ast.Heading:
			title := plain(n, source)
			if n.Level == 1 {
				if c.title != "" {
					return ast.WalkStop, fmt.Errorf("%s has two titles: %q and %q", name, c.title, title)
				}
				c.title = title
				n.Level = 2
				n.SetAttributeString("id", []byte(c.id+"-title"))
				break
			}
			id, _ := n.AttributeString("id")
			anchor := fmt.Sprintf("%s-%s", c.id, id)
			n.SetAttributeString("id", []byte(anchor))
			if n.Level == 2 {
				c.sections = append(c.sections, section{anchor, title})
			}
			n.Level++
		}
		return ast.WalkContinue, nil
	})
	if err == nil && c.title == "" {
		err = fmt.Errorf("%s has no title: begin it with # and a space", name)
	}
	for _, n := range drop {
		n.Parent().RemoveChild(n.Parent(), n)
	}
	return c, err
}

// plain returns the text of a node.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function never fails
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// resolveLinks turns links to chapters into links within the page. Other files of the
// repository are not served: their links become text.
func (c *chapter) resolveLinks(docs fs.FS, byPath map[string]*chapter) error {
	var links []*ast.Link
	_ = ast.Walk(c.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function never fails
		if l, ok := n.(*ast.Link); ok && entering {
			links = append(links, l)
		}
		return ast.WalkContinue, nil
	})
	for _, l := range links {
		to := string(l.Destination)
		if strings.Contains(to, "://") {
			l.SetAttributeString("rel", []byte("noopener noreferrer"))
			continue
		}
		file, anchor, _ := strings.Cut(to, "#")
		if at, ok := byPath[path.Join(path.Dir(c.path), file)]; ok {
			if anchor != "" {
				anchor = "-" + anchor
			}
			l.Destination = []byte("#" + at.id + anchor)
			continue
		}
		if at := path.Join(path.Dir(c.path), file); !strings.HasPrefix(at, "../") {
			if _, err := fs.Stat(docs, at); err != nil {
				return fmt.Errorf("%s links to %q: %w", c.path, to, err)
			}
		}
		parent := l.Parent()
		for child := l.FirstChild(); child != nil; child = l.FirstChild() {
			parent.InsertBefore(parent, l, child)
		}
		parent.RemoveChild(parent, l)
	}
	return nil
}

// write renders the chapter. The page shows the blocks of a group as tabs.
func (c *chapter) write(w *bytes.Buffer, docs fs.FS) error {
	open := false
	for n := c.tree.FirstChild(); n != nil; n = n.NextSibling() {
		block, isCode := n.(*ast.FencedCodeBlock)
		if open && !(isCode && c.joins(block)) {
			w.WriteString("</div>\n")
			open = false
		}
		if isCode && !open {
			w.WriteString("<div class=\"blocks\">\n")
		}
		open = isCode
		if isCode {
			b := blockOf(block, c)
			fmt.Fprintf(w, "<figure class=\"block\"><figcaption>%s</figcaption><pre "+
				"tabindex=\"0\"><code>%s</code></pre></figure>\n", b.Title(), html.EscapeString(b.Code))
			continue
		}
		if image := pictureOf(n); image != nil {
			if err := c.writePicture(w, docs, image); err != nil {
				return err
			}
			continue
		}
		if err := markdown.Renderer().Render(w, c.source, n); err != nil {
			return err
		}
		w.WriteByte('\n')
	}
	if open {
		w.WriteString("</div>\n")
	}
	return nil
}
