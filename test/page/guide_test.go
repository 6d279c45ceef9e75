package page

import "testing"

// TestGuidePage: the guide, of a sandbox, below a prefix, and of a hub where a person signs in.
func TestGuidePage(t *testing.T) {
	t.Parallel()
	address := serve(t)
	runStory(t, "guide.mjs", append(guarded(t), "URL="+address, "PREFIX_URL="+prefixed(t, address))...)
}
