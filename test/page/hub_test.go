package page

import (
	"os/exec"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestThroughTheHub tests Playwright, the desktop and the terminal of a sandbox below the prefix of a hub.
func TestThroughTheHub(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	testenv.Need(t, "Xtigervnc", "openbox", "python3")
	address := launch(t, exec.Command(cove, "hub", "--listen", "127.0.0.1:0", "--log-level", "warn", "--state", t.TempDir()))
	c, err := client.New(client.Config{URL: address})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Create(t.Context(), client.CreateOptions{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Delete(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}()
	runStory(t, "hub_playwright.mjs", "URL="+address+"/sandbox/a")
}
