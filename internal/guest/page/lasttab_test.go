package page_test

import (
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/navigation"
)

// testLastTab: a navigation that follows the closing of all tabs by another client uses the tab that
// replaces them, in each of the states that it may find.
func testLastTab(t *testing.T, r *fixture) {
	pipe, _, release, err := r.browser.Reach(ctx(t))
	must(t, err)
	defer release()
	c, err := pipe.Connect(ctx(t), cdp.Config{})
	must(t, err)
	defer c.Close()
	for range 2 {
		targets, err := c.Targets(ctx(t))
		must(t, err)
		for _, p := range targets {
			if p.Type != "page" {
				continue
			}
			if err := c.CloseTarget(ctx(t), p.ID); err != nil && !strings.Contains(err.Error(), "No target") {
				t.Fatal(err)
			}
		}
		if _, err := r.Navigate(ctx(t), navigation.NavigateIn{URL: r.site + "/html?body=x", WaitUntil: "load"}); err != nil {
			t.Errorf("got %v, want the page", err)
		}
	}
}
