// Package contract holds our OpenAPI document against that of the public AIO
// sandbox, whose clients must work unmodified: what such a client sends has to be
// accepted, and what it reads has to be there. It owns the rules of that comparison
// and the reference (testdata: names, types and defaults, nothing else). Names of
// schemas, operation ids and whatever we serve beyond the reference do not matter.
package contract

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Missing is what a finding says of an operation that we do not serve.
const Missing = "operation is missing"

// Level tells what a finding means to a client.
type Level string

const (
	Fault   Level = "fault"   // a client breaks
	Warning Level = "warning" // a client may be surprised
)

// Finding is one place where we fall short of the reference.
type Finding struct {
	Level     Level
	Route     string // method and path, as the reference spells them
	What      string
	Reference string
	Ours      string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: %s: %s (reference says %s, ours says %s)", f.Level, f.Route, f.What, f.Reference, f.Ours)
}

// Routes lists the operations of a document, such as "GET /v1/sandbox", sorted.
func Routes(doc []byte) ([]string, error) {
	d, err := parse(doc)
	if err != nil {
		return nil, err
	}
	var out []string
	for key, o := range d.operations() {
		out = append(out, o.route(key))
	}
	slices.Sort(out)
	return out, nil
}

// Compare returns what ours lacks of the reference, sorted by route, faults first.
func Compare(reference, ours []byte) ([]Finding, error) {
	ref, err := parse(reference)
	if err != nil {
		return nil, fmt.Errorf("read the reference: %w", err)
	}
	own, err := parse(ours)
	if err != nil {
		return nil, fmt.Errorf("read our document: %w", err)
	}
	served := own.operations()
	c := &comparison{ref: ref, ours: own}
	for key, theirs := range ref.operations() {
		c.route = theirs.route(key)
		if mine, ok := served[key]; ok {
			c.operation(theirs, mine)
			continue
		}
		var others []string
		for k := range served {
			if k.path == key.path {
				others = append(others, k.method)
			}
		}
		slices.Sort(others)
		c.add(Fault, Missing, key.method, listed(others))
	}
	slices.SortFunc(c.found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.Level, b.Level), cmp.Compare(a.What, b.What), cmp.Compare(a.Ours, b.Ours))
	})
	return slices.Compact(c.found), nil
}

// comparison gathers the findings of one operation after the other.
type comparison struct {
	ref, ours document
	route     string
	found     []Finding
}

func (c *comparison) add(level Level, what, reference, ours string) {
	c.found = append(c.found, Finding{level, c.route, what, reference, ours})
}

// operation compares parameters, bodies by media type, and the reply of success.
func (c *comparison) operation(theirs, mine operation) {
	for _, part := range []string{inPath, inQuery} {
		c.values(place{part: part}, theirs.params[part], mine.params[part])
	}
	if mine.body["required"] == true && theirs.body["required"] != true {
		says := nothing
		if len(theirs.body) > 0 {
			says = "optional"
		}
		c.add(Fault, "request body is required", says, "required")
	}
	taken := content(mine.body)
	for media, schema := range content(theirs.body) {
		own, ok := taken[media]
		switch {
		case !ok:
			c.add(Fault, "request body as "+media+" is refused", media, listed(sorted(taken)))
		case strings.Contains(media, "json"):
			c.values(place{part: inRequest}, schema, own)
		default:
			c.values(place{part: inForm}, schema, own)
		}
	}
	sent := content(c.ours.follow(cmp.Or[any](mine.replies["200"], mine.replies["2XX"])))
	if _, stream := sent["text/event-stream"]; stream && strings.HasSuffix(theirs.path, "/events") {
		return // the reference takes its own event stream for JSON
	}
	for media, schema := range content(c.ref.follow(theirs.replies["200"])) {
		own, ok := sent[media]
		switch {
		case !ok && len(sent) == 0:
			c.add(Fault, "response 200 as "+media+" is missing", media, listed(sorted(mine.replies)))
		case !ok:
			c.add(Fault, "response 200 as "+media+" is missing", media, listed(sorted(sent)))
		case media == "application/json":
			c.values(place{part: inReply}, schema, own)
		}
	}
}

// The parts of an operation that hold values.
const (
	inPath    = "path"
	inQuery   = "query"
	inForm    = "form"
	inRequest = "request"
	inReply   = "response"
)

// place is where values are compared, such as "request field a[].b".
type place struct {
	part   string
	member string // of a union: the constants that chose it
	path   string
	names  int // steps to a named field
	nests  int // steps into a list or map
}

func (p place) String() string {
	noun := " field "
	switch {
	case p.part == inPath || p.part == inQuery:
		noun = " parameter "
	case p.path == "":
		noun = " body"
	}
	return strings.TrimSpace(p.member + p.part + noun + p.path)
}

func (p place) field(name string) place {
	if p.path != "" {
		p.path += "."
	}
	p.path += name
	p.names++
	return p
}

// each is any value of a list ("[]") or map ("{}").
func (p place) each(mark string) place {
	p.path += mark
	p.nests++
	return p
}

// tooDeep ends the descent into schemas that contain themselves: the envelope and
// four levels of named fields inside it are enough.
func (p place) tooDeep() bool { return p.names >= 5 || p.nests > 10 }

const nothing = "nothing"

// listed joins distinct values for a reader.
func listed(values []string) string {
	var out []string
	for _, v := range values {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return cmp.Or(strings.Join(out, "|"), nothing)
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
