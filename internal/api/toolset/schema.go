package toolset

import (
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
)

// simplify reduces a schema to the features that all model providers support. Null is omitted,
// because an optional argument need not be sent. A map becomes a list of NAME=value, and a value
// of any type becomes JSON in a string; bind accepts both forms.
func simplify(s *jsonschema.Schema) *jsonschema.Schema {
	if s == nil {
		return nil
	}
	doc, preset := s.Description, s.Default
	s = withoutUnion(s)
	out := &jsonschema.Schema{Type: s.Type, Description: doc, Default: preset, Minimum: s.Minimum, Maximum: s.Maximum,
		MinLength: s.MinLength, MaxLength: s.MaxLength, MinItems: s.MinItems, MaxItems: s.MaxItems, Pattern: s.Pattern, Enum: s.Enum}
	if out.Type == "" && len(s.Types) > 0 {
		out.Type = s.Types[0]
	}
	if string(out.Default) == "null" {
		out.Default = nil
	}
	if s.Const != nil {
		out.Enum = []any{*s.Const}
	}
	if out.Type != "string" {
		out.Enum = nil // Gemini supports only enums of strings
	}
	switch {
	case out.Type == "object" && len(s.Properties) > 0:
		simplifyFields(out, s)
	case out.Type == "object" && s.AdditionalProperties != nil && isText(s.AdditionalProperties):
		out.Type, out.Items = "array", &jsonschema.Schema{Type: "string"}
		out.Description = addSentence(doc, "A list of NAME=value")
		out.Default = nil
	case out.Type == "object", out.Type == "":
		out.Type = "string"
		out.Description = addSentence(doc, "As JSON")
		out.Default = nil
	case out.Type == "array":
		out.Items = simplify(s.Items)
		if out.Items == nil {
			out.Items = &jsonschema.Schema{Type: "string"}
		}
	}
	return out
}

func simplifyFields(out, s *jsonschema.Schema) {
	out.Properties, out.Required = map[string]*jsonschema.Schema{}, s.Required
	for name, p := range s.Properties {
		out.Properties[name] = simplify(p)
	}
	out.PropertyOrder = s.PropertyOrder
}

func addSentence(doc, more string) string {
	if doc == "" {
		return more
	}
	return doc + ". " + more
}

func isText(s *jsonschema.Schema) bool { return withoutUnion(s).Type == "string" }

// withoutUnion returns the first alternative that is not null. Several objects are merged into one
// with all their fields.
func withoutUnion(s *jsonschema.Schema) *jsonschema.Schema {
	for {
		options := slices.Concat(s.AnyOf, s.OneOf, s.AllOf)
		options = slices.DeleteFunc(options, func(o *jsonschema.Schema) bool { return o.Type == "null" })
		switch {
		case len(options) == 0:
			return s
		case len(options) > 1 && options[0].Type == "object":
			return mergeObjects(options)
		}
		s = options[0]
	}
}

func mergeObjects(options []*jsonschema.Schema) *jsonschema.Schema {
	out := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}}
	required := map[string]int{}
	for _, o := range options {
		for _, name := range o.PropertyOrder {
			p := o.Properties[name]
			known, ok := out.Properties[name]
			switch {
			case !ok:
				clone := *p
				out.Properties[name], out.PropertyOrder = &clone, append(out.PropertyOrder, name)
			case known.Const != nil && p.Const != nil:
				known.Enum, known.Type, known.Const = []any{*known.Const, *p.Const}, "string", nil
			case known.Enum != nil && p.Const != nil:
				known.Enum = append(known.Enum, *p.Const)
			}
		}
		for _, name := range o.Required {
			required[name]++
		}
	}
	for _, name := range out.PropertyOrder {
		if required[name] == len(options) {
			out.Required = append(out.Required, name)
		}
	}
	return out
}
