package mcp

import (
	"path"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// toResult returns a result of the protocol: first the text, then images and links to files.
func toResult(r toolset.Result) *mcp.CallToolResult {
	if raw, ok := r.Raw.(*mcp.CallToolResult); ok {
		return raw
	}
	out := &mcp.CallToolResult{IsError: r.Failed, Content: []mcp.Content{}}
	if r.Text != "" || len(r.Images)+len(r.Files) == 0 {
		out.Content = append(out.Content, &mcp.TextContent{Text: r.Text})
	}
	for _, i := range r.Images {
		out.Content = append(out.Content, &mcp.ImageContent{Data: i.Data, MIMEType: i.Type})
	}
	for _, f := range r.Files {
		out.Content = append(out.Content, &mcp.ResourceLink{URI: f.URI(), Name: path.Base(f.Path), MIMEType: f.Type, Size: &f.Size})
	}
	if r.Structured != nil {
		out.StructuredContent = r.Structured
	}
	return out
}

// routeNames replaces routes in a text with names of tools, because agents do not know routes.
func routeNames(set *toolset.Set) *strings.Replacer {
	var pairs []string
	for _, t := range set.Tools {
		if !t.Older {
			pairs = append(pairs, t.Op.Route, t.Name)
		}
	}
	return strings.NewReplacer(pairs...)
}
