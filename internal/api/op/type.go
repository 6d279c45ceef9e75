package op

import (
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/tag"
)

// Kind is the kind of a value on the wire.
type Kind int

// The kinds of values.
const (
	Any Kind = iota
	String
	Bool
	Int
	Float
	Array
	Map
	Object
	Pointer // null or a value of Elem
	Union   // one of several objects, distinguished by the field Tag
	Upload  // a file of a multipart request
	Bytes   // base64
	Custom  // decodes or describes itself
	Binary  // a *Blob
)

// Type describes a Go type. It is compiled once, by reflection.
type Type struct {
	Kind     Kind
	Name     string // of the component in the OpenAPI document
	Doc      string
	Elem     *Type
	Fields   []*Field
	Tag      string  // discriminator of a union
	Variants []*Type // of a union

	rtype  reflect.Type
	label  string // of a custom type from an outline
	byTag  map[string]*Type
	schema *jsonschema.Schema // of a custom type
}

// OneOf is embedded in a union type; Value is a pointer to the variant that was sent.
type OneOf struct{ Value any }

// Unioner is a struct that embeds OneOf. It returns its discriminator and its variants, each
// a struct whose discriminator field has a const tag.
type Unioner interface {
	Union() (discriminator string, variants []any)
}

// Decoder is a type that decodes itself from a JSON value (nil, bool, json.Number, string,
// []any, map[string]any).
type Decoder interface {
	DecodeOp(v any) error
	Schemer
}

// Schemer is a type that describes itself. It is required for types with MarshalJSON.
type Schemer interface {
	SchemaOp() *jsonschema.Schema
}

func compileIn(t reflect.Type) *Type {
	c := compiler{seen: map[reflect.Type]*Type{}, in: true}
	typ := c.compile(t)
	if typ.Kind != Object && typ.Kind != Union {
		panic(fmt.Sprintf("op: input %v is not a struct", t))
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
			panic(fmt.Sprintf("op: the keys of %v are not strings", t))
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
		panic(fmt.Sprintf("op: %v cannot be encoded", t))
	}
}

func (c compiler) union(typ *Type) {
	key, variants := reflect.Zero(typ.rtype).Interface().(Unioner).Union()
	typ.Kind, typ.Tag, typ.Name, typ.byTag = Union, key, component(typ.rtype), map[string]*Type{}
	for _, v := range variants {
		variant := c.compile(reflect.TypeOf(v))
		field := variant.field(key)
		if field == nil || field.Const == "" {
			panic(fmt.Sprintf("op: %v needs a field %q with a const tag", variant.rtype, key))
		}
		if typ.byTag[field.Const] != nil {
			panic(fmt.Sprintf("op: %v has two variants %q", typ.rtype, field.Const))
		}
		typ.byTag[field.Const] = variant
		typ.Variants = append(typ.Variants, variant)
	}
}

// component returns the name of a type in the OpenAPI document. It starts with the name of the
// service, so that two services can both have a Session. The service is the package, with three
// exceptions: the packages directly below hub are one service, a package below guest/X/internal
// belongs to the service X, and types of op and app/host belong to no service.
func component(t reflect.Type) string {
	name := t.Name()
	if name == "" {
		return ""
	}
	if i := strings.IndexByte(name, '['); i >= 0 {
		arg := name[i+1 : len(name)-1]
		name = name[:i] + "_" + arg[strings.LastIndexAny(arg, "./")+1:] + "_"
	}
	dir, pkg := path.Split(t.PkgPath())
	if strings.HasSuffix(dir, "/hub/") {
		pkg = "hub"
	}
	if _, below, ok := strings.Cut(dir, "/guest/"); ok {
		if service, _, ok := strings.Cut(below, "/internal/"); ok {
			pkg = path.Base(service)
		}
	}
	pkg = strings.TrimSuffix(pkg, "_test")
	if pkg == "" || pkg == "op" || pkg == "host" || strings.HasPrefix(strings.ToLower(name), pkg) {
		return name
	}
	return strings.ToUpper(pkg[:1]) + pkg[1:] + name
}

func (c compiler) fields(typ *Type, t reflect.Type, prefix []int) {
	for sf, tags := range tag.Fields(t) {
		if sf.Name == "_" {
			typ.Doc = tags.Get("doc")
			continue
		}
		index := append(slices.Clone(prefix), sf.Index...)
		if sf.Anonymous && tags.Get("json") == "" && sf.Type.Kind() == reflect.Struct {
			c.fields(typ, sf.Type, index)
			continue
		}
		if !sf.IsExported() || tags.Get("json") == "-" && tags.Get("path") == "" && tags.Get("query") == "" {
			continue
		}
		f := c.field(sf, tags)
		f.index = index
		if c.in && f.Doc == "" && f.Const == "" {
			panic(fmt.Sprintf("op: %v.%s needs a doc tag", t, sf.Name))
		}
		if typ.field(f.Name) != nil {
			panic(fmt.Sprintf("op: %v has two fields named %q", t, f.Name))
		}
		typ.Fields = append(typ.Fields, f)
	}
}

// Base returns the type without the pointer that makes it optional.
func (t *Type) Base() *Type { return t.withoutPointer() }

// withoutPointer returns the type that a pointer points to, or t if it is not a pointer.
func (t *Type) withoutPointer() *Type {
	for t.Kind == Pointer {
		t = t.Elem
	}
	return t
}

// Label returns the type name in the help of the command line: int, list, quantity.
func (t *Type) Label() string {
	switch t = t.withoutPointer(); t.Kind {
	case String:
		return "string"
	case Bool:
		return "bool"
	case Int:
		return "int"
	case Float:
		return "number"
	case Upload:
		return "file"
	case Array:
		return "list"
	case Map:
		return "key=value"
	case Bytes:
		return "base64"
	case Custom:
		if t.label != "" {
			return t.label
		}
		if isText(t.schema) || slices.ContainsFunc(t.schema.AnyOf, isText) {
			return strings.ToLower(t.rtype.Name())
		}
	}
	return "json"
}

func isText(s *jsonschema.Schema) bool { return s.Type == "string" }

func (t *Type) field(name string) *Field {
	for _, f := range t.Fields {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// AllFields returns all fields. For a union it returns the discriminator, which is required, and
// the fields of all variants, which are optional.
func (t *Type) AllFields() []*Field {
	if t.Kind != Union {
		return t.Fields
	}
	kind := &Field{Name: t.Tag, Source: Body, Required: true, Arg: true, Type: &Type{Kind: String}, Doc: "Selects the variant"}
	out := []*Field{kind}
	seen := map[string]*Field{t.Tag: kind}
	for _, v := range t.Variants {
		for _, f := range v.Fields {
			if f.Name == t.Tag {
				kind.Enum = append(kind.Enum, f.Const)
				continue
			}
			if known := seen[f.Name]; known != nil {
				known.widen(f)
				continue
			}
			loose := *f
			loose.Required, loose.Arg = false, false
			seen[f.Name] = &loose
			out = append(out, &loose)
		}
	}
	return out
}

// checkRoutes compares the parameters of the routes with the fields.
func (t *Type) checkRoutes(route string, also []string) error {
	for _, route := range append([]string{route}, also...) {
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
				return fmt.Errorf("path parameter %q has no field", name)
			}
		}
		for _, f := range t.Fields {
			if f.Source == Path && !params[f.Name] {
				return fmt.Errorf("field %q is not a parameter of %s", f.Name, path)
			}
		}
	}
	return nil
}

// Has reports whether any field comes from the source.
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
