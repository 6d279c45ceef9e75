package page

import "testing"

// TestGuidePage tests the guide of a sandbox, below a prefix, and of a hub with sign-in.
func TestGuidePage(t *testing.T) {
	t.Parallel()
	address := serve(t)
	runStory(t, "guide.mjs", append(guarded(t), "URL="+address, "PREFIX_URL="+prefixed(t, address))...)
}
