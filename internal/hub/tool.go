package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/span"
)

// executor is the tool that calls those of a sandbox.
const executor = "sandboxExecutor"

// maxToolBody bounds a call of a tool, and its result.
const maxToolBody = 64 << 20

// tools serves the hub to agents. It keeps no sessions of its own: any request
// may go to any hub, also one that was started anew.
type tools struct {
	hub    *Hub
	build  func() (stream, single http.Handler)
	guests guests
}

func newTools(h *Hub) *tools {
	t := &tools{hub: h, guests: guests{hub: h, byID: map[string]*guest{}}}
	t.build = sync.OnceValues(t.handlers)
	return t
}

// tool is one of the hub's. Its operation is in no table: it only says what the
// arguments are and decodes them.
type tool struct {
	op.Op
	run func(ctx context.Context, in any) (*mcp.CallToolResult, error)
}

func newTool[In any](name, doc string, readOnly, destructive bool, run func(context.Context, In) (*mcp.CallToolResult, error)) tool {
	o := op.New(op.Spec{Name: name, Route: "POST /mcp", Tag: "mcp", Doc: doc, ReadOnly: readOnly, Destructive: destructive},
		func(context.Context, In) (None, error) { return None{}, nil })
	return tool{o, func(ctx context.Context, in any) (*mcp.CallToolResult, error) { return run(ctx, *in.(*In)) }}
}

// opTool offers an operation of the table to agents as well.
func opTool(name string, o op.Op) tool {
	call := o.Call
	o.Name = name
	return tool{o, func(ctx context.Context, in any) (*mcp.CallToolResult, error) {
		out, err := call(ctx, in)
		if err != nil {
			return nil, err
		}
		if said, ok := out.(string); ok {
			return text(said), nil
		}
		return structured(out)
	}}
}

// fromTable are the operations that agents get under these names.
var fromTable = []struct{ tool, op string }{
	{"forkSandbox", "sandbox_fork"}, {"snapshotSandbox", "snapshot_create"}, {"rollbackSandbox", "sandbox_rollback"}, {"diffSandbox", "sandbox_diff"},
	{"listSnapshots", "snapshot_list"}, {"deleteSnapshot", "snapshot_delete"},
	{"shareSandbox", "share_create"}, {"listShares", "share_list"}, {"revokeShare", "share_revoke"},
	{"createVolume", "volume_create"}, {"listVolumes", "volume_list"}, {"deleteVolume", "volume_delete"},
	{"listImages", "image_list"}, {"deleteImage", "image_delete"},
	{"setSecret", "secret_set"}, {"listSecrets", "secret_list"}, {"deleteSecret", "secret_delete"},
	{"addKey", "key_add"}, {"listKeys", "key_list"}, {"revokeKey", "key_revoke"}, {"verifyAudit", "audit_verify"},
}

// toolCreateIn is a sandbox to be.
type toolCreateIn struct {
	Name        string   `json:"name" default:"" nullable:"true" doc:"Name of the sandbox: lower-case letters, digits and -; made up and told when missing"`
	Environment string   `json:"environment" alias:"template" default:"" nullable:"true" doc:"Environment to make it from; the default when missing"`
	Snapshot    string   `json:"from_snapshot" default:"" nullable:"true" doc:"Snapshot that its disk starts from"`
	Secrets     []string `json:"secrets" nullable:"true" maxItems:"256" doc:"Names of secrets that it gets"`
}

type toolNameIn struct {
	Name string `json:"name" doc:"Name of the sandbox"`
}

type toolListIn struct {
	Status string `json:"status" default:"" nullable:"true" enum:",creating,running,paused,stopped,failed,deleting" doc:"Only those in this state"`
}

// toolExecIn is a call into a sandbox.
type toolExecIn struct {
	Sandbox   string          `json:"sandbox_name" doc:"Name of the sandbox"`
	Tool      string          `json:"tool_name" minLength:"1" doc:"Tool of the sandbox, from the list that createSandbox and getSandbox end with"`
	Arguments json.RawMessage `json:"arguments,omitempty" nullable:"true" doc:"Arguments of that tool, as an object"`
}

