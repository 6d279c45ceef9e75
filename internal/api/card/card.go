// Package card renders the pages that the servers write themselves instead of an answer: errors, and
// sandboxes that do not run. They load nothing and run no script.
package card

import (
	"html"
	"net/http"
	"strconv"
	"strings"
)

// policy is the content security policy of a card.
const policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'self'"

// Icon is the icon of all pages, as a link element.
const Icon = `<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns=%22http://www.w3.org/2000/svg%22 viewBox=%220 0 24 24%22 ` +
	`fill=%22none%22 stroke=%22%231668c7%22 stroke-width=%222.6%22 stroke-linecap=%22round%22%3E%3Cpath ` +
	`d=%22M20 6.5A9.5 9.5 0 1 0 20 17.5%22/%3E%3Cpath d=%22M8.5 13c1.2-1.4 2.4-1.4 3.600 0s2.4 1.4 3.600 0 2.4-1.4 3.600 0%22/%3E%3C/svg%3E">`

// Logo is the mark and the name of the product.
const Logo = `<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M20 6.500A9.500 9.500 0 1 0 20 17.500"/>` +
	`<path d="M8.500 14c1.200-1.400 2.400-1.400 3.600 0s2.400 1.400 3.600 0 2.400-1.400 3.600 0"/></svg>Cove`

// Card is the content of a page. All texts are plain text.
type Card struct {
	Title string
	Text  string // one or more sentences
	Wait  int    // seconds until the browser loads the page again; 0: never
	Links []Link // what a person can do
	More  string // introduces Also
	Also  []Link
}

// Link is a link; one without a URL loads the page again.
type Link struct {
	URL, Text string
	Main      bool // what most people want
	Top       bool // replaces the window, not only the frame
}

// style repeats the colors of the design system, because these pages load no files.
const style = `:root{color-scheme:light dark}*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:12vh auto 2rem;padding:0 1rem;
color:light-dark(#17202b,#e3e9f0);background:light-dark(#f4f6f8,#0e1116)}
main{background:light-dark(#fff,#161b22);border:1px solid light-dark(#d5dbe3,#2c3541);border-radius:10px;padding:1.5rem}
h1{font-size:1.3rem;margin:0 0 .5rem}p{margin:0 0 .6rem;overflow-wrap:anywhere}
.brand{display:flex;gap:.4rem;align-items:center;font-weight:700;margin-bottom:1rem;color:light-dark(#0a62bd,#6cb2ff)}
.brand svg{width:1.5rem;height:1.5rem;fill:none;stroke:currentColor;stroke-width:2;stroke-linecap:round}
nav{display:flex;gap:.5rem;flex-wrap:wrap;margin-top:1rem}
nav a{color:inherit;text-decoration:none;padding:.4rem .8rem;border:1px solid light-dark(#d5dbe3,#2c3541);border-radius:7px}
nav a.main{background:light-dark(#0a62bd,#6cb2ff);color:light-dark(#fff,#08131f);border-color:transparent;font-weight:600}
a:focus-visible{outline:2px solid light-dark(#0a62bd,#6cb2ff);outline-offset:2px}`

// Write sends the page.
func (c Card) Write(w http.ResponseWriter, status int) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	if c.Wait > 0 {
		h.Set("Refresh", strconv.Itoa(c.Wait))
	}
	w.WriteHeader(status)
	w.Write([]byte(c.html()))
}

func (c Card) html() string {
	var b strings.Builder
	b.WriteString(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">`)
	title := html.EscapeString(c.Title)
	b.WriteString(Icon + "<title>" + title + " – Cove</title>\n<style>" + style + "</style></head>\n" +
		`<body><main><div class="brand">` + Logo + "</div><h1>" + title + "</h1><p>" + html.EscapeString(c.Text) + "</p>")
	writeLinks(&b, "What next", c.Links)
	if len(c.Also) > 0 {
		b.WriteString("<p>" + html.EscapeString(c.More) + "</p>")
		writeLinks(&b, c.More, c.Also)
	}
	b.WriteString("</main></body></html>\n")
	return b.String()
}

func writeLinks(b *strings.Builder, name string, links []Link) {
	if len(links) == 0 {
		return
	}
	b.WriteString(`<nav aria-label="` + html.EscapeString(name) + `">`)
	for _, l := range links {
		b.WriteString("<a")
		if l.Main {
			b.WriteString(` class="main"`)
		}
		if l.Top {
			b.WriteString(` target="_top"`)
		}
		b.WriteString(` href="` + html.EscapeString(l.URL) + `">` + html.EscapeString(l.Text) + "</a>")
	}
	b.WriteString("</nav>")
}
