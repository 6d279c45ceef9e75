package page

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

func (s *Service) readingOps() []op.Op {
	return []op.Op{
		op.New(reading(withBlob(spec("browser_page_screenshot", "GET /v1/browser/page/screenshot", "page_screenshot",
			"screenshot", "Take a picture of the page: what is in view, the whole page, or one element. Elements "+
				"can be numbered or masked."))), s.Screenshot),
		op.New(spec("browser_page_record", "POST /v1/browser/page/record", "page_record", "record",
			"Record the page as a video (MP4, or WebM by the file name): once for a duration, or started and stopped."), s.Record),
		op.New(reading(spec("browser_get_html", "GET /v1/browser/page/html", "get_html", "html",
			"Return the HTML of the page as it is now.")), s.HTML),
		op.New(reading(spec("browser_get_text", "GET /v1/browser/page/text", "get_text", "text",
			"Return the text of the page as a person sees it, with its frames. A PDF is returned as text, too.")), s.Text),
		op.New(reading(spec("browser_get_markdown", "GET /v1/browser/page/markdown", "get_markdown", "markdown",
			"Return the readable content of the page as Markdown.")), s.Markdown),
		op.New(reading(columns(spec("browser_get_clickable_elements", "GET /v1/browser/page/elements",
			"get_interactive_elements", "elements",
			"List the interactive elements of the page, also in frames and shadow roots, with the index that click "+
				"and fill accept."), "index", "role", "name", "text", "selector")), s.Elements),
		op.New(reading(spec("browser_read_links", "GET /v1/browser/page/links", "read_links", "links", "List the links of the page.")), s.Links),
		op.New(reading(spec("browser_snapshot", "GET /v1/browser/page/snapshot", "snapshot", "snapshot",
			"Return the page as a compact accessibility tree. References such as @e5 can be used as selectors. "+
				"With diff, only what has changed since the last snapshot.")), s.Snapshot),
		op.New(reading(spec("browser_console", "GET /v1/browser/page/console", "get_console_logs", "console",
			"Return the console of the page, oldest entry first, with uncaught exceptions and messages of the browser.")), s.Console),
		op.New(spec("browser_console_export", "POST /v1/browser/page/console/export", "export_console_logs",
			"console-export", "Write the console of the page to a JSON file."), s.ExportConsole),
		op.New(evaluated(spec("browser_evaluate", "POST /v1/browser/page/evaluate", "evaluate", "evaluate",
			"Run JavaScript in the page and return its value: an expression, statements, a function (which is "+
				"called), or a promise (which is awaited).")), s.Evaluate),
		op.New(reading(spec("browser_find_text", "POST /v1/browser/page/find_text", "find_text", "find-text",
			"Find a text in the page, in any case, and where it is.")), s.FindText),
	}
}

func withBlob(s op.Spec) op.Spec {
	s.Produces, s.Content = "image/png", op.ContentAPI
	return s
}

func columns(s op.Spec, names ...string) op.Spec { s.Columns = names; return s }
func evaluated(s op.Spec) op.Spec                { s.Style = op.Own; return s }

// HTMLIn says which HTML to return.
type HTMLIn struct {
	Outer bool `query:"outer" doc:"Include the <html> element itself" default:"false"`
	Here
}

// HTML returns the HTML of the page.
func (s *Service) HTML(ctx context.Context, in HTMLIn) (string, error) {
	var out string
	err := s.visit(ctx, in.where(), func(ctx context.Context, t *tab.Tab) error {
		script := "document.documentElement ? document.documentElement.innerHTML : ''"
		if in.Outer {
			script = "(document.doctype ? new XMLSerializer().serializeToString(document.doctype) + '\\n' : '') + " +
				"(document.documentElement ? document.documentElement.outerHTML : '')"
		}
		return retryGone(ctx, func() error { return locate.Evaluate(ctx, t, script, &out) })
	})
	return out, err
}

// retryGone repeats a query whose document was replaced meanwhile: it has no effects.
func retryGone(ctx context.Context, query func() error) error {
	for {
		err := query()
		if err == nil || ctx.Err() != nil || !tab.Gone(err) {
			return err
		}
	}
}

