package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestWatch tests links to watch a sandbox, and that a watcher cannot act.
func TestWatch(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "Xtigervnc", "openbox")
	runStory(t, "watch.mjs", guarded(t)...)
}
