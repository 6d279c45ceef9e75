// Package content reads pages: text, HTML, Markdown, elements, links, accessibility tree, console and values of scripts.
package content

import (
	"context"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Service reads pages.
type Service struct {
	d         *driver.Driver
	runner    *proc.Runner
	lists     *driver.Memory[[]locate.Listed] // last list of elements
	snapshots *driver.Memory[[]string]        // last snapshot, by line
}

// New returns the service, which reads PDF files with programs of runner. It has no side effects.
func New(d *driver.Driver, runner *proc.Runner) *Service {
	return &Service{d, runner, driver.NewMemory[[]locate.Listed](d), driver.NewMemory[[]string](d)}
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(driver.ReadOnly(driver.Spec("browser_get_html", "GET /v1/browser/page/html", "get_html", "html",
			"Return the current HTML of the page.")), s.HTML),
		op.New(driver.ReadOnly(driver.Spec("browser_get_text", "GET /v1/browser/page/text", "get_text", "text",
			"Return the visible text of the page and its frames. The text of a PDF is returned, too.")), s.Text),
		op.New(driver.ReadOnly(driver.Spec("browser_get_markdown", "GET /v1/browser/page/markdown", "get_markdown", "markdown",
			"Return the readable content of the page as Markdown.")), s.Markdown),
		op.New(driver.ReadOnly(driver.Columns(driver.Spec("browser_get_clickable_elements", "GET /v1/browser/page/elements",
			"get_interactive_elements", "elements",
			"List the interactive elements of the page, including those in frames and shadow roots, with the index "+
				"that click and fill accept."), "index", "role", "name", "text", "selector")), s.Elements),
		op.New(driver.ReadOnly(driver.Spec("browser_read_links", "GET /v1/browser/page/links", "read_links", "links",
			"List the links of the page.")), s.Links),
		op.New(driver.ReadOnly(driver.Spec("browser_snapshot", "GET /v1/browser/page/snapshot", "snapshot", "snapshot",
			"Return the page as a compact accessibility tree. References such as @e5 can be used as selectors. "+
				"With diff, return only the changes since the last snapshot.")), s.Snapshot),
		op.New(driver.ReadOnly(driver.Spec("browser_console", "GET /v1/browser/page/console", "get_console_logs", "console",
			"Return the console of the page, oldest entry first, including uncaught exceptions and browser messages.")), s.Console),
		op.New(driver.Spec("browser_console_export", "POST /v1/browser/page/console/export", "export_console_logs",
			"console-export", "Write the console of the page to a JSON file."), s.ExportConsole),
		op.New(ownEnvelope(driver.Spec("browser_evaluate", "POST /v1/browser/page/evaluate", "evaluate", "evaluate",
			"Run JavaScript in the page and return its value. Expressions, statements and functions are supported; "+
				"promises are awaited.")), s.Evaluate),
		op.New(driver.ReadOnly(driver.Spec("browser_find_text", "POST /v1/browser/page/find_text", "find_text", "find-text",
			"Find occurrences of a text in the page, case-insensitive, with their positions.")), s.FindText),
	}
}

// ownEnvelope marks an operation whose output contains the envelope.
func ownEnvelope(s op.Spec) op.Spec { s.Style = op.Own; return s }

// HTMLIn selects the HTML to return.
type HTMLIn struct {
	Outer bool `query:"outer" doc:"Include the <html> element itself" default:"false"`
	driver.Here
}

// HTML returns the HTML of the page.
func (s *Service) HTML(ctx context.Context, in HTMLIn) (string, error) {
	var out string
	err := s.d.Visit(ctx, in.Where(), func(ctx context.Context, t *tab.Tab) error {
		script := "document.documentElement ? document.documentElement.innerHTML : ''"
		if in.Outer {
			script = "(document.doctype ? new XMLSerializer().serializeToString(document.doctype) + '\\n' : '') + " +
				"(document.documentElement ? document.documentElement.outerHTML : '')"
		}
		return locate.RetryStale(ctx, func() error { return locate.Evaluate(ctx, t, script, &out) })
	})
	return out, err
}

