package contract

import (
	"reflect"
	"slices"
	"strings"
)

// comparison collects the findings of all operations.
type comparison struct {
	ref, ours document
	route     string
	found     []Finding
}

func (c *comparison) fault(what, reference, ours string) {
	c.found = append(c.found, Finding{c.route, what, reference, ours, false})
}

func (c *comparison) warn(what, reference, ours string) {
	c.found = append(c.found, Finding{c.route, what, reference, ours, true})
}

// The parts of an operation that contain values.
const (
	inPath    = "path"
	inQuery   = "query"
	inForm    = "form"
	inRequest = "request"
	inReply   = "response"
)

// place is the position of a compared value, such as "request field a[].b".
type place struct {
	part   string
	member string // constants that select members of unions, each followed by a space
	path   string
}

func (p place) String() string {
	noun := " field "
	if p.part == inPath || p.part == inQuery {
		noun = " parameter "
	} else if p.path == "" {
		noun = " body"
	}
	return strings.TrimSpace(p.member + p.part + noun + p.path)
}

func (p place) field(name string) place {
	p.path = strings.TrimPrefix(p.path+"."+name, ".")
	return p
}

// each returns the place of the values of a list ("[]") or map ("{}").
func (p place) each(mark string) place {
	p.path += mark
	return p
}

// tooDeep ends the descent into recursive schemas after the envelope and four levels of
// fields.
func (p place) tooDeep() bool {
	return strings.Count(p.path, ".") >= 4 || strings.Count(p.path, "[]")+strings.Count(p.path, "{}") > 10
}

// operation compares parameters, bodies by media type, and the success reply.
func (c *comparison) operation(theirs, mine operation) {
	c.values(place{part: inPath}, theirs.path, mine.path)
	c.values(place{part: inQuery}, theirs.query, mine.query)
	if mine.bodyRequired && !theirs.bodyRequired {
		c.fault("request body is required", "not required", "required")
	}
	for media, schema := range theirs.bodies {
		part := inForm
		if strings.Contains(media, "json") {
			part = inRequest
		}
		if own, ok := mine.bodies[media]; ok {
			c.values(place{part: part}, schema, own)
		} else {
			c.fault("request body as "+media+" is refused", media, listed(sorted(mine.bodies)))
		}
	}
	if _, ok := mine.replies["text/event-stream"]; ok && strings.HasSuffix(theirs.route, "/events") {
		return // the reference declares its event stream as JSON
	}
	for media, schema := range theirs.replies {
		if own, ok := mine.replies[media]; !ok {
			c.fault("response 200 as "+media+" is missing", media, listed(sorted(mine.replies)))
		} else if media == "application/json" {
			c.values(place{part: inReply}, schema, own)
		}
	}
}

// values compares two schemas: ours must accept every valid request of the reference, and
// only send valid replies of the reference.
func (c *comparison) values(at place, ref, own any) {
	wanted, given := c.ref.shapes(ref), c.ours.shapes(own)
	theirs, mine := kinds(wanted), kinds(given)
	reply := at.part == inReply
	outer, inner := mine, theirs
	if reply {
		outer, inner = theirs, mine
	}
	if reply && slices.Contains(theirs, anything) {
		return
	}
	wider := slices.Contains(mine, "number") && slices.Contains(theirs, "integer") && !slices.Contains(theirs, "number")
	stray := filter(inner, func(k string) bool {
		return !(wider && k == "number") && !slices.ContainsFunc(outer, func(o string) bool { return holds(o, k) })
	})
	some := func(k string) bool { return k != "null" }
	if slices.ContainsFunc(stray, some) || !slices.ContainsFunc(mine, some) {
		c.fault(at.String()+" has another type", listed(theirs), listed(mine))
		return
	}
	if wider {
		c.warn(at.String()+" has a wider type", listed(theirs), listed(mine))
	}
	if len(stray) > 0 && reply {
		c.warn(at.String()+" may be null", listed(theirs), listed(mine))
	} else if len(stray) > 0 && at.part == inRequest && at.path != "" { // only JSON bodies can contain null
		c.fault(at.String()+" refuses null", listed(theirs), listed(mine))
	}
	if !reply {
		c.limits(at, wanted, given)
	}
	if !at.tooDeep() {
		c.inside(at, wanted, given)
	}
}

// limits compares enumerated values and limits with our shapes of the same type. A limit
// counts if all of our shapes have it.
func (c *comparison) limits(at place, wanted, given []shape) {
	for _, w := range wanted {
		ours := filter(given, func(s shape) bool { return holds(s.kind, w.kind) })
		if w.kind == "null" || len(ours) == 0 {
			continue
		}
		for _, v := range w.choices {
			if !slices.ContainsFunc(ours, func(s shape) bool { return s.takes(v) }) {
				c.fault(at.String()+" refuses "+text(v), text(w.choices), known(ours))
			}
		}
		if len(w.choices) > 0 {
			continue
		}
		for _, word := range ours[0].stricter(w) {
			if !slices.ContainsFunc(ours, func(s shape) bool { return !slices.Contains(s.stricter(w), word) }) {
				c.fault(at.String()+" has a stricter "+word, w.limit(word), ours[0].limit(word))
			}
		}
	}
}

