package op

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// Defs collects named schemas; Prefix is the path of a reference to them.
type Defs struct {
	Prefix string
	Named  map[string]*jsonschema.Schema
}

// Schema returns the JSON Schema of the type. With defs, objects become references to named
// schemas. Otherwise they are inlined, and a recursive type becomes any object.
func (t *Type) Schema(defs *Defs) *jsonschema.Schema { return t.describe(defs, nil) }

func (t *Type) describe(defs *Defs, within []*Type) *jsonschema.Schema {
	switch t.Kind {
	case String, Bytes:
		return &jsonschema.Schema{Type: "string"}
	case Bool:
		return &jsonschema.Schema{Type: "boolean"}
	case Int:
		return &jsonschema.Schema{Type: "integer"}
	case Float:
		return &jsonschema.Schema{Type: "number"}
	case Upload, Binary:
		return &jsonschema.Schema{Type: "string", Format: "binary"}
	case Array:
		return &jsonschema.Schema{Type: "array", Items: t.Elem.describe(defs, within)}
	case Map:
		return &jsonschema.Schema{Type: "object", AdditionalProperties: t.Elem.describe(defs, within)}
	case Pointer:
		return nullable(t.Elem.describe(defs, within))
	case Custom:
		return t.schema.CloneSchemas()
	case Object, Union:
		return t.named(defs, within)
	}
	return &jsonschema.Schema{}
}

func nullable(s *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{s, {Type: "null"}}}
}

func (t *Type) named(defs *Defs, within []*Type) *jsonschema.Schema {
	if slices.Contains(within, t) && (defs == nil || t.Name == "") {
		return &jsonschema.Schema{Type: "object"}
	}
	within = append(within, t)
	build := func() *jsonschema.Schema {
		if t.Kind == Union {
			return t.unionSchema(defs, within)
		}
		return object(t.Doc, t.Fields, defs, within)
	}
	if defs == nil || t.Name == "" {
		return build()
	}
	if _, ok := defs.Named[t.Name]; !ok {
		defs.Named[t.Name] = &jsonschema.Schema{}
		*defs.Named[t.Name] = *build()
	}
	return &jsonschema.Schema{Ref: defs.Prefix + t.Name}
}

func (t *Type) unionSchema(defs *Defs, within []*Type) *jsonschema.Schema {
	s := &jsonschema.Schema{Description: t.Doc}
	mapping := map[string]any{}
	for _, v := range t.Variants {
		one := v.describe(defs, within)
		s.OneOf = append(s.OneOf, one)
		if one.Ref != "" {
			mapping[v.field(t.Tag).Const] = one.Ref
		}
	}
	s.Extra = map[string]any{"discriminator": map[string]any{"propertyName": t.Tag, "mapping": mapping}}
	return s
}

func object(doc string, fields []*Field, defs *Defs, within []*Type) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Description: doc, Properties: map[string]*jsonschema.Schema{}}
	for _, f := range fields {
		s.Properties[f.Name] = f.describe(defs, within)
		s.PropertyOrder = append(s.PropertyOrder, f.Name)
		if f.Required {
			s.Required = append(s.Required, f.Name)
		}
	}
	return s
}

// Schema returns the JSON Schema of the field, with its limits.
func (f *Field) Schema(defs *Defs) *jsonschema.Schema { return f.describe(defs, nil) }

func (f *Field) describe(defs *Defs, within []*Type) *jsonschema.Schema {
	inner := f.Type.withoutPointer()
	null := f.Nullable || inner != f.Type
	s := inner.describe(defs, within)
	target := s
	if inner.Kind == Array && len(f.Enum) > 0 {
		target = s.Items
	}
	target.Enum = f.Enum
	s.Minimum, s.Maximum, s.ExclusiveMinimum, s.ExclusiveMaximum = f.Min, f.Max, f.MinX, f.MaxX
	s.MinLength, s.MaxLength, s.MinItems, s.MaxItems = f.MinLen, f.MaxLen, f.MinItems, f.MaxItems
	if f.Pattern != nil {
		s.Pattern = f.Pattern.String()
	}
	if f.Const != "" {
		s.Const = new(any(f.Const))
	}
	if f.Format != "" {
		s.Format = f.Format
	}
	if null {
		s = nullable(s)
	}
	if s.Ref != "" && (f.Default != nil || f.Doc != "") {
		s = &jsonschema.Schema{AllOf: []*jsonschema.Schema{s}}
	}
	s.Default = f.Default
	s.Description = strings.TrimSpace(f.Doc)
	return s
}

// Part returns the JSON Schema of the fields of one source, as one object.
func (t *Type) Part(source Source, defs *Defs) *jsonschema.Schema {
	if t.Kind == Union {
		return t.Schema(defs)
	}
	var fields []*Field
	for _, f := range t.Fields {
		if f.Source == Whole && source == Body {
			return f.Schema(defs)
		}
		if f.Source == source {
			fields = append(fields, f)
		}
	}
	if len(fields) == len(t.Fields) {
		return t.Schema(defs)
	}
	return object(t.Doc, fields, defs, nil)
}

// Flat returns the JSON Schema of all fields as one object without references or a top-level
// union, which MCP clients do not support.
func (t *Type) Flat() *jsonschema.Schema {
	return object(t.Doc, t.AllFields(), nil, []*Type{t})
}

// JSON encodes v without escapes for HTML.
func JSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
