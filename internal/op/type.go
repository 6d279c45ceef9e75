package op

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// Kind of a value on the wire.
type Kind int

const (
	Any Kind = iota
	String
	Bool
	Int
	Float
	Array
	Map
	Object
	Pointer // may be null; Elem says what else
	Union   // one of several objects, told apart by the field Tag
	Upload  // a file of a multipart request
	Bytes   // base64
	Custom  // decodes itself
	Binary  // a *Blob
)

// Source is where a field comes from.
type Source string

const (
	Body  Source = "body"
	Path  Source = "path"
	Query Source = "query"
	Form  Source = "form"
	Whole Source = "whole" // the field is the JSON body itself
)

// Type is a Go type, read once by reflection.
type Type struct {
	Kind     Kind
	Name     string // of the component in the documentation
	Doc      string
	Elem     *Type
	Fields   []*Field
	Tag      string  // of a union
	Variants []*Type // of a union

	rtype  reflect.Type
	byTag  map[string]*Type
	schema *jsonschema.Schema // of a custom type
}

// Field is one input or output.
type Field struct {
	Name       string
	Source     Source
	Doc        string
	Aliases    []string
	Required   bool
	Arg        bool // may stand without a flag on the command line
	Nullable   bool
	Default    json.RawMessage
	Type       *Type
	Enum       []any
	Const      string
	Format     string
	Min, Max   *float64
	MinX, MaxX *float64 // exclusive
	MinLen     *int
	MaxLen     *int
	MinItems   *int
	MaxItems   *int
	Pattern    *regexp.Regexp

	index   []int
	preset  any // the default, parsed
	omitted bool
}

// OneOf is embedded in a union type; Value holds a pointer to the variant that
// was sent.
type OneOf struct{ Value any }

// Unioner is a struct that embeds OneOf and names its discriminator and its
// variants, each a struct whose discriminator field has a const tag.
type Unioner interface {
	Union() (discriminator string, variants []any)
}

// Decoder is a type that takes a JSON value as it came (nil, bool, json.Number,
// string, []any, map[string]any) and describes itself.
type Decoder interface {
	DecodeOp(v any) error
	Schemer
}

// Schemer describes itself; a type with its own MarshalJSON needs it.
type Schemer interface {
	SchemaOp() *jsonschema.Schema
}

func compileIn(t reflect.Type) *Type {
	c := compiler{seen: map[reflect.Type]*Type{}, in: true}
	typ := c.compile(t)
	if typ.Kind != Object && typ.Kind != Union {
		panic(fmt.Sprintf("op: an input must be a struct, not %v", t))
	}
	return typ
}

func compileOut(t reflect.Type) func() *Type {
	return sync.OnceValue(func() *Type {
		c := compiler{seen: map[reflect.Type]*Type{}}
		return c.compile(t)
	})
}

type compiler struct {
	seen map[reflect.Type]*Type
	in   bool
}

var (
	blobType    = reflect.TypeFor[*Blob]()
	fileType    = reflect.TypeFor[*File]()
	timeType    = reflect.TypeFor[time.Time]()
	rawType     = reflect.TypeFor[json.RawMessage]()
	bytesType   = reflect.TypeFor[[]byte]()
	unionerType = reflect.TypeFor[Unioner]()
	decoderType = reflect.TypeFor[Decoder]()
	schemerType = reflect.TypeFor[Schemer]()
)

func (c compiler) compile(t reflect.Type) *Type {
	if known, ok := c.seen[t]; ok {
		return known
	}
	typ := &Type{rtype: t}
	switch {
	case t == blobType:
		typ.Kind = Binary
		return typ
	case t == fileType:
		typ.Kind = Upload
		return typ
	case t == timeType:
		typ.Kind, typ.schema = Custom, &jsonschema.Schema{Type: "string", Format: "date-time"}
		return typ
	case t == rawType:
		return typ
	case t == bytesType:
		typ.Kind = Bytes
		return typ
	case reflect.PointerTo(t).Implements(decoderType):
		typ.Kind = Custom
		typ.schema = reflect.New(t).Interface().(Schemer).SchemaOp()
		return typ
	case !c.in && t.Implements(schemerType):
		typ.Kind = Custom
		typ.schema = reflect.Zero(t).Interface().(Schemer).SchemaOp()
		return typ
	case t.Implements(unionerType):
		c.seen[t] = typ
		c.union(typ)
		return typ
	}
	c.basic(typ)
	return typ
}

