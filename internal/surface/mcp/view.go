package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// allServers is a server that has the tools of all others.
const allServers = "all"

// ToolsOf returns the tools of a server, as the protocol describes them. A server whose
// tools cannot be listed is an error that says why.
func (h *Handler) ToolsOf(ctx context.Context, server string) ([]any, error) {
	e := h.build()
	all := []any{}
	for _, t := range e.set.Tools {
		if !t.Older && (t.Server == server || server == allServers) {
			all = append(all, describe(t))
		}
	}
	h.awaitMounts(ctx)
	h.mu.Lock()
	mounts := make(map[string]*mount, len(h.mounts))
	for name, m := range h.mounts {
		if name == server || server == allServers {
			mounts[name] = m
		}
	}
	h.mu.Unlock()
	for _, m := range mounts {
		m.mu.Lock()
		state, why := m.state, m.why
		for name, t := range m.tools {
			offered := *t
			offered.Name = name
			all = append(all, &offered)
		}
		m.mu.Unlock()
		if state == "failed" && server == m.Name && len(all) == 0 {
			return nil, op.Errorf(op.Unavailable, "the MCP server %q does not work: %s", server, why)
		}
	}
	slices.SortFunc(all, func(a, b any) int { return strings.Compare(a.(*mcp.Tool).Name, b.(*mcp.Tool).Name) })
	return all, nil
}

// CallOf calls a tool of a server, named with or without the server's name. The result
// is one of the protocol, as a client of it would get.
func (h *Handler) CallOf(ctx context.Context, server, name string, args json.RawMessage) (any, error) {
	e := h.build()
	h.awaitMounts(ctx)
	for _, candidate := range []string{name, server + "_" + name} {
		if t, ok := e.set.Get(candidate); ok && (server == allServers || t.Server == server) {
			return h.callOwn(ctx, e, t, args)
		}
		owner := e.mountOf(candidate)
		if owner == "" || server != allServers && owner != server {
			continue
		}
		h.mu.Lock()
		m := h.mounts[owner]
		h.mu.Unlock()
		if m != nil {
			return m.callPlain(ctx, candidate, args)
		}
	}
	return nil, op.Errorf(op.NotFound, "server %q has no tool %q; GET /v1/mcp/%s/tools lists them%s", server, name, server, e.suggest(name))
}

func (h *Handler) callOwn(ctx context.Context, e *engine, t toolset.Tool, args json.RawMessage) (any, error) {
	call := *op.CallOf(ctx)
	call.Via, call.Owned, call.Message, call.Hint = "mcp", true, "", ""
	result, err := h.Call(op.WithCall(ctx, &call), t, args)
	if err != nil {
		return h.renderError(e, t.Op, &call, err), nil
	}
	return toResult(result), nil
}

// callPlain calls a tool for a caller who speaks no MCP: what the server asks in turn is
// refused.
func (m *mount) callPlain(ctx context.Context, offered string, args json.RawMessage) (any, error) {
	m.mu.Lock()
	t := m.tools[offered]
	m.mu.Unlock()
	if t == nil {
		return nil, op.Errorf(op.NotFound, "server %q has no tool %q", m.Name, offered)
	}
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage(`{}`)
	}
	result, err := forward(m, ctx, nil, false, nil, func(ctx context.Context, l *link, meta mcp.Meta) (*mcp.CallToolResult, error) {
		return l.conn.CallTool(ctx, &mcp.CallToolParams{Meta: meta, Name: t.Name, Arguments: args})
	})
	if refused, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return failure(refused.Message, nil), nil
	}
	if err != nil {
		return nil, err
	}
	if result.NeedsInput() {
		return failure(fmt.Sprintf("the tool %q needs answers of a person; call it with an MCP client", offered), nil), nil
	}
	return m.h.bound(ctx, offered, result), nil
}
