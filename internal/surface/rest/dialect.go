package rest

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/op"
)

// Dialect is how a program's replies look on the wire.
type Dialect interface {
	// success wraps the output of an enveloped operation.
	success(ctx context.Context, out any) any
	// failed is the status and body of a failure.
	failed(o op.Op, e *op.Error) (int, any)
	// invalid is the status and body for input that does not fit.
	invalid(f op.Faults) (int, any)
	// plain is the body of an answer that no operation gave: 404, 405, 500.
	plain(status int, message, id string) any
	// envelope describes success around the members that data may be.
	envelope(data []*jsonschema.Schema) *jsonschema.Schema
	// intro tells an agent what is at the address and how it answers.
	intro(base string) string
}

// Guest speaks as the AIO sandbox does, Hub as Agent-Sandbox does.
var (
	Guest Dialect = guest{}
	Hub   Dialect = hub{}
)

// status is the one place where an error's code becomes an HTTP status.
func status(code op.Code) int {
	switch code {
	case op.Invalid:
		return http.StatusUnprocessableEntity
	case op.Unauthenticated:
		return http.StatusUnauthorized
	case op.Denied:
		return http.StatusForbidden
	case op.NotFound:
		return http.StatusNotFound
	case op.Conflict:
		return http.StatusConflict
	case op.Exhausted:
		return http.StatusTooManyRequests
	case op.TooLarge:
		return http.StatusRequestEntityTooLarge
	case op.Unavailable:
		return http.StatusServiceUnavailable
	case op.Canceled:
		return 499
	}
	return http.StatusInternalServerError
}

type guest struct{}

// enveloped is the reply of most operations; its fields stand in the order in
// which the reference sends them.
type enveloped struct {
	Success bool    `json:"success"`
	Message *string `json:"message"`
	Data    any     `json:"data"`
	Hint    *string `json:"hint"`
}

func (guest) success(ctx context.Context, out any) any {
	e := op.Sealed(ctx)
	return enveloped{e.Success, e.Message, out, e.Hint}
}

// failed answers enveloped operations with status 200, since the public SDKs
// repeat a request after 408, 429 and 5xx, and a command would run twice.
func (guest) failed(o op.Op, e *op.Error) (int, any) {
	reply := failure(e)
	if e.Code != op.TooLarge && e.Code != op.Canceled && o.Style != op.Resource && !o.Binary && o.Talk == nil {
		return http.StatusOK, reply
	}
	return status(e.Code), struct {
		Detail string `json:"detail"`
		enveloped
	}{e.Msg, reply}
}

func failure(e *op.Error) enveloped {
	reply := enveloped{Message: &e.Msg, Data: e.Data}
	if e.Hint != "" {
		reply.Hint = &e.Hint
	}
	return reply
}

func (guest) invalid(f op.Faults) (int, any) {
	return http.StatusUnprocessableEntity, map[string]any{"detail": f}
}

func (guest) plain(_ int, message, id string) any {
	return map[string]any{"success": false, "message": message, "detail": message, "data": nil, "request_id": id}
}

func (guest) envelope(data []*jsonschema.Schema) *jsonschema.Schema {
	text := func() *jsonschema.Schema {
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "null"}}}
	}
	return &jsonschema.Schema{
		Type:          "object",
		PropertyOrder: []string{"success", "message", "data", "hint"},
		Properties: map[string]*jsonschema.Schema{
			"success": {Type: "boolean"}, "message": text(), "data": {AnyOf: append(data, &jsonschema.Schema{Type: "null"})}, "hint": text(),
		},
		Required: []string{"success", "message", "data"},
	}
}

// hub replies {"code":"0","data":…} or {"code":"<status>","error":"…"}; the
// status says the same as the code.
type hub struct{}

func (hub) success(_ context.Context, out any) any {
	return struct {
		Code string `json:"code"`
		Data any    `json:"data"`
	}{"0", out}
}

func (h hub) failed(_ op.Op, e *op.Error) (int, any) {
	code := status(e.Code)
	if e.Code == op.Invalid {
		code = http.StatusBadRequest
	}
	message := e.Msg
	if e.Hint != "" {
		message += "; " + e.Hint
	}
	return code, h.plain(code, message, "")
}

func (h hub) invalid(f op.Faults) (int, any) {
	code := http.StatusUnprocessableEntity
	return code, map[string]any{"code": strconv.Itoa(code), "error": f.Error(), "detail": f}
}

func (hub) plain(status int, message, _ string) any {
	return map[string]any{"code": strconv.Itoa(status), "error": strings.TrimSpace(message)}
}

func (hub) envelope(data []*jsonschema.Schema) *jsonschema.Schema {
	inner := data[0]
	if len(data) > 1 {
		inner = &jsonschema.Schema{AnyOf: data}
	}
	return &jsonschema.Schema{
		Type:          "object",
		PropertyOrder: []string{"code", "data", "error"},
		Properties:    map[string]*jsonschema.Schema{"code": {Type: "string"}, "data": inner, "error": {Type: "string"}},
		Required:      []string{"code"},
	}
}

func (guest) intro(base string) string {
	return fmt.Sprintf("A computer of your own behind one address: %s\n\n", base) +
		"Call an operation by REST (JSON in, JSON out: `{success, message, data, hint}`; when `success` is false, `message` says what to do), " +
		fmt.Sprintf("or as an MCP tool at %s/mcp (streamable HTTP), or as a command inside: `aio <noun> <verb> --help`. ", base) +
		"Input that does not fit is answered with status 422 and every fault at once. `/v1/openapi.json` has all fields.\n"
}

func (hub) intro(base string) string {
	return fmt.Sprintf("Computers for agents: create one here, use it below its own address, delete it when you are done. The hub is at %s\n\n", base) +
		fmt.Sprintf("The short way is MCP at %s/mcp (streamable HTTP): createSandbox tells the name and the tools of the new sandbox, sandboxExecutor calls them, deleteSandbox ends it. ", base) +
		fmt.Sprintf("By REST: POST /api/v1/sandbox creates, and everything that a sandbox serves is below %s/sandbox/<name>/, with a text like this one at %s/sandbox/<name>/llms.txt. ", base, base) +
		"JSON in, JSON out: `{code, data}`, or `{code, error}`, where `error` says what to do. `/v1/openapi.json` has all fields; `cove --help` is the command line.\n"
}
