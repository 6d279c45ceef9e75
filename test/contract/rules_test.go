package contract

import (
	"slices"
	"strings"
	"testing"
)

const components = `"components":{"schemas":{
	"Click":{"type":"object","properties":{"kind":{"const":"CLICK"},"x":{"type":"integer"}},"required":["kind"]},
	"Wait":{"type":"object","properties":{"kind":{"const":"WAIT"},"seconds":{"type":"number"}},"required":["kind"]},
	"Tree":{"type":"object","properties":{"name":{"type":"string"},"below":{"type":"array","items":{"$ref":"#/components/schemas/Tree"}}}},
	"FileOperationError":{"type":"object","properties":{"errno":{"type":"integer"}}},
	"Nest":{"type":"array","items":{"$ref":"#/components/schemas/Nest"}},
	"Loop":{"$ref":"#/components/schemas/Loop"}}}`

// with returns a document with one operation.
func with(path, operation string) string {
	return `{"paths":{"` + path + `":{"post":` + operation + `}},` + components + `}`
}

func takes(schema string) string { return takesAs("application/json", schema) }
func takesAs(media, schema string) string {
	return with("/x", `{"requestBody":{"content":{"`+media+`":{"schema":`+schema+`}}}}`)
}
func sends(schema string) string { return sendsAs("application/json", schema) }
func sendsAs(media, schema string) string {
	return with("/x", `{"responses":{"200":{"content":{"`+media+`":{"schema":`+schema+`}}}}}`)
}
func query(required, schema string) string {
	return with("/x", `{"parameters":[{"name":"q","in":"query","required":`+required+`,"schema":`+schema+`}]}`)
}
func field(schema string) string { return `{"type":"object","properties":{"a":` + schema + `}}` }
func ref(name string) string     { return `{"$ref":"#/components/schemas/` + name + `"}` }
func anyOf(schemas ...string) string {
	return `{"anyOf":[` + strings.Join(schemas, ",") + `]}`
}

type rule struct {
	name, ref, ours string
	want            []string // prefixes of the findings, in order
}

func check(t *testing.T, rules []rule) {
	t.Helper()
	t.Parallel()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			found, err := Compare([]byte(r.ref), []byte(r.ours))
			if err != nil {
				t.Fatal(err)
			}
			same := slices.EqualFunc(found, r.want, func(f Finding, want string) bool {
				level, what, _ := strings.Cut(want, ": ")
				return f.Warning == (level == "warning") && strings.HasPrefix(f.What, what)
			})
			if !same {
				t.Errorf("got %q, want %q", found, r.want)
			}
		})
	}
}

const (
	str     = `{"type":"string"}`
	integer = `{"type":"integer"}`
	null    = `{"type":"null"}`
	free    = `{"type":"object"}`
)

func TestOperations(t *testing.T) {
	named := func(path, name string) string {
		return with(path, `{"parameters":[{"name":"`+name+`","in":"path","required":true,"schema":`+integer+`}]}`)
	}
	pair := func(first, second string) string {
		return with("/x/{a}/{b}", `{"parameters":[{"name":"a","in":"path","schema":`+first+`},{"name":"b","in":"path","schema":`+second+`}]}`)
	}
	check(t, []rule{
		{"second path parameter", pair(str, str), pair(str, integer), []string{"fault: path parameter 2 has another type"}},
		{"missing", with("/x", `{}`), with("/y", `{}`), []string{"fault: " + Missing}},
		{"other method", with("/x", `{}`), `{"paths":{"/x":{"get":{}}}}`, []string{"fault: " + Missing}},
		{"additional operations", with("/x", `{}`), `{"paths":{"/x":{"get":{},"post":{}},"/y":{"get":{}}}}`, nil},
		{"path parameters match by position", named("/x/{id}", "id"), named("/x/{name...}", "name"), nil},
		{"path parameter of another type", named("/x/{id}", "id"), strings.Replace(named("/x/{n}", "n"), "integer", "boolean", 1),
			[]string{"fault: path parameter 1 has another type"}},
	})
}

// limited returns a document whose field a has a type and limits.
func limited(kind, limits string) string {
	return takes(field(`{"type":"` + kind + `",` + limits + `}`))
}

