package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestPagesReconnectAfterARestart restarts a hub below pages of a sandbox that have no origin.
func TestPagesReconnectAfterARestart(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	needBrowser(t)
	runStory(t, "restart.mjs", "COVE="+cove, "STATE="+t.TempDir())
}
