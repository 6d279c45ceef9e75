// Package api holds the public contract, generated from the tables of operations and checked
// in, so that a change of it shows in the diff.
package api

import _ "embed"

// AioCommands are the routes of a sandbox and the verbs of its command line, for errors that name routes.
//
//go:embed aio-commands.txt
var AioCommands string

// CoveVerbs are the verbs of the hub's command line, for builds that cannot serve a hub.
//
//go:embed cove-verbs.json
var CoveVerbs []byte