func TestParametersAndBodies(t *testing.T) {
	check(t, []rule{
		{"query parameter missing", query("false", str), with("/x", `{}`), []string{"fault: query parameter q is missing"}},
		{"query parameter required", query("false", str), query("true", str), []string{"fault: query parameter q is required"}},
		{"additional query parameter", with("/x", `{}`), query("false", str), nil},
		{"additional query parameter, required", with("/x", `{}`), query("true", str), []string{"fault: query parameter q is required"}},
		{"query parameter cannot be null", query("false", anyOf(str, null)), query("false", str), nil},
		{"body required", takes(free), strings.Replace(takes(free), `"requestBody":{`, `"requestBody":{"required":true,`, 1),
			[]string{"fault: request body is required"}},
		{"media type", takesAs("multipart/form-data", free), takes(free), []string{"fault: request body as multipart/form-data is refused"}},
		{"media type with parameters", takes(free), takesAs("Application/JSON; charset=utf-8", free), nil},
		{"form field", takesAs("multipart/form-data", field(str)), takesAs("multipart/form-data", field(integer)),
			[]string{"fault: form field a has another type"}},
	})
}

func TestRequestTypes(t *testing.T) {
	check(t, []rule{
		{"field missing", takes(field(str)), takes(free), []string{"fault: request field a is missing"}},
		{"type", takes(field(str)), takes(field(integer)), []string{"fault: request field a has another type"}},
		{"type, one of a list", takes(field(`{"type":["string","integer"]}`)), takes(field(integer)),
			[]string{"fault: request field a has another type"}},
		{"any type", takes(field(str)), takes(field(`{}`)), nil},
		{"reference takes any type", takes(field(`{}`)), takes(field(str)), []string{"fault: request field a has another type"}},
		{"more types", takes(field(str)), takes(field(anyOf(str, integer, null))), nil},
		{"number for integer", takes(field(integer)), takes(field(`{"type":"number"}`)), []string{"warning: request field a has a wider type"}},
		{"integer for number", takes(field(`{"type":"number"}`)), takes(field(integer)), []string{"fault: request field a has another type"}},
		{"null", takes(field(anyOf(str, null))), takes(field(str)), []string{"fault: request field a refuses null"}},
		{"items", takes(field(`{"type":"array","items":` + str + `}`)), takes(field(`{"type":"array","items":` + integer + `}`)),
			[]string{"fault: request field a[] has another type"}},
		{"values of a map", takes(field(`{"type":"object","additionalProperties":` + str + `}`)),
			takes(field(`{"type":"object","additionalProperties":` + integer + `}`)), []string{"fault: request field a{} has another type"}},
		{"nested", takes(field(field(str))), takes(field(field(integer))), []string{"fault: request field a.a has another type"}},
	})
}

func TestRequiredAndDefaults(t *testing.T) {
	check(t, []rule{
		{"required", takes(field(str)), takes(`{"properties":{"a":` + str + `},"required":["a"]}`),
			[]string{"fault: request field a is required"}},
		{"additional required field", takes(field(str)), takes(`{"properties":{"a":` + str + `},"required":["b"]}`),
			[]string{"fault: request field b is required"}},
		{"required by both", takes(`{"properties":{"a":` + str + `},"required":["a"]}`),
			takes(`{"properties":{"a":` + str + `},"required":["a"]}`), nil},
		{"default", limited("integer", `"default":1`), limited("integer", `"default":2`), []string{"fault: request field a has another default"}},
		{"no default", limited("integer", `"default":1`), takes(field(integer)), []string{"fault: request field a has another default"}},
		{"additional default", takes(field(integer)), limited("integer", `"default":1`), nil},
		{"default and union", takes(field(`{"anyOf":[` + str + `,` + null + `],"default":"x"}`)), limited("string", `"default":"x"`),
			[]string{"fault: request field a refuses null"}},
	})
}

