// Package mcp serves the table of operations as MCP tools over streamable HTTP.
// It owns the protocol's sessions and how an output becomes a tool's content. It
// knows operations, never a service.
package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/op"
)

// Config of the tools' server.
type Config struct {
	Name    string
	Version string
	Table   func() *op.Table // asked at the first request: the table holds this handler too
	Log     *slog.Logger
	Idle    time.Duration // a session without requests ends after this; default 30 minutes
	MaxBody int64         // default 64 MiB
}

// Handler serves tools. The protocol's machinery is built at the first request,
// since a server that nobody asks for tools should not pay for it.
type Handler struct {
	Config
	build func() (session, single http.Handler)
}

// New returns the handler; it starts nothing.
func New(c Config) *Handler {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Idle == 0 {
		c.Idle = 30 * time.Minute
	}
	if c.MaxBody == 0 {
		c.MaxBody = 64 << 20
	}
	h := &Handler{Config: c}
	h.build = sync.OnceValues(h.handlers)
	return h
}

func (h *Handler) handlers() (session, single http.Handler) {
	server := mcp.NewServer(&mcp.Implementation{Name: h.Name, Version: h.Version}, nil)
	for _, o := range h.Table().All() {
		if o.Call != nil && !o.NoTool {
			server.AddTool(Tool(o), h.tool(o))
		}
	}
	get := func(*http.Request) *mcp.Server { return server }
	// The sign-in in front checks hosts and origins for every door alike.
	session = mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		SessionTimeout: h.Idle, DisableLocalhostProtection: true, MaxRequestBodyBytes: h.MaxBody,
	})
	single = mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, DisableLocalhostProtection: true, MaxRequestBodyBytes: h.MaxBody,
	})
	return session, single
}

// Headers by which a call's circumstances reach the tool: the protocol's library
// hands over the request's headers, not its context.
const (
	headerBase    = "X-Aio-Internal-Base"
	headerCall    = "X-Aio-Internal-Id"
	headerSubject = "X-Aio-Internal-Subject"
)

// ServeHTTP serves full sessions, and answers a request without any handshake,
// which is how many small scripts call a tool.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session, single := h.build()
	call := op.CallOf(r.Context())
	r.Header.Set(headerCall, call.ID)
	r.Header.Set(headerSubject, call.Subject)
	r.Header.Del(headerBase)
	if call.Base != nil {
		r.Header.Set(headerBase, call.Base.String())
	}
	if r.Method != http.MethodPost || r.Header.Get("Mcp-Session-Id") != "" {
		session.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.MaxBody))
	if err != nil {
		http.Error(w, "the request body is too large or broken", http.StatusRequestEntityTooLarge)
		return
	}
	body, first := repair(body)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if first {
		session.ServeHTTP(w, r)
		return
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	single.ServeHTTP(w, r)
}

// repair completes a bare {"method", "params"} and tells whether the message
// opens a session.
func repair(body []byte) (fixed []byte, first bool) {
	var m map[string]json.RawMessage
	if json.Unmarshal(body, &m) != nil || m["method"] == nil {
		return body, false
	}
	first = string(bytes.TrimSpace(m["method"])) == `"initialize"`
	if m["jsonrpc"] != nil {
		return body, first
	}
	m["jsonrpc"] = json.RawMessage(`"2.0"`)
	if m["id"] == nil {
		m["id"] = json.RawMessage(`1`)
	}
	fixed, err := json.Marshal(m)
	if err != nil {
		return body, first
	}
	return fixed, first
}

// Tool describes an operation to an agent.
func Tool(o op.Op) *mcp.Tool {
	return &mcp.Tool{
		Name:        o.Name,
		Description: o.Doc,
		InputSchema: o.In().Flat(),
		Annotations: &mcp.ToolAnnotations{
			Title: o.Summary(), ReadOnlyHint: o.ReadOnly, DestructiveHint: new(o.Destructive), OpenWorldHint: new(false),
		},
	}
}

