package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestPlaywright(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "Xtigervnc", "openbox")
	address := serve(t)
	runStory(t, "browser_playwright.mjs", "URL="+address, "PREFIX_URL="+prefixed(t, address))
}

func TestViewer(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "Xtigervnc", "openbox")
	address := serve(t)
	runStory(t, "vnc_viewer.mjs", "URL="+address, "PREFIX_URL="+prefixed(t, address))
}

func TestDesktopSignIn(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "Xtigervnc", "openbox")
	const token = "a-token-that-only-this-test-knows"
	runStory(t, "browser_signin.mjs", "URL="+serve(t, "AUTH_TOKEN="+token), "TOKEN="+token)
}
