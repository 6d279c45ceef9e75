package watch

import "testing"

// TestReplaceAll: a list does not drop a Pod that was created after the list was requested, even if that Pod was
// queried in the meantime. It drops a Pod that the watch has reported.
func TestReplaceAll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		then    func(*Cache, Pod)
		missing bool
	}{
		{"created", func(*Cache, Pod) {}, false},
		{"queried", (*Cache).Refresh, false},
		{"reported by the watch", (*Cache).Put, true},
	} {
		var pods Cache
		var p Pod
		p.Metadata.Name, p.Metadata.Namespace = "a", "n"
		moment := pods.Moment()
		pods.Add(p)
		pods.SetAnswered("a")
		c.then(&pods, p)
		if !pods.Unreported("a") {
			t.Errorf("%s: got a Pod that has not answered, want one that has", c.name)
		}
		pods.ReplaceAll("n", nil, moment)
		if got := pods.Missing("a"); got != c.missing {
			t.Errorf("%s: got missing %v, want %v", c.name, got, c.missing)
		}
	}
}
