package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestPictures takes pictures of the main pages, with sandboxes at work. PICTURES=1 saves them in docs/pictures, for the README
// and the guide.
func TestPictures(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.NeedRoot(t)
	testenv.Need(t, "Xtigervnc", "openbox", "ffmpeg")
	folder := t.TempDir()
	if os.Getenv("PICTURES") != "" {
		folder = "../../docs/pictures"
	}
	environments := filepath.Join(t.TempDir(), "environments.json")
	text := `[{"name":"python","description":"Python with data libraries","cpu_limit":"2","memory_limit":"2Gi"},
		{"name":"browser","description":"Chromium and a desktop","cpu_limit":"2","memory_limit":"4Gi"},
		{"name":"slim","description":"A small computer for tools","cpu_limit":"500m","memory_limit":"256Mi"}]`
	if err := os.WriteFile(environments, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := launch(t, exec.Command(cove, "hub", "--listen", "127.0.0.1:0", "--log-level", "error", "--state", t.TempDir(),
		"--environments", environments))
	c, err := client.New(client.Config{URL: address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteAll(t, c); c.Close() })
	runStory(t, "pictures.mjs", "URL="+address, "PICTURES="+folder)
}
