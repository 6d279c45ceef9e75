package egress

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

var asking = sandbox.Network{Mode: sandbox.NetworkAsk, Allow: []string{"!bad.test", "good.test"}}

// asked sends a request in the background, and returns its status and text.
func (r *rig) asked(t *testing.T, scheme, url string) <-chan string {
	out := make(chan string, 1)
	go func() {
		status, text, err := get(t, r.client(t, scheme), url)
		out <- fmt.Sprintf("%d %s %v", status, text, err)
	}()
	return out
}

// waits waits until as many connections wait for a host.
func (r *rig) waits(t *testing.T, host string, n int) {
	t.Helper()
	testenv.Poll(t, "connections wait for approval", func() bool {
		list := r.Approvals.List()
		return len(list) == 1 && list[0].Host == host && list[0].Waiting == n
	})
}

// TestFirstUseWaits: in mode ask, connections to a host without a rule wait for an answer, and all others do not.
func TestFirstUseWaits(t *testing.T) {
	t.Parallel()
	events := make(chan Pending, 100)
	r := newRig(t, Config{Private: loopback, Network: asking, AskWait: time.Hour, Asked: func(p Pending) { events <- p }})
	out := answer(t, false)
	p := ":" + port(t, out.URL)
	for _, name := range []string{"good.test", "bad.test", "new.test", "next.test", "rule.test"} {
		r.names[name] = []string{"127.0.0.1"}
	}
	want := func(got <-chan string, want string) {
		t.Helper()
		if s := <-got; !strings.Contains(s, want) {
			t.Errorf("got %q, want %q", s, want)
		}
	}
	want(r.asked(t, "http", "http://good.test"+p), "200 GET")
	want(r.asked(t, "http", "http://bad.test"+p), `403 cove: this sandbox must not connect to bad.test`+p+`: the rule "!bad.test"`)
	first, second := r.asked(t, "http", "http://new.test"+p), r.asked(t, "socks5h", "http://new.test"+p)
	r.waits(t, "new.test", 2)
	if e := <-events; e.Host != "new.test" || len(events) > 0 {
		t.Errorf("got %+v and %d others, want one event", e, len(events))
	}
	var n int
	fmt.Sscan(p[1:], &n)
	if _, err := r.Approvals.Approve("new.test", n); err != nil {
		t.Fatal(err)
	}
	want(first, "200 GET")
	want(second, "200 GET")
	want(r.asked(t, "http", "http://new.test"+p), "200 GET")
	denied := r.asked(t, "http", "http://next.test"+p)
	r.waits(t, "next.test", 1)
	if err := r.Approvals.Reject("next.test", n); err != nil {
		t.Fatal(err)
	}
	want(denied, "403 cove: this sandbox must not connect to next.test"+p+": its owner denied it")
	want(r.asked(t, "http", "http://next.test"+p), "its owner denied it")
	ruled := r.asked(t, "http", "http://rule.test"+p)
	r.waits(t, "rule.test", 1)
	next := asking
	next.Allow = append(slices.Clone(next.Allow), "rule.test"+p)
	if err := r.Set(next); err != nil {
		t.Fatal(err)
	}
	want(ruled, "200 GET")
	// A long tunnel to an approved host survives further rules, and ends if its host is denied.
	tunnel := r.tunnel(t, "new.test"+p)
	next.Allow = append(slices.Clone(next.Allow), "more.test")
	if err := r.Set(next); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(tunnel, "GET / HTTP/1.1\r\nHost: new.test"+p+"\r\n\r\n")
	tunnel.Flush()
	if res, err := http.ReadResponse(tunnel.Reader, nil); err != nil || res.StatusCode != 200 {
		t.Errorf("got %v %v, want the tunnel open", res, err)
	}
	waiting := r.asked(t, "http", "http://last.test"+p)
	r.waits(t, "last.test", 1)
	if err := r.Set(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"good.test"}}); err != nil {
		t.Fatal(err)
	}
	want(waiting, "its egress policy is allow, and none of its 1 rules matches")
	want(r.asked(t, "http", "http://new.test"+p), "403")
}

