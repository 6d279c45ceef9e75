package driver

import "github.com/cove-sandbox/cove/internal/api/op"

// Spec returns the spec of an operation on pages.
func Spec(name, route, sdk, verb, doc string) op.Spec {
	return op.Spec{Name: name, Route: route, Tag: "browser", SDK: "browser." + sdk, Verb: "browser " + verb, Doc: doc}
}

// ReadOnly marks an operation that changes nothing.
func ReadOnly(s op.Spec) op.Spec { s.ReadOnly = true; return s }

// Destructive marks an operation that deletes data.
func Destructive(s op.Spec) op.Spec { s.Destructive = true; return s }

// Columns selects the columns of a table on the command line.
func Columns(s op.Spec, names ...string) op.Spec { s.Columns = names; return s }
