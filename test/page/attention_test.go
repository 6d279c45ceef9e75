package page

import "testing"

// TestAttention tests the list of what waits for a person.
func TestAttention(t *testing.T) {
	t.Parallel()
	runStory(t, "attention.mjs", guarded(t)...)
}
