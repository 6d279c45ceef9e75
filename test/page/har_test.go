package page

import (
	"os"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestHARIsValid checks a file of export_har with an independent validator of HAR 1.2.
func TestHARIsValid(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	if _, err := os.Stat("node_modules/har-validator"); err != nil {
		testenv.Lack(t, "har-validator is missing; run make deps")
	}
	runStory(t, "har.mjs", "URL="+serve(t))
}
