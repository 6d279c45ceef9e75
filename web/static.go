package web

import "embed"

// Static holds the files that pages of others load from a sandbox, at the paths of the
// public image.
//
//go:embed static
var Static embed.FS
