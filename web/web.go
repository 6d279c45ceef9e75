// Package web holds the pages that are built into the programs, with everything
// they load: nothing comes from elsewhere.
package web

import "embed"

// Files are the pages by folder.
//
//go:embed docs terminal vendor vnc
var Files embed.FS
