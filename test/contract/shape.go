package contract

import (
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// shape is a schema without references, unions and lists of types. A value fits a schema if
// it fits one of the shapes of the schema.
type shape struct {
	keys    object
	kind    string // JSON type, declared or implied
	choices []any  // of const or enum, without null
}

const (
	anything = "any"    // kind of a shape without a type
	nameKey  = "x-name" // keyword for the name of the innermost component of a shape
)

func newShape(keys object) shape {
	choices := list(keys["enum"])
	if c, ok := keys["const"]; ok {
		choices = []any{c}
	}
	s := shape{keys, anything, filter(choices, func(v any) bool { return v != nil })}
	switch declared, ok := keys["type"].(string); {
	case ok:
		s.kind = declared
	case len(s.choices) > 0:
		s.kind = kindOf(s.choices[0])
	case keys["properties"] != nil || keys["additionalProperties"] != nil:
		s.kind = "object"
	case keys["items"] != nil:
		s.kind = "array"
	}
	return s
}

// shapes resolves a schema. seen are the references that lead to it, so that a recursive
// reference adds no shapes.
func (d document) shapes(schema any, seen ...string) []shape {
	fields, _ := schema.(object)
	own := object{}
	var types []any
	for word, v := range fields {
		if l := list(v); word == "type" && l != nil {
			for _, t := range l {
				types = append(types, object{"type": t})
			}
		} else if !slices.Contains([]string{"$ref", "allOf", "anyOf", "oneOf"}, word) {
			own[word] = v
		}
	}
	out := []shape{newShape(own)}
	if ref, ok := fields["$ref"].(string); ok {
		out = cross(out, d.component(ref, seen))
	}
	for _, part := range list(fields["allOf"]) {
		out = cross(out, d.shapes(part, seen...))
	}
	for _, members := range [][]any{list(fields["anyOf"]), list(fields["oneOf"]), types} {
		var union []shape
		for _, member := range members {
			union = append(union, d.shapes(member, seen...)...)
		}
		if members != nil { // a union without members accepts no value
			out = cross(out, union)
		}
	}
	return out
}

func (d document) component(ref string, seen []string) []shape {
	if slices.Contains(seen, ref) {
		return nil
	}
	schema := d.root
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		schema = child(schema, part)
	}
	if schema == nil {
		schema = object{"type": "unresolved " + ref}
	}
	name := newShape(object{nameKey: ref[strings.LastIndex(ref, "/")+1:]})
	return cross(d.shapes(schema, append(slices.Clone(seen), ref)...), []shape{name})
}

// cross returns the shapes of values that fit one shape of each side. If both have a keyword,
// the outer one applies.
func cross(outer, inner []shape) []shape {
	var out []shape
	for _, a := range outer {
		for _, b := range inner {
			both := maps.Clone(b.keys)
			maps.Copy(both, a.keys)
			if s, t := a.keys["type"], b.keys["type"]; s != nil && t != nil && s != t {
				if !holds(text(s), text(t)) && !holds(text(t), text(s)) {
					continue
				}
				both["type"] = "integer" // the other is number
			}
			both["required"] = slices.Concat(list(a.keys["required"]), list(b.keys["required"]))
			if both["properties"] != nil {
				both["properties"] = pool("allOf", a, b)
			}
			out = append(out, newShape(both))
		}
	}
	return out
}

// pool returns the fields of several objects. A field of several objects becomes a union
// (anyOf) or an intersection (allOf).
func pool(how string, objects ...shape) object {
	out := object{}
	for _, o := range objects {
		for name, schema := range child(o.keys, "properties") {
			out[name] = object{how: append(list(child(out, name)[how]), schema)}
		}
	}
	return out
}

// below returns the union of the schemas of a keyword, with other for missing ones.
func below(shapes []shape, word string, other object) object {
	var members []any
	for _, s := range shapes {
		schema := s.keys[word]
		if schema == nil || schema == false {
			schema = other
		}
		members = append(members, schema)
	}
	return object{"anyOf": members}
}

// bounds returns the limits of a shape, with signs so that the greater one is stricter. An
// exclusive limit is one step stricter.
func (s shape) bounds(step float64) map[string]float64 {
	get := func(word string, sign float64) float64 {
		if n, ok := s.keys[word].(float64); ok {
			return sign * n
		}
		return math.Inf(-1)
	}
	return map[string]float64{
		"minimum":   max(get("minimum", 1), get("exclusiveMinimum", 1)+step),
		"maximum":   max(get("maximum", -1), get("exclusiveMaximum", -1)+step),
		"minLength": max(get("minLength", 1), 0),
		"maxLength": get("maxLength", -1),
		"minItems":  max(get("minItems", 1), 0),
		"maxItems":  get("maxItems", -1),
	}
}

// stricter lists the keywords with which s rejects values that the other shape accepts.
func (s shape) stricter(than shape) []string {
	step := 1e-9
	if than.kind == "integer" {
		step = 1
	}
	var out []string
	theirs := than.bounds(step)
	for word, bound := range s.bounds(step) {
		if bound > theirs[word] {
			out = append(out, word)
		}
	}
	for _, word := range []string{"pattern", "enum", "const"} {
		if v, ok := s.keys[word]; ok && !reflect.DeepEqual(v, than.keys[word]) {
			out = append(out, word)
		}
	}
	return out
}

// takes reports whether s accepts a constant. It ignores patterns.
func (s shape) takes(value any) bool {
	if len(s.choices) > 0 {
		return slices.ContainsFunc(s.choices, func(v any) bool { return reflect.DeepEqual(v, value) })
	}
	exact := object{"type": kindOf(value), "minimum": value, "maximum": value}
	if word, ok := value.(string); ok {
		n := float64(len([]rune(word)))
		exact = object{"type": "string", "minLength": n, "maxLength": n, "pattern": s.keys["pattern"]}
	}
	one := newShape(exact)
	return holds(s.kind, one.kind) && len(s.stricter(one)) == 0
}

// limit formats a limit for display, including exclusive ones.
func (s shape) limit(word string) string {
	limits := filter(sorted(s.keys), func(k string) bool { return strings.HasSuffix(strings.ToLower(k), strings.ToLower(word)) })
	for i, k := range limits {
		limits[i] += " " + text(s.keys[k])
	}
	return listed(limits)
}

func (s shape) requires(field string) bool {
	return slices.Contains(list(s.keys["required"]), any(field))
}

func kinds(shapes []shape) []string {
	var out []string
	for _, s := range shapes {
		out = append(out, s.kind)
	}
	return out
}

// holds reports whether every value of the JSON type inner is also one of outer.
func holds(outer, inner string) bool {
	return outer == inner || outer == anything || outer == "number" && inner == "integer"
}

func kindOf(value any) string {
	switch v := value.(type) {
	case bool:
		return "boolean"
	case string:
		return "string"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
		return "number"
	}
	return anything
}
