package contract

import (
	"encoding/json"
	"errors"
	"math"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

type object = map[string]any

// document is a decoded OpenAPI document; its references are resolved on demand.
type document struct{ root object }

func parse(data []byte) (document, error) {
	var root object
	if err := json.Unmarshal(data, &root); err != nil {
		return document{}, err
	}
	if _, ok := root["paths"].(object); !ok {
		return document{}, errors.New("it has no paths: want an OpenAPI document")
	}
	dropNulls(root)
	return document{root}, nil
}

// dropNulls removes null members, which generators write for "none"; a constant may be null.
func dropNulls(node any) {
	switch n := node.(type) {
	case object:
		for k, v := range n {
			if v == nil && k != "const" {
				delete(n, k)
			}
			dropNulls(v)
		}
	case []any:
		for _, v := range n {
			dropNulls(v)
		}
	}
}

var pointer = strings.NewReplacer("~1", "/", "~0", "~")

func (d document) lookup(ref string) any {
	var node any = d.root
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		if plain, err := url.PathUnescape(part); err == nil {
			part = plain
		}
		fields, _ := node.(object)
		node = fields[pointer.Replace(part)]
	}
	if node == nil {
		return object{"type": "unresolved " + ref}
	}
	return node
}

// follow returns the path item, parameter, body or reply behind references.
func (d document) follow(node any) object {
	for range 8 {
		fields, _ := node.(object)
		ref, ok := fields["$ref"].(string)
		if !ok {
			return fields
		}
		node = d.lookup(ref)
	}
	return nil
}

// key finds the same operation in two documents: its path has nameless parameters.
type key struct{ method, path string }

type operation struct {
	path    string            // as the document spells it
	params  map[string]object // by part: an object schema with the parameters as fields
	body    object
	replies object
}

func (o operation) route(k key) string { return k.method + " " + o.path }

var (
	methods   = []string{"get", "put", "post", "delete", "patch", "head", "options", "trace"}
	parameter = regexp.MustCompile(`\{([^{}.]*)[^{}]*\}`)
)

func (d document) operations() map[key]operation {
	out := map[key]operation{}
	paths, _ := d.root["paths"].(object)
	for path, node := range paths {
		item := d.follow(node)
		for _, method := range methods {
			fields, ok := item[method].(object)
			if !ok {
				continue
			}
			replies, _ := fields["responses"].(object)
			params := slices.Concat(list(item["parameters"]), list(fields["parameters"]))
			out[key{strings.ToUpper(method), parameter.ReplaceAllString(path, "{}")}] = operation{
				path:    path,
				params:  d.parameters(path, params),
				body:    d.follow(fields["requestBody"]),
				replies: replies,
			}
		}
	}
	return out
}

// parameters turns them into fields of one object per part; those of the path go by
// their position, because clients never send their names.
func (d document) parameters(path string, params []any) map[string]object {
	out := map[string]object{}
	for _, part := range []string{inPath, inQuery} {
		fields, required := object{}, []any{}
		for _, node := range params {
			p := d.follow(node)
			name, _ := p["name"].(string)
			if p["in"] != part {
				continue
			}
			if part == inPath {
				for i, m := range parameter.FindAllStringSubmatch(path, -1) {
					if m[1] == name {
						name = string(rune('1' + i))
						break
					}
				}
			}
			fields[name] = orAny(p["schema"])
			if p["required"] == true {
				required = append(required, name)
			}
		}
		out[part] = object{"properties": fields, "required": required}
	}
	return out
}

// content gives the schema of each media type, without the type's own parameters.
func content(node object) map[string]any {
	out := map[string]any{}
	medias, _ := node["content"].(object)
	for name, m := range medias {
		body, _ := m.(object)
		name, _, _ = strings.Cut(name, ";")
		out[strings.ToLower(strings.TrimSpace(name))] = orAny(body["schema"])
	}
	return out
}

// shape is a schema without references, unions and lists of types: a value fits a
// schema when it fits one of the shapes that the schema comes to.
type shape struct {
	keys    object
	kind    string // JSON type, said or implied; "any" if neither
	choices []any  // values of const or enum, without null
}

const any_ = "any"

func newShape(keys object) shape {
	s := shape{keys: keys, kind: any_}
	choices := list(keys["enum"])
	if c, ok := keys["const"]; ok {
		choices = []any{c}
	}
	for _, v := range choices {
		if v != nil {
			s.choices = append(s.choices, v)
		}
	}
	switch said, ok := keys["type"].(string); {
	case ok:
		s.kind = said
	case len(s.choices) > 0:
		s.kind = kindOf(s.choices[0])
	case len(choices) > 0:
		s.kind = "null"
	case keys["properties"] != nil || keys["additionalProperties"] != nil:
		s.kind = "object"
	case keys["items"] != nil:
		s.kind = "array"
	}
	return s
}

