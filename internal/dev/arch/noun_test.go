package arch

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// nouns are nouns of the API, by the program that serves them. The package that owns a noun has its name.
var nouns = map[string][]string{
	"guest": {"bash", "browser", "code", "display", "file", "jupyter", "proxy", "shell"},
	"hub":   {"audit", "e2b", "secret"},
}

// TestPackagesAreNamedAfterNouns compares the nouns with the tags of both APIs and with the packages.
func TestPackagesAreNamedAfterNouns(t *testing.T) {
	t.Parallel()
	for half, document := range map[string]string{"guest": "aio-openapi.json", "hub": "cove-openapi.json"} {
		tags := tagsOf(t, filepath.Join("../../../api", document))
		for _, noun := range nouns[half] {
			if !slices.Contains(tags, noun) {
				t.Errorf("%s has no operation with the tag %q, want at least 1", document, noun)
			}
			if files, err := filepath.Glob(filepath.Join("../..", half, noun, "*.go")); len(files) == 0 {
				t.Errorf("there is no package internal/%s/%s (%v)", half, noun, err)
			}
		}
	}
}

// TestTagsHavePackages compares the tags of both APIs with the packages of that name and the table in docs/architecture.md.
func TestTagsHavePackages(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| tag | packages |")
	table, _, _ = strings.Cut(table, "\n\n")
	quoted := regexp.MustCompile("`([^`]+)`")
	listed := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, tag := range quoted.FindAllStringSubmatch(cells[1], -1) {
			listed[tag[1]] = false
		}
		for _, pkg := range quoted.FindAllStringSubmatch(cells[2], -1) {
			if files, err := filepath.Glob(filepath.Join("../..", pkg[1], "*.go")); len(files) == 0 {
				t.Errorf("there is no package internal/%s (%v)", pkg[1], err)
			}
		}
	}
	for half, document := range map[string]string{"guest": "aio-openapi.json", "hub": "cove-openapi.json"} {
		for _, tag := range tagsOf(t, filepath.Join("../../../api", document)) {
			files, err := filepath.Glob(filepath.Join("../..", half, tag, "*.go"))
			if _, ok := listed[tag]; ok {
				listed[tag] = true
			} else if len(files) == 0 {
				t.Errorf("the tag %q of %s is no package of internal/%s (%v); add it to the table in docs/architecture.md", tag, document, half, err)
			}
		}
	}
	for tag, used := range listed {
		if !used {
			t.Errorf("docs/architecture.md lists the tag %q, which no operation has", tag)
		}
	}
}

func tagsOf(t *testing.T, path string) (tags []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]struct{ Tags []string }
	}
	if err := json.Unmarshal(b, &document); err != nil {
		t.Fatal(err)
	}
	for _, methods := range document.Paths {
		for _, op := range methods {
			tags = append(tags, op.Tags...)
		}
	}
	return tags
}