// list is all of the hub's tools.
func (t *tools) list() []tool {
	all := t.first()
	table := op.NewTable(t.hub.plainOps())
	for _, x := range fromTable {
		if o, ok := table.Get(x.op); ok {
			all = append(all, opTool(x.tool, o))
		}
	}
	return all
}

// first are those that have a form of their own.
func (t *tools) first() []tool {
	return []tool{
		newTool(createTool, "Create a sandbox: a computer of your own with terminal, files, browser and code. "+
			"The answer tells its name and ends with the list of its tools, as JSON; call them with sandboxExecutor.", false, false, t.create),
		newTool("getSandbox", "Show a sandbox and, at the end, the list of its tools, as JSON. A sleeping sandbox is woken.", true, false, t.get),
		newTool("listSandboxes", "List your sandboxes.", true, false, t.show),
		newTool(executor, "Call a tool of a sandbox, such as running a command or reading a file, and get its result. A sleeping sandbox is woken.", false, false, t.exec),
		newTool("pauseSandbox", "Pause a sandbox: it stays in memory and uses no processor. The next call resumes it.", false, false,
			func(ctx context.Context, in toolNameIn) (*mcp.CallToolResult, error) {
				return t.turned(t.hub.Pause(ctx, NameIn(in)))
			}),
		newTool("resumeSandbox", "Resume a paused sandbox where it was.", false, false,
			func(ctx context.Context, in toolNameIn) (*mcp.CallToolResult, error) {
				return t.turned(t.hub.Resume(ctx, NameIn(in)))
			}),
		newTool("deleteSandbox", "Delete a sandbox with everything in it.", false, true,
			func(ctx context.Context, in toolNameIn) (*mcp.CallToolResult, error) {
				said, err := t.hub.Delete(ctx, NameIn(in))
				return text(said), err
			}),
	}
}

// described is the tool as agents see it.
func (t tool) described() *mcp.Tool {
	return &mcp.Tool{
		Name: t.Name, Description: t.Doc, InputSchema: t.In().Flat(),
		Annotations: &mcp.ToolAnnotations{Title: t.Summary(), ReadOnlyHint: t.ReadOnly, DestructiveHint: new(t.Destructive)},
	}
}

// Tools describes what is offered to agents at /mcp.
func (h *Hub) Tools() []*mcp.Tool {
	var all []*mcp.Tool
	for _, t := range h.tools.list() {
		all = append(all, t.described())
	}
	return all
}

func (t *tools) handlers() (stream, single http.Handler) {
	server := mcp.NewServer(&mcp.Implementation{Name: "cove", Version: t.hub.cfg.Version}, &mcp.ServerOptions{
		Instructions: "Create a sandbox with createSandbox, use its tools with sandboxExecutor, delete it with deleteSandbox when you are done.",
	})
	for _, o := range t.list() {
		server.AddTool(o.described(), t.handler(o))
	}
	get := func(*http.Request) *mcp.Server { return server }
	// The sign-in in front checks hosts and origins for every door alike.
	options := mcp.StreamableHTTPOptions{Stateless: true, DisableLocalhostProtection: true, MaxRequestBodyBytes: maxToolBody, PropagateRequestCancellation: true}
	stream = mcp.NewStreamableHTTPHandler(get, &options)
	json := options
	json.JSONResponse = true
	return stream, mcp.NewStreamableHTTPHandler(get, &json)
}

// Headers by which a call's circumstances reach the tool: the protocol's library
// hands over the request's headers, not its context.
const headerCall = "X-Cove-Internal-Call"

// carried is what that header says of a call.
type carried struct {
	ID, Subject, Role, KeyID, Base string
	Share                          *op.Share `json:",omitempty"`
}

func pack(call *op.Call) string {
	c := carried{ID: call.ID, Subject: call.Subject, Role: call.Role, KeyID: call.KeyID, Share: call.Share}
	if call.Base != nil {
		c.Base = call.Base.String()
	}
	b, err := json.Marshal(c)
	if err != nil {
		return "" // nobody, who may do nothing
	}
	return string(b)
}

