// Package toolset describes operations as tools of a model: under which name a tool
// is offered, in which words, with which arguments, and how its result reads.
//
// It owns everything about tools that is independent of a protocol. A program lists
// its tools as a Set, which it derives from its table of operations; package
// surface/mcp serves the Set.
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

// Tool is an operation as a model sees it. The zero value of every field but Op means
// what the operation says.
type Tool struct {
	Op     op.Op
	Name   string
	Title  string
	Doc    string // when to use it, when another, and an example
	Server string // the group that it belongs to

	Core  bool // in the list that a client gets by default
	Older bool // of the older family of names: listed only on request
	World bool // reaches beyond the sandbox: the web, or whatever a command does

	Args []Arg    // arguments that differ from the operation's fields
	Only []string // the fields in the schema, by the operation's names; nil: all

	// Render makes the result readable: out is the output as decoded JSON, in the
	// operation's fields as they were sent. Without it the result is the output as
	// JSON, both as text and structured.
	Render func(out any, in map[string]any) Result

	form *form // nil before the tool is completed
}

// form is what calls need to know of a tool's schemas, computed at the first one.
type form struct {
	names   func() names
	output  func() *jsonschema.Schema
	wrapped func() bool
}

// Arg is an argument that differs from the field that it fills.
type Arg struct {
	Field string
	Name  string // "": the field's
	Doc   string // "": the field's
	Count Count
	// Preset is sent if the argument is not; nil: the field's default.
	Preset any
}

// Count is how an argument counts lines. Tools count from 1, and a last line is
// included; fields count from 0, and their last line is not.
type Count int

// How lines are counted.
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

// titleOf makes a name readable: bash_exec is "Bash exec".
func titleOf(name string) string {
	words := strings.ReplaceAll(name, "_", " ")
	return strings.ToUpper(words[:1]) + words[1:]
}

// ReadOnly reports whether the tool changes nothing.
func (t Tool) ReadOnly() bool { return t.Op.ReadOnly }

// Destructive reports whether the tool can lose something. What runs a model's own
// code can lose everything.
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

// Set is the tools of a program, by name.
type Set struct {
	Tools  []Tool
	byName map[string]int
}

// NewSet completes the tools. The first tool of a name counts.
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

// Input is the schema of the arguments. It has only what every maker of models
// accepts: no references, no unions, a type everywhere.
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

// Output is the schema of the structured result, nil if the result is text.
func (t Tool) Output() *jsonschema.Schema { return t.form.output() }

// describeOutput returns the schema of the structured result, and whether the output is one
// field of it: the protocol knows only objects.
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
	return &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{resultField: s}, Required: []string{resultField}}, true
}

// resultField holds an output that is no object.
const resultField = "result"
