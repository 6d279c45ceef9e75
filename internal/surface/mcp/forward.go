package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// maxForwarded is how many bytes the result of another server's tool may have.
const maxForwarded = 768 << 10

func isModern(version string) bool { return version >= stateless }

// callTool forwards calls of a tool. The answer is passed on as it is, apart from what
// is too large for clients.
func (m *mount) callTool(name string) mcp.ToolHandler {
	return func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		ctx, cancel := withOwner(ctx)
		defer cancel()
		ctx, call := receiveCall(ctx, r.Extra)
		result, err := forward(m, ctx, r.Session, isModern(r.ProtocolVersion()), r.Params.Meta,
			func(ctx context.Context, l *link, meta mcp.Meta) (*mcp.CallToolResult, error) {
				return l.conn.CallTool(ctx, &mcp.CallToolParams{Meta: meta, Name: name, Arguments: r.Params.Arguments,
					InputResponses: r.Params.InputResponses, RequestState: r.Params.RequestState})
			})
		if e, ok := op.AsError(err); ok {
			return m.h.renderError(m.e, op.Op{Spec: op.Spec{Name: name}}, call, e), nil
		}
		if err != nil {
			return nil, err
		}
		return m.h.bound(ctx, name, result), nil
	}
}

// bound keeps the result of another server's tool below the size at which clients fail:
// large parts are stored, and the result tells where.
func (h *Handler) bound(ctx context.Context, name string, r *mcp.CallToolResult) *mcp.CallToolResult {
	b, err := json.Marshal(r)
	if err != nil || len(b) <= maxForwarded {
		return r
	}
	out := *r
	out.Content = slices.Clone(r.Content)
	note := func(kind string, data []byte) mcp.Content {
		text := fmt.Sprintf("[%s of %d bytes was omitted]", kind, len(data))
		if h.Store != nil {
			if path, _, err := h.Store(name, bytes.NewReader(data)); err == nil {
				text = fmt.Sprintf("[%s of %d bytes is in %s]", kind, len(data), path)
			}
		}
		return &mcp.TextContent{Text: text}
	}
	for i, c := range out.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			if len(c.Text) > toolset.Limit {
				head := strings.ToValidUTF8(c.Text[:toolset.Limit/2], "")
				out.Content[i] = &mcp.TextContent{Text: head + "\n" + note("a text", []byte(c.Text)).(*mcp.TextContent).Text}
			}
		case *mcp.ImageContent:
			if len(c.Data) > toolset.Limit {
				out.Content[i] = note("an image", c.Data)
			}
		case *mcp.AudioContent:
			if len(c.Data) > toolset.Limit {
				out.Content[i] = note("a sound", c.Data)
			}
		case *mcp.EmbeddedResource:
			if c.Resource != nil && len(c.Resource.Blob)+len(c.Resource.Text) > toolset.Limit {
				out.Content[i] = note("a resource", append(c.Resource.Blob, c.Resource.Text...))
			}
		}
	}
	if b, err := json.Marshal(out.StructuredContent); err == nil && len(b) > maxForwarded/2 {
		out.Content = append(out.Content, note("structured content", b))
		out.StructuredContent = nil
	}
	return &out
}

func (m *mount) getPrompt(name string) mcp.PromptHandler {
	return func(ctx context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return forward(m, ctx, r.Session, isModern(r.ProtocolVersion()), r.Params.Meta,
			func(ctx context.Context, l *link, meta mcp.Meta) (*mcp.GetPromptResult, error) {
				p := *r.Params
				p.Meta, p.Name = meta, name
				return l.conn.GetPrompt(ctx, &p)
			})
	}
}

func (m *mount) readResource(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	return forward(m, ctx, r.Session, isModern(r.ProtocolVersion()), r.Params.Meta,
		func(ctx context.Context, l *link, meta mcp.Meta) (*mcp.ReadResourceResult, error) {
			p := *r.Params
			p.Meta = meta
			return l.conn.ReadResource(ctx, &p)
		})
}

// forwardSubscribe subscribes to a resource of another server, or unsubscribes. It is
// false if the resource is of none.
func (e *engine) forwardSubscribe(ctx context.Context, uri string, on bool) bool {
	m := e.resourceOwner(uri)
	if m == nil {
		return false
	}
	m.mu.Lock()
	l := m.control
	m.mu.Unlock()
	if l != nil && on {
		_ = l.conn.Subscribe(ctx, &mcp.SubscribeParams{URI: uri})
	}
	return true // another client may still want it: what nobody wants is dropped here
}

func (e *engine) resourceOwner(uri string) *mount {
	e.h.mu.Lock()
	all := slices.Collect(maps.Values(e.h.mounts))
	e.h.mu.Unlock()
	for _, m := range all {
		m.mu.Lock()
		owns := slices.Contains(m.resources, uri) || slices.ContainsFunc(m.templates, func(t string) bool {
			prefix, _, _ := strings.Cut(t, "{")
			return prefix != "" && strings.HasPrefix(uri, prefix)
		})
		m.mu.Unlock()
		if owns {
			return m
		}
	}
	return nil
}

// complete forwards the completion of an argument to the server that it belongs to.
func (h *Handler) complete(ctx context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	none := &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}
	if r.Params.Ref == nil {
		return none, nil
	}
	e := h.build()
	owner, ref := e.resourceOwner(r.Params.Ref.URI), *r.Params.Ref
	if r.Params.Ref.Type == "ref/prompt" {
		owner = e.promptOwner(ref.Name)
		if owner != nil && !owner.Bare {
			ref.Name = strings.TrimPrefix(ref.Name, owner.Name+"_")
		}
	}
	if owner == nil {
		return none, nil
	}
	return forward(owner, ctx, r.Session, isModern(r.ProtocolVersion()), r.Params.Meta,
		func(ctx context.Context, l *link, meta mcp.Meta) (*mcp.CompleteResult, error) {
			p := *r.Params
			p.Meta, p.Ref = meta, &ref
			return l.conn.Complete(ctx, &p)
		})
}

func (e *engine) promptOwner(name string) *mount {
	e.h.mu.Lock()
	defer e.h.mu.Unlock()
	for _, m := range e.h.mounts {
		m.mu.Lock()
		owns := slices.Contains(m.prompts, name)
		m.mu.Unlock()
		if owns {
			return m
		}
	}
	return nil
}
