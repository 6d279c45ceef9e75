package op

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
)

// Input is what a surface passes to Bind.
type Input struct {
	JSON []byte // the JSON body; nil if there is none
	Flat bool   // JSON contains the fields of all sources, like the arguments of a tool
	// Value returns the values of a path, query or form field; nil if it was not sent.
	Value func(s Source, name string) []string
	File  func(name string) *File
}

// decode fills dst and returns all faults.
func (t *Type) decode(dst reflect.Value, src Input) Faults {
	d := decoder{}
	var tree any
	if src.Flat || t.Has(Body) || t.Has(Whole) {
		var ok bool
		if tree, ok = d.body(t, src); !ok {
			return d.faults
		}
	}
	if t.Kind == Union {
		d.value(dst, t, nil, tree, d.root(src))
		return d.faults
	}
	object, _ := tree.(map[string]any)
	for _, f := range t.Fields {
		d.top(dst.FieldByIndex(f.index), f, object, tree, src)
	}
	return d.faults
}

// loc is the location of a value, as a list that ends at the root.
type loc struct {
	up  *loc
	key any
}

func (l *loc) list() []any {
	if l == nil {
		return []any{}
	}
	return append(l.up.list(), l.key)
}

type decoder struct{ faults Faults }

func (d *decoder) fault(at *loc, kind, format string, args ...any) {
	d.faults = append(d.faults, Fault{Type: kind, Loc: at.list(), Msg: fmt.Sprintf(format, args...)})
}

func (d *decoder) root(src Input) *loc {
	if src.Flat {
		return nil
	}
	return &loc{key: "body"}
}

// body parses the JSON body. A missing body counts as an empty object if none of its
// fields is required.
func (d *decoder) body(t *Type, src Input) (any, bool) {
	at := d.root(src)
	if len(bytes.TrimSpace(src.JSON)) == 0 {
		for _, f := range t.AllFields() {
			if f.Required && f.Source == Body && !src.Flat {
				d.fault(at, "missing", "Field required")
				return nil, false
			}
		}
		return map[string]any{}, true
	}
	tree, err := parseJSON(src.JSON)
	if err != nil {
		where := &loc{up: at, key: offset(err)}
		d.fault(where, "json_invalid", "JSON decode error: %v", err)
		return nil, false
	}
	if t.Has(Whole) && !src.Flat {
		return tree, true
	}
	if tree == nil && !required(t) {
		return map[string]any{}, true
	}
	if _, ok := tree.(map[string]any); !ok {
		d.fault(at, "model_attributes_type", "Input should be an object, not %s", kindOf(tree))
		return nil, false
	}
	return tree, true
}

func required(t *Type) bool {
	for _, f := range t.AllFields() {
		if f.Required {
			return true
		}
	}
	return false
}

func parseJSON(b []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected data after the JSON value")
	}
	return tree, nil
}

func offset(err error) int64 {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return e.Offset
	}
	return 0
}

// top decodes a top-level field from its source.
func (d *decoder) top(dst reflect.Value, f *Field, object map[string]any, tree any, src Input) {
	if src.Flat && f.Type.Kind == Upload {
		d.file(dst, f, src, &loc{key: f.Name})
		return
	}
	if src.Flat || f.Source == Body {
		d.member(dst, f, object, d.root(src))
		return
	}
	if f.Source == Whole {
		if tree != nil {
			d.value(dst, f.Type, f, tree, d.root(src))
		}
		return
	}
	where := string(f.Source)
	if f.Source == Form {
		where = "body"
	}
	at := &loc{up: &loc{key: where}, key: f.Name}
	if f.Type.Kind == Upload {
		d.file(dst, f, src, at)
		return
	}
	values := src.values(f)
	if values == nil {
		d.absent(dst, f, at)
		return
	}
	d.value(dst, f.Type, f, f.text(values), at)
}

func (src Input) values(f *Field) []string {
	if src.Value == nil {
		return nil
	}
	values := src.Value(f.Source, f.Name)
	for _, alias := range f.Aliases {
		if values == nil {
			values = src.Value(f.Source, alias)
		}
	}
	return values
}

// text converts the strings of a path, query or form to a JSON value.
func (f *Field) text(values []string) any {
	switch f.Type.withoutPointer().Kind {
	case Array:
		list := make([]any, len(values))
		for i, v := range values {
			list[i] = v
		}
		return list
	case Map, Object, Any, Union:
		if tree, err := parseJSON([]byte(values[0])); err == nil {
			return tree
		}
	}
	return values[0]
}

func (d *decoder) file(dst reflect.Value, f *Field, src Input, at *loc) {
	if src.File != nil {
		if file := src.File(f.Name); file != nil {
			dst.Set(reflect.ValueOf(file))
			return
		}
	}
	if f.Required {
		d.fault(at, "missing", "Field required")
	}
}

// member decodes a field of a JSON object.
func (d *decoder) member(dst reflect.Value, f *Field, object map[string]any, up *loc) {
	at := &loc{up: up, key: f.Name}
	v, ok := object[f.Name]
	for _, alias := range f.Aliases {
		if !ok {
			v, ok = object[alias]
		}
	}
	if !ok || v == nil && f.Nullable && f.Type.Kind != Pointer {
		d.absent(dst, f, at)
		return
	}
	d.value(dst, f.Type, f, v, at)
}

