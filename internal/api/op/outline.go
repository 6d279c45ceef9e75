package op

import (
	"context"
	"encoding/json"
	"fmt"
)

// outline is the part of an operation that a command line needs. A program with only the outline
// of a table can call its operations but not serve them.
type outline struct {
	Name     string         `json:"name"`
	Route    string         `json:"route"`
	Doc      string         `json:"doc"`
	Verb     string         `json:"verb,omitempty"`
	Columns  []string       `json:"columns,omitempty"`
	Wide     []string       `json:"wide,omitempty"`
	Style    Style          `json:"style,omitempty"`
	Produces string         `json:"produces,omitempty"`
	Unary    bool           `json:"unary,omitempty"`
	Stream   bool           `json:"stream,omitempty"`
	Binary   bool           `json:"binary,omitempty"`
	Fields   []fieldOutline `json:"fields,omitempty"`
}

type fieldOutline struct {
	Name     string          `json:"name"`
	Source   Source          `json:"source"`
	Doc      string          `json:"doc"`
	Required bool            `json:"required,omitempty"`
	Arg      bool            `json:"arg,omitempty"`
	Short    string          `json:"short,omitempty"`
	Default  json.RawMessage `json:"default,omitempty"`
	Enum     []any           `json:"enum,omitempty"`
	Type     typeOutline     `json:"type"`
}

type typeOutline struct {
	Kind  Kind         `json:"kind"`
	Label string       `json:"label,omitempty"` // of a custom type
	Elem  *typeOutline `json:"elem,omitempty"`
}

// Outline returns the verbs of a table as JSON, for programs that only call them.
func (t *Table) Outline() ([]byte, error) {
	var list []outline
	for _, o := range t.ops {
		if o.NoVerb {
			continue
		}
		e := outline{
			Name: o.Name, Route: o.Route, Doc: o.Doc, Verb: o.Verb, Columns: o.Columns, Wide: o.Wide, Style: o.Style, Produces: o.Produces,
			Unary: o.Call != nil, Stream: o.Stream != nil, Binary: o.Binary,
		}
		for _, f := range o.In().AllFields() {
			e.Fields = append(e.Fields, fieldOutline{f.Name, f.Source, f.Doc, f.Required, f.Arg, f.Short, f.Default, f.Enum, f.Type.outline()})
		}
		list = append(list, e)
	}
	return JSON(list)
}

func (t *Type) outline() typeOutline {
	out := typeOutline{Kind: t.Kind}
	if t.Kind == Custom {
		out.Label = t.Label()
	}
	if t.Elem != nil && (t.Kind == Pointer || t.Kind == Array || t.Kind == Map) {
		elem := t.Elem.outline()
		out.Elem = &elem
	}
	return out
}

// ReadOutline returns a table of verbs that can be called but not served.
func ReadOutline(b []byte) (*Table, error) {
	var list []outline
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("cannot read the outline of operations: %w", err)
	}
	t := &Table{byName: make(map[string]int, len(list)), public: map[route]bool{}}
	for _, e := range list {
		in := &Type{Kind: Object}
		for _, f := range e.Fields {
			in.Fields = append(in.Fields, &Field{
				Name: f.Name, Source: f.Source, Doc: f.Doc, Required: f.Required, Arg: f.Arg, Short: f.Short,
				Default: f.Default, Enum: f.Enum, Type: f.Type.compile(),
			})
		}
		o := Op{
			Spec: Spec{Name: e.Name, Route: e.Route, Doc: e.Doc, Verb: e.Verb, Columns: e.Columns, Wide: e.Wide,
				Style: e.Style, Produces: e.Produces},
			In: func() *Type { return in }, Binary: e.Binary,
		}
		if e.Unary {
			o.Out = func() *Type { return &Type{} }
			o.Call = refuseCall
		}
		if e.Stream {
			o.Stream = refuseStream
		}
		t.byName[e.Name] = len(t.ops)
		t.ops = append(t.ops, o)
	}
	return t, nil
}

func (t *typeOutline) compile() *Type {
	out := &Type{Kind: t.Kind, label: t.Label}
	if t.Elem != nil {
		out.Elem = t.Elem.compile()
	}
	return out
}

func refuseCall(context.Context, any) (any, error) { return nil, errOutline() }

func refuseStream(context.Context, any, func(Event) error) error { return errOutline() }

func errOutline() error {
	return Errorf(Unavailable, "this build can call the operation but not serve it")
}
