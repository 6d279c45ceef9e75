package rest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Docs returns the operations that document all others: the OpenAPI document, a page to browse
// and try operations, and a text for agents.
func Docs(title, version string, table func() *op.Table, dialect Dialect, pages fs.FS) []op.Op {
	openapi := func(_ context.Context, _ op.None) (*op.Blob, error) {
		b, err := op.JSON(OpenAPI(title, version, table(), dialect))
		if err != nil {
			return nil, err
		}
		return bytesBlob("application/json", b), nil
	}
	text := func(ctx context.Context, _ op.None) (*op.Blob, error) {
		return bytesBlob("text/markdown; charset=utf-8", []byte(LLMs(title, op.CallOf(ctx).URL("http", "", ""), table(), dialect))), nil
	}
	return append([]op.Op{
		op.New(op.Spec{Name: "docs_openapi", Access: op.AccessRead, Content: op.ContentAPI,
			Route: "GET /v1/openapi.json", Also: []string{"GET /openapi.json"}, Tag: "docs",
			Doc: "Return the OpenAPI 3.1 document of this server.", Produces: "application/json", NoTool: true, ReadOnly: true}, openapi),
		op.New(op.Spec{Name: "docs_llms", Access: op.AccessRead, Content: op.ContentPage, Route: "GET /llms.txt",
			Tag: "docs", Doc: "Return a guide to this server for agents, in Markdown.", Produces: "text/markdown",
			NoTool: true, ReadOnly: true}, text),
	}, Page("docs", "/v1/docs", "The API documentation, with a form to try each operation.", pages)...)
}

func bytesBlob(media string, b []byte) *op.Blob {
	return &op.Blob{Type: media, Size: int64(len(b)), Body: buffered{bytes.NewReader(b), b}}
}

// buffered is a body in memory, which can be compressed.
type buffered struct {
	io.Reader
	bytes []byte
}

func (buffered) Close() error { return nil }

// LLMs returns a guide to the operations of the table for agents, in Markdown.
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
