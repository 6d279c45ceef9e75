package activity

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Limits of the record of one call, so that its cost does not depend on the size of input and
// output.
const (
	maxString = 2 << 10
	maxItems  = 20
	maxDepth  = 5
	maxBytes  = 12 << 10
)

// secretWords are parts of the names of fields whose values are not recorded.
var secretWords = []string{"password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "cookie", "credential", "private"}

// mapWords are additional words for keys of maps, which are environments and headers.
var mapWords = []string{"key", "auth", "pass", "pwd"}

func isSecret(name string, words ...string) bool {
	name = strings.ToLower(name)
	in := func(word string) bool { return strings.Contains(name, word) }
	return slices.ContainsFunc(secretWords, in) || slices.ContainsFunc(words, in)
}

// shorten removes the middle of a long text.
func shorten(s string) string { return shortenTo(s, maxString) }

func shortenTo(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit/2], "") + " … " + strings.ToValidUTF8(s[len(s)-limit/2:], "")
}

// summarize formats a value as JSON, truncated and without secrets.
func summarize(v any) string {
	switch x := v.(type) {
	case nil:
		return ""
	case *op.Blob:
		return fmt.Sprintf(`{"bytes":%d}`, x.Size)
	}
	var b strings.Builder
	write(&b, reflect.ValueOf(v), 0)
	if text := b.String(); text != "{}" && text != "null" {
		return text
	}
	return ""
}

var (
	timeType = reflect.TypeFor[time.Time]()
	fileType = reflect.TypeFor[op.File]()
)

func write(b *strings.Builder, v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			b.WriteString("null")
			return
		}
		write(b, v.Elem(), depth)
	case reflect.String:
		quote(b, shorten(v.String()))
	case reflect.Bool:
		b.WriteString(strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		b.WriteString(strconv.FormatInt(v.Int(), 10))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		b.WriteString(strconv.FormatUint(v.Uint(), 10))
	case reflect.Float32, reflect.Float64:
		fmt.Fprintf(b, "%v", v.Float())
	case reflect.Struct:
		writeStruct(b, v, depth)
	case reflect.Map:
		writeMap(b, v, depth)
	case reflect.Slice, reflect.Array:
		writeList(b, v, depth)
	default:
		b.WriteString("null")
	}
}

func quote(b *strings.Builder, s string) {
	if isPlain(s) {
		b.WriteByte('"')
		b.WriteString(s)
		b.WriteByte('"')
		return
	}
	text, err := op.JSON(s)
	if err != nil {
		text = []byte(`""`)
	}
	b.Write(text)
}

// isPlain reports whether a text needs no escapes in JSON.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// full reports whether a limit is reached.
func full(b *strings.Builder, depth int) bool { return depth > maxDepth || b.Len() > maxBytes }

func writeStruct(b *strings.Builder, v reflect.Value, depth int) {
	switch v.Type() {
	case timeType:
		quote(b, v.Interface().(time.Time).Format(time.RFC3339Nano))
		return
	case fileType:
		quote(b, "a file: "+v.FieldByName("Name").String())
		return
	}
	b.WriteByte('{')
	first := true
	fields(b, v, depth, &first)
	b.WriteByte('}')
}

// field describes a field of a struct.
type field struct {
	name     string
	secret   bool
	embedded bool // a struct whose fields are those of the outer one
	hidden   bool
}

// known caches the fields of recorded types. Their number is limited by the number of operations.
var known sync.Map // []field by reflect.Type

func fieldsOf(t reflect.Type) []field {
	if list, ok := known.Load(t); ok {
		return list.([]field)
	}
	list := make([]field, t.NumField())
	for i := range list {
		f := t.Field(i)
		name := f.Name
		for _, key := range []string{"json", "query", "path", "form"} {
			if tag, _, _ := strings.Cut(f.Tag.Get(key), ","); tag != "" && tag != "-" {
				name = tag
				break
			}
		}
		list[i] = field{name: name, secret: isSecret(name), embedded: f.Anonymous && f.Type.Kind() == reflect.Struct, hidden: !f.IsExported()}
	}
	known.Store(t, list)
	return list
}

// fields writes the fields of a struct that are set, with those of embedded ones.
func fields(b *strings.Builder, v reflect.Value, depth int, first *bool) {
	for i, f := range fieldsOf(v.Type()) {
		value := v.Field(i)
		if f.embedded {
			fields(b, value, depth, first)
			continue
		}
		if !f.hidden && !value.IsZero() && !full(b, depth) {
			entry(b, f.name, f.secret, value, depth, first)
		}
	}
}

func entry(b *strings.Builder, name string, secret bool, value reflect.Value, depth int, first *bool) {
	if !*first {
		b.WriteByte(',')
	}
	*first = false
	quote(b, name)
	b.WriteByte(':')
	if secret {
		quote(b, removed)
		return
	}
	write(b, value, depth+1)
}

func writeMap(b *strings.Builder, v reflect.Value, depth int) {
	b.WriteByte('{')
	first, n := true, 0
	for it := v.MapRange(); it.Next() && n < maxItems && !full(b, depth); n++ {
		name := shorten(fmt.Sprint(it.Key()))
		entry(b, name, isSecret(name, mapWords...), it.Value(), depth, &first)
	}
	b.WriteByte('}')
}

func writeList(b *strings.Builder, v reflect.Value, depth int) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		quote(b, fmt.Sprintf("%d bytes", v.Len()))
		return
	}
	b.WriteByte('[')
	for i := range min(v.Len(), maxItems) {
		if full(b, depth) {
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		write(b, v.Index(i), depth+1)
	}
	b.WriteByte(']')
}