func TestLimits(t *testing.T) {
	check(t, []rule{
		{"enum", limited("string", `"enum":["x","y"]`), limited("string", `"enum":["x"]`), []string{"fault: request field a refuses y"}},
		{"enum over two members", limited("string", `"enum":["x","y"]`), takes(field(anyOf(`{"enum":["x"]}`, `{"const":"y"}`))), nil},
		{"enum over any string", limited("string", `"enum":["x","y"]`), takes(field(str)), nil},
		{"enum over short strings", limited("string", `"enum":["x","yyy"]`), limited("string", `"maxLength":2`),
			[]string{"fault: request field a refuses yyy"}},
		{"enum of numbers", limited("integer", `"enum":[1,5]`), limited("integer", `"minimum":2`), []string{"fault: request field a refuses 1"}},
		{"enum implies its type", takes(field(`{"enum":[true]}`)), takes(field(`{"enum":[0.5]}`)),
			[]string{"fault: request field a has another type"}},
		{"enum of fractions", takes(field(`{"enum":[0.5,2]}`)), takes(field(`{"type":"number","minimum":1}`)),
			[]string{"fault: request field a refuses 0.5"}},
		{"enum instead of any string", takes(field(str)), limited("string", `"enum":["x"]`),
			[]string{"fault: request field a has a stricter enum"}},
		{"minimum", takes(field(integer)), limited("integer", `"minimum":1`), []string{"fault: request field a has a stricter minimum"}},
		{"exclusive minimum one lower", limited("integer", `"minimum":1`), limited("integer", `"exclusiveMinimum":0`), nil},
		{"exclusive of a fraction", limited("number", `"minimum":0`), limited("number", `"exclusiveMinimum":0`),
			[]string{"fault: request field a has a stricter minimum"}},
		{"maximum", limited("integer", `"maximum":9`), limited("integer", `"maximum":8`),
			[]string{"fault: request field a has a stricter maximum"}},
		{"exclusive maximum", limited("integer", `"maximum":9`), limited("integer", `"exclusiveMaximum":9`),
			[]string{"fault: request field a has a stricter maximum"}},
		{"exclusive maximum one higher", limited("integer", `"maximum":9`), limited("integer", `"exclusiveMaximum":10`), nil},
		{"wider limits", limited("integer", `"minimum":1,"maximum":9`), limited("integer", `"minimum":0,"maximum":10`), nil},
		{"minLength", takes(field(str)), limited("string", `"minLength":1`), []string{"fault: request field a has a stricter minLength"}},
		{"maxLength", takes(field(str)), limited("string", `"maxLength":64`), []string{"fault: request field a has a stricter maxLength"}},
		{"minItems", limited("array", `"items":{}`), limited("array", `"minItems":1`),
			[]string{"fault: request field a has a stricter minItems"}},
		{"maxItems", limited("array", `"maxItems":9`), limited("array", `"maxItems":8`),
			[]string{"fault: request field a has a stricter maxItems"}},
		{"pattern", takes(field(str)), limited("string", `"pattern":"^x"`), []string{"fault: request field a has a stricter pattern"}},
		{"limit of one member only", takes(field(str)), takes(field(anyOf(`{"type":"string","maxLength":4}`, str))), nil},
		{"limit of a query parameter", query("false", integer), query("false", `{"type":"integer","maximum":5}`),
			[]string{"fault: query parameter q has a stricter maximum"}},
	})
}

func TestUnknownFields(t *testing.T) {
	check(t, []rule{
		{"unknown fields", takes(field(str)), takes(`{"properties":{"a":` + str + `},"additionalProperties":false}`),
			[]string{"warning: request body refuses unknown fields"}},
		{"no free form", takes(field(free)), takes(field(`{"type":"object","additionalProperties":false}`)),
			[]string{"fault: request field a refuses unknown fields"}},
	})
}

func TestUnions(t *testing.T) {
	list := func(schema string) string { return takes(`{"type":"array","items":` + schema + `}`) }
	both := list(anyOf(ref("Click"), ref("Wait")))
	check(t, []rule{
		{"same", both, list(`{"oneOf":[` + ref("Wait") + `,` + ref("Click") + `]}`), nil},
		{"no such member", both, list(ref("Click")), []string{"fault: request field [] with kind WAIT is refused"}},
		{"field of one member", both, list(anyOf(ref("Wait"), `{"properties":{"kind":{"const":"CLICK"}}}`)),
			[]string{"fault: CLICK request field [].x is missing"}},
		{"field required by one member", both,
			list(anyOf(ref("Wait"), `{"properties":{"kind":{"const":"CLICK"},"x":`+integer+`},"required":["kind","x"]}`)),
			[]string{"fault: CLICK request field [].x is required"}},
		{"one member for all", both, list(`{"properties":{"kind":{"enum":["CLICK","WAIT"]},"x":` + integer +
			`,"seconds":{"type":"number"}}}`), nil},
		{"the discriminator may be required", list(`{"properties":{"kind":{"const":"CLICK"}}}`), list(ref("Click")), nil},
	})
}

