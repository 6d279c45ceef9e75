// Package web holds the pages that are built into the programs, with all files that they
// load: nothing is fetched from other hosts.
package web

import "embed"

// Files holds the pages, one folder for each.
//
//go:embed activity box docs files guide home hub notebook terminal ui vendor vnc watch workbench
var Files embed.FS
