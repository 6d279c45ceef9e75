// Package contract compares Cove's OpenAPI document with the one of the public AIO sandbox,
// whose clients must work unmodified: Cove must accept their requests and send the replies
// that they read. It owns the rules of the comparison and the reference (testdata: names,
// types and defaults only). It ignores names of schemas, operation IDs and additions. It
// resolves references to schemas; the documents have no others.
package contract

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Missing is the text of a finding about a missing operation.
const Missing = "operation is missing"

// Finding is a difference that breaks clients of the reference.
type Finding struct {
	Route     string // as in the reference, such as "GET /v1/shell/sessions"
	What      string
	Reference string
	Ours      string
	Warning   bool // some clients may break; otherwise clients break
}

func (f Finding) String() string {
	level := "fault"
	if f.Warning {
		level = "warning"
	}
	return fmt.Sprintf("%s: %s: %s (reference: %s, ours: %s)", level, f.Route, f.What, f.Reference, f.Ours)
}

// Routes lists the operations of a document, sorted.
func Routes(doc []byte) ([]string, error) {
	d, err := parse(doc)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, o := range d.operations() {
		out = append(out, o.route)
	}
	slices.Sort(out)
	return out, nil
}

// Compare returns the faults and warnings of our document, by route.
func Compare(reference, ours []byte) ([]Finding, error) {
	ref, err := parse(reference)
	if err != nil {
		return nil, fmt.Errorf("parse the reference: %w", err)
	}
	own, err := parse(ours)
	if err != nil {
		return nil, fmt.Errorf("parse our document: %w", err)
	}
	c := &comparison{ref: ref, ours: own}
	served := own.operations()
	for key, theirs := range ref.operations() {
		c.route = theirs.route
		if mine, ok := served[key]; ok {
			c.operation(theirs, mine)
		} else {
			c.fault(Missing, "present", nothing)
		}
	}
	slices.SortFunc(c.found, func(a, b Finding) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(c.found), nil
}

type object = map[string]any

// document is a decoded OpenAPI document; references are resolved on demand.
type document struct{ root object }

func parse(data []byte) (document, error) {
	d := document{}
	if err := json.Unmarshal(data, &d.root); err != nil {
		return d, err
	}
	if len(child(d.root, "paths")) == 0 {
		return d, errors.New("the document has no paths; want an OpenAPI document")
	}
	return d, nil
}

// child returns the object with a name, or nil.
func child(node any, name string) object {
	fields, _ := node.(object)
	found, _ := fields[name].(object)
	return found
}

// operation has the schemas of an operation. Its parameters are two objects with one field per
// parameter.
type operation struct {
	route           string
	path, query     object
	bodies, replies object // by media type
	bodyRequired    bool
}

var parameter = regexp.MustCompile(`\{([^{}.]*)[^{}]*\}`)

// operations returns the operations by method and path without parameter names.
func (d document) operations() map[string]operation {
	out := map[string]operation{}
	for path, item := range child(d.root, "paths") {
		for _, method := range []string{"get", "put", "post", "delete", "patch", "head", "options", "trace"} {
			if fields := child(item, method); fields != nil {
				route := strings.ToUpper(method) + " " + path
				body := child(fields, "requestBody")
				out[parameter.ReplaceAllString(route, "{}")] = operation{
					route:        route,
					path:         parameters(inPath, route, list(fields["parameters"])),
					query:        parameters(inQuery, route, list(fields["parameters"])),
					bodies:       content(body),
					replies:      content(child(child(fields, "responses"), "200")),
					bodyRequired: body["required"] == true,
				}
			}
		}
	}
	return out
}

// parameters returns the parameters of a part. Path parameters are named by position, because
// clients do not send their names.
func parameters(part, route string, all []any) object {
	fields, required := object{}, []any{}
	for _, p := range all {
		p, _ := p.(object)
		if p["in"] != part {
			continue
		}
		name := text(p["name"])
		for i, m := range parameter.FindAllStringSubmatch(route, -1) {
			if part == inPath && m[1] == p["name"] {
				name = strconv.Itoa(i + 1)
			}
		}
		fields[name] = child(p, "schema")
		if p["required"] == true {
			required = append(required, name)
		}
	}
	return object{"properties": fields, "required": required}
}

// content returns the schema of each media type. Parameters of media types are removed.
func content(node object) object {
	out := object{}
	for name, body := range child(node, "content") {
		name, _, _ = strings.Cut(name, ";")
		out[strings.ToLower(strings.TrimSpace(name))] = child(body, "schema")
	}
	return out
}

const nothing = "nothing"

// listed joins distinct values for display.
func listed(values []string) string {
	var out []string
	for _, v := range values {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return cmp.Or(strings.Join(out, "|"), nothing)
}

// text formats a value for display: JSON, but strings without quotes.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func sorted(m object) []string { return slices.Sorted(maps.Keys(m)) }

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func filter[T any](in []T, keep func(T) bool) []T {
	var out []T
	for _, v := range in {
		if keep(v) {
			out = append(out, v)
		}
	}
	return out
}
