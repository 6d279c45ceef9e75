package contract

import (
	"reflect"
	"slices"
)

// failure is what data holds when a file operation fails: a client of the reference
// never reads it without having seen success first.
const failure = "FileOperationError"

// values compares two schemas: ours must take every request that fits the
// reference, and send only replies that fit it.
func (c *comparison) values(at place, ref, ours any) {
	wanted, given := c.ref.shapes(ref), c.ours.shapes(ours)
	theirs, mine := kinds(wanted), kinds(given)
	reply := at.part == inReply
	outer, inner := mine, theirs
	if reply {
		outer, inner = theirs, mine
	}
	if reply && slices.Contains(theirs, anything) {
		return
	}
	var stray []string
	for _, k := range inner {
		if !slices.ContainsFunc(outer, func(o string) bool { return holds(o, k) }) {
			stray = append(stray, k)
		}
	}
	says := [2]string{listed(theirs), listed(mine)}
	if slices.Contains(mine, "number") && slices.Contains(theirs, "integer") && !slices.Contains(theirs, "number") {
		stray = without(stray, "number")
		c.add(Warning, at.String()+" has a wider type", says[0], says[1])
	}
	if len(without(stray, "null")) > 0 || len(without(mine, "null")) == 0 {
		c.add(Fault, at.String()+" has another type", says[0], says[1])
		return
	}
	switch {
	case len(stray) == 0:
	case reply:
		c.add(Warning, at.String()+" may be null", says[0], says[1])
	case at.part == inRequest && at.path != "": // only JSON fields can carry a null
		c.add(Fault, at.String()+" refuses null", says[0], says[1])
	}
	if !reply {
		c.limits(at, wanted, given)
	}
	if !at.tooDeep() {
		c.inside(at, wanted, given)
	}
}

// limits compares listed values and bounds of each shape with those of our shapes of
// its type: a limit counts when none of ours does without it.
func (c *comparison) limits(at place, wanted, given []shape) {
	for _, w := range wanted {
		ours := slices.DeleteFunc(slices.Clone(given), func(s shape) bool { return !holds(s.kind, w.kind) })
		switch {
		case w.kind == "null":
		case len(w.choices) > 0:
			var all, lost, known []string
			for _, v := range w.choices {
				all = append(all, text(v))
				if !slices.ContainsFunc(ours, func(s shape) bool { return s.takes(v) }) {
					lost = append(lost, text(v))
				}
			}
			for _, s := range ours {
				known = append(known, s.known("other limits")...)
			}
			if len(lost) > 0 {
				c.add(Fault, at.String()+" refuses "+listed(lost), listed(all), listed(known))
			}
		default:
			words := ours[0].stricter(w)
			for _, s := range ours[1:] {
				more := s.stricter(w)
				words = slices.DeleteFunc(words, func(word string) bool { return !slices.Contains(more, word) })
			}
			for _, word := range words {
				c.add(Fault, at.String()+" has a stricter "+word, w.says(word), ours[0].says(word))
			}
		}
	}
}

// inside compares the items of lists and the fields of objects.
func (c *comparison) inside(at place, wanted, given []shape) {
	if theirs, mine := ofKind(wanted, "array"), ofKind(given, "array", anything); len(theirs) > 0 && len(mine) > 0 {
		c.values(at.each("[]"), union(theirs, "items", true), union(mine, "items", true))
	}
	theirs, mine := ofKind(wanted, "object"), ofKind(given, "object", anything)
	switch {
	case len(theirs) == 0 || len(mine) == 0:
	case at.part == inReply:
		c.fields(at, theirs, mine)
	default: // a client sends one of the members, so each must be taken
		for _, w := range theirs {
			c.member(at, w, mine)
		}
	}
}

// member finds the members of our union that take the constants of one member of the
// reference's, such as its action_type, and compares the fields with theirs.
func (c *comparison) member(at place, wanted shape, given []shape) {
	var constants []string
	for _, name := range sorted(wanted.fields()) {
		for _, s := range c.ref.shapes(wanted.fields()[name]) {
			value := s.keys["const"]
			if value == nil {
				continue
			}
			var fit []shape
			var known []string
			for _, g := range given {
				field, ok := g.fields()[name]
				shapes := c.ours.shapes(ok && true)
				if ok {
					shapes = c.ours.shapes(field)
				}
				if slices.ContainsFunc(shapes, func(s shape) bool { return s.takes(value) }) {
					fit = append(fit, g)
				}
				for _, s := range shapes {
					known = append(known, s.known(s.kind)...)
				}
			}
			if len(fit) == 0 {
				c.add(Fault, at.String()+" with "+name+" "+text(value)+" is refused", text(value), listed(known))
				return
			}
			constants = append(constants, name)
			at.member = text(value) + " " + at.member
			given = fit
		}
	}
	c.fields(at, []shape{wanted}, given, constants...)
	c.demands(at, wanted, given, constants)
}

// fields compares the fields of objects by name; those of a union may stand in any of
// our members.
func (c *comparison) fields(at place, wanted, given []shape, constants ...string) {
	usual := slices.DeleteFunc(slices.Clone(wanted), func(s shape) bool { return s.keys[nameKey] == failure })
	if len(usual) == 0 {
		usual = wanted
	}
	theirs, mine := pool("anyOf", usual...), pool("anyOf", given...)
	lost := pool("anyOf", wanted...)
	for name := range lost {
		if theirs[name] != nil || mine[name] != nil {
			delete(lost, name)
		}
	}
	if len(lost) > 0 {
		c.add(Warning, at.String()+" of a failure is not described", listed(sorted(lost)), nothing)
	}
	for name, schema := range theirs {
		spot := at.field(name)
		if mine[name] == nil {
			c.add(Fault, spot.String()+" is missing", listed(kinds(c.ref.shapes(schema))), nothing)
			continue
		}
		c.values(spot, schema, mine[name])
		if at.part == inReply || slices.Contains(constants, name) {
			continue
		}
		want, have := preset(c.ref.shapes(schema)), preset(c.ours.shapes(mine[name]))
		if want != nil && !reflect.DeepEqual(want, have) {
			c.add(Fault, spot.String()+" has another default", text(want), text(have))
		}
	}
	closed := !slices.ContainsFunc(given, func(s shape) bool { return s.keys["additionalProperties"] != false })
	switch {
	case closed && at.part != inReply && len(theirs) == 0:
		c.add(Fault, at.String()+" refuses unknown fields", "any field", "only those listed")
	case closed && at.part != inReply:
		c.add(Warning, at.String()+" refuses unknown fields", "any field", "only those listed")
	case len(theirs) == 0:
		var rest any = true
		if at.part == inReply && len(mine) > 0 {
			var values []any
			for _, name := range sorted(mine) {
				values = append(values, mine[name])
			}
			rest = object{"anyOf": values}
		}
		c.values(at.each("{}"), union(usual, "additionalProperties", true), union(given, "additionalProperties", rest))
	}
}

// demands finds fields that all our members require, but the reference does not.
func (c *comparison) demands(at place, wanted shape, given []shape, constants []string) {
	for _, v := range list(given[0].keys["required"]) {
		name := text(v)
		relaxed := slices.ContainsFunc(given, func(s shape) bool { return !s.requires(name) })
		if relaxed || wanted.requires(name) || slices.Contains(constants, name) {
			continue
		}
		says := nothing
		if wanted.fields()[name] != nil {
			says = "optional"
		}
		c.add(Fault, at.field(name).String()+" is required", says, "required")
	}
}
