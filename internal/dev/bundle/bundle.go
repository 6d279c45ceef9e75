// Package bundle combines the modules of each page into one file. The sources under web are what
// people edit; browsers get the bundles under web/bundle, which make gen writes. It fetches
// nothing.
package bundle

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// Folder contains the bundles, at the paths of the modules and styles that they replace.
const Folder = "bundle"

// skipped are folders without a bundle: ui is a part of the others, and the page of docs has an
// address at another depth, from which the modules derive the root of the server.
var skipped = map[string]bool{"ui": true, "docs": true}

// library is a module of third parties that a page outside of web loads: the desktop of E2B's clients.
const library = "vendor/novnc/core/rfb.js"

// entries finds the modules that pages load: web/NAME/NAME.js, and the library.
func entries(web string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(web, "*", "*.js"))
	if err != nil {
		return nil, err
	}
	out, err := filepath.Glob(filepath.Join(web, filepath.FromSlash(library)))
	if err != nil {
		return nil, err
	}
	for _, path := range found {
		folder := filepath.Base(filepath.Dir(path))
		if strings.TrimSuffix(filepath.Base(path), ".js") == folder && !skipped[folder] {
			out = append(out, path)
		}
	}
	return out, nil
}

// Build returns the bundles of the pages in a folder, by their path below it. Large parts that few
// visits need stay separate: a module imports them with import().
func Build(web string) (map[string][]byte, error) {
	web, err := filepath.Abs(web)
	if err != nil {
		return nil, err
	}
	list, err := entries(web)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, entry := range list {
		name, err := filepath.Rel(web, entry)
		if err != nil {
			return nil, err
		}
		r := api.Build(api.BuildOptions{
			EntryPoints: []string{entry}, AbsWorkingDir: web, Outfile: name, Bundle: true,
			Format: api.FormatESModule, Target: api.ES2024, Charset: api.CharsetUTF8, LegalComments: api.LegalCommentsEndOfFile,
			MinifyWhitespace: true, MinifySyntax: true, MinifyIdentifiers: true, External: []string{"../vendor/codemirror/*"},
		})
		var faults []error
		for _, m := range append(r.Errors, r.Warnings...) {
			faults = append(faults, errors.New(m.Text))
		}
		if len(faults) > 0 || len(r.OutputFiles) != 1 {
			return nil, fmt.Errorf("bundle %s: %w", name, errors.Join(faults...))
		}
		out[filepath.ToSlash(name)] = r.OutputFiles[0].Contents
	}
	return out, nil
}