func (h *Handler) tool(o op.Op) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		call := callOf(req)
		ctx = op.WithCall(ctx, call)
		in, err := o.Bind(op.Input{Flat: true, JSON: req.Params.Arguments})
		if err != nil {
			return h.failed(o, call, err), nil
		}
		out, err := h.invoke(ctx, o, in)
		if err != nil {
			return h.failed(o, call, err), nil
		}
		result, err := content(out)
		if err != nil {
			return h.failed(o, call, err), nil
		}
		if call.Hint != "" {
			result.Content = append(result.Content, &mcp.TextContent{Text: call.Hint})
		}
		return result, nil
	}
}

// invoke keeps a panic of an operation from ending the server.
func (h *Handler) invoke(ctx context.Context, o op.Op, in any) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			h.Log.Error("tool panicked", "op", o.Name, "panic", p)
			err = errors.New("panic")
		}
	}()
	return o.Call(ctx, in)
}

func callOf(req *mcp.CallToolRequest) *op.Call {
	call := &op.Call{Via: "mcp"}
	if req.Extra == nil {
		return call
	}
	call.ID = req.Extra.Header.Get(headerCall)
	call.Subject = req.Extra.Header.Get(headerSubject)
	if base, err := url.Parse(req.Extra.Header.Get(headerBase)); err == nil && base.Host != "" {
		call.Base = base
	}
	return call
}

func (h *Handler) failed(o op.Op, call *op.Call, err error) *mcp.CallToolResult {
	if faults, ok := errors.AsType[op.Faults](err); ok {
		return failure("The arguments do not fit: "+faults.Error(), nil)
	}
	if e, ok := op.AsError(err); ok && e.Code != op.Internal {
		text := e.Msg
		if e.Hint != "" {
			text += "\n" + e.Hint
		}
		return failure(text, e.Data)
	}
	h.Log.Error("tool failed", "id", call.ID, "op", o.Name, "error", err)
	return failure("Something went wrong on our side; the log has the details under id "+call.ID, nil)
}

func failure(text string, data any) *mcp.CallToolResult {
	r := &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}
	if data != nil {
		if b, err := op.JSON(data); err == nil && len(b) > 0 && b[0] == '{' {
			r.StructuredContent = json.RawMessage(b)
		}
	}
	return r
}

// maxInline is how many raw bytes a tool's result may carry.
const maxInline = 32 << 20

// content turns an output into a tool's result: text as it is, an image as an
// image, everything else as JSON, both readable and structured.
func content(out any) (*mcp.CallToolResult, error) {
	switch v := out.(type) {
	case *op.Blob:
		return blob(v)
	case string:
		return &mcp.CallToolResult{
			Content:           []mcp.Content{&mcp.TextContent{Text: v}},
			StructuredContent: map[string]any{"result": v},
		}, nil
	}
	b, err := op.JSON(out)
	if err != nil {
		return nil, err
	}
	structured := json.RawMessage(b)
	if len(b) == 0 || b[0] != '{' {
		structured = json.RawMessage(`{"result":` + string(b) + `}`)
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(b)}}, StructuredContent: structured}, nil
}

func blob(b *op.Blob) (*mcp.CallToolResult, error) {
	if b.Body == nil {
		return &mcp.CallToolResult{Content: []mcp.Content{}}, nil
	}
	defer b.Body.Close()
	data, err := io.ReadAll(io.LimitReader(b.Body, maxInline+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxInline {
		return nil, op.Errorf(op.TooLarge, "the result is larger than %d bytes; download it over HTTP instead", maxInline)
	}
	var c mcp.Content
	switch media, _, _ := strings.Cut(b.Type, ";"); {
	case strings.HasPrefix(media, "image/"):
		c = &mcp.ImageContent{Data: data, MIMEType: media}
	case strings.HasPrefix(media, "text/"):
		c = &mcp.TextContent{Text: string(data)}
	default:
		c = &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "blob:" + url.PathEscape(b.Name), MIMEType: media, Blob: data}}
	}
	return &mcp.CallToolResult{Content: []mcp.Content{c}}, nil
}
