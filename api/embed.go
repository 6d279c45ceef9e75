// Package api holds the public contract, generated from the tables of operations and checked
// in, so that a change of it shows in the diff.
package api

import _ "embed"

// CoveVerbs are the verbs of the hub's command line, for builds that cannot serve a hub.
//
//go:embed cove-verbs.json
var CoveVerbs []byte
