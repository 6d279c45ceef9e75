package egress

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress/internal/learn"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestLearning: a recording counts what was used. Only an open one allows destinations without a rule, and connections
// that only it allowed end with it.
func TestLearning(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Private: loopback, Network: sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"!bad.test", "good.test"}}})
	out := answer(t, false)
	for _, name := range []string{"good.test", "bad.test", "new.test"} {
		r.names[name] = []string{"127.0.0.1"}
	}
	r.names["inside.test"] = []string{"10.1.2.3"}
	use := func(want string) {
		t.Helper()
		var got []string
		c := r.client(t, "http")
		for _, name := range []string{"good", "bad", "new", "inside", "gone"} {
			status, _, err := get(t, c, "http://"+name+".test:"+port(t, out.URL)+"/")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(status))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("got %q, want %s", got, want)
		}
	}
	never := func() { t.Error("the recording ended by its time") }
	r.Learner.Start(time.Hour, false, never)
	use("200 403 403 403 403")
	r.Learner.Start(time.Hour, true, never)
	use("200 403 200 403 502")
	use("200 403 200 403 502")
	uses := map[string]Use{}
	for _, u := range r.Learner.Read().Uses {
		uses[u.Host] = u
	}
	for name, want := range map[string][3]int{"good.test": {2, 0, 0}, "bad.test": {0, 2, 0}, "new.test": {2, 0, 0},
		"inside.test": {0, 2, 0}, "gone.test": {0, 0, 2}} {
		if u := uses[name]; [3]int{u.Allowed, u.Denied, u.Failed} != want || !strings.HasPrefix(u.Program, "Go-http-client") {
			t.Errorf("%s: got %+v, want %v by a Go client", name, u, want)
		}
	}
	tunnel := r.tunnel(t, "new.test:"+port(t, out.URL))
	defer tunnel.Conn.Close()
	if !r.Learner.Stop() || r.Learner.Stop() {
		t.Error("want one recording that ended")
	}
	if _, err := io.Copy(io.Discard, tunnel.Conn); err != nil {
		t.Errorf("got %v, want the tunnel closed", err)
	}
	use("200 403 403 403 403")
	if l := r.Learner.Read(); l.Active || len(l.Uses) != 5 {
		t.Errorf("got %+v, want 5 uses and an end", l)
	}
}

// TestLearningEnds: a recording ends at its time.
func TestLearningEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: sandbox.Network{Mode: sandbox.NetworkNone}})
	ended := make(chan bool, 1)
	r.Learner.Start(time.Millisecond, true, func() { ended <- true })
	<-ended
	if _, err := r.decide("any.test", 443); err == nil || r.Learner.Read().Active {
		t.Errorf("got %+v and a connection allowed, want it ended", r.Learner.Read())
	}
}

// TestLearningIsBounded: a hostile program can neither fill the memory of the hub nor place text in the recording.
func TestLearningIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: sandbox.Network{Mode: sandbox.NetworkNone}})
	r.Learner.Start(time.Hour, false, func() {})
	for i := range learn.MaxUses + 20 {
		r.record(&Record{Host: fmt.Sprintf("h%d.test", i), Port: 443}, deny("no"))
	}
	for _, host := range []string{"", "a b", "A.test", "a\x1b[2J.test", strings.Repeat("a", 300), "pypi.org; rm -rf /", "--allow"} {
		r.record(&Record{Host: host, Port: 443}, nil)
	}
	l := r.Learner.Read()
	if len(l.Uses) != learn.MaxUses || l.Dropped != 20 {
		t.Errorf("got %d uses, %d dropped, want %d and 20", len(l.Uses), l.Dropped, learn.MaxUses)
	}
	for _, u := range l.Uses {
		if u.Allowed > 0 {
			t.Errorf("got %q, want only names", u.Host)
		}
	}
}
