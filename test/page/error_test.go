package page

import "testing"

// TestErrorPages tests the pages of errors, and that looking at a stopped sandbox does not start it.
func TestErrorPages(t *testing.T) {
	t.Parallel()
	runStory(t, "error.mjs", guarded(t)...)
}