func unpack(text string) *op.Call {
	var c carried
	call := &op.Call{Via: "mcp"}
	if json.Unmarshal([]byte(text), &c) != nil {
		return call
	}
	call.ID, call.Subject, call.Role, call.KeyID, call.Share = c.ID, c.Subject, c.Role, c.KeyID, c.Share
	if base, err := url.Parse(c.Base); err == nil && base.Host != "" {
		call.Base = base
	}
	return call
}

// ServeHTTP answers clients of the protocol, and bare requests of small scripts,
// which say neither what they accept nor which version of JSON-RPC they speak.
func (t *tools) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	stream, single := t.build()
	r.Header.Set(headerCall, pack(op.CallOf(r.Context())))
	if r.Method != http.MethodPost || strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		stream.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxToolBody))
	if err != nil {
		http.Error(w, "the request body is too large or broken", http.StatusRequestEntityTooLarge)
		return
	}
	body = completed(body)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	single.ServeHTTP(w, r)
}

// completed adds what a bare {"method", "params"} lacks.
func completed(body []byte) []byte {
	var m map[string]json.RawMessage
	if json.Unmarshal(body, &m) != nil || m["method"] == nil || m["jsonrpc"] != nil {
		return body
	}
	m["jsonrpc"] = json.RawMessage(`"2.0"`)
	if m["id"] == nil {
		m["id"] = json.RawMessage(`1`)
	}
	if fixed, err := json.Marshal(m); err == nil {
		return fixed
	}
	return body
}

// handler runs a tool. A call ends with the hub, whatever the protocol's library
// thinks of it.
func (t *tools) handler(o tool) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (result *mcp.CallToolResult, _ error) {
		call := &op.Call{Via: "mcp"}
		if req.Extra != nil {
			call = unpack(req.Extra.Header.Get(headerCall))
			ctx = span.Extract(ctx, req.Extra.Header)
		}
		ctx, cancel := context.WithCancel(op.WithCall(ctx, call))
		defer cancel()
		defer context.AfterFunc(t.hub.life, cancel)()
		defer func() {
			if p := recover(); p != nil {
				t.hub.cfg.Log.Error("tool panicked", "id", call.ID, "tool", o.Name, "panic", p)
				result = failure("Something went wrong on our side; the log has the details under id " + call.ID)
			}
		}()
		result, err := t.serve(ctx, o, call, req.Params.Arguments)
		if err != nil {
			return t.failed(o, call, err), nil
		}
		return result, nil
	}
}

// serve runs a tool if the caller may use it, and writes down that it did.
func (t *tools) serve(ctx context.Context, o tool, call *op.Call, args json.RawMessage) (result *mcp.CallToolResult, err error) {
	began := time.Now()
	ctx, trace := t.hub.cfg.Tracer.Start(ctx, o.Name)
	defer func() { t.hub.ended(ctx, trace, err) }()
	// A tool has no name that could be taken for an operation's.
	err = allow(call, "", o.Needs(nil))
	var in any
	if err == nil {
		in, err = o.Bind(op.Input{Flat: true, JSON: args})
	}
	if err == nil {
		result, err = o.run(ctx, in)
	}
	return result, t.hub.toolDone(o.Op, call, int64(len(args)), began, err)
}