// shapes resolves a schema; seen are the references it stands behind, so that one
// that leads back to itself adds nothing.
func (d document) shapes(schema any, seen ...string) []shape {
	if schema == false {
		return nil
	}
	fields, _ := schema.(object)
	own := object{}
	for k, v := range fields {
		if _, several := v.([]any); k != "$ref" && k != "allOf" && k != "anyOf" && k != "oneOf" && !(k == "type" && several) {
			own[k] = v
		}
	}
	out := []shape{newShape(own)}
	if ref, ok := fields["$ref"].(string); ok {
		out = cross(out, d.named(ref, seen))
	}
	for _, part := range list(fields["allOf"]) {
		out = cross(out, d.shapes(part, seen...))
	}
	for _, word := range []string{"anyOf", "oneOf"} {
		if _, ok := fields[word]; ok {
			var members []shape
			for _, part := range list(fields[word]) {
				members = append(members, d.shapes(part, seen...)...)
			}
			out = cross(out, members)
		}
	}
	if types := list(fields["type"]); types != nil {
		var members []shape
		for _, t := range types {
			members = append(members, newShape(object{"type": t}))
		}
		out = cross(out, members)
	}
	_, typed := fields["type"]
	if fields["nullable"] == true || !typed && slices.Contains(list(fields["enum"]), nil) {
		out = append(out, newShape(object{"type": "null"}))
	}
	return out
}

const nameKey = "x-name" // the innermost component that a shape came from

func (d document) named(ref string, seen []string) []shape {
	if slices.Contains(seen, ref) {
		return nil
	}
	out := d.shapes(d.lookup(ref), append(slices.Clone(seen), ref)...)
	for i, s := range out {
		if s.keys[nameKey] == nil {
			keys := object{nameKey: ref[strings.LastIndex(ref, "/")+1:]}
			for k, v := range s.keys {
				keys[k] = v
			}
			out[i] = newShape(keys)
		}
	}
	return out
}

// cross gives the shapes of values that fit one of each side. Where both use a
// keyword, the outer one counts: it stands nearer to the use.
func cross(outer, inner []shape) []shape {
	var out []shape
	for _, a := range outer {
		for _, b := range inner {
			both := object{}
			for _, s := range []shape{b, a} {
				for k, v := range s.keys {
					both[k] = v
				}
			}
			s, t := a.keys["type"], b.keys["type"]
			switch {
			case s == nil || t == nil || s == t:
			case s == "integer" && t == "number" || s == "number" && t == "integer":
				both["type"] = "integer"
			default:
				continue
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

// pool gives the fields of several objects; one that stands in several is a union or,
// with allOf, an intersection.
func pool(how string, objects ...shape) object {
	found := map[string][]any{}
	for _, o := range objects {
		for name, schema := range o.fields() {
			found[name] = append(found[name], schema)
		}
	}
	out := object{}
	for name, schemas := range found {
		out[name] = object{how: schemas}
	}
	return out
}

func (s shape) fields() object {
	fields, _ := s.keys["properties"].(object)
	return fields
}

func (s shape) requires(field string) bool {
	return slices.Contains(list(s.keys["required"]), any(field))
}

// bounds are the limits of a shape, turned so that the greater is the stricter; an
// exclusive one counts as a step further.
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

// stricter lists the keywords by which s refuses what the other shape takes.
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
	slices.Sort(out)
	return out
}

// takes tells whether a constant fits; patterns are not tried.
func (s shape) takes(value any) bool {
	if len(s.choices) > 0 {
		return slices.ContainsFunc(s.choices, func(v any) bool { return reflect.DeepEqual(v, value) })
	}
	exact := object{"type": kindOf(value)}
	switch v := value.(type) {
	case string:
		n := float64(len([]rune(v)))
		exact["minLength"], exact["maxLength"] = n, n
	case float64:
		exact["minimum"], exact["maximum"] = v, v
	}
	one := newShape(exact)
	words := s.stricter(one)
	return holds(s.kind, one.kind) && !slices.ContainsFunc(words, func(w string) bool { return w != "pattern" })
}

// holds tells whether every value of the JSON type inner is one of outer, too.
func holds(outer, inner string) bool {
	return outer == inner || outer == any_ || outer == "number" && inner == "integer"
}

func kindOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
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
	return any_
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func orAny(schema any) any {
	if schema == nil {
		return true
	}
	return schema
}

// text is a value as a reader of JSON expects it, strings without quotes.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return string(b)
}
