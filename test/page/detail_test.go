package page

import "testing"

// TestOneSandbox tests the view of one sandbox in the dashboard.
func TestOneSandbox(t *testing.T) {
	t.Parallel()
	runStory(t, "detail.mjs", guarded(t, "--keep-activity", "1h")...)
}
