package op

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/tag"
)

// Source is the part of a request that a field comes from.
type Source string

// The sources of a field.
const (
	Body  Source = "body"
	Path  Source = "path"
	Query Source = "query"
	Form  Source = "form"
	Whole Source = "whole" // the field is the JSON body itself
)

// Field is one field of an input or output.
type Field struct {
	Name     string
	Source   Source
	Doc      string
	Aliases  []string
	Required bool
	Arg      bool   // is accepted without its flag on the command line
	Short    string // letter of its flag on the command line
	Nullable bool
	Default  json.RawMessage
	Type     *Type
	Enum     []any
	Const    string
	Format   string
	tag.Limits
	MinLen   *int
	MaxLen   *int
	MinItems *int
	MaxItems *int
	Pattern  *regexp.Regexp

	index   []int
	preset  any      // the default, parsed
	choices []string // the enum as text
	item    *Field   // limits of each element of a list; nil without limits
	omitted bool
}

func (c compiler) field(sf reflect.StructField, tags tag.Tags) *Field {
	name, opts, _ := strings.Cut(tags.Get("json"), ",")
	f := &Field{Name: name, Source: Body, Doc: tags.Get("doc"), Type: c.compile(sf.Type)}
	f.omitted = strings.Contains(opts, "omit")
	if c.in {
		f.setSource(tags)
	} else if f.Name == "" {
		f.Name = sf.Name // as encoding/json writes it
	}
	if f.Name == "" {
		panic(fmt.Sprintf("op: field %s needs a json, path, query or form tag", sf.Name))
	}
	f.Nullable = tags.Get("nullable") == "true"
	f.Aliases, f.Short = tags.List("alias"), tags.Get("short")
	inner := f.Type.withoutPointer()
	f.setLimits(tags, inner)
	if d, ok := tags.Lookup("default"); ok {
		f.Default = literal(d, inner)
	} else if f.Const != "" {
		f.Default = literal(f.Const, inner)
	}
	if f.Default != nil {
		f.preset = parseLiteral(f.Default)
	}
	f.Required = f.Source == Path ||
		f.Default == nil && !f.omitted && !f.Nullable && f.Type.Kind != Pointer && f.Source != Whole
	f.Arg = f.Required || tags.Get("arg") == "true"
	return f
}

// setSource sets the source of an input field; the default is the JSON body.
func (f *Field) setSource(tags tag.Tags) {
	for _, source := range []Source{Path, Query, Form} {
		if v := tags.Get(string(source)); v != "" {
			name, opts, _ := strings.Cut(v, ",")
			f.Name, f.Source, f.omitted = name, source, strings.Contains(opts, "omit")
		}
	}
	if tags.Get("body") == "*" {
		f.Source = Whole
	}
}

func (f *Field) setLimits(tags tag.Tags, inner *Type) {
	limits, err := tags.Limits(func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	if err != nil {
		panic(fmt.Sprintf("op: field %s: %v", f.Name, err))
	}
	count := func(key string) *int {
		v, ok := tags.Lookup(key)
		if !ok {
			return nil
		}
		n, err := strconv.Atoi(v)
		if err != nil {
			panic(fmt.Sprintf("op: field %s: %s %q is not a whole number", f.Name, key, v))
		}
		return &n
	}
	f.Limits, f.Const, f.Format = limits, tags.Get("const"), tags.Get("format")
	f.MinLen, f.MaxLen, f.MinItems, f.MaxItems = count("minLength"), count("maxLength"), count("minItems"), count("maxItems")
	if p := tags.Get("pattern"); p != "" {
		f.Pattern = regexp.MustCompile(p)
	}
	if inner.Kind == Array {
		inner = inner.Elem
	}
	for _, v := range tags.List("enum") {
		choice := parseLiteral(literal(v, inner))
		f.Enum, f.choices = append(f.Enum, choice), append(f.choices, fmt.Sprint(choice))
	}
	if len(f.Enum) > 0 {
		f.item = &Field{Enum: f.Enum, choices: f.choices}
	}
}

// literal returns the JSON of a value in a tag, where strings have no quotes.
func literal(s string, t *Type) json.RawMessage {
	if t.Kind == String || t.Kind == Custom && !json.Valid([]byte(s)) {
		b, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		return b
	}
	if t.Kind == Array && t.Elem.Kind == String && !strings.HasPrefix(s, "[") { // as in enum
		b, err := json.Marshal(strings.Split(s, ","))
		if err != nil {
			panic(err)
		}
		return b
	}
	if !json.Valid([]byte(s)) {
		panic(fmt.Sprintf("op: %q is not JSON", s))
	}
	return json.RawMessage(s)
}

// parseLiteral parses JSON that literal returned.
func parseLiteral(b json.RawMessage) any {
	tree, err := parseJSON(b)
	if err != nil {
		panic(err)
	}
	return tree
}

// widen extends a field that several variants of a union share to the values of g.
func (f *Field) widen(g *Field) {
	if f.Type.withoutPointer().Kind != g.Type.withoutPointer().Kind {
		f.Type, f.Enum, f.Default = &Type{}, nil, nil
	}
	if len(f.Enum) > 0 && len(g.Enum) == 0 {
		f.Enum = nil
	}
	if string(f.Default) != string(g.Default) {
		f.Default = nil
	}
	f.Limits, f.MinLen, f.MaxLen, f.Pattern = tag.Limits{}, nil, nil, nil
}