func (c compiler) basic(typ *Type) {
	t := typ.rtype
	switch t.Kind() {
	case reflect.String:
		typ.Kind = String
	case reflect.Bool:
		typ.Kind = Bool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		typ.Kind = Int
	case reflect.Float32, reflect.Float64:
		typ.Kind = Float
	case reflect.Slice:
		typ.Kind, typ.Elem = Array, c.compile(t.Elem())
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			panic(fmt.Sprintf("op: a map needs string keys: %v", t))
		}
		typ.Kind, typ.Elem = Map, c.compile(t.Elem())
	case reflect.Pointer:
		typ.Kind, typ.Elem = Pointer, c.compile(t.Elem())
	case reflect.Interface:
	case reflect.Struct:
		c.seen[t] = typ
		typ.Kind, typ.Name = Object, component(t)
		c.fields(typ, t, nil)
	default:
		panic(fmt.Sprintf("op: cannot be sent: %v", t))
	}
}

func (c compiler) union(typ *Type) {
	tag, variants := reflect.Zero(typ.rtype).Interface().(Unioner).Union()
	typ.Kind, typ.Tag, typ.Name, typ.byTag = Union, tag, component(typ.rtype), map[string]*Type{}
	for _, v := range variants {
		variant := c.compile(reflect.TypeOf(v))
		field := variant.field(tag)
		if field == nil || field.Const == "" {
			panic(fmt.Sprintf("op: %v needs a field %q with a const tag", variant.rtype, tag))
		}
		if typ.byTag[field.Const] != nil {
			panic(fmt.Sprintf("op: two variants of %v are %q", typ.rtype, field.Const))
		}
		typ.byTag[field.Const] = variant
		typ.Variants = append(typ.Variants, variant)
	}
}

// component names a type for the documentation: its package before it, so that
// two services may both have a Session.
func component(t reflect.Type) string {
	name := t.Name()
	if name == "" {
		return ""
	}
	if i := strings.IndexByte(name, '['); i >= 0 {
		arg := name[i+1 : len(name)-1]
		name = name[:i] + "_" + arg[strings.LastIndexAny(arg, "./")+1:] + "_"
	}
	pkg := t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:]
	pkg = strings.TrimSuffix(pkg, "_test")
	if pkg == "" || pkg == "op" || strings.HasPrefix(strings.ToLower(name), pkg) {
		return name
	}
	return strings.ToUpper(pkg[:1]) + pkg[1:] + name
}

func (c compiler) fields(typ *Type, t reflect.Type, prefix []int) {
	for i := range t.NumField() {
		sf := t.Field(i)
		if sf.Name == "_" {
			typ.Doc = sf.Tag.Get("doc")
			continue
		}
		index := append(append([]int{}, prefix...), i)
		if sf.Anonymous && sf.Tag.Get("json") == "" && sf.Type.Kind() == reflect.Struct {
			c.fields(typ, sf.Type, index)
			continue
		}
		if !sf.IsExported() || sf.Tag.Get("json") == "-" && sf.Tag.Get("path") == "" && sf.Tag.Get("query") == "" {
			continue
		}
		f := c.field(sf)
		f.index = index
		if c.in && f.Doc == "" && f.Const == "" {
			panic(fmt.Sprintf("op: the doc of %v.%s is missing", t, sf.Name))
		}
		if typ.field(f.Name) != nil {
			panic(fmt.Sprintf("op: %v has the field %q twice", t, f.Name))
		}
		typ.Fields = append(typ.Fields, f)
	}
}

func (c compiler) field(sf reflect.StructField) *Field {
	tag := tags(sf.Tag)
	name, opts, _ := strings.Cut(tag["json"], ",")
	f := &Field{Name: name, Source: Body, Doc: tag["doc"], Type: c.compile(sf.Type)}
	f.omitted = strings.Contains(opts, "omit")
	if c.in {
		f.source(tag)
	} else if f.Name == "" {
		f.Name = sf.Name // as encoding/json writes it
	}
	if f.Name == "" {
		panic(fmt.Sprintf("op: the field %s has no json, path, query or form name", sf.Name))
	}
	f.Nullable = tag["nullable"] == "true"
	f.Arg = tag["arg"] == "true"
	if a := tag["alias"]; a != "" {
		f.Aliases = strings.Split(a, ",")
	}
	inner := f.Type
	for inner.Kind == Pointer {
		inner = inner.Elem
	}
	f.limits(tag, inner)
	if d, ok := tag["default"]; ok {
		f.Default = literal(d, inner)
	} else if f.Const != "" {
		f.Default = literal(f.Const, inner)
	}
	if f.Default != nil {
		f.preset = parse(f.Default)
	}
	f.Required = f.Source == Path ||
		f.Default == nil && !f.omitted && !f.Nullable && f.Type.Kind != Pointer && f.Source != Whole
	f.Arg = f.Arg || f.Required
	return f
}

// source says where an input comes from.
func (f *Field) source(tag map[string]string) {
	for source, key := range map[Source]string{Path: "path", Query: "query", Form: "form"} {
		if v := tag[key]; v != "" {
			name, opts, _ := strings.Cut(v, ",")
			f.Name, f.Source, f.omitted = name, source, strings.Contains(opts, "omit")
		}
	}
	if tag["body"] == "*" {
		f.Source = Whole
	}
}