// TestUnansweredIsDenied: without an answer, a connection is denied after a while, and its client can give up before.
func TestUnansweredIsDenied(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: asking, AskWait: 10 * time.Millisecond})
	if s := <-r.asked(t, "http", "http://new.test/"); !strings.Contains(s, "did not approve it within 10ms; its owner can allow it") {
		t.Errorf("got %q, want it denied", s)
	}
	if list := r.Approvals.List(); len(list) > 0 {
		t.Errorf("got %+v, want none left", list)
	}
	slow := newRig(t, Config{Network: asking, AskWait: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- slow.Approvals.ask(ctx, target{"new.test", 443}, "") }()
	slow.waits(t, "new.test", 1)
	cancel()
	if err := <-failed; err == nil {
		t.Error("got no error, want the end of the client")
	}
	slow.waits(t, "new.test", 0) // its owner can still approve it for the next attempt
	left := slow.asked(t, "socks5h", "http://new.test:443/")
	slow.waits(t, "new.test", 1)
	slow.Close()
	<-left
}

// TestAskingIsBounded: a hostile program can fill the list with neither names nor connections nor text, and allowed hosts
// stay reachable.
func TestAskingIsBounded(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	events := 0
	r := newRig(t, Config{Private: loopback, Network: asking, AskWait: time.Hour,
		Asked: func(Pending) { mu.Lock(); defer mu.Unlock(); events++ }})
	r.names["good.test"] = []string{"127.0.0.1"}
	out := answer(t, false)
	results := make(chan string, 300)
	for i := range 150 {
		go func() { results <- <-r.asked(t, "http", fmt.Sprintf("http://h%d.test/", i)) }()
		go func() { results <- <-r.asked(t, "http", "http://h0.test/") }()
	}
	for range 300 - maxWaiting { // the others are denied at once
		if s := <-results; !strings.Contains(s, "too many connections wait for approval; its owner can allow it") {
			t.Errorf("got %q, want it denied", s)
		}
	}
	list := r.Approvals.List()
	n := 0
	for _, p := range list {
		n += p.Waiting
	}
	mu.Lock()
	defer mu.Unlock()
	if len(list) > maxAsked || n != maxWaiting || events != len(list) {
		t.Errorf("got %d hosts, %d connections and %d events, want at most %d, %d and one for each host",
			len(list), n, events, maxAsked, maxWaiting)
	}
	if s := <-r.asked(t, "http", "http://good.test:"+port(t, out.URL)); !strings.HasPrefix(s, "200") {
		t.Errorf("got %q, want allowed hosts reachable", s)
	}
}

// TestAskingShowsNames: what waits is a name in its ASCII form or an address, never other text.
func TestAskingShowsNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: asking, AskWait: time.Hour})
	for _, host := range []string{"b\x1b[2J.test", "pyp\u0456.org", "-x.test", strings.Repeat("a", 300), "a b", "127.1"} {
		if _, err := r.permit(t.Context(), host, 443, ""); err == nil || !Denied(err) && host != "" {
			t.Errorf("%q: got %v, want it denied at once", host, err)
		}
		if status, text := (&world{rig: r}).raw(t, "CONNECT "+host+":443 HTTP/1.1\r\nHost: x\r\n\r\n"); status == 200 {
			t.Errorf("%q: got %d %s, want it refused", host, status, text)
		}
	}
	done := make(chan error, 1)
	program := printable("pip\u202e\x1b" + strings.Repeat("x", 500))
	go func() { _, err := r.permit(t.Context(), "xn--pyp-jld.org", 443, program); done <- err }()
	r.waits(t, "xn--pyp-jld.org", 1)
	disguised := r.asked(t, "http", "http://good.test:x@evil.test/")
	testenv.Poll(t, "the host is shown, and not the user in the URL", func() bool {
		list := r.Approvals.List()
		return len(list) == 2 && list[1].Host == "evil.test"
	})
	hidden := func(c rune) bool { return c < ' ' || c == '\u202e' }
	if p := r.Approvals.List()[0]; len(p.Program) > 200 || strings.ContainsFunc(p.Program, hidden) {
		t.Errorf("got %q, want it short and escaped", p.Program)
	}
	r.Close()
	<-done
	<-disguised
}
