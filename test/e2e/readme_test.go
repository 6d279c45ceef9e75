package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// skipped are commands of the README that a test cannot run unmodified, with the reason.
var skipped = map[string]string{
	"make run":      "installs packages and serves until it is stopped",
	"make test":     "runs this test",
	"sudo bin/cove": "the test serves at another address",
}

// A user who follows the README creates a sandbox, runs code in it, opens its page and deletes it. The
// test runs every command and the Python code unmodified.
func TestREADMEByHand(t *testing.T) {
	t.Parallel()
	python := testenv.NeedFile(t, "../sdk/.venv/bin/python")
	venv, err := filepath.EvalSymlinks("../../.venv")
	if err != nil {
		testenv.Lack(t, "no .venv: run make deps")
	}
	if venv, err = filepath.Abs(venv); err != nil {
		t.Fatal(err)
	}
	h, s := serveHub(t), serve(t, "AIO_VENV="+venv)
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("localhost:8080", s.addr(), "127.0.0.1:10000", h.addr()).Replace(string(b))
	dir := t.TempDir()
	if err := os.Symlink(filepath.Dir(cove), filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "notes.txt"), "notes")
	env := environment(dir, append(h.env, "COVE_STATE="+h.State, "AIO_API_URL="+s.URL))
	ran := map[string]int{}
	for line := range strings.Lines(text) {
		command, ok := strings.CutPrefix(line, "    ")
		if !ok {
			continue
		}
		command, _, _ = strings.Cut(command, "  #")
		command = strings.TrimSpace(command)
		words := strings.Fields(command)
		if skipped[strings.Join(words[:2], " ")] != "" {
			continue
		}
		out := runHand(t, dir, env, "bash", "-ec", command)
		if words[0] == "curl" && !strings.Contains(out, `"success":true`) && !strings.Contains(out, `"result"`) {
			t.Errorf("%s: got %s, want success", command, out)
		}
		if command == "bin/cove open a" {
			// The printed URL opens the page.
			res, err := http.Get(strings.TrimSpace(out))
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("%s: got status %d, want 200", out, res.StatusCode)
			}
		}
		ran[words[0]]++
	}
	for _, block := range regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		switch block[1] {
		case "python":
			if out := runHand(t, dir, env, python, "-c", block[2]); !strings.Contains(out, "Linux") || !strings.Contains(out, "\n45\n") {
				t.Errorf("the Python of the README: got %q, want Linux and 45", out)
			}
		case "json":
			if err := json.Unmarshal([]byte(block[2]), new(any)); err != nil {
				t.Errorf("%s: got error %v, want JSON", block[2], err)
			}
		default:
			t.Errorf("got a block in %q, want one that this test can run", block[1])
		}
		ran[block[1]]++
	}
	for what, least := range map[string]int{"bin/cove": 9, "curl": 3, "bin/aio": 1, "python": 1, "json": 1} {
		if ran[what] < least {
			t.Errorf("got %d times %s in the README, want at least %d", ran[what], what, least)
		}
	}
	if out := h.must(t, "list", "-q"); out != "" {
		t.Errorf("got sandboxes %q at the end, want none", out)
	}
}

// runHand runs a command, which must succeed, and returns its output.
func runHand(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if filepath.Base(name) != name {
		var err error
		if name, err = filepath.Abs(name); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Errorf("%s %s: got error %v, %s and %s, want success", name, args, err, &out, &errs)
	}
	return out.String()
}

// Every link of the README and of the pages under docs refers to a file of the repository.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"../../*.md", "../../docs/guide/*.md", "../../docs/decisions/*.md", "../../examples/*.md"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, more...)
	}
	links := 0
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(string(b), -1) {
			target, _, _ := strings.Cut(link[1], "#")
			if strings.Contains(target, "://") || target == "" {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), target)); err != nil {
				t.Errorf("%s links to %s: %v", page, link[1], err)
			}
		}
	}
	if links < 50 {
		t.Errorf("got %d links, want at least 50", links)
	}
}
