package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/spell"
	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// The SDK passes the headers of a request to its handlers, but the context of the session.
// So the call and the query of a request are passed in headers.
const (
	headerCall  = "X-Cove-Internal-Call"
	headerQuery = "X-Cove-Internal-Query"
)

// sendCall puts the call and the query of a request into its headers. It replaces headers
// that the client sent.
func sendCall(r *http.Request) {
	c := op.CallOf(r.Context())
	b, err := json.Marshal(op.Call{ID: c.ID, Subject: c.Subject, Role: c.Role, KeyID: c.KeyID,
		Share: c.Share, Reader: c.Reader, Base: c.Base})
	if err != nil {
		b = nil // an anonymous call, which has no role
	}
	r.Header.Set(headerCall, string(b))
	r.Header.Set(headerQuery, r.URL.RawQuery)
}

// receiveCall returns a context with the call and the trace of a request.
func receiveCall(ctx context.Context, extra *mcp.RequestExtra) (context.Context, *op.Call) {
	call := &op.Call{}
	if extra != nil && extra.Header != nil {
		if err := json.Unmarshal([]byte(extra.Header.Get(headerCall)), call); err != nil {
			call = &op.Call{}
		}
		ctx = span.Extract(ctx, extra.Header)
	}
	call.Via, call.Owned = "mcp", true
	return op.WithCall(ctx, call), call
}

// filterOf returns the filter that selects the caller's tools, and whether it is fixed.
func (h *Handler) filterOf(ctx context.Context, extra *mcp.RequestExtra, call *op.Call) (f filter, fixed bool) {
	if h.Fixed != nil {
		if query := h.Fixed(call); query != "" {
			return parseFilter(query), true
		}
	}
	if extra != nil && extra.Header != nil {
		return parseFilter(extra.Header.Get(headerQuery)), false
	}
	query, _ := ctx.Value(queryKey{}).(string)
	return parseFilter(query), false
}

// middleware limits lists to what the caller selects and may see, and explains unknown tool
// names.
func (h *Handler) middleware(e *engine) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch method {
			case "tools/list", "prompts/list", "resources/list", "resources/templates/list":
				h.upstreams.Await(ctx)
			}
			switch method {
			case "tools/call":
				if p, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok {
					if err := h.checkCall(ctx, e, req.GetExtra(), p.Name); err != nil {
						return nil, err
					}
				}
			case "resources/list":
				return h.listResources(ctx, next, req)
			case "prompts/list":
				return h.listPrompts(ctx, next, req)
			case "prompts/get":
				if prompt := h.getPrompt(ctx, req); prompt != nil {
					return prompt, nil
				}
			}
			result, err := next(ctx, method, req)
			if err == nil {
				result = fillResult(result)
			}
			if list, ok := result.(*mcp.ListToolsResult); ok && err == nil {
				_, call := receiveCall(ctx, req.GetExtra())
				f, _ := h.filterOf(ctx, req.GetExtra(), call)
				list.Tools = h.visible(e, call, f, list.Tools)
			}
			return result, err
		}
	}
}

func (h *Handler) visible(e *engine, call *op.Call, f filter, all []*mcp.Tool) []*mcp.Tool {
	kept := []*mcp.Tool{}
	for _, d := range all {
		t, own := e.set.Get(d.Name)
		switch {
		case own && f.lists(t) && (h.Visible == nil || h.Visible(call, t)):
			kept = append(kept, d)
		case !own && f.listsForwarded(h.upstreams.Owner(d.Name), d.Name):
			kept = append(kept, d)
		}
	}
	return kept
}

// checkCall refuses tools that do not exist, or that the caller does not have.
func (h *Handler) checkCall(ctx context.Context, e *engine, extra *mcp.RequestExtra, name string) error {
	t, own := e.set.Get(name)
	server := h.upstreams.Owner(name)
	if !own && server == "" {
		h.upstreams.Await(ctx)
		server = h.upstreams.Owner(name)
	}
	if !own && server == "" {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown tool %q", name) + e.suggest(name)}
	}
	_, call := receiveCall(ctx, extra)
	f, fixed := h.filterOf(ctx, extra, call)
	if fixed && (own && !f.lists(t) || !own && !f.listsForwarded(server, name)) {
		message := fmt.Sprintf("your key does not have the tool %q", name)
		if h.FixedBy != "" {
			message = fmt.Sprintf("the tool %q is not available, because %s does not select it; list the tools", name, h.FixedBy)
		}
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: message}
	}
	return nil
}

