package app

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/mcphub"
	"github.com/cove-sandbox/cove/internal/guest/toolcatalog"
	"github.com/cove-sandbox/cove/internal/surface/mcp"
	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// newTools returns the server of the sandbox's tools, and the list of additional servers.
func (a *Aio) newTools(runner *proc.Runner) (*mcp.Handler, *mcphub.Service) {
	c, table := a.cfg, func() *op.Table { return a.Table }
	album := toolcatalog.NewAlbum(filepath.Join(c.State, "screenshots"))
	handler := mcp.New(mcp.Config{
		Name: "Sandbox MCP Tools", Version: a.version, Instructions: toolcatalog.Instructions, Log: a.log,
		MaxBody: int64(c.BodyLimit), MaxSessions: c.MCPSessions, MaxOwnSessions: c.MCPSessions,
		Tools: func() []toolset.Tool { return a.offered(toolcatalog.Tools(a.Table.All(), album)) },
		Fixed: func(*op.Call) string { return c.MCPTools }, FixedBy: "AIO_MCP_TOOLS",
		Store: toolcatalog.NewShelf(filepath.Join(c.State, "results")).Put,
		Files: toolcatalog.Files{Table: table, Workspace: c.Workspace}, Skills: toolcatalog.Skills{Table: table}, Guide: toolcatalog.Guide(table),
		Resources: toolcatalog.Pages{Table: table, Album: album, Active: a.browsing},
	})
	file := c.MCPServers
	if file == "" {
		file = filepath.Join(c.Home, ".config", "aio", "mcp.json")
	}
	servers := mcphub.New(mcphub.Config{
		Runner: runner, Workspace: c.Workspace, File: file, Extra: c.MCPExtra, State: c.State,
		Groups: a.offeredServers(toolcatalog.Servers()), Log: a.log,
		Hub: mcpHub{handler, c},
	})
	return handler, servers
}

// serveTools serves MCP, including the added servers.
func serveTools(h *mcp.Handler, servers *mcphub.Service) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		servers.Begin()
		h.ServeHTTP(w, r)
	})
}

// mcpHub connects the list of servers to the MCP handler.
type mcpHub struct {
	*mcp.Handler
	cfg config.Aio
}

func (h mcpHub) Mount(name string, s mcphub.Server, start mcphub.Starter) {
	u := upstream.Server{Name: name, Bare: s.NoPrefix, URL: s.URL, SSE: s.Type == "sse", Idle: h.cfg.MCPIdle}
	if start != nil {
		u.Start = start
	} else {
		u.Client = &http.Client{Transport: withHeaders{&http.Transport{Proxy: selectProxy(h.cfg)}, s.Headers}}
	}
	h.Handler.Mount(u)
}

func (h mcpHub) Status(ctx context.Context) []mcphub.Status {
	all := []mcphub.Status{}
	for _, s := range h.Mounted(ctx) {
		all = append(all, mcphub.Status(s))
	}
	return all
}

func (h mcpHub) Tools(ctx context.Context, server string) ([]any, error) {
	return h.ToolsOf(ctx, server)
}

func (h mcpHub) Call(ctx context.Context, server, tool string, args json.RawMessage) (any, error) {
	return h.CallOf(ctx, server, tool, args)
}

// withHeaders adds headers to every request.
type withHeaders struct {
	http.RoundTripper
	headers map[string]string
}

func (t withHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	if len(t.headers) > 0 {
		r = r.Clone(r.Context())
		for k, v := range t.headers {
			r.Header.Set(k, v)
		}
	}
	return t.RoundTripper.RoundTrip(r)
}