func TestReplies(t *testing.T) {
	check(t, []rule{
		{"media type", sendsAs("image/png", str), sends(str), []string{"fault: response 200 as image/png is missing"}},
		{"no reply", sends(str), with("/x", `{}`), []string{"fault: response 200 as application/json is missing"}},
		{"raw bytes are not compared", sendsAs("image/png", str), sendsAs("image/png", integer), nil},
		{"events", with("/x/events", `{"responses":{"200":{"content":{"application/json":{}}}}}`),
			with("/x/events", `{"responses":{"200":{"content":{"text/event-stream":{}}}}}`), nil},
		{"a stream instead of JSON", sends(free), sendsAs("text/event-stream", free),
			[]string{"fault: response 200 as application/json is missing"}},
		{"field missing", sends(field(str)), sends(free), []string{"fault: response field a is missing"}},
		{"additional field", sends(free), sends(field(str)), nil},
		{"type", sends(field(str)), sends(field(integer)), []string{"fault: response field a has another type"}},
		{"any type", sends(field(str)), sends(field(`{}`)), []string{"fault: response field a has another type"}},
		{"reference sends any type", sends(field(`{}`)), sends(field(str)), nil},
		{"fewer types", sends(field(anyOf(str, integer, null))), sends(field(str)), nil},
		{"no list", sends(field(anyOf(str, `{"items":`+str+`}`))), sends(field(str)), nil},
		{"no object", sends(field(anyOf(str, field(str)))), sends(field(str)), nil},
		{"more types", sends(field(str)), sends(field(anyOf(str, integer))), []string{"fault: response field a has another type"}},
		{"only null", sends(field(anyOf(str, null))), sends(field(null)), []string{"fault: response field a has another type"}},
		{"null", sends(field(str)), sends(field(anyOf(str, null))), []string{"warning: response field a may be null"}},
		{"integer for number", sends(field(`{"type":"number"}`)), sends(field(integer)), nil},
		{"number for integer", sends(field(integer)), sends(field(`{"type":"number"}`)), []string{"warning: response field a has a wider type"}},
		{"items", sends(`{"items":` + field(str) + `}`), sends(`{"items":` + free + `}`), []string{"fault: response field [].a is missing"}},
		{"limits and defaults do not matter", sends(field(`{"type":"string","enum":["x"],"default":"x"}`)),
			sends(field(`{"type":"string","maxLength":3}`)), nil},
		{"map as fields", sends(`{"additionalProperties":` + str + `}`), sends(field(str)), nil},
		{"map as fields of another type", sends(`{"additionalProperties":` + str + `}`), sends(field(integer)),
			[]string{"fault: response field {} has another type"}},
		{"fields over a union", sends(anyOf(field(str), `{"properties":{"b":`+str+`}}`)),
			sends(`{"properties":{"a":` + str + `,"b":` + str + `}}`), nil},
		{"failures not described", sends(field(anyOf(field(str), ref("FileOperationError")))), sends(field(field(str))),
			[]string{"warning: response field a of a failure is not described"}},
	})
}

func TestReferences(t *testing.T) {
	check(t, []rule{
		{"by name or in place", sends(ref("FileOperationError")), sends(`{"properties":{"errno":` + integer + `}}`), nil},
		{"intersection", takes(`{"properties":{"x":` + str + `,"a":` + str + `}}`), takes(`{"allOf":[` + ref("Click") + `,` + field(str) + `]}`),
			[]string{"fault: request field kind is required", "fault: request field x has another type"}},
		{"intersection of one field", takes(field(integer)), takes(`{"allOf":[` + field(integer) + `,` + field(`{"maximum":3}`) + `]}`),
			[]string{"fault: request field a has a stricter maximum"}},
		{"types that exclude each other", takes(field(str)), takes(field(`{"allOf":[` + str + `,` + integer + `]}`)),
			[]string{"fault: request field a has another type"}},
		{"integer and number is integer", takes(field(integer)), takes(field(`{"allOf":[` + integer + `,{"type":"number"}]}`)), nil},
		{"number and integer is integer", takes(field(`{"type":"number"}`)), takes(field(`{"allOf":[{"type":"number"},` + integer + `]}`)),
			[]string{"fault: request field a has another type"}},
		{"empty union", sends(free), sends(`{"anyOf":[]}`), []string{"fault: response body has another type"}},
		{"dead end", sends(free), sends(ref("Gone")), []string{"fault: response body has another type"}},
		{"a tree ends", sends(ref("Tree")), sends(ref("Tree")), nil},
		{"lists in lists end", sends(ref("Nest")), sends(ref("Nest")), nil},
		{"a tree differs", sends(ref("Tree")), sends(`{"properties":{"name":` + str + `,"below":{"items":` + free + `}}}`),
			[]string{"fault: response field below[].below is missing", "fault: response field below[].name is missing"}},
		{"a loop is nothing", sends(free), sends(ref("Loop")), []string{"fault: response body has another type"}},
	})
}

func TestCompareRefusesOtherDocuments(t *testing.T) {
	t.Parallel()
	good := with("/x", `{}`)
	for _, bad := range []string{``, `[]`, `{}`, `{"paths":[]}`, `{"paths":{}}`} {
		if _, err := Compare([]byte(good), []byte(bad)); err == nil || !strings.Contains(err.Error(), "our document") {
			t.Errorf("%q as ours: got %v, want an error containing \"our document\"", bad, err)
		}
		if _, err := Compare([]byte(bad), []byte(good)); err == nil || !strings.Contains(err.Error(), "the reference") {
			t.Errorf("%q as the reference: got %v, want an error containing \"the reference\"", bad, err)
		}
		if _, err := Routes([]byte(bad)); err == nil {
			t.Errorf("%q: got no error from Routes, want one", bad)
		}
	}
}
