package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
)

// allServers is the name of a server that has the tools of all servers.
const allServers = "all"

// Mount adds another server, whose tools, prompts and resources are offered too. It replaces
// one of the same name. The server is connected in the background, but not before the
// handler is used.
func (h *Handler) Mount(s upstream.Server) { h.upstreams.Mount(s) }

// Unmount removes a server and ends its process.
func (h *Handler) Unmount(name string) { h.upstreams.Unmount(name) }

// Mounted returns the states of the other servers, sorted by name. It connects them if
// necessary, and waits for that for a bounded time.
func (h *Handler) Mounted(ctx context.Context) []upstream.Status {
	h.build()
	return h.upstreams.Status(ctx)
}

// reserves reports whether a name belongs to a feature of the program itself. Resources and
// templates are those that its own readers accept. Its prompts, the skills, change; getPrompt and
// listPrompts prefer them.
func (h *Handler) reserves(kind upstream.Kind, name string) bool {
	switch kind {
	case upstream.Tool:
		_, own := h.build().set.Get(name)
		return own
	case upstream.Resource, upstream.Template:
		return h.ownsResource(name)
	default:
		return false
	}
}

// wrapForwarded adds to a tool of another server what handle adds to the program's own.
func (h *Handler) wrapForwarded(next mcp.ToolHandler) mcp.ToolHandler {
	return func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		ctx, cancel := withOwner(ctx)
		defer cancel()
		ctx, call := receiveCall(ctx, r.Extra)
		result, err := next(ctx, r)
		if e, ok := op.AsError(err); ok {
			return h.renderError(h.build(), op.Op{Spec: op.Spec{Name: r.Params.Name}}, call, e), nil
		}
		return result, err
	}
}

// ToolsOf returns the tools of a server, as the protocol describes them. It returns an error
// if they cannot be listed.
func (h *Handler) ToolsOf(ctx context.Context, server string) ([]any, error) {
	e := h.build()
	all := []any{}
	for _, t := range e.set.Tools {
		if !t.Older && (t.Server == server || server == allServers) {
			all = append(all, describe(t))
		}
	}
	h.upstreams.Await(ctx)
	other := server
	if server == allServers {
		other = ""
	}
	forwarded, err := h.upstreams.Tools(other)
	if err != nil && len(all) == 0 {
		return nil, err
	}
	for _, t := range forwarded {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b any) int { return strings.Compare(a.(*mcp.Tool).Name, b.(*mcp.Tool).Name) })
	return all, nil
}

// hasGroup reports whether a server is a group of the program's own tools.
func (e *engine) hasGroup(server string) bool {
	return slices.ContainsFunc(e.set.Tools, func(t toolset.Tool) bool { return t.Server == server })
}

// CallOf calls a tool of a server, named with or without the server's name. Older names belong to
// all groups, because clients know them from different ones. The result is that of the protocol.
func (h *Handler) CallOf(ctx context.Context, server, name string, args json.RawMessage) (any, error) {
	e := h.build()
	h.upstreams.Await(ctx)
	for _, candidate := range []string{name, server + "_" + name} {
		if t, ok := e.set.Get(candidate); ok && (server == allServers || t.Server == server || t.Older && e.hasGroup(server)) {
			return h.callOwn(ctx, e, t, args)
		}
		if owner := h.upstreams.Owner(candidate); owner != "" && (server == allServers || owner == server) {
			return h.upstreams.Call(ctx, candidate, args)
		}
	}
	return nil, op.Errorf(op.NotFound, "server %q has no tool %q; GET /v1/mcp/%s/tools lists its tools%s",
		server, name, server, e.suggest(name))
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
