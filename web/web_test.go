package web

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// references match the files that a file loads: markup with its pictures, imports and styles.
var references = map[string]*regexp.Regexp{
	".html": regexp.MustCompile(`(?:<(?:script|img)[^>]* src|<link[^>]* href)="([^"#:]+)"`),
	".js":   regexp.MustCompile(`(?m)(?:^(?:import|export)\b[^;'"]*|[;}]import[^;'"]*|\bimport\()["'](\.[^"']+\.js)["']`),
	".css":  regexp.MustCompile(`url\(["']?([^"')#:]+)["']?\)`),
}

// TestFilesAreComplete: pages contain what their files load, and no other files.
func TestFilesAreComplete(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		pages  Pages
		others []string // what pages of other packages load: the desktop of E2B's clients
	}{
		{"sandbox", Sandbox, []string{"vendor/novnc/core/rfb.js"}},
		{"hub", Hub, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			loaded, queue := map[string]bool{}, c.others
			for _, file := range files(t, c.pages) {
				if path.Base(file) == "index.html" {
					queue = append(queue, file)
				}
			}
			for len(queue) > 0 {
				file := queue[0]
				queue = queue[1:]
				if loaded[file] {
					continue
				}
				loaded[file] = true
				text, err := fs.ReadFile(c.pages, file)
				if err != nil {
					t.Errorf("%s is loaded, but not built in: %v", file, err)
					continue
				}
				queue = append(queue, targets(file, string(text))...)
			}
			for _, file := range files(t, c.pages) {
				if !loaded[file] && !strings.HasPrefix(path.Base(file), "LICENSE") {
					t.Errorf("%s is built in, but no page loads it", file)
				}
			}
		})
	}
}

// files lists the files of pages, under the names with which browsers load them.
func files(t *testing.T, p Pages) (list []string) {
	t.Helper()
	for _, part := range p.parts {
		if err := fs.WalkDir(part, ".", func(name string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				list = append(list, strings.TrimPrefix(name, "bundle/"))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(list)
	if len(list) < 15 {
		t.Fatalf("got %d files, want all of the pages", len(list))
	}
	return slices.Compact(list)
}

// targets returns the files that a file loads. Pages have addresses such as /files or /v1/docs, and
// their links are relative to these.
func targets(file, text string) (list []string) {
	pattern, ok := references[path.Ext(file)]
	if !ok {
		return nil // a picture
	}
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		folder := path.Dir(file)
		if path.Ext(file) == ".html" {
			folder = ""
		}
		to := strings.TrimPrefix(path.Join("/", folder, strings.TrimPrefix(match[1], "{{up}}")), "/")
		if path.Ext(file) == ".html" && path.Dir(to) == "." { // of a page whose address ends with a slash
			to = path.Join(path.Dir(file), to)
		}
		if path.Ext(to) != "" && !strings.HasSuffix(to, ".json") { // the server writes openapi.json
			list = append(list, to)
		}
	}
	return list
}
