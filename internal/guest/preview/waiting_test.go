package preview

import (
	"testing"
	"time"
)

// TestForgottenPage: a page of a closed port stops to reload, because each request keeps the sandbox awake. A later visit waits again.
func TestForgottenPage(t *testing.T) {
	t.Parallel()
	var w waiting
	now, n := time.Now(), 0
	for ; w.waits(3000, now) && n < 1000; n++ {
		now = now.Add(reloadSeconds * time.Second)
	}
	if n != int(patience.Seconds())/reloadSeconds {
		t.Errorf("the page reloads %d times, want it for %v", n, patience)
	}
	if !w.waits(3001, now) || !w.waits(3000, now.Add(2*pause)) {
		t.Error("a page of another port, or a later visit, does not wait")
	}
}
