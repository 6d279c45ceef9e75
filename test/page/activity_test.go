package page

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestActivity tests the activity page: live, replayed and exported.
func TestActivity(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	address := serve(t)
	runStory(t, "activity.mjs", append(guarded(t), "URL="+address, "PREFIX_URL="+prefixed(t, address), "DIR="+t.TempDir())...)
}
