package e2e

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// skipped are commands of the README that a test cannot run as they are, with the reason.
var skipped = map[string]string{
	"bin/cove hub":   "the test serves at an address of its own",
	"bin/cove shell": "needs a terminal",
}

// A person who has only the README creates a sandbox, runs code in it, opens its page and
// deletes it: every line of the README that calls bin/cove is run as it is written.
func TestREADMEByHand(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(filepath.Dir(cove), filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"notes.txt": "notes", "script.py": "print('hello')"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ran := 0
	for line := range strings.Lines(string(b)) {
		command, ok := strings.CutPrefix(line, "    bin/cove ")
		if !ok {
			continue
		}
		command, _, _ = strings.Cut(command, "  #")
		command = "bin/cove " + strings.TrimSpace(command)
		if words := strings.Fields(command); skipped[strings.Join(words[:2], " ")] != "" {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, "bash", "-ec", command)
		cmd.Dir, cmd.Env = dir, environment(dir, append(h.env, "COVE_STATE="+h.State))
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: got error %v, %s and %s, want success", command, err, &out, &errs)
		}
		cancel()
		if command == "bin/cove create a" {
			// The page that "open" prints is there.
			page := strings.TrimSpace(h.must(t, "open", "a"))
			res, err := http.Get(page)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("%s: got status %d, want 200", page, res.StatusCode)
			}
		}
		ran++
	}
	if ran < 6 {
		t.Errorf("got %d commands in the README, want at least 6", ran)
	}
	if out := h.must(t, "list", "-q"); out != "" {
		t.Errorf("got sandboxes %q at the end, want none", out)
	}
}
