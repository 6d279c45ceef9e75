package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/tag"
)

// Field describes one setting. Command-line flags and their help are built from it.
type Field struct {
	Name    string   // Go name of the struct's field
	Key     string   // key in the file
	Flag    string   // flag without dashes
	Env     []string // variables, the first that is set wins; NAME_* collects all with the prefix
	Type    Type
	Default string
	Doc     string
	Secret  bool // hidden in output
	Scrub   bool // removed from the environment of children
	Enum    []string
	Min     string
	Max     string

	public bool // not a secret, but treated as one
	url    bool // only the user information in the URL is hidden
	words  bool // text is split at white space, as in a shell
	limits tag.Limits
	index  int
}

// Type is the type of a setting, named as the command line's help shows it.
type Type string

// The types that a config struct's fields can have.
const (
	String   Type = "string"    // string
	Bool     Type = "bool"      // bool
	Int      Type = "int"       // int
	Float    Type = "number"    // float64
	Duration Type = "duration"  // time.Duration
	Size     Type = "size"      // Bytes
	Strings  Type = "list"      // []string
	Ints     Type = "ints"      // []int
	Map      Type = "key=value" // map[string]string
)

// Bytes is an amount of memory or disk, written as 1048576, 1MiB or 1MB.
type Bytes int64

// knownTags are the tags of a setting, in addition to those of internal/api/tag:
//
//	key     key in the file; with dashes instead of underscores it is the flag
//	env     variables, separated by commas; NAME_* (maps only) collects by prefix
//	secret  "true": hidden in output and from children; "public": the same, but not
//	        confidential; "print": hidden in output only; "url": hidden from children,
//	        user information hidden in output
//	sep     for []string: "space" splits like a shell (quotes group words);
//	        by default text is split at commas and newlines
//
// Limits apply to numbers, durations and sizes, and to each element of a list.
var knownTags = []string{"key", "env", "doc", "default", "enum", tag.Minimum, tag.Maximum, "secret", "sep"}

// Fields returns the settings of a config struct in order. dst is a pointer to the
// struct. Callers share the returned list and must not change it.
func Fields(dst any) []Field {
	t := reflect.TypeOf(dst)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: got %T, want a pointer to a struct", dst))
	}
	if list, ok := parsed.Load(t); ok {
		return list.([]Field)
	}
	list, _ := parsed.LoadOrStore(t, parseFields(t.Elem()))
	return list.([]Field)
}

// parsed caches the lists by type. A program needs them several times during startup, and
// parsing a hundred tags takes a large part of that time.
var parsed sync.Map

// Documented is implemented by config structs whose documentation is too long for doc tags.
type Documented interface {
	// Docs returns pairs of a key and the documentation of the setting.
	Docs() [][2]string
}

func parseFields(t reflect.Type) []Field {
	docs := make(map[string]string, t.NumField())
	if d, ok := reflect.New(t).Interface().(Documented); ok {
		for _, pair := range d.Docs() {
			docs[pair[0]] = pair[1]
		}
	}
	fields := make([]Field, 0, t.NumField())
	keys, names := make(map[string]string, t.NumField()), make(map[string]string, 2*t.NumField())
	for sf, tags := range tag.Fields(t) {
		f := newField(sf, tags, docs)
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

func newField(sf reflect.StructField, tags tag.Tags, docs map[string]string) Field {
	reject := func(format string, args ...any) {
		panic(fmt.Sprintf("config: field "+sf.Name+" "+format, args...))
	}
	for key := range tags.Keys() {
		if !slices.Contains(knownTags, key) {
			reject("has the unknown tag %q", key)
		}
	}
	f := Field{
		Name: sf.Name, Key: tags.Get("key"), Env: tags.List("env"), Doc: tags.Get("doc"), Default: tags.Get("default"),
		Enum: tags.List("enum"), Min: tags.Get(tag.Minimum), Max: tags.Get(tag.Maximum),
		words: tags.Get("sep") == "space", index: sf.Index[0],
	}
	if !sf.IsExported() || sf.Anonymous {
		reject("must be exported and not embedded: a config struct is flat")
	}
	if f.Key == "" || f.Key != strings.ToLower(f.Key) || strings.ContainsAny(f.Key, "-. ") {
		reject("needs a key tag of lower-case letters, digits and underscores")
	}
	if f.Doc = cmp.Or(f.Doc, docs[f.Key]); f.Doc == "" {
		reject("needs a doc")
	}
	f.Flag = strings.ReplaceAll(f.Key, "_", "-")
	switch secret := tags.Get("secret"); secret {
	case "":
	case "true":
		f.Secret, f.Scrub = true, true
	case "public":
		f.Secret, f.Scrub, f.public = true, true, true
	case "print":
		f.Secret = true
	case "url":
		f.Scrub, f.url = true, true
	default:
		reject(`has the secret tag %q; want "true", "public", "print" or "url"`, secret)
	}
	var ok bool
	if f.Type, ok = typeOf(sf.Type); !ok {
		reject("has the unsupported type %v", sf.Type)
	}
	for _, e := range f.Env {
		if strings.HasSuffix(e, "*") && f.Type != Map {
			reject("collects variables by prefix but is not a map")
		}
	}
	var err error
	if f.limits, err = tags.Limits(func(s string) (float64, error) {
		n, err := f.parseNumber(s)
		return toFloat(n), err
	}); err != nil {
		reject("%v", err)
	}
	return f
}

// Exposes reports whether values given for the setting contain a secret.
func (f Field) Exposes(values []string) bool {
	return f.Secret && !f.public && len(values) > 0 || f.url &&
		slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, "@") })
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