// Text returns the text of the page and its frames.
func (s *Service) Text(ctx context.Context, in Here) (string, error) {
	var out string
	err := s.visit(ctx, in.where(), func(ctx context.Context, t *tab.Tab) error {
		text, isPDF, err := s.pdfText(ctx, t)
		if isPDF || err != nil {
			out = text
			return err
		}
		var parts []string
		err = inFrames(ctx, t, func(f *tab.Frame) error {
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

// inFrames runs a query in the main frame, whose failure counts, and in all others, which may be gone or hang.
func inFrames(ctx context.Context, t *tab.Tab, query func(f *tab.Frame) error) error {
	main := t.Main()
	if err := retryGone(ctx, func() error { main = t.Main(); return query(main) }); err != nil {
		return err
	}
	for _, f := range t.Frames() {
		if f != main && f.Document() != "" {
			if err := query(f); err != nil && ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

// Markdown is a page as Markdown.
type Markdown struct {
	Markdown string `json:"markdown"`
	Content  string `json:"content" doc:"The same as markdown"`
	Title    string `json:"title"`
	URL      string `json:"url"`
}

// Markdown returns the readable content of the page.
func (s *Service) Markdown(ctx context.Context, in Here) (*Markdown, error) {
	out := &Markdown{}
	err := s.visit(ctx, in.where(), func(ctx context.Context, t *tab.Tab) error {
		out.URL = t.URL()
		text, isPDF, err := s.pdfText(ctx, t)
		if isPDF || err != nil {
			out.Markdown = text
			return err
		}
		var parts []string
		err = inFrames(ctx, t, func(f *tab.Frame) error {
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

// element is an interactive element.
type element struct {
	Index       int        `json:"index"`
	ID          int        `json:"id,omitempty"`
	Tag         string     `json:"tag"`
	Text        string     `json:"text"`
	Role        string     `json:"role"`
	Name        string     `json:"name"`
	Href        *string    `json:"href"`
	Placeholder *string    `json:"placeholder"`
	Type        *string    `json:"type"`
	Value       *string    `json:"value"`
	Checked     *bool      `json:"checked"`
	Box         locate.Box `json:"bounding_box"`
	Visible     bool       `json:"is_visible"`
	Enabled     bool       `json:"is_enabled"`
	Selector    string     `json:"selector"`
	Frame       string     `json:"frame,omitempty" doc:"Address of the frame, unless it is the main one"`
}

// listing is what was listed of a tab.
type listing []locate.Listed

// Elements lists interactive elements.
func (s *Service) Elements(ctx context.Context, in Here) ([]element, error) {
	out := []element{}
	err := s.visit(ctx, in.where(), func(ctx context.Context, t *tab.Tab) (err error) {
		out, err = s.list(ctx, t)
		return err
	})
	return out, err
}

// list lists the elements of a tab and remembers them.
func (s *Service) list(ctx context.Context, t *tab.Tab) ([]element, error) {
	out, known := []element{}, listing{}
	err := inFrames(ctx, t, func(f *tab.Frame) error {
		document := f.Document()
		var list []element
		if err := locate.Run(ctx, f, &list, "listElements"); err != nil {
			return err
		}
		var at locate.Offset
		if f != t.Main() {
			var err error
			if at, _, err = locate.OffsetOf(ctx, f, nil); err != nil {
				return nil //nolint:nilerr // the frame is not shown
			}
		}
		for _, e := range list {
			known = append(known, locate.Listed{Index: len(out), Frame: f, Document: document, ID: e.ID})
			e.Index, e.ID = len(out), 0
			if f != t.Main() {
				e.Frame = f.URL()
				e.Box = locate.Box{X: at.X + e.Box.X*at.SX, Y: at.Y + e.Box.Y*at.SY, Width: e.Box.Width * at.SX, Height: e.Box.Height * at.SY}
			}
			out = append(out, e)
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed[t.ID] = known
	return out, err
}

// lookUp finds an element of the last list.
func (s *Service) lookUp(t *tab.Tab, index int) (*locate.Listed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, ok := s.listed[t.ID]
	if !ok {
		return nil, op.Errorf(op.NotFound, "the elements of this tab have not been listed; list them first")
	}
	if index < 0 || index >= len(list) {
		return nil, op.Errorf(op.NotFound, "no element %d in the last list, which has %d; list the elements again", index, len(list))
	}
	return &list[index], nil
}

// Link is a link of a page.
type Link struct {
	Text string `json:"text"`
	Href string `json:"href"`
}

// Links lists the links.
func (s *Service) Links(ctx context.Context, in Here) ([]Link, error) {
	out := []Link{}
	err := s.visit(ctx, in.where(), func(ctx context.Context, t *tab.Tab) error {
		return inFrames(ctx, t, func(f *tab.Frame) error {
			var list []Link
			err := locate.Run(ctx, f, &list, "readLinks")
			out = append(out, list...)
			return err
		})
	})
	return out, err
}

// ConsoleIn says whether to clear the console.
type ConsoleIn struct {
	Clear bool `query:"clear" doc:"Clear the console afterwards" default:"false"`
	Here
}

// Console returns the console.
func (s *Service) Console(ctx context.Context, in ConsoleIn) ([]tab.Entry, error) {
	out := []tab.Entry{}
	err := s.visitFor(ctx, in.where(), actionTime, true, func(_ context.Context, t *tab.Tab) error {
		out = t.Console(in.Clear)
		return nil
	})
	return out, err
}

// ExportIn names a file.
type ExportIn struct {
	SavePath string `json:"save_path" doc:"Path of the file"`
	Clear    bool   `json:"clear" doc:"Clear the console afterwards" default:"false"`
	Where
}

// Exported describes a file of entries.
type Exported struct {
	Path  string `json:"path"`
	Count int    `json:"count"`
}

// ExportConsole writes the console to a file.
func (s *Service) ExportConsole(ctx context.Context, in ExportIn) (*Exported, error) {
	path, err := s.outputPath(in.SavePath)
	if err != nil {
		return nil, err
	}
	out := &Exported{Path: path}
	err = s.visitFor(ctx, in.Where, actionTime, true, func(_ context.Context, t *tab.Tab) error {
		list := t.Console(false)
		if list == nil {
			list = []tab.Entry{}
		}
		out.Count = len(list)
		if err := writeJSON(path, 0o644, list); err != nil {
			return err
		}
		if in.Clear {
			t.Console(true)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// outputPath resolves the path of a file to write and creates its folder.
func (s *Service) outputPath(given string) (string, error) {
	path, err := s.base.Resolve(given)
	if err != nil {
		return "", op.Errorf(op.Invalid, "invalid path: %w", err)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return "", op.Errorf(op.Invalid, "%q is not a regular file; name a file to write", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", op.Errorf(op.Denied, "cannot create the folder of %q: %w", path, err)
	}
	return path, nil
}

func writeJSON(path string, perm os.FileMode, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return writeFile(path, perm, b)
}

func writeFile(path string, perm os.FileMode, b []byte) error {
	err := atomicfile.Replace(path, atomicfile.Options{Perm: perm}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return op.Errorf(op.Denied, "cannot write %q: %w", path, err)
	}
	return nil
}

// FindTextIn is a text to find.
type FindTextIn struct {
	Keyword string `json:"keyword" doc:"Text to find, in any case"`
	Where
}

// Found is one occurrence of a text.
type Found struct {
	Text     string     `json:"text"`
	Context  string     `json:"context" doc:"The text around it"`
	Selector string     `json:"selector" doc:"Selector of the element that contains it"`
	Box      locate.Box `json:"bounding_box" doc:"Place of that element in the viewport"`
}

// FindText finds a text.
func (s *Service) FindText(ctx context.Context, in FindTextIn) ([]Found, error) {
	out := []Found{}
	err := s.visit(ctx, in.Where, func(ctx context.Context, t *tab.Tab) error {
		return inFrames(ctx, t, func(f *tab.Frame) error {
			var list []Found
			if err := locate.Run(ctx, f, &list, "findText", in.Keyword); err != nil {
				return err
			}
			if f != t.Main() {
				at, _, err := locate.OffsetOf(ctx, f, nil)
				if err != nil {
					return nil //nolint:nilerr // the frame is not shown
				}
				for i, b := range list {
					list[i].Box = locate.Box{X: at.X + b.Box.X*at.SX, Y: at.Y + b.Box.Y*at.SY, Width: b.Box.Width * at.SX, Height: b.Box.Height * at.SY}
				}
			}
			out = append(out, list...)
			return nil
		})
	})
	return out, err
}

// pdfText returns the text of a page that is a PDF.
func (s *Service) pdfText(ctx context.Context, t *tab.Tab) (text string, isPDF bool, err error) {
	var kind string
	if locate.Evaluate(ctx, t, "document.contentType", &kind) != nil || kind != "application/pdf" {
		return "", false, nil //nolint:nilerr // a page that cannot be asked is no PDF
	}
	text, err = s.readPDF(ctx, t)
	if err != nil {
		return "", true, op.Errorf(op.Unavailable, "cannot read the PDF at %q: %w", t.URL(), err)
	}
	return text, true, nil
}
