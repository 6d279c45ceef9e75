package mcphub

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// ListIn is the input of List.
type ListIn struct {
	IncludeHidden bool `query:"include_hidden" default:"false" nullable:"true" doc:"Include hidden servers"`
}

// List returns the names of the servers.
func (s *Service) List(_ context.Context, in ListIn) ([]string, error) {
	s.Begin()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.Groups)
	added := map[string]Server{}
	maps.Copy(added, s.file)
	maps.Copy(added, s.added)
	for _, name := range slices.Sorted(maps.Keys(added)) {
		if v := added[name]; !v.Disabled && (!v.Hidden || in.IncludeHidden) && s.check(name, v) == nil {
			all = append(all, name)
		}
	}
	return all, nil
}

// StatusOut is the state of all added servers.
type StatusOut struct {
	Servers []Status `json:"servers"`
	Fault   string   `json:"fault,omitempty" doc:"Why servers of a file are not used"`
}

// Show returns the states of all added servers.
func (s *Service) Show(ctx context.Context, _ op.None) (StatusOut, error) {
	s.Begin()
	list := s.Hub.Status(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, servers := range []map[string]Server{s.file, s.added} {
		for name, v := range servers {
			if v.Disabled {
				list = append(list, Status{Name: name, State: "disabled", Tools: []string{}})
			}
		}
	}
	for i := range list {
		if list[i].Tools == nil {
			list[i].Tools = []string{}
		}
	}
	return StatusOut{list, s.fault}, nil
}

// AddIn is a server and its name.
type AddIn struct {
	Name string `json:"name" doc:"Name of the server: letters, digits, - and _"`
	Server
}

// Add adds a server, or replaces one.
func (s *Service) Add(_ context.Context, in AddIn) (Status, error) {
	s.Begin()
	if err := s.check(in.Name, in.Server); err != nil {
		return Status{}, err
	}
	s.mu.Lock()
	s.added[in.Name] = in.Server
	err := s.save()
	s.mu.Unlock()
	if err != nil {
		return Status{}, err
	}
	s.Hub.Unmount(in.Name)
	s.mount(in.Name, in.Server)
	return Status{Name: in.Name, State: "connecting", Tools: []string{}}, nil
}

// save stores the servers that calls added. The caller must hold mu.
func (s *Service) save() error {
	b, err := json.MarshalIndent(document{s.added}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.store()), 0o700); err != nil {
		return op.Errorf(op.Unavailable, "store list of servers: %w", err)
	}
	write := func(f *os.File) error { _, err := f.Write(b); return err }
	if err := atomicfile.Replace(s.store(), atomicfile.Options{Perm: 0o600, Sync: true}, write); err != nil {
		return op.Errorf(op.Unavailable, "store list of servers: %w", err)
	}
	return nil
}

// RemoveIn names a server.
type RemoveIn struct {
	Name string `path:"name" doc:"Name of the server"`
}

// Remove removes a server.
func (s *Service) Remove(_ context.Context, in RemoveIn) (string, error) {
	s.Begin()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.added[in.Name]; !ok {
		if _, ok := s.file[in.Name]; ok {
			return "", op.Errorf(op.Conflict, "server %q is defined in a file; remove it there", in.Name)
		}
		return "", op.Errorf(op.NotFound, "no added server %q; list servers with GET /v1/mcp/servers", in.Name)
	}
	delete(s.added, in.Name)
	if err := s.save(); err != nil {
		return "", err
	}
	s.Hub.Unmount(in.Name)
	return "Server " + in.Name + " removed", nil
}

// requireServer returns an error if a server does not exist.
func (s *Service) requireServer(name string) error {
	s.Begin()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, inFile := s.file[name]
	_, added := s.added[name]
	if name == All || slices.Contains(s.Groups, name) || inFile || added {
		return nil
	}
	return op.Errorf(op.NotFound, "no MCP server %q; list servers with GET /v1/mcp/servers", name)
}

// ToolsIn names a server.
type ToolsIn struct {
	Server string `path:"server_name" doc:"Name of the server"`
}

// ToolsOut is the list of tools of a server.
type ToolsOut struct {
	Meta       *map[string]any `json:"_meta"`
	Tools      []Tool          `json:"tools"`
	NextCursor *string         `json:"nextCursor" doc:"Always null: the list is complete"`
}

// Tools lists the tools of a server.
func (s *Service) Tools(ctx context.Context, in ToolsIn) (ToolsOut, error) {
	if err := s.requireServer(in.Server); err != nil {
		return ToolsOut{}, err
	}
	list, err := s.Hub.Tools(ctx, in.Server)
	out := ToolsOut{Tools: []Tool{}}
	for _, t := range list {
		out.Tools = append(out.Tools, Tool{t})
	}
	return out, err
}

