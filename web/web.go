// Package web holds the pages that are built into the programs, with all files that they
// load: nothing is fetched from other hosts. It leaves out modules that a bundle contains.
package web

import (
	"embed"
	"errors"
	"io/fs"
)

var (
	//go:embed activity/view.css bundle/guide docs guide/*.css guide/index.html guide/pictures ui/session.js ui/ui.*
	//go:embed vendor/*/LICENSE* vendor/htm/htm.js vendor/preact/*.js
	both embed.FS

	//go:embed activity/activity.css activity/index.html box/*.css bundle/activity
	//go:embed bundle/files files/*.css files/index.html vendor/codemirror/codemirror.js
	//go:embed bundle/home home/*.css home/index.html
	//go:embed bundle/notebook notebook/*.css notebook/index.html
	//go:embed bundle/terminal terminal/*.css terminal/index.html vendor/xterm/*.css
	//go:embed bundle/vendor/novnc bundle/vnc vnc/*.css vnc/index.html
	//go:embed bundle/watch watch/*.css watch/index.html
	//go:embed bundle/workbench workbench/*.css workbench/index.html
	sandbox embed.FS

	//go:embed bundle/hub hub/*.css hub/index.html
	hub embed.FS
)

// Sandbox and Hub hold the pages of the two programs, one folder for each. The module of a page is
// the bundle of all modules that it imports, so that a browser loads one file instead of dozens.
var (
	Sandbox = Pages{[2]*embed.FS{&both, &sandbox}}
	Hub     = Pages{[2]*embed.FS{&both, &hub}}
)

// Pages are the files of the pages of one program. It is a file system.
type Pages struct{ parts [2]*embed.FS }

// Open opens the bundle with a name, or the file.
func (p Pages) Open(name string) (fs.File, error) {
	for _, path := range []string{"bundle/" + name, name} {
		for _, part := range p.parts {
			f, err := part.Open(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if info, err := f.Stat(); err == nil && !info.IsDir() {
				return f, nil
			}
			f.Close()
		}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}
