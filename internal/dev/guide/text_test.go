package guide

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestREADMEStatesWhatIsInstalled: README names all that make run installs, with sizes. A new package fails here.
func TestREADMEStatesWhatIsInstalled(t *testing.T) {
	t.Parallel()
	readme := strings.ToLower(read(t, "README.md"))
	section, _, _ := strings.Cut(readme[strings.Index(readme, "## start a sandbox"):], "## run many")
	called := map[string]string{"nodejs": "node.js", "tigervnc-standalone-server": "tigervnc", "poppler-utils": "poppler",
		"fonts-noto-cjk": "cjk", "fonts-noto-color-emoji": "emoji", "fonts-dejavu-core": "dejavu", "python3-venv": "venv"}
	deps, _, found := strings.Cut(read(t, "scripts/deps"), "# Programs that tests use")
	if !found {
		t.Fatal("scripts/deps: no comment before the programs of tests; adapt this test")
	}
	pair := regexp.MustCompile(`(?m)[\w./-]+:([a-z][a-z0-9.+-]+)(?:\s|$)`)
	packages := pair.FindAllStringSubmatch(deps[strings.LastIndex(deps, "debian python3:"):], -1)
	if len(packages) < 12 {
		t.Fatalf("got packages %v, want at least 12", packages)
	}
	for _, p := range packages {
		name := p[1]
		if other := called[name]; other != "" {
			name = other
		}
		if !strings.Contains(section, name) {
			t.Errorf("README.md: got no %q, want all packages that make run installs", name)
		}
	}
	for name := range strings.Lines(read(t, "internal/app/cove/requirements.txt")) {
		name, _, pinned := strings.Cut(name, "==")
		name, _, _ = strings.Cut(name, "[")
		if wanted := map[string]bool{"ipykernel": true, "numpy": true, "pandas": true, "matplotlib": true, "markitdown": true}; pinned &&
			wanted[name] && !strings.Contains(section, name) {
			t.Errorf("README.md: got no Python package %q", name)
		}
	}
	for _, want := range []string{" gb", ".venv", "go if there", "every four seconds", "two minutes"} {
		if !strings.Contains(section, want) {
			t.Errorf("README.md: got no %q, want sizes, times and places of what make run installs", want)
		}
	}
}

// TestGuideBeginsWithWhy: the first page says what the product is for before the first command.
func TestGuideBeginsWithWhy(t *testing.T) {
	t.Parallel()
	_, text, _ := strings.Cut(read(t, "docs/guide/start.md"), "# Start\n")
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n\n")
	if strings.ContainsAny(first[:1], "`#|") || !strings.Contains(first, "agent") || !strings.Contains(first, "can ") {
		t.Errorf("start.md begins with %q, want the problem of agents that Cove solves", first)
	}
}

// TestPicturesOfTheGuide: these chapters have a picture with a description, and the file exists.
func TestPicturesOfTheGuide(t *testing.T) {
	t.Parallel()
	image := regexp.MustCompile(`!\[([^\]]{20,})\]\(\.\./(pictures/[\w.]+)\)`)
	for _, chapter := range []string{"ways", "many", "disks"} {
		picture := image.FindStringSubmatch(read(t, "docs/guide/"+chapter+".md"))
		if picture == nil {
			t.Errorf("%s.md: got no picture with a description", chapter)
			continue
		}
		if text := read(t, "docs/"+picture[2]); !strings.Contains(text, "<svg") {
			t.Errorf("%s: got %.40q, want a drawing", picture[2], text)
		}
	}
}

// TestDocsNeedNoJQ: commands of README, docs and examples use --jq of the programs. The program jq is not installed.
func TestDocsNeedNoJQ(t *testing.T) {
	t.Parallel()
	program := regexp.MustCompile("(?m)(^|[|;&(`])\\s*jq\\s")
	pages := 0
	for _, dir := range []string{"README.md", "docs", "examples"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".md" {
				return err
			}
			pages++
			text, err := os.ReadFile(path)
			if at := program.Find(text); at != nil {
				t.Errorf("%s: got the program jq in %q, want --jq", path, at)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if pages < 30 {
		t.Errorf("got %d pages, want at least 30", pages)
	}
}

// TestGuideDeletesByName: a command of the guide never deletes sandboxes that the reader made elsewhere.
func TestGuideDeletesByName(t *testing.T) {
	t.Parallel()
	blocks, err := Blocks(os.DirFS(filepath.Join(root, "docs")))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		if strings.Contains(b.Code, "rm --all") || strings.Contains(b.Code, "rm -a") {
			t.Errorf("docs/%s: got a command that deletes all sandboxes, want names", b)
		}
	}
}