// ExecuteIn is a call of a tool.
type ExecuteIn struct {
	Server string          `path:"server_name" doc:"Name of the server"`
	Tool   string          `path:"tool_name" doc:"Name of the tool, with or without the prefix of the server"`
	Args   json.RawMessage `json:"arguments" body:"*" nullable:"true" doc:"Arguments of the tool, as an object"`
}

// ExecuteOut is the result of a tool in the format of MCP.
type ExecuteOut struct {
	Meta       *map[string]any `json:"_meta"`
	Content    []Content       `json:"content" doc:"Content of the result: texts, images, links"`
	Structured *map[string]any `json:"structuredContent" doc:"Result as an object, if the tool has an output schema"`
	IsError    bool            `json:"isError" default:"false" doc:"Whether the tool failed"`
}

// Content is a part of a result.
type Content struct{ value any }

// MarshalJSON encodes the part in the format of MCP.
func (c Content) MarshalJSON() ([]byte, error) { return op.JSON(c.value) }

// SchemaOp describes a part.
func (Content) SchemaOp() *jsonschema.Schema {
	resource := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{
		"uri": text(), "text": text(), "blob": text(), "mimeType": orNull(text()), "_meta": orNull(&jsonschema.Schema{Type: "object"}),
	}}
	annotations := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{
		"audience": orNull(&jsonschema.Schema{Type: "array", Items: text()}), "priority": orNull(&jsonschema.Schema{Type: "number"}),
	}}
	return &jsonschema.Schema{Type: "object", Required: []string{"type"}, AdditionalProperties: &jsonschema.Schema{},
		Properties: map[string]*jsonschema.Schema{
			"type": text(), "text": text(), "data": text(), "mimeType": orNull(text()), "uri": text(), "name": text(),
			"title": orNull(text()), "description": orNull(text()),
			"size": orNull(&jsonschema.Schema{Type: "integer"}), "resource": resource, "annotations": orNull(annotations),
			"icons": icons(), "_meta": orNull(&jsonschema.Schema{Type: "object"}),
		}}
}

// Tool is a tool in the format of MCP.
type Tool struct{ value any }

// MarshalJSON encodes the tool in the format of MCP.
func (t Tool) MarshalJSON() ([]byte, error) { return op.JSON(t.value) }

// SchemaOp describes a tool.
func (Tool) SchemaOp() *jsonschema.Schema {
	free := func() *jsonschema.Schema {
		return &jsonschema.Schema{Type: "object", AdditionalProperties: &jsonschema.Schema{}}
	}
	hints := free()
	hints.Properties = map[string]*jsonschema.Schema{"title": orNull(text())}
	for _, name := range []string{"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"} {
		hints.Properties[name] = orNull(&jsonschema.Schema{Type: "boolean"})
	}
	execution := free()
	execution.Properties = map[string]*jsonschema.Schema{"taskSupport": orNull(text())}
	s := free()
	s.Description, s.Required = "Tool in the format of MCP", []string{"name", "inputSchema"}
	s.Properties = map[string]*jsonschema.Schema{
		"name": text(), "title": orNull(text()), "description": orNull(text()), "inputSchema": free(), "outputSchema": orNull(free()),
		"annotations": orNull(hints), "execution": orNull(execution), "icons": icons(), "_meta": orNull(free()),
	}
	return s
}

func text() *jsonschema.Schema { return &jsonschema.Schema{Type: "string"} }

func orNull(s *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{s, {Type: "null"}}}
}

func icons() *jsonschema.Schema {
	icon := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{"src": text(),
		"mimeType": orNull(text()), "sizes": orNull(&jsonschema.Schema{Type: "array", Items: text()})}}
	return orNull(&jsonschema.Schema{Type: "array", Items: icon})
}

// Execute calls a tool.
func (s *Service) Execute(ctx context.Context, in ExecuteIn) (ExecuteOut, error) {
	if err := s.requireServer(in.Server); err != nil {
		return ExecuteOut{}, err
	}
	result, err := s.Hub.Call(ctx, in.Server, in.Tool, in.Args)
	if err != nil {
		return ExecuteOut{}, err
	}
	b, err := op.JSON(result)
	if err != nil {
		return ExecuteOut{}, err
	}
	var parts struct {
		Meta       *map[string]any   `json:"_meta"`
		Content    []json.RawMessage `json:"content"`
		Structured *map[string]any   `json:"structuredContent"`
		IsError    bool              `json:"isError"`
	}
	if err := json.Unmarshal(b, &parts); err != nil {
		return ExecuteOut{}, err
	}
	out := ExecuteOut{Meta: parts.Meta, Content: []Content{}, Structured: parts.Structured, IsError: parts.IsError}
	for _, c := range parts.Content {
		out.Content = append(out.Content, Content{c})
	}
	return out, nil
}
