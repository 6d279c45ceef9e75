package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestHostileRecord: nothing that a sandbox writes into its record, pictures, files or terminal runs where people look at it.
func TestHostileRecord(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	runStory(t, "attack.mjs", append(guarded(t, "--keep-activity", "1h"), "DIR="+t.TempDir())...)
}
