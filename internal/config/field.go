package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Field describes one setting; command-line flags and documentation are built from it.
type Field struct {
	Name    string   // Go name of the struct's field
	Key     string   // key in the file
	Flag    string   // flag without dashes
	Env     []string // variables, the first that is set wins; NAME_* collects all with that prefix
	Type    Type
	Default string
	Doc     string
	Secret  bool // not to be shown
	Scrub   bool // its variables must not reach children
	Enum    []string
	Min     string
	Max     string

	url   bool   // only the user information inside the URL is hidden
	sep   string // how text becomes a list: "", "space" or "path"
	index int
}

// Type names what a setting holds.
type Type string

// The types that a config struct's fields may have.
const (
	String   Type = "string"   // string
	Bool     Type = "bool"     // bool
	Int      Type = "int"      // int
	Float    Type = "float"    // float64
	Duration Type = "duration" // time.Duration
	Size     Type = "size"     // Bytes
	Strings  Type = "strings"  // []string
	Ints     Type = "ints"     // []int
	Map      Type = "map"      // map[string]string
)

// Bytes is an amount of memory or disk, written as 1048576, 1MiB or 1MB.
type Bytes int64

// Fields lists the settings of a config struct in order. dst is a pointer to the
// struct. Tags:
//
//	key     file key; with dashes for underscores it is the flag
//	env     variables, comma separated; NAME_* (maps only) collects by prefix
//	default value before any layer
//	doc     one sentence
//	secret  "true": hidden when shown, kept from children; "print": hidden only;
//	        "url": user information hidden, kept from children
//	enum    allowed values, comma separated
//	min,max limits of numbers, durations and sizes, of each element in a list
//	sep     for []string: "space" splits like a shell (quotes hold words
//	        together), "path" also splits at colons; otherwise comma or newline
//
// The list is the same for every caller: it must not be changed.
func Fields(dst any) []Field {
	t := reflect.TypeOf(dst)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: need a pointer to a struct, got %T", dst))
	}
	if list, ok := parsed.Load(t); ok {
		return list.([]Field)
	}
	list, _ := parsed.LoadOrStore(t, parseFields(t.Elem()))
	return list.([]Field)
}

// parsed remembers the lists by type: a program asks several times while it
// starts, and reading a hundred tags is a good part of that time.
var parsed sync.Map

func parseFields(t reflect.Type) []Field {
	fields := make([]Field, 0, t.NumField())
	keys, names := make(map[string]string, t.NumField()), make(map[string]string, 2*t.NumField())
	for i := range t.NumField() {
		f := newField(t.Field(i), i)
		if other, dup := keys[f.Key]; dup {
			panic(fmt.Sprintf("config: fields %s and %s share the key %q", other, f.Name, f.Key))
		}
		keys[f.Key] = f.Name
		for _, e := range f.Env {
			if other, dup := names[e]; dup {
				panic(fmt.Sprintf("config: fields %s and %s share the variable %s", other, f.Name, e))
			}
			names[e] = f.Name
		}
		fields = append(fields, f)
	}
	return fields
}

func newField(s reflect.StructField, index int) Field {
	f := Field{Name: s.Name, index: index}
	wrong := func(what string) { panic(fmt.Sprintf("config: field %s %s", s.Name, what)) }
	var env, enum, secret string
	if !tags(string(s.Tag), func(name string) *string {
		switch name {
		case "key":
			return &f.Key
		case "env":
			return &env
		case "default":
			return &f.Default
		case "doc":
			return &f.Doc
		case "secret":
			return &secret
		case "enum":
			return &enum
		case "min":
			return &f.Min
		case "max":
			return &f.Max
		case "sep":
			return &f.sep
		}
		return nil
	}) {
		wrong("has a tag that is malformed or has no meaning here")
	}
	f.Env, f.Enum = splitTag(env), splitTag(enum)
	if !s.IsExported() || s.Anonymous {
		wrong("must be exported and not embedded: a config struct is flat")
	}
	if f.Key == "" || f.Key != strings.ToLower(f.Key) || strings.ContainsAny(f.Key, "-. ") {
		wrong("needs a key tag of lower-case letters, digits and underscores")
	}
	if f.Doc == "" {
		wrong("needs a doc tag")
	}
	f.Flag = strings.ReplaceAll(f.Key, "_", "-")
	switch secret {
	case "":
	case "true":
		f.Secret, f.Scrub = true, true
	case "print":
		f.Secret = true
	case "url":
		f.Scrub, f.url = true, true
	default:
		wrong(`has a secret tag other than "true", "print" or "url"`)
	}
	var ok bool
	if f.Type, ok = typeOf(s.Type); !ok {
		wrong("has a type that a setting cannot have: " + s.Type.String())
	}
	for _, e := range f.Env {
		if strings.HasSuffix(e, "*") && f.Type != Map {
			wrong("collects variables by prefix but is no map")
		}
	}
	for _, limit := range []string{f.Min, f.Max} {
		if limit != "" {
			if _, err := f.number(limit); err != nil {
				wrong("has a bad limit: " + limit)
			}
		}
	}
	return f
}

// tags reads all of a field's at once: to look for each would be a good part of what
// a server does before it listens. It returns false if one is malformed or unknown.
func tags(tag string, into func(name string) *string) bool {
	for tag = strings.TrimLeft(tag, " "); tag != ""; tag = strings.TrimLeft(tag, " ") {
		name, rest, ok := strings.Cut(tag, ":")
		to := into(name)
		if !ok || to == nil {
			return false
		}
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return false
		}
		if *to, err = strconv.Unquote(quoted); err != nil {
			return false
		}
		tag = rest[len(quoted):]
	}
	return true
}

func typeOf(t reflect.Type) (Type, bool) {
	switch t {
	case reflect.TypeFor[string]():
		return String, true
	case reflect.TypeFor[bool]():
		return Bool, true
	case reflect.TypeFor[int]():
		return Int, true
	case reflect.TypeFor[float64]():
		return Float, true
	case reflect.TypeFor[time.Duration]():
		return Duration, true
	case reflect.TypeFor[Bytes]():
		return Size, true
	case reflect.TypeFor[[]string]():
		return Strings, true
	case reflect.TypeFor[[]int]():
		return Ints, true
	case reflect.TypeFor[map[string]string]():
		return Map, true
	}
	return "", false
}

// zero is the empty value of the field: nil for lists and maps.
func (f Field) zero() reflect.Value {
	switch f.Type {
	case Bool:
		return reflect.ValueOf(false)
	case Int:
		return reflect.ValueOf(0)
	case Float:
		return reflect.ValueOf(0.0)
	case Duration:
		return reflect.ValueOf(time.Duration(0))
	case Size:
		return reflect.ValueOf(Bytes(0))
	case Strings:
		return reflect.ValueOf([]string(nil))
	case Ints:
		return reflect.ValueOf([]int(nil))
	case Map:
		return reflect.ValueOf(map[string]string(nil))
	default:
		return reflect.ValueOf("")
	}
}

func splitTag(tag string) []string {
	if tag == "" {
		return nil
	}
	return strings.Split(tag, ",")
}
