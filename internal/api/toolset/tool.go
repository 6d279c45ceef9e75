// Package toolset describes operations as tools for models: their names, descriptions, arguments
// and results.
//
// It owns the parts of tools that are independent of a protocol. A program derives a Set of tools
// from its table of operations, which package surface/mcp serves.
package toolset

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Tool is an operation as a model sees it. The zero value of every field except Op means the value
// of the operation.
type Tool struct {
	Op     op.Op
	Name   string
	Title  string
	Doc    string // when to use it, when to use another tool, and an example
	Server string // its group

	Core  bool // in the default list
	Older bool // of the older family of names, which is listed only on request
	World bool // can have effects outside the sandbox, such as a web request or a command

	Args []Arg    // arguments that differ from the operation's fields
	Only []string // the fields in the schema, by the operation's names; nil: all

	// Render returns the result as readable text: out is the output as decoded JSON, in contains
	// the fields that were sent. Without Render the result is the output as JSON, both as text
	// and structured.
	Render func(out any, in map[string]any) Result

	form *form // nil before complete
}

// form contains parts of a tool's schemas for calls, computed at the first call.
type form struct {
	names   func() names
	output  func() *jsonschema.Schema
	wrapped func() bool
}

// Arg is an argument that differs from the field that it sets.
type Arg struct {
	Field string
	Name  string // empty: that of the field
	Doc   string // empty: that of the field
	Count Count
	// Preset is the value without the argument; nil: the default of the field.
	Preset any
}

// Count is the line numbering of an argument. Tools count from 1 and include the last line. Fields
// count from 0 and exclude the last line.
type Count int

// The kinds of line numbers.
const (
	Plain Count = iota
	FirstLine
	LastLine
)

// FromOp returns an operation as a tool under its own name.
func FromOp(o op.Op) Tool { return Tool{Op: o}.complete() }

func (t Tool) complete() Tool {
	if t.Name == "" {
		t.Name = t.Op.Name
	}
	if t.Doc == "" {
		t.Doc = t.Op.Doc
	}
	if t.Title == "" {
		t.Title = titleOf(t.Name)
	}
	if t.Server == "" {
		t.Server = t.Op.Tag
	}
	t.form = &form{names: sync.OnceValue(t.listNames)}
	output := sync.OnceValues(t.describeOutput)
	t.form.output = func() *jsonschema.Schema { s, _ := output(); return s }
	t.form.wrapped = func() bool { _, wrapped := output(); return wrapped }
	return t
}

// titleOf returns a name as a title: bash_exec becomes "Bash exec".
func titleOf(name string) string {
	words := strings.ReplaceAll(name, "_", " ")
	return strings.ToUpper(words[:1]) + words[1:]
}

// ReadOnly reports whether the tool makes no changes.
func (t Tool) ReadOnly() bool { return t.Op.ReadOnly }

// Destructive reports whether the tool can destroy data. A tool that runs code of a model can.
func (t Tool) Destructive() bool { return !t.Op.ReadOnly && (t.Op.Destructive || t.World) }

// Call runs the tool. raw are its arguments as JSON.
func (t Tool) Call(ctx context.Context, raw json.RawMessage) (Result, error) {
	in, fields, err := t.bind(raw)
	if err != nil {
		return Result{}, err
	}
	out, err := t.Op.Call(ctx, in)
	if err != nil {
		return Result{}, err
	}
	return t.shape(ctx, out, fields)
}

// Set contains the tools of a program by name.
type Set struct {
	Tools  []Tool
	byName map[string]int
}

// NewSet completes the tools. It keeps the first tool of each name.
func NewSet(tools []Tool) *Set {
	s := &Set{byName: make(map[string]int, len(tools))}
	for _, t := range tools {
		t = t.complete()
		if _, taken := s.byName[t.Name]; !taken {
			s.byName[t.Name] = len(s.Tools)
			s.Tools = append(s.Tools, t)
		}
	}
	return s
}

// Get returns a tool by its name.
func (s *Set) Get(name string) (Tool, bool) {
	i, ok := s.byName[name]
	if !ok {
		return Tool{}, false
	}
	return s.Tools[i], true
}

// Input returns the schema of the arguments. It has only features that all model providers
// support: no references, no unions, and a type everywhere.
func (t Tool) Input() *jsonschema.Schema {
	s := simplify(t.Op.In().Flat())
	out := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}}
	for _, field := range s.PropertyOrder {
		if t.Only != nil && !slices.Contains(t.Only, field) {
			continue
		}
		p, name := s.Properties[field], field
		if a, ok := t.arg(field); ok {
			if a.Name != "" {
				name = a.Name
			}
			if a.Doc != "" {
				p.Description = a.Doc
			}
		}
		out.Properties[name] = p
		out.PropertyOrder = append(out.PropertyOrder, name)
		if a, _ := t.arg(field); slices.Contains(s.Required, field) && a.Preset == nil {
			out.Required = append(out.Required, name)
		}
	}
	return out
}

func (t Tool) arg(field string) (Arg, bool) {
	for _, a := range t.Args {
		if a.Field == field {
			return a, true
		}
	}
	return Arg{}, false
}

// Output returns the schema of the structured result; nil if the result is text.
func (t Tool) Output() *jsonschema.Schema { return t.form.output() }

// describeOutput returns the schema of the structured result, and whether the output is wrapped in
// one field of it, because the protocol supports only objects.
func (t Tool) describeOutput() (s *jsonschema.Schema, wrapped bool) {
	if t.Render != nil || t.Op.Binary || t.Op.Out == nil {
		return nil, false
	}
	s = t.Op.Out().Schema(nil)
	switch {
	case s.Type == "object":
		return s, false
	case s.Type == "string" || s.Type == "" && len(s.Types)+len(s.AnyOf)+len(s.OneOf) == 0:
		return nil, false
	}
	return &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{resultField: s},
		Required: []string{resultField}}, true
}

// resultField contains an output that is not an object.
const resultField = "result"
