package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// maxForwarded bounds the result of a tool, in bytes.
const maxForwarded = 768 << 10

// callTool forwards calls of a tool. The result is unchanged, except for parts that are too
// large for clients.
func (m *mount) callTool(name string) mcp.ToolHandler {
	return func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		in := round{"tools/call " + name, r.Params.InputResponses, r.Params.RequestState}
		result, err := forward(m, ctx, clientOf(m.s, r), in,
			func(ctx context.Context, l *link, meta mcp.Meta, in round) (*mcp.CallToolResult, error) {
				return l.conn.CallTool(ctx, &mcp.CallToolParams{Meta: meta, Name: name, Arguments: r.Params.Arguments,
					InputResponses: in.responses, RequestState: in.state})
			})
		if err != nil {
			return nil, err
		}
		return m.s.bound(name, result), nil
	}
}

// bound keeps the result of a tool below the size at which clients fail. Large parts are
// stored, and the result refers to them.
func (s *Servers) bound(name string, r *mcp.CallToolResult) *mcp.CallToolResult {
	b, err := json.Marshal(r)
	if err != nil || len(b) <= maxForwarded {
		return r
	}
	out := *r
	out.Content = slices.Clone(r.Content)
	note := func(kind string, data []byte) mcp.Content {
		text := fmt.Sprintf("[%s of %d bytes was omitted]", kind, len(data))
		if s.cfg.Store != nil {
			if path, _, err := s.cfg.Store(name, bytes.NewReader(data)); err == nil {
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
		in := round{"prompts/get " + name, r.Params.InputResponses, r.Params.RequestState}
		return forward(m, ctx, clientOf(m.s, r), in,
			func(ctx context.Context, l *link, meta mcp.Meta, in round) (*mcp.GetPromptResult, error) {
				p := *r.Params
				p.Meta, p.Name, p.InputResponses, p.RequestState = meta, name, in.responses, in.state
				return l.conn.GetPrompt(ctx, &p)
			})
	}
}

func (m *mount) readResource(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	in := round{"resources/read " + r.Params.URI, r.Params.InputResponses, r.Params.RequestState}
	return forward(m, ctx, clientOf(m.s, r), in,
		func(ctx context.Context, l *link, meta mcp.Meta, in round) (*mcp.ReadResourceResult, error) {
			p := *r.Params
			p.Meta, p.InputResponses, p.RequestState = meta, in.responses, in.state
			return l.conn.ReadResource(ctx, &p)
		})
}

// Subscribe subscribes to a resource of a server. It reports false if none of them has it.
func (s *Servers) Subscribe(ctx context.Context, uri string) bool {
	m := s.resourceOwner(uri)
	if m == nil {
		return false
	}
	m.mu.Lock()
	l := m.control
	m.mu.Unlock()
	if l != nil {
		_ = l.conn.Subscribe(ctx, &mcp.SubscribeParams{URI: uri})
	}
	return true
}

// Unsubscribe reports whether a server has the resource. The subscription there remains,
// because other clients may use it; the SDK drops notifications without subscribers.
func (s *Servers) Unsubscribe(uri string) bool { return s.resourceOwner(uri) != nil }

func (s *Servers) resourceOwner(uri string) *mount {
	if m := s.owners.of(Resource, uri); m != nil {
		return m
	}
	if m := s.owners.of(Template, uri); m != nil { // a completion names the template
		return m
	}
	for _, m := range s.all() {
		m.mu.Lock()
		templates := m.templates.byName
		m.mu.Unlock()
		for t := range templates {
			if prefix, _, _ := strings.Cut(t, "{"); prefix != "" && strings.HasPrefix(uri, prefix) {
				return m
			}
		}
	}
	return nil
}

// Complete forwards the completion of an argument to the server that it belongs to.
func (s *Servers) Complete(ctx context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	none := &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}
	if r.Params.Ref == nil {
		return none, nil
	}
	owner, ref := s.resourceOwner(r.Params.Ref.URI), *r.Params.Ref
	if r.Params.Ref.Type == "ref/prompt" {
		owner = s.owners.of(Prompt, ref.Name)
		if owner != nil && !owner.Bare {
			ref.Name = strings.TrimPrefix(ref.Name, owner.Name+"_")
		}
	}
	if owner == nil {
		return none, nil
	}
	return forward(owner, ctx, clientOf(s, r), round{},
		func(ctx context.Context, l *link, meta mcp.Meta, _ round) (*mcp.CompleteResult, error) {
			p := *r.Params
			p.Meta, p.Ref = meta, &ref
			return l.conn.Complete(ctx, &p)
		})
}
