package page

import "testing"

// TestSearch tests the search of the activity of all sandboxes.
func TestSearch(t *testing.T) {
	t.Parallel()
	runStory(t, "search.mjs", guarded(t)...)
}
