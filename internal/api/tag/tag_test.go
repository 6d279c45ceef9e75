package tag

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	tags, err := Parse(`json:"a,omitempty"  doc:"say \"hi\": x" default:"" enum:"a,b"`)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Collect(tags.Keys()), []string{"json", "doc", "default", "enum"}; !slices.Equal(got, want) {
		t.Errorf("keys: got %q, want %q", got, want)
	}
	if got, want := tags.Get("doc"), `say "hi": x`; got != want {
		t.Errorf("doc: got %q, want %q", got, want)
	}
	if _, ok := tags.Lookup("default"); !ok {
		t.Error("an empty default: got none, want one")
	}
	if _, ok := tags.Lookup("env"); ok {
		t.Error("env: got one, want none")
	}
	if got, want := tags.List("enum"), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("enum: got %q, want %q", got, want)
	}
	if got := tags.List("default"); got != nil {
		t.Errorf("list of an empty value: got %q, want nil", got)
	}
	for _, bad := range []reflect.StructTag{`doc`, `doc:`, `doc:x`, `:"x"`, `doc:"x`, `doc:"x" env`} {
		if tags, err := Parse(bad); err == nil {
			t.Errorf("%q: got %v, want an error", bad, tags)
		}
	}
}

func TestFieldsPanicsOnAMalformedTag(t *testing.T) {
	defer func() {
		if p, _ := recover().(string); !strings.Contains(p, ".A: malformed") {
			t.Errorf("got the panic %q, want one that names the field", p)
		}
	}()
	for range Fields(reflect.StructOf([]reflect.StructField{{Name: "A", Type: reflect.TypeFor[int](), Tag: `doc:x`}})) {
		t.Error("got a field, want a panic")
	}
}

func TestLimits(t *testing.T) {
	number := func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }
	for _, tt := range []struct {
		tag  reflect.StructTag
		n    float64
		want string
	}{
		{``, 1e300, ""},
		{`minimum:"1" maximum:"3"`, 1, ""}, {`minimum:"1" maximum:"3"`, 3, ""},
		{`minimum:"1" maximum:"3"`, 0.5, Minimum}, {`minimum:"1" maximum:"3"`, 3.5, Maximum},
		{`exclusiveMinimum:"0"`, 0, ExclusiveMinimum}, {`exclusiveMinimum:"0"`, 0.1, ""},
		{`exclusiveMaximum:"0"`, 0, ExclusiveMaximum}, {`exclusiveMaximum:"0"`, -0.1, ""},
	} {
		tags, err := Parse(tt.tag)
		if err != nil {
			t.Fatal(err)
		}
		limits, err := tags.Limits(number)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := limits.Violated(tt.n); got != tt.want {
			t.Errorf("%s with %v: got %q violated, want %q", tt.tag, tt.n, got, tt.want)
		}
	}
	tags, err := Parse(`minimum:"x"`)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := tags.Limits(number); err == nil {
		t.Errorf(`minimum "x": got %v, want an error`, l)
	}
}

func TestParseBool(t *testing.T) {
	for text, want := range map[string]bool{"1": true, "YES": true, "on": true, "t": true, "0": false, "No": false, "off": false} {
		if got, ok := ParseBool(text); !ok || got != want {
			t.Errorf("%q: got %v, %v, want %v, true", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "2", "maybe"} {
		if got, ok := ParseBool(text); ok {
			t.Errorf("%q: got %v, want it rejected", text, got)
		}
	}
}
