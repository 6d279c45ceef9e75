package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestHostileRecord checks that content of a hostile sandbox (activity log, images, files, terminal) never runs in our pages.
func TestHostileRecord(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	runStory(t, "attack.mjs", append(guarded(t, "--keep-activity", "1h"), "DIR="+t.TempDir())...)
}
