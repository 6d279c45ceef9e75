package kubernetes

import "testing"

// TestPodCache: a list does not remove a Pod that was created after it was asked for, also if the
// cluster was asked about that Pod meanwhile. One that the cluster has told of by itself is removed.
func TestPodCache(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		then func(*podCache, podState)
		gone bool
	}{
		{"created", func(*podCache, podState) {}, false},
		{"asked about", (*podCache).refresh, false},
		{"told of", (*podCache).put, true},
	} {
		var pods podCache
		var st podState
		st.Metadata.Name, st.Metadata.Namespace = "a", "n"
		since := pods.now()
		pods.add(st)
		pods.noteAnswer("a")
		c.then(&pods, st)
		if !pods.ahead("a") {
			t.Errorf("%s: it is forgotten that the Pod answered", c.name)
		}
		pods.replaceAll("n", nil, since)
		if got := pods.gone("a"); got != c.gone {
			t.Errorf("%s: got gone %v, want %v", c.name, got, c.gone)
		}
	}
}
