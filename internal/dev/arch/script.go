package arch

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// scripts are the extensions of programs in other languages.
var scripts = []string{".bash", ".cjs", ".js", ".mjs", ".py", ".sh", ".ts"}

// isScript reports whether a file is a program in another language. Some have no extension.
func isScript(name, text string) bool {
	base := path.Base(name)
	return slices.Contains(scripts, path.Ext(base)) || base == "Makefile" || strings.HasPrefix(text, "#!")
}

// measureScripts counts the long lines of scripts, except those of third parties.
func (r Rules) measureScripts(tree fs.FS, found sizes) error {
	return fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && isForeign(name):
			return fs.SkipDir
		case d.IsDir(), !d.Type().IsRegular(), path.Ext(name) == ".go":
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err == nil && isScript(name, string(text)) && isProse(name, text) {
			r.measureLines(&file{name: name, text: string(text)}, found)
		}
		return err
	})
}
