package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Dialect is the format of a program's responses.
type Dialect interface {
	// success wraps the output of an enveloped operation.
	success(ctx context.Context, out any) any
	// failed returns the status and body of a failure.
	failed(o op.Op, e *op.Error) (int, any)
	// invalid returns the status and body for invalid input.
	invalid(o op.Op, f op.Faults) (int, any)
	// plain returns the body of a response without an operation: 404, 405, 500.
	plain(status int, message, id string) any
	// envelope returns the schema of a response whose data has one of the given schemas.
	envelope(data []*jsonschema.Schema) *jsonschema.Schema
	// intro describes the server and its responses to an agent.
	intro(base string) string
}

// Guest is the dialect of the AIO sandbox, Hub that of Agent-Sandbox.
var (
	Guest Dialect = guest{}
	Hub   Dialect = hub{}
)

type guest struct{}

// enveloped is the response of most operations. Its fields are in the order of the reference
// implementation.
type enveloped struct {
	Success bool    `json:"success"`
	Message *string `json:"message"`
	Data    any     `json:"data"`
	Hint    *string `json:"hint"`
}

func (guest) success(ctx context.Context, out any) any {
	e := op.SuccessEnvelope(ctx)
	return enveloped{e.Success, e.Message, out, e.Hint}
}

// failed returns status 200 for enveloped operations. The public SDKs retry after 408, 429 and
// 5xx, which would run a command twice.
func (guest) failed(o op.Op, e *op.Error) (int, any) {
	reply := failure(e)
	if o.FailureData != nil && o.Out != nil && !o.Binary && e.Data != nil {
		reply.Data = withFieldsOf(e.Data, o.Empty())
	}
	missing := o.Missing404 && e.Code == op.NotFound
	if !missing && e.Code != op.TooLarge && e.Code != op.Canceled && o.Style != op.Resource && !o.Binary && o.Duplex == nil {
		return http.StatusOK, reply
	}
	status := e.Code.HTTPStatus()
	if e.Code == op.Invalid {
		status = http.StatusUnprocessableEntity // as FastAPI answers
	}
	return status, struct {
		Detail string `json:"detail"`
		enveloped
	}{e.Msg, reply}
}

// withFieldsOf adds the fields of an empty output to the data of a failure. The models of the
// public SDKs require them and otherwise raise a different error.
func withFieldsOf(data, empty any) any {
	var fields map[string]json.RawMessage
	var known map[string]json.RawMessage
	out, err := op.JSON(data)
	if err != nil || json.Unmarshal(out, &known) != nil || len(known) == 0 {
		return data
	}
	b, err := op.JSON(empty)
	if err != nil || json.Unmarshal(b, &fields) != nil {
		return data
	}
	out = out[:len(out)-1]
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if _, ok := known[name]; !ok && string(fields[name]) != "null" {
			out = append(append(append(out, ',', '"'), name...), '"', ':')
			out = append(out, fields[name]...)
		}
	}
	return json.RawMessage(append(out, '}'))
}

func failure(e *op.Error) enveloped {
	reply := enveloped{Message: &e.Msg, Data: e.Data}
	if e.Hint != "" {
		reply.Hint = &e.Hint
	}
	return reply
}

// invalid returns the list of faults twice: under detail as in the public schema, and under
// errors in the envelope, as in the public image.
func (guest) invalid(_ op.Op, f op.Faults) (int, any) {
	type entry struct {
		Location []any  `json:"location"`
		Message  string `json:"message"`
		Type     string `json:"type"`
	}
	errs := make([]entry, len(f))
	for i, fault := range f {
		errs[i] = entry{fault.Loc, fault.Msg, fault.Type}
	}
	return http.StatusUnprocessableEntity, struct {
		Detail op.Faults `json:"detail"`
		enveloped
		Errors []entry `json:"errors"`
	}{f, enveloped{Message: new("Request data validation failed")}, errs}
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

// hub responds with {"code":"0","data":…} or {"code":"<status>","error":"…"}. The status equals
// the code.
type hub struct{}

func (hub) success(_ context.Context, out any) any {
	return struct {
		Code string `json:"code"`
		Data any    `json:"data"`
	}{"0", out}
}

func (h hub) failed(o op.Op, e *op.Error) (int, any) {
	code := e.Code.HTTPStatus()
	message := e.Msg
	if e.Hint != "" {
		message += "; " + e.Hint
	}
	if o.Style == op.Coded {
		return code, coded{code, message}
	}
	return code, h.plain(code, message, "")
}

// coded is a failure of an operation of style Coded.
type coded struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (h hub) invalid(o op.Op, f op.Faults) (int, any) {
	if o.Style == op.Coded {
		return http.StatusBadRequest, coded{http.StatusBadRequest, f.Error()}
	}
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
	return fmt.Sprintf("A computer for an agent. Base URL: %s\n\n", base) +
		"Call operations by REST (JSON in, JSON out: `{success, message, data, hint}`; if `success` is false, `message` describes the error), " +
		fmt.Sprintf("as MCP tools at %s/mcp (streamable HTTP), or from a shell in the sandbox: `aio <noun> <verb> --help`. ", base) +
		"Invalid input gets status 422 and a list of all errors. `/v1/openapi.json` describes all fields.\n"
}

func (hub) intro(base string) string {
	return fmt.Sprintf("Computers for agents: create a sandbox here, use it at its own URL, and delete it when you "+
		"are done. Base URL: %s\n\n", base) +
		fmt.Sprintf("The quickest way is MCP at %s/mcp (streamable HTTP): createSandbox returns the name and the "+
			"tools of a new sandbox, sandboxExecutor calls them, deleteSandbox deletes the sandbox. ", base) +
		fmt.Sprintf("By REST: POST /api/v1/sandbox creates a sandbox; its API is at %s/sandbox/<name>/, "+
			"described in %s/sandbox/<name>/llms.txt. ", base, base) +
		"JSON in, JSON out: `{code, data}`, or `{code, error}`, where `error` describes the problem and the solution. `/v1/openapi.json` " +
		"describes all fields; `cove --help` describes the command line.\n"
}