// known lists the values that shapes enumerate.
func known(shapes []shape) string {
	var out []string
	for _, s := range shapes {
		if len(s.choices) == 0 {
			out = append(out, s.kind)
		}
		for _, v := range s.choices {
			out = append(out, text(v))
		}
	}
	return listed(out)
}

// inside compares the items of lists and the fields of objects.
func (c *comparison) inside(at place, wanted, given []shape) {
	of := func(kind string) (theirs, mine []shape) {
		theirs = filter(wanted, func(s shape) bool { return s.kind == kind })
		return theirs, filter(given, func(s shape) bool { return s.kind == kind || s.kind == anything })
	}
	if theirs, mine := of("array"); len(theirs) > 0 && len(mine) > 0 {
		c.values(at.each("[]"), below(theirs, "items", nil), below(mine, "items", nil))
	}
	switch theirs, mine := of("object"); {
	case len(theirs) == 0 || len(mine) == 0:
	case at.part == inReply:
		c.fields(at, theirs, mine, nil)
	default: // a client may send any member
		for _, w := range theirs {
			c.member(at, w, mine)
		}
	}
}

// member finds our shapes that accept the constants of one member of a union, such as its
// action_type, and compares the fields.
func (c *comparison) member(at place, wanted shape, given []shape) {
	fields := child(wanted.keys, "properties")
	constants := map[string]bool{}
	for _, name := range sorted(fields) {
		shapes := c.ref.shapes(fields[name])
		if len(shapes) != 1 || shapes[0].keys["const"] == nil {
			continue
		}
		value := shapes[0].keys["const"]
		var options []shape
		fit := filter(given, func(g shape) bool {
			own := child(g.keys, "properties")[name]
			if own == nil {
				return false
			}
			shapes := c.ours.shapes(own)
			options = append(options, shapes...)
			return slices.ContainsFunc(shapes, func(s shape) bool { return s.takes(value) })
		})
		if len(fit) == 0 {
			c.fault(at.String()+" with "+name+" "+text(value)+" is refused", text(value), known(options))
			return
		}
		constants[name], given = true, fit
		at.member = text(value) + " " + at.member
	}
	c.fields(at, []shape{wanted}, given, constants)
	for _, v := range list(given[0].keys["required"]) {
		name := text(v)
		optional := slices.ContainsFunc(given, func(s shape) bool { return !s.requires(name) })
		if !optional && !wanted.requires(name) && !constants[name] {
			c.fault(at.field(name).String()+" is required", "not required", "required")
		}
	}
}

// failure is the member of a reply's data for failed file operations. Clients read the fields
// of the other members, so its fields are optional.
const failure = "FileOperationError"

// fields compares the fields of objects. A field of a union may be in any of our members.
func (c *comparison) fields(at place, wanted, given []shape, constants map[string]bool) {
	regular := filter(wanted, func(s shape) bool { return s.keys[nameKey] != failure })
	if len(regular) == 0 {
		regular = wanted
	}
	theirs, mine := pool("anyOf", regular...), pool("anyOf", given...)
	missing := filter(sorted(pool("anyOf", wanted...)), func(name string) bool { return theirs[name] == nil && mine[name] == nil })
	if len(missing) > 0 {
		c.warn(at.String()+" of a failure is not described", listed(missing), nothing)
	}
	for name, schema := range theirs {
		spot := at.field(name)
		if mine[name] == nil {
			c.fault(spot.String()+" is missing", listed(kinds(c.ref.shapes(schema))), nothing)
			continue
		}
		c.values(spot, schema, mine[name])
		want, have := preset(c.ref.shapes(schema)), preset(c.ours.shapes(mine[name]))
		if at.part != inReply && !constants[name] && want != nil && !reflect.DeepEqual(want, have) {
			c.fault(spot.String()+" has another default", text(want), text(have))
		}
	}
	c.others(at, regular, given, theirs, mine)
}

// others compares the schemas of additional properties.
func (c *comparison) others(at place, wanted, given []shape, theirs, mine object) {
	open := slices.ContainsFunc(given, func(s shape) bool { return s.keys["additionalProperties"] != false })
	switch {
	case !open && at.part != inReply && len(theirs) == 0:
		c.fault(at.String()+" refuses unknown fields", "any field", listed(sorted(mine)))
	case !open && at.part != inReply:
		c.warn(at.String()+" refuses unknown fields", "any field", listed(sorted(mine)))
	case len(theirs) == 0:
		var rest object
		if at.part == inReply { // if the reference has a map, our fields are its values
			var values []any
			for _, name := range sorted(mine) {
				values = append(values, mine[name])
			}
			rest = object{"anyOf": values}
		}
		c.values(at.each("{}"), below(wanted, "additionalProperties", nil), below(given, "additionalProperties", rest))
	}
}

// preset returns the default of a schema, or nil.
func preset(shapes []shape) any {
	for _, s := range shapes {
		if v := s.keys["default"]; v != nil {
			return v
		}
	}
	return nil
}