func (d *decoder) absent(dst reflect.Value, f *Field, at *loc) {
	switch {
	case f.Default != nil:
		d.value(dst, f.Type, nil, f.preset, at)
	case f.Required:
		d.fault(at, "missing", "Field required")
	}
}

// value decodes v into dst; f contains the limits, and is nil without limits.
func (d *decoder) value(dst reflect.Value, t *Type, f *Field, v any, at *loc) {
	switch t.Kind {
	case Pointer:
		if v == nil {
			return
		}
		p := reflect.New(t.Elem.rtype)
		d.value(p.Elem(), t.Elem, f, v, at)
		dst.Set(p)
	case Any:
		d.any(dst, v, at)
	case String:
		d.string(dst, f, v, at)
	case Bool:
		d.bool(dst, v, at)
	case Int:
		d.int(dst, f, v, at)
	case Float:
		d.float(dst, f, v, at)
	case Array:
		d.array(dst, t, f, v, at)
	case Map:
		d.mapping(dst, t, v, at)
	case Object:
		object, ok := v.(map[string]any)
		if !ok {
			d.fault(at, "model_attributes_type", "Input should be an object, not %s", kindOf(v))
			return
		}
		for _, field := range t.Fields {
			d.member(dst.FieldByIndex(field.index), field, object, at)
		}
	case Union:
		d.union(dst, t, v, at)
	case Bytes:
		d.bytes(dst, v, at)
	case Custom:
		d.custom(dst, v, at)
	default:
		d.fault(at, "value_error", "Input should be a file; send the request as multipart/form-data")
	}
}

func (d *decoder) any(dst reflect.Value, v any, at *loc) {
	if dst.Type() == rawType {
		b, err := json.Marshal(v)
		if err != nil {
			d.fault(at, "value_error", "Input cannot be encoded: %v", err)
			return
		}
		dst.SetBytes(b)
		return
	}
	if v != nil {
		dst.Set(reflect.ValueOf(v))
	}
}

func (d *decoder) array(dst reflect.Value, t *Type, f *Field, v any, at *loc) {
	list, ok := v.([]any)
	if !ok {
		d.fault(at, "list_type", "Input should be a list, not %s", kindOf(v))
		return
	}
	if f != nil && f.MinItems != nil && len(list) < *f.MinItems {
		d.fault(at, "too_short", "List should have at least %d items", *f.MinItems)
	}
	if f != nil && f.MaxItems != nil && len(list) > *f.MaxItems {
		d.fault(at, "too_long", "List should have at most %d items", *f.MaxItems)
		return
	}
	var each *Field
	if f != nil {
		each = f.item
	}
	out := reflect.MakeSlice(t.rtype, len(list), len(list))
	for i, item := range list {
		d.value(out.Index(i), t.Elem, each, item, &loc{up: at, key: i})
	}
	dst.Set(out)
}

func (d *decoder) mapping(dst reflect.Value, t *Type, v any, at *loc) {
	object, ok := v.(map[string]any)
	if !ok {
		d.fault(at, "dict_type", "Input should be an object, not %s", kindOf(v))
		return
	}
	out := reflect.MakeMapWithSize(t.rtype, len(object))
	for key, item := range object {
		elem := reflect.New(t.Elem.rtype).Elem()
		d.value(elem, t.Elem, nil, item, &loc{up: at, key: key})
		out.SetMapIndex(reflect.ValueOf(key).Convert(t.rtype.Key()), elem)
	}
	dst.Set(out)
}

func (d *decoder) union(dst reflect.Value, t *Type, v any, at *loc) {
	object, ok := v.(map[string]any)
	if !ok {
		d.fault(at, "model_attributes_type", "Input should be an object, not %s", kindOf(v))
		return
	}
	tag, ok := object[t.Tag].(string)
	if !ok {
		d.fault(at, "union_tag_not_found", "Field '%s' is required to select the variant", t.Tag)
		return
	}
	variant := t.byTag[tag]
	if variant == nil {
		known := make([]string, len(t.Variants))
		for i, v := range t.Variants {
			known[i] = v.field(t.Tag).Const
		}
		d.fault(at, "union_tag_invalid", "'%s' is not a known %s; use one of: %s", tag, t.Tag, strings.Join(known, ", "))
		return
	}
	p := reflect.New(variant.rtype)
	d.value(p.Elem(), variant, nil, object, &loc{up: at, key: tag})
	dst.FieldByName("OneOf").Field(0).Set(p)
}

func (d *decoder) bytes(dst reflect.Value, v any, at *loc) {
	s, ok := v.(string)
	if !ok {
		d.fault(at, "string_type", "Input should be base64 text, not %s", kindOf(v))
		return
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		d.fault(at, "bytes_invalid_encoding", "Input should be base64: %v", err)
		return
	}
	dst.SetBytes(b)
}

func (d *decoder) custom(dst reflect.Value, v any, at *loc) {
	if dst.Type() == timeType {
		s, _ := v.(string)
		when, err := time.Parse(time.RFC3339, s)
		if err != nil {
			d.fault(at, "datetime_parsing", "Input should be a time such as 2006-01-02T15:04:05Z")
			return
		}
		dst.Set(reflect.ValueOf(when))
		return
	}
	if err := dst.Addr().Interface().(Decoder).DecodeOp(v); err != nil {
		d.fault(at, "value_error", "%v", err)
	}
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "a list"
	}
	return "an object"
}
