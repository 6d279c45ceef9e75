// Package tag reads struct tags that describe a field. The inputs of operations
// (internal/api/op) and the settings of programs (internal/config) share its keys:
//
//	doc                                 description
//	default                             value if none is given
//	enum                                allowed values, separated by commas
//	minimum, maximum                    inclusive limits of a number
//	exclusiveMinimum, exclusiveMaximum  exclusive limits of a number
//
// Additional keys (json, env, …) belong to the caller, which looks them up itself. The package
// owns the syntax of tags and limits, and is independent of the source of values.
package tag

import (
	"fmt"
	"iter"
	"reflect"
	"strconv"
	"strings"
)

// Tags are the keys and values of one field's tag. All of them are parsed at once, because
// reflect.StructTag.Get scans the whole tag on each call. For a hundred settings that would take
// a large part of a program's startup.
type Tags []pair

type pair struct{ key, value string }

// Fields iterates over the fields of a struct type and their tags. It panics on a
// malformed tag, which is an error in the program.
func Fields(t reflect.Type) iter.Seq2[reflect.StructField, Tags] {
	return func(yield func(reflect.StructField, Tags) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			tags, err := Parse(f.Tag)
			if err != nil {
				panic(fmt.Sprintf("%v.%s: %v", t, f.Name, err))
			}
			if !yield(f, tags) {
				return
			}
		}
	}
}

// Parse splits a tag into its keys and values.
func Parse(tag reflect.StructTag) (Tags, error) {
	var out Tags
	for rest := strings.TrimLeft(string(tag), " "); rest != ""; rest = strings.TrimLeft(rest, " ") {
		key, quoted, ok := strings.Cut(rest, ":")
		text, err := strconv.QuotedPrefix(quoted)
		if !ok || key == "" || err != nil {
			return nil, fmt.Errorf("malformed struct tag %q", tag)
		}
		value, err := strconv.Unquote(text)
		if err != nil {
			return nil, fmt.Errorf("malformed struct tag %q", tag)
		}
		if out == nil {
			out = make(Tags, 0, 8)
		}
		out = append(out, pair{key, value})
		rest = quoted[len(text):]
	}
	return out, nil
}

// Lookup returns the value of a key and whether the tag has it.
func (t Tags) Lookup(key string) (string, bool) {
	for _, p := range t {
		if p.key == key {
			return p.value, true
		}
	}
	return "", false
}

// Get returns the value of a key; empty if it is missing.
func (t Tags) Get(key string) string {
	value, _ := t.Lookup(key)
	return value
}

// List splits the value of a key at commas; it is nil if the value is empty.
func (t Tags) List(key string) []string {
	value := t.Get(key)
	if value == "" {
		return nil
	}
	return strings.Split(value, ",")
}

// Keys iterates over the keys in the order of the tag.
func (t Tags) Keys() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, p := range t {
			if !yield(p.key) {
				return
			}
		}
	}
}

// Limits of a number; nil means no limit.
type Limits struct {
	Min, Max   *float64
	MinX, MaxX *float64 // exclusive
}

// Keys of the limits.
const (
	Minimum          = "minimum"
	Maximum          = "maximum"
	ExclusiveMinimum = "exclusiveMinimum"
	ExclusiveMaximum = "exclusiveMaximum"
)

// Limits returns the limits in the tag. parse parses a number in the notation of the field's
// values, such as 30s for a duration.
func (t Tags) Limits(parse func(string) (float64, error)) (Limits, error) {
	var l Limits
	for _, p := range t {
		var to **float64
		switch p.key {
		case Minimum:
			to = &l.Min
		case Maximum:
			to = &l.Max
		case ExclusiveMinimum:
			to = &l.MinX
		case ExclusiveMaximum:
			to = &l.MaxX
		default:
			continue
		}
		n, err := parse(p.value)
		if err != nil {
			return Limits{}, fmt.Errorf("%s %q is not a valid limit: %w", p.key, p.value, err)
		}
		*to = &n
	}
	return l, nil
}

// Violated returns the key of the limit that n violates and the limit itself; the key
// is empty if n is within all limits.
func (l Limits) Violated(n float64) (key string, limit float64) {
	switch {
	case l.Min != nil && n < *l.Min:
		return Minimum, *l.Min
	case l.Max != nil && n > *l.Max:
		return Maximum, *l.Max
	case l.MinX != nil && n <= *l.MinX:
		return ExclusiveMinimum, *l.MinX
	case l.MaxX != nil && n >= *l.MaxX:
		return ExclusiveMaximum, *l.MaxX
	}
	return "", 0
}

// ParseBool parses a boolean in any common spelling and any case.
func ParseBool(s string) (value, ok bool) {
	switch strings.ToLower(s) {
	case "1", "true", "t", "yes", "y", "on":
		return true, true
	case "0", "false", "f", "no", "n", "off":
		return false, true
	}
	return false, false
}