// Text returns the text of the page and its frames.
func (s *Service) Text(ctx context.Context, in driver.Here) (string, error) {
	var out string
	err := s.d.Visit(ctx, in.Where(), func(ctx context.Context, t *tab.Tab) error {
		text, isPDF, err := s.pdfText(ctx, t)
		if isPDF || err != nil {
			out = text
			return err
		}
		var parts []string
		err = locate.EachFrame(ctx, t, func(f *tab.Frame) error {
			var text string
			if err := locate.Run(ctx, f, &text, "visibleText"); err != nil {
				return err
			}
			if text = strings.TrimSpace(text); text != "" {
				parts = append(parts, text)
			}
			return nil
		})
		out = strings.Join(parts, "\n\n")
		return err
	})
	return out, err
}

// Markdown is a page as Markdown.
type Markdown struct {
	Markdown string `json:"markdown"`
	Content  string `json:"content" doc:"The same as markdown"`
	Title    string `json:"title"`
	URL      string `json:"url"`
}

// Markdown returns the readable content of the page.
func (s *Service) Markdown(ctx context.Context, in driver.Here) (*Markdown, error) {
	out := &Markdown{}
	err := s.d.Visit(ctx, in.Where(), func(ctx context.Context, t *tab.Tab) error {
		out.URL = t.URL()
		text, isPDF, err := s.pdfText(ctx, t)
		if isPDF || err != nil {
			out.Markdown = text
			return err
		}
		var parts []string
		err = locate.EachFrame(ctx, t, func(f *tab.Frame) error {
			var r struct{ Title, Markdown string }
			if err := locate.Run(ctx, f, &r, "toMarkdown"); err != nil {
				return err
			}
			if f == t.Main() {
				out.Title = r.Title
			}
			if r.Markdown != "" {
				parts = append(parts, r.Markdown)
			}
			return nil
		})
		out.Markdown = strings.Join(parts, "\n\n")
		return err
	})
	if err != nil {
		return nil, err
	}
	out.Content = out.Markdown
	return out, nil
}

// Link is a link of a page.
type Link struct {
	Text string `json:"text"`
	Href string `json:"href"`
}

// Links lists the links.
func (s *Service) Links(ctx context.Context, in driver.Here) ([]Link, error) {
	out := []Link{}
	err := s.d.Visit(ctx, in.Where(), func(ctx context.Context, t *tab.Tab) error {
		return locate.EachFrame(ctx, t, func(f *tab.Frame) error {
			var list []Link
			err := locate.Run(ctx, f, &list, "readLinks")
			out = append(out, list...)
			return err
		})
	})
	return out, err
}

// FindTextIn is a text to find.
type FindTextIn struct {
	Keyword string `json:"keyword" doc:"Text to find, case-insensitive"`
	driver.Where
}

// Found is one occurrence of a text.
type Found struct {
	Text     string     `json:"text"`
	Context  string     `json:"context" doc:"Surrounding text"`
	Selector string     `json:"selector" doc:"Selector of the element that contains it"`
	Box      locate.Box `json:"bounding_box" doc:"Position of that element in the viewport"`
}

// FindText finds a text.
func (s *Service) FindText(ctx context.Context, in FindTextIn) ([]Found, error) {
	out := []Found{}
	err := s.d.Visit(ctx, in.Where, func(ctx context.Context, t *tab.Tab) error {
		return locate.EachFrame(ctx, t, func(f *tab.Frame) error {
			var list []Found
			if err := locate.Run(ctx, f, &list, "findText", in.Keyword); err != nil {
				return err
			}
			if f != t.Main() {
				at, _, err := locate.OffsetOf(ctx, f, nil)
				if err != nil {
					return nil //nolint:nilerr // the frame is not shown
				}
				for i := range list {
					list[i].Box = at.Box(list[i].Box)
				}
			}
			out = append(out, list...)
			return nil
		})
	})
	return out, err
}
