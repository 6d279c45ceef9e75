package rest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

// None is an input without fields.
type None struct{}

// Docs are the rows that describe all the others: the OpenAPI document, a page to
// read and try it, and a text for agents. The table is asked when they are read.
func Docs(title, version string, table func() *op.Table, dialect Dialect, pages fs.FS) []op.Op {
	document := func(_ context.Context, _ None) (*op.Blob, error) {
		b, err := op.JSON(OpenAPI(title, version, table(), dialect))
		if err != nil {
			return nil, err
		}
		return bytesBlob("application/json", b), nil
	}
	text := func(ctx context.Context, _ None) (*op.Blob, error) {
		return bytesBlob("text/markdown; charset=utf-8", []byte(LLMs(title, op.CallOf(ctx).URL("http", "", ""), table(), dialect))), nil
	}
	return append([]op.Op{
		op.New(op.Spec{Name: "docs_openapi", Route: "GET /v1/openapi.json", Tag: "docs", Doc: "Give the OpenAPI 3.1 document of this server.", Produces: "application/json", NoTool: true, ReadOnly: true}, document),
		op.New(op.Spec{Name: "docs_llms", Route: "GET /llms.txt", Tag: "docs", Doc: "Tell an agent in Markdown how to use this server.", Produces: "text/markdown", NoTool: true, ReadOnly: true}, text),
		op.Handle(op.Spec{Name: "home_page", Route: "GET /{$}", Tag: "pages", Doc: "Leads to the page that tells everything else."}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			// Relative, so that it leads there below any prefix.
			w.Header().Set("Location", "v1/docs")
			w.WriteHeader(http.StatusTemporaryRedirect)
		})),
	}, Page("docs", "/v1/docs", "A page to read and try every operation.", pages)...)
}

// Page is a built-in page: the folder's index.html at the route, its other files
// below it. Pages name their parts relatively, so that they work below any prefix.
func Page(folder, route, doc string, pages fs.FS) []op.Op {
	return []op.Op{
		op.Handle(op.Spec{Name: folder + "_page", Route: "GET " + route, Tag: "pages", Doc: doc}, page(pages, folder+"/index.html")),
		Assets(folder, route, pages),
	}
}

// Assets serves the files of a folder below the route.
func Assets(folder, route string, pages fs.FS) op.Op {
	return op.Handle(op.Spec{Name: folder + "_asset", Route: "GET " + route + "/{file...}", Tag: "pages", Doc: "Parts of pages."}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page(pages, path.Join(folder, path.Clean("/"+r.PathValue("file")))).ServeHTTP(w, r)
	}))
}

func bytesBlob(media string, b []byte) *op.Blob {
	return &op.Blob{Type: media, Size: int64(len(b)), Body: nopCloser{bytes.NewReader(b)}}
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

// page serves one file of the built-in pages.
func page(pages fs.FS, name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := fs.ReadFile(pages, name)
		if err != nil {
			writeJSON(w, r, http.StatusNotFound, map[string]any{"detail": "Not Found"})
			return
		}
		media := "text/html; charset=utf-8"
		switch {
		case strings.HasSuffix(name, ".js"):
			media = "text/javascript; charset=utf-8"
		case strings.HasSuffix(name, ".css"):
			media = "text/css; charset=utf-8"
		}
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'self'")
		writeBytes(w, r, http.StatusOK, media, b)
	})
}

// LLMs is the table for an agent, in Markdown.
func LLMs(title, base string, table *op.Table, dialect Dialect) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", title)
	b.WriteString(dialect.intro(base))
	tag := ""
	for _, o := range table.All() {
		if o.NoDoc {
			continue
		}
		if o.Tag != tag {
			tag = o.Tag
			fmt.Fprintf(&b, "\n## %s\n\n", tag)
		}
		fmt.Fprintf(&b, "- `%s`", o.Route)
		if !o.NoTool && o.Call != nil {
			fmt.Fprintf(&b, " (tool `%s`)", o.Name)
		}
		fmt.Fprintf(&b, ": %s%s\n", o.Doc, fieldList(o))
	}
	return b.String()
}

func fieldList(o op.Op) string {
	var names []string
	for _, f := range o.In().AllFields() {
		name := "`" + f.Name + "`"
		if f.Required {
			name += "*"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	return " Fields (* required): " + strings.Join(names, ", ") + "."
}
