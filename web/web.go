// Package web holds the pages that are built into the programs, with all files that they
// load: nothing is fetched from other hosts.
package web

import (
	"embed"
	"io/fs"
)

//go:embed activity box bundle docs files guide home hub notebook terminal ui vendor vnc watch workbench
var sources embed.FS

// Files holds the pages, one folder for each. The module of a page is the bundle of all modules
// that it imports, so that a browser loads one file instead of dozens.
var Files fs.FS = pages{}

type pages struct{}

// Open opens the bundle with a name, or the file.
func (pages) Open(name string) (fs.File, error) {
	if f, err := sources.Open("bundle/" + name); err == nil {
		if info, err := f.Stat(); err == nil && !info.IsDir() {
			return f, nil
		}
		f.Close()
	}
	return sources.Open(name)
}
