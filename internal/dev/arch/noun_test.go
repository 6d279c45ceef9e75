package arch

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
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