func (t *tools) failed(o tool, call *op.Call, err error) *mcp.CallToolResult {
	if faults, ok := errors.AsType[op.Faults](err); ok {
		return failure("The arguments do not fit: " + faults.Error())
	}
	if e, ok := op.AsError(err); ok && e.Code != op.Internal {
		if e.Hint != "" {
			return failure(e.Msg + "\n" + e.Hint)
		}
		return failure(e.Msg)
	}
	t.hub.cfg.Log.Error("tool failed", "id", call.ID, "tool", o.Name, "error", err)
	return failure("Something went wrong on our side; the log has the details under id " + call.ID)
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func failure(s string) *mcp.CallToolResult {
	r := text(s)
	r.IsError = true
	return r
}

func (t *tools) create(ctx context.Context, in toolCreateIn) (*mcp.CallToolResult, error) {
	sb, err := t.hub.create(ctx, CreateIn{Name: in.Name, Environment: in.Environment, Snapshot: in.Snapshot, Secrets: in.Secrets})
	if err != nil {
		return nil, err
	}
	return t.describe(ctx, sb, fmt.Sprintf("Sandbox %s created successfully.", sb.Spec.Name)), nil
}

func (t *tools) get(ctx context.Context, in toolNameIn) (*mcp.CallToolResult, error) {
	sb, err := t.hub.find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return t.describe(ctx, sb, fmt.Sprintf("Sandbox %s is %s.", sb.Spec.Name, sb.State)), nil
}

func (t *tools) show(ctx context.Context, in toolListIn) (*mcp.CallToolResult, error) {
	var f ListIn
	if in.Status != "" {
		f.Status = []string{in.Status}
	}
	out, err := t.hub.List(ctx, f)
	if err != nil {
		return nil, err
	}
	return structured(map[string]any{"sandboxes": out.items})
}

func (t *tools) turned(o Object, err error) (*mcp.CallToolResult, error) {
	if err != nil {
		return nil, err
	}
	return text(fmt.Sprintf("Sandbox %s is %s.", o.Name, o.Status)), nil
}

// structured is a result that both people and programs can read.
func structured(v any) (*mcp.CallToolResult, error) {
	b, err := op.JSON(v)
	if err != nil {
		return nil, err
	}
	r := text(string(b))
	if len(b) == 0 || b[0] != '{' {
		b = []byte(`{"result":` + string(b) + `}`)
	}
	r.StructuredContent = json.RawMessage(b)
	return r, nil
}

// toolInfo is a tool as agents read about it.
type toolInfo struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	InputSchema any    `json:"inputSchema,omitempty"`
}

// describe tells about a sandbox and ends with its tools. A sandbox whose server
// has none is none the worse for it.
func (t *tools) describe(ctx context.Context, sb sandbox.Sandbox, first string) *mcp.CallToolResult {
	found, err := t.guests.list(ctx, sb)
	if now, gone := t.hub.cfg.Provider.Get(ctx, sb.ID); gone == nil {
		sb = now
	}
	o := t.hub.object(ctx, sb)
	infos, names := []toolInfo{}, []string{}
	for _, x := range found {
		infos = append(infos, toolInfo{x.Name, x.Description, x.InputSchema})
		names = append(names, x.Name)
	}
	list, jsonErr := op.JSON(infos)
	if jsonErr != nil {
		list = []byte("[]")
	}
	about := fmt.Sprintf("%s\nName: %s\nURL: %s\n", first, o.Name, o.URL)
	if err != nil {
		t.hub.cfg.Log.Warn("sandbox offers no tools", "sandbox", sb.ID, "error", err)
		about += "Its tools cannot be listed: " + plain(err) + "\n"
	}
	r := text(about + "Tools of this sandbox, to be called with sandboxExecutor:\n" + string(list))
	r.StructuredContent = map[string]any{"sandbox": o, "tools": names}
	return r
}

// plain is the text of an error for an agent.
func plain(err error) string {
	if e, ok := op.AsError(err); ok {
		return e.Msg
	}
	return err.Error()
}

// exec calls a tool of a sandbox and passes its result on as it is.
func (t *tools) exec(ctx context.Context, in toolExecIn) (*mcp.CallToolResult, error) {
	args := in.Arguments
	if s := bytes.TrimSpace(args); len(s) == 0 || string(s) == "null" {
		args = json.RawMessage(`{}`)
	} else if s[0] == '"' {
		// Some agents send the object as a text.
		var inner string
		if json.Unmarshal(s, &inner) == nil && json.Valid([]byte(inner)) {
			args = json.RawMessage(inner)
		}
	}
	if s := bytes.TrimSpace(args); len(s) == 0 || s[0] != '{' {
		return nil, op.Errorf(op.Invalid, "arguments must be an object with the arguments of tool %q", in.Tool)
	}
	sb, err := t.hub.find(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	op.CallOf(ctx).Detail = in.Tool
	return t.guests.call(ctx, sb, in.Tool, args)
}

func (t *tools) forget(id string) { t.guests.forget(id) }
func (t *tools) sweep()           { t.guests.sweep() }
func (t *tools) close()           { t.guests.close() }