// suggest names tools that a caller may have meant.
func (e *engine) suggest(name string) string {
	if near := spell.Nearest(name, e.names()); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	if similar := spell.Related(name, e.names()); len(similar) > 0 {
		return "; similar names are " + strings.Join(similar[:min(len(similar), 5)], ", ")
	}
	return ""
}

func (e *engine) names() []string {
	all := make([]string, 0, len(e.set.Tools))
	for _, t := range e.set.Tools {
		all = append(all, t.Name)
	}
	return all
}

// handle returns the SDK's handler of a tool. All failures are results, which an agent can
// read and correct. An error of the protocol would end the turn of most agents.
func (h *Handler) handle(e *engine, t toolset.Tool) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		ctx, cancel := withOwner(ctx)
		defer cancel()
		defer context.AfterFunc(h.life, cancel)()
		ctx, call := receiveCall(ctx, req.Extra)
		defer h.reportProgress(ctx, req, call)()
		result, err := h.Call(ctx, t, req.Params.Arguments)
		if err != nil {
			return h.renderError(e, t.Op, call, err), nil
		}
		return toResult(result), nil
	}
}

// Call runs a tool for the caller in the context.
func (h *Handler) Call(ctx context.Context, t toolset.Tool, args json.RawMessage) (result toolset.Result, err error) {
	ctx = toolset.WithStore(ctx, h.Store)
	err = catch(func() error {
		return h.Around(ctx, t.Op, len(args), func(ctx context.Context) error {
			// Around must see a panic as the error that it becomes.
			return catch(func() (err error) {
				result, err = t.Call(ctx, args)
				return err
			})
		})
	})
	return result, err
}

// progressPause is the interval of progress reports about a running call.
const progressPause = 2 * time.Second

// reportProgress reports the progress of a call to a client that requested it. The returned
// function ends the reports.
func (h *Handler) reportProgress(ctx context.Context, req *mcp.CallToolRequest, call *op.Call) func() {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	began := time.Now()
	send := func(done, total float64, message string) {
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: done, Total: total, Message: message,
		})
	}
	reports := make(chan func(), 16)
	call.Progress = func(done, total float64, message string) {
		select {
		case reports <- func() { send(done, total, message) }:
		default: // a slow client misses reports
		}
	}
	done := make(chan struct{})
	h.work.Go(func() {
		ticker := time.NewTicker(progressPause)
		defer ticker.Stop()
		reported := false
		for {
			select {
			case <-done:
				return
			case report := <-reports:
				reported = true
				report()
			case <-ticker.C:
				if !reported {
					seconds := time.Since(began).Seconds()
					send(seconds, 0, fmt.Sprintf("%s has been running for %.0f s", req.Params.Name, seconds))
				}
			}
		}
	})
	return func() { close(done) }
}

// panicError is a panic with its stack.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// catch returns a panic of f as an error, because it must not end the server.
func catch(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
	}()
	return f()
}

// renderError returns an error as a result. An internal error is logged, and the result refers
// to the log.
func (h *Handler) renderError(e *engine, o op.Op, call *op.Call, err error) *mcp.CallToolResult {
	if e2, ok := op.AsError(err); ok && e2.Code != op.Internal {
		text := e2.Msg
		if e2.Hint != "" {
			text += "\n" + e2.Hint
		}
		return failure(e.routes.Replace(text), e2.Data)
	}
	if errors.Is(err, context.Canceled) {
		return failure("the call was canceled", nil)
	}
	attrs := []any{"id", call.ID, "tool", o.Name, "error", err}
	if p, ok := errors.AsType[*panicError](err); ok {
		attrs = append(attrs, "stack", string(p.stack))
	}
	h.Log.Error("tool failed", attrs...)
	return failure(op.InternalMessage(call.ID), nil)
}

func failure(text string, data any) *mcp.CallToolResult {
	r := &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
	if data != nil {
		if b, err := op.JSON(data); err == nil && len(b) > 0 && b[0] == '{' && len(b) < toolset.Limit {
			r.StructuredContent = json.RawMessage(b)
		}
	}
	return r
}