// tags reads a struct tag once; asking for each key in turn would read it twenty
// times, which a start-up of some hundred fields feels.
func tags(tag reflect.StructTag) map[string]string {
	out := map[string]string{}
	for rest := strings.TrimSpace(string(tag)); rest != ""; rest = strings.TrimSpace(rest) {
		key, quoted, ok := strings.Cut(rest, ":")
		text, err := strconv.QuotedPrefix(quoted)
		if !ok || err != nil {
			panic(fmt.Sprintf("op: the tag %q is broken", tag))
		}
		value, err := strconv.Unquote(text)
		if err != nil {
			panic(fmt.Sprintf("op: the tag %q is broken", tag))
		}
		out[key] = value
		rest = quoted[len(text):]
	}
	return out
}

func (f *Field) limits(tag map[string]string, inner *Type) {
	num := func(key string) *float64 {
		v, ok := tag[key]
		if !ok {
			return nil
		}
		n, err := strconv.ParseFloat(v, 64)
		if err != nil {
			panic(fmt.Sprintf("op: the tag %s of %s is no number: %q", key, f.Name, v))
		}
		return &n
	}
	count := func(key string) *int {
		if n := num(key); n != nil {
			return new(int(*n))
		}
		return nil
	}
	f.Const, f.Format = tag["const"], tag["format"]
	f.Min, f.Max, f.MinX, f.MaxX = num("minimum"), num("maximum"), num("exclusiveMinimum"), num("exclusiveMaximum")
	f.MinLen, f.MaxLen, f.MinItems, f.MaxItems = count("minLength"), count("maxLength"), count("minItems"), count("maxItems")
	if p := tag["pattern"]; p != "" {
		f.Pattern = regexp.MustCompile(p)
	}
	if e := tag["enum"]; e != "" {
		elem := inner
		if elem.Kind == Array {
			elem = elem.Elem
		}
		for v := range strings.SplitSeq(e, ",") {
			f.Enum = append(f.Enum, parse(literal(v, elem)))
		}
	}
}

// literal is the JSON of a tag's value: a string stands there without quotes.
func literal(s string, t *Type) json.RawMessage {
	if t.Kind == String || t.Kind == Custom && !json.Valid([]byte(s)) {
		b, err := json.Marshal(s)
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

func (t *Type) field(name string) *Field {
	for _, f := range t.Fields {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// AllFields lists every field; of a union, those of all variants by name, none of them required
// but the discriminator.
func (t *Type) AllFields() []*Field {
	if t.Kind != Union {
		return t.Fields
	}
	tag := &Field{Name: t.Tag, Source: Body, Required: true, Type: &Type{Kind: String}, Doc: "Which kind it is"}
	out := []*Field{tag}
	seen := map[string]*Field{t.Tag: tag}
	for _, v := range t.Variants {
		for _, f := range v.Fields {
			if f.Name == t.Tag {
				tag.Enum = append(tag.Enum, f.Const)
				continue
			}
			if known := seen[f.Name]; known != nil {
				known.widen(f)
				continue
			}
			loose := *f
			loose.Required = false
			seen[f.Name] = &loose
			out = append(out, &loose)
		}
	}
	return out
}

// widen makes a merged field take what f takes too.
func (f *Field) widen(g *Field) {
	if f.Type.Kind != g.Type.Kind {
		f.Type, f.Enum, f.Default = &Type{}, nil, nil
	}
	if len(f.Enum) > 0 && len(g.Enum) == 0 {
		f.Enum = nil
	}
	if string(f.Default) != string(g.Default) {
		f.Default = nil
	}
	f.Min, f.Max, f.MinX, f.MaxX, f.MinLen, f.MaxLen, f.Pattern = nil, nil, nil, nil, nil, nil, nil
}

// matches holds the route's parameters against the fields.
func (t *Type) matches(s Spec) error {
	for _, route := range append([]string{s.Route}, s.Also...) {
		_, path := splitRoute(route)
		params := map[string]bool{}
		for _, part := range strings.Split(path, "{")[1:] {
			name, _, _ := strings.Cut(part, "}")
			name = strings.TrimSuffix(name, "...")
			if name == "$" {
				continue
			}
			params[name] = true
			if f := t.field(name); f == nil || f.Source != Path {
				return fmt.Errorf("the path parameter %q has no field", name)
			}
		}
		for _, f := range t.Fields {
			if f.Source == Path && !params[f.Name] {
				return fmt.Errorf("the field %q is no parameter of %s", f.Name, path)
			}
		}
	}
	return nil
}

// Has tells whether any field comes from the source.
func (t *Type) Has(s Source) bool {
	if t.Kind == Union {
		return s == Body
	}
	for _, f := range t.Fields {
		if f.Source == s {
			return true
		}
	}
	return false
}
