package rest

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
)

type object = map[string]any

// OpenAPI returns the OpenAPI 3.1 document of the table, with named components.
func OpenAPI(title, version string, table *op.Table, dialect Dialect) any {
	defs := &op.Defs{Prefix: "#/components/schemas/", Named: map[string]*jsonschema.Schema{}}
	doc := document{defs, dialect}
	paths := object{}
	for _, o := range table.All() {
		if o.NoDoc {
			continue
		}
		method, path := o.MethodPath()
		path = strings.NewReplacer("...}", "}", "{$}", "").Replace(path)
		if paths[path] == nil {
			paths[path] = object{}
		}
		paths[path].(object)[strings.ToLower(method)] = doc.operation(o)
	}
	defs.Named["ValidationError"] = validationError()
	defs.Named["HTTPValidationError"] = &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{
		"detail": {Type: "array", Items: &jsonschema.Schema{Ref: defs.Prefix + "ValidationError"}},
	}}
	return object{
		"openapi": "3.1.0",
		"info":    object{"title": title, "version": version},
		"paths":   paths,
		"components": object{
			"schemas": defs.Named,
			"securitySchemes": object{
				"bearer": object{"type": "http", "scheme": "bearer"},
				"apiKey": object{"type": "apiKey", "in": "header", "name": "X-API-Key"},
			},
		},
		"security": []any{object{}, object{"bearer": []any{}}, object{"apiKey": []any{}}},
	}
}

func validationError() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", Required: []string{"loc", "msg", "type"}, Properties: map[string]*jsonschema.Schema{
		"loc":  {Type: "array", Items: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "integer"}}}},
		"msg":  {Type: "string"},
		"type": {Type: "string"},
	}}
}

type document struct {
	defs    *op.Defs
	dialect Dialect
}

func (d document) operation(o op.Op) object {
	out := object{
		"operationId": o.Name,
		"tags":        []string{o.Tag},
		"summary":     o.Summary(),
		"description": o.Doc,
		"responses":   d.responses(o),
	}
	if group, method, ok := cutLast(o.SDK, "."); ok {
		out["x-fern-sdk-group-name"] = group
		out["x-fern-sdk-method-name"] = method
	}
	if params := d.parameters(o); len(params) > 0 {
		out["parameters"] = params
	}
	if body := d.body(o); body != nil {
		out["requestBody"] = body
	}
	if o.Public {
		out["security"] = []any{}
	}
	return out
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+len(sep):], true
}

func (d document) parameters(o op.Op) []any {
	var out []any
	for _, f := range o.In().Fields {
		if f.Source != op.Path && f.Source != op.Query {
			continue
		}
		out = append(out, object{
			"name": f.Name, "in": string(f.Source), "required": f.Required,
			"description": f.Doc, "schema": d.plain(f),
		})
	}
	if o.Stream != nil && o.Call != nil {
		out = append(out, object{
			"name": "stream", "in": "query", "required": false,
			"description": "Stream the output as server-sent events",
			"schema":      object{"type": "boolean", "default": false},
		})
	}
	return out
}

// plain returns the schema of a parameter without a description, which belongs to the parameter.
func (d document) plain(f *op.Field) *jsonschema.Schema {
	s := f.Schema(d.defs)
	s.Description = ""
	return s
}

func (d document) body(o op.Op) object {
	source, media := op.Body, "application/json"
	if o.In().Has(op.Form) {
		source, media = op.Form, "multipart/form-data"
	} else if !o.In().Has(op.Body) && !o.In().Has(op.Whole) {
		return nil
	}
	needed := o.In().Kind == op.Union
	for _, f := range o.In().Fields {
		needed = needed || f.Required && f.Source == source
	}
	return object{"required": needed, "content": object{media: object{"schema": o.In().Part(source, d.defs)}}}
}

func (d document) responses(o op.Op) object {
	content := object{}
	switch {
	case o.Duplex != nil:
		return object{"101": object{"description": "Switches to WebSocket"}}
	case o.Call == nil:
	case o.Binary:
		for media := range strings.SplitSeq(o.Media(), ",") {
			content[strings.TrimSpace(media)] = object{"schema": o.Out().Schema(nil)}
		}
	case o.Style == op.Enveloped:
		content["application/json"] = object{"schema": d.envelope(o)}
	default:
		content["application/json"] = object{"schema": o.Out().Schema(d.defs)}
	}
	if o.Stream != nil {
		content["text/event-stream"] = object{"schema": o.Event().Schema(d.defs)}
	}
	if o.Style == op.Coded {
		return codedResponses(o, content)
	}
	ok := object{"description": "Successful response", "content": content}
	if len(o.Headers) > 0 {
		headers := object{}
		for _, name := range o.Headers {
			headers[name] = object{"schema": object{"type": "string"}}
		}
		ok["headers"] = headers
	}
	out := object{
		"200": ok,
		"422": object{"description": "Validation error", "content": object{
			"application/json": object{"schema": object{"$ref": d.defs.Prefix + "HTTPValidationError"}},
		}},
	}
	statuses := o.Statuses
	if o.Missing404 {
		statuses = append(statuses, http.StatusNotFound)
	}
	for _, status := range statuses {
		out[strconv.Itoa(status)] = object{"description": http.StatusText(status)}
	}
	return out
}

// codedResponses describes the responses of style Coded.
func codedResponses(o op.Op, content object) object {
	success := object{"description": "Successful response"}
	if o.Status != http.StatusNoContent {
		success["content"] = content
	}
	return object{
		strconv.Itoa(cmp.Or(o.Status, http.StatusOK)): success,
		"default": object{"description": "Failure", "content": object{"application/json": object{"schema": object{
			"type": "object", "required": []string{"code", "message"},
			"properties": object{"code": object{"type": "integer"}, "message": object{"type": "string"}},
		}}}},
	}
}

// envelope returns a reference to the schema of the enveloped output.
func (d document) envelope(o op.Op) *jsonschema.Schema {
	data := o.Out().Schema(d.defs)
	members := []*jsonschema.Schema{data}
	name := "Response_" + strings.TrimPrefix(data.Ref, d.defs.Prefix) + "_"
	if data.Ref == "" {
		name = "Response_" + o.Name + "_"
	}
	if o.FailureData != nil {
		bad := o.FailureData().Schema(d.defs)
		members = append(members, bad)
		name += strings.TrimPrefix(bad.Ref, d.defs.Prefix) + "_"
	}
	if d.defs.Named[name] == nil {
		d.defs.Named[name] = d.dialect.envelope(members)
	}
	return &jsonschema.Schema{Ref: d.defs.Prefix + name}
}
