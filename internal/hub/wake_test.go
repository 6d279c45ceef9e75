package hub

import (
	"encoding/json"
	"errors"
	"html"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/identity"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestRequestsWakeSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	for _, verb := range []string{"pause", "stop"} {
		r.do("POST", "/api/v1/sandbox/a/"+verb, "")
		var wait sync.WaitGroup
		for range 50 {
			wait.Go(func() {
				if s := r.seen("POST", "/sandbox/a/x", "body"); s.Body != "body" {
					t.Errorf(`got %+v, want body "body"`, s)
				}
			})
		}
		wait.Wait()
		if s := r.status("a"); s != "running" {
			t.Errorf(`got %v, want "running"`, s)
		}
	}
	if a, b := r.provider.resumes.Load(), r.provider.starts.Load(); a != 1 || b != 1 {
		t.Errorf("%d resumes and %d starts for 50 requests each", a, b)
	}
}

// TestSlowWake: browsers get a page that reloads, other clients a Retry-After.
func TestSlowWake(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	r := newRig(t, setup{slow: slow, hub: Config{WakeWait: 50 * time.Millisecond, PageWait: time.Millisecond}})
	r.create(`{"name":"a"}`)
	r.do("POST", "/api/v1/sandbox/a/stop", "")
	if a := r.do("GET", "/sandbox/a/x", ""); a.Status != 503 || a.Code != "503" ||
		a.Header.Get("Retry-After") != "1" || !strings.Contains(a.Error, "waking up") {
		t.Errorf(`got %d %v %s, want status 503, code "503", header Retry-After "1" and error that contains "waking up"`,
			a.Status, a.Header, a.Body)
	}
	a := r.do("GET", "/sandbox/a/x?wake=true", "", "Accept", "text/html,*/*", "Sec-Fetch-Mode", "navigate")
	if a.Status != 503 || a.Header.Get("Retry-After") != "1" || !strings.Contains(a.Header.Get("Content-Type"),
		"text/html") || a.Header.Get("Refresh") != "1" || !strings.Contains(a.Body, "waking up") {
		t.Errorf("got %d %v %s, "+
			`want status 503, header Retry-After "1", content type "text/html", header Refresh "1", and "waking up" in the body`,
			a.Status, a.Header, a.Body)
	}
	close(slow)
	poll(t, "it wakes although all clients are disconnected", func() bool { return r.status("a") == "running" })
	if n := r.provider.starts.Load(); n != 1 {
		t.Errorf("started %d times", n)
	}
	if s := r.seen("GET", "/sandbox/a/x", ""); s.URI != "/x" {
		t.Errorf(`got %+v, want URI "/x"`, s)
	}
}

// TestLookingDoesNotStart: a visit of a page of a stopped sandbox offers to start it, and its link does. Programs, requests of
// pages and visits of a paused sandbox wake it.
func TestLookingDoesNotStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	visit := []string{"Accept", "text/html,*/*", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	for _, path := range []string{"/sandbox/a/", "/sandbox/a/b/c?x=1&y=%22%3E", "/sandbox/a/proxy/3000/"} {
		r.do("POST", "/api/v1/sandbox/a/stop", "")
		a := r.do("GET", path, "", visit...)
		if a.Status != http.StatusConflict || !strings.Contains(a.Body, "<h1>a is stopped</h1>") || r.status("a") != "stopped" {
			t.Fatalf("%s: got %d %s, and it is %s; want a page with a button, and it stopped", path, a.Status, a.Body, r.status("a"))
		}
		_, link, _ := strings.Cut(a.Body, `class="main" href="`)
		link, _, _ = strings.Cut(link, `"`)
		to, err := url.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		to, err = to.Parse(html.UnescapeString(link))
		if err != nil {
			t.Fatal(err)
		}
		a = r.do("GET", to.String(), "", visit...)
		back, err := to.Parse(a.Header.Get("Location"))
		if a.Status != http.StatusSeeOther || err != nil || back.String() != path || r.status("a") != "running" {
			t.Errorf("%s: got %d to %v, %v, and it is %s; want it running, and the way back", to, a.Status, back, err, r.status("a"))
		}
	}
	for name, header := range map[string][]string{"a program": nil,
		"a request of a page": {"Accept", "text/html", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}} {
		r.do("POST", "/api/v1/sandbox/a/stop", "")
		if a := r.do("GET", "/sandbox/a/x", "", header...); a.Status != http.StatusOK {
			t.Errorf("%s: got %d %s, want the sandbox awake", name, a.Status, a.Body)
		}
	}
	r.do("POST", "/api/v1/sandbox/a/pause", "")
	if a := r.do("GET", "/sandbox/a/x", "", visit...); a.Status != http.StatusOK {
		t.Errorf("got %d %s, want the paused sandbox awake", a.Status, a.Body)
	}
}

// TestRequestsWaitForBoot: requests for a sandbox that is being created, or whose
// server is not ready yet, wait for it.
func TestRequestsWaitForBoot(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	r := newRig(t, setup{more: func(g *guestServer) { g.ready = ready.Load }})
	created := make(chan reply, 1)
	go func() { created <- r.do("POST", "/api/v1/sandbox", `{"name":"a"}`) }()
	poll(t, "it is being made", func() bool {
		list, _ := r.provider.List(t.Context(), sandbox.Filter{States: []sandbox.State{sandbox.Creating}})
		return len(list) == 1
	})
	answered := make(chan int, 5)
	for range 5 {
		go func() { answered <- r.do("GET", "/sandbox/a/x", "").Status }()
	}
	poll(t, "requests wait", func() bool {
		return r.openRequests("a") == 5
	})
	ready.Store(true)
	for range 5 {
		if s := <-answered; s != 200 {
			t.Errorf("status %d while it booted", s)
		}
	}
	if a := <-created; a.Status != 200 {
		t.Errorf("got %d %s, want 200", a.Status, a.Body)
	}
}

// TestServerThatDoesNotWake: a program that just failed is not restarted at once.
func TestServerThatDoesNotWake(t *testing.T) {
	inBubble(t, func(q *quiet) {
		sb := q.make(idle(-1, "stop"))
		if err := q.p.Stop(q.Context(), sb.ID); err != nil {
			q.Fatal(err)
		}
		q.p.broken.Store(true)
		for range 3 {
			if _, err := q.fleet.Enter(q.Context(), sb, time.Minute); !errors.Is(err, sandbox.ErrNotReady) {
				q.Errorf("got %v, want %v", err, sandbox.ErrNotReady)
			}
		}
		if n := q.p.starts.Load(); n != 1 {
			q.Errorf("got %d starts of a program that just failed, want 1", n)
		}
		q.p.broken.Store(false)
		q.want(5*time.Second, sb, sandbox.Stopped)
		b, err := q.fleet.Enter(q.Context(), sb, time.Minute)
		if err != nil {
			q.Fatal(err)
		}
		b.Leave()
		q.want(0, sb, sandbox.Running)
	})
}

// TestDeletedDuringRequest: a request to a sandbox that is deleted during the request gets 404.
func TestDeletedDuringRequest(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux.HandleFunc("/wait", func(w http.ResponseWriter, q *http.Request) {
			close(entered)
			<-q.Context().Done()
		})
	}})
	r.create(`{"name":"a"}`)
	answered := make(chan reply, 1)
	go func() { answered <- r.do("GET", "/sandbox/a/wait", "") }()
	<-entered
	r.do("DELETE", "/api/v1/sandbox/a", "")
	if a := <-answered; a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}
	// A new sandbox of that name is a different one.
	r.create(`{"name":"a"}`)
	if s := r.seen("GET", "/sandbox/a/x", ""); s.URI != "/x" {
		t.Errorf(`got %+v, want URI "/x"`, s)
	}
}

// TestRequestsWaitForServer: requests succeed although the server briefly refuses connections,
// or a sandbox that is suspended between the check and the connection.
func TestRequestsWaitForServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	r.provider.refuse.Store(5)
	if s := r.seen("POST", "/sandbox/a/x", "once"); s.Body != "once" {
		t.Errorf(`got %+v, want body "once"`, s)
	}
	r.closeIdle("a")
	r.provider.drowse.Store(1)
	if s := r.seen("POST", "/sandbox/a/x", "once"); s.Body != "once" || r.provider.starts.Load() != 1 {
		t.Errorf(`got %+v, want body "once" and 1 start`, s)
	}
}

// TestOpenPagesDoNotWake: a page learns that its sandbox is paused, and that it was deleted and why, and its
// automatic requests neither wake the sandbox nor reach it.
func TestOpenPagesDoNotWake(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a","timeout":30}`)
	about := func() (out struct{ Data identity.Identity }) {
		t.Helper()
		if a := r.do("GET", "/sandbox/a"+identity.Path, ""); a.Status != http.StatusOK || json.Unmarshal([]byte(a.Body), &out) != nil {
			t.Fatalf("got %d %s, want an identity", a.Status, a.Body)
		}
		return out
	}
	me := about().Data
	if me.Name != "a" || me.State != "running" || me.Hub != r.server.URL+"/" || me.OnEnd != "delete" ||
		me.Expires == nil || time.Until(*me.Expires) > 30*time.Minute || time.Until(*me.Expires) < 0 {
		t.Errorf(`got %+v, want name "a", state "running", the hub %s, and the end in 30 minutes`, me, r.server.URL)
	}
	if !me.IfUnused || time.Until(*me.Expires) > 10*time.Minute {
		t.Errorf("got the end %v, want the idle timeout, which is earlier than the timeout", me.Expires)
	}
	r.do("POST", "/api/v1/sandbox/a/pause", "")
	if me := about().Data; me.State != "paused" {
		t.Errorf(`got %+v, want state "paused"`, me)
	}
	if a := r.do("GET", "/sandbox/a/x?wake=false", ""); a.Status != http.StatusConflict || !strings.Contains(a.Error, "is paused") {
		t.Errorf(`got %d %s, want 409 and "is paused"`, a.Status, a.Body)
	}
	if n := r.provider.resumes.Load(); n != 0 {
		t.Errorf("resumed %d times, want 0", n)
	}
	r.do("DELETE", "/api/v1/sandbox/a", "")
	if a := r.do("GET", "/sandbox/a"+identity.Path, ""); a.Status != http.StatusNotFound || a.Code != "404" ||
		!strings.Contains(a.Error, "was deleted") {
		t.Errorf(`got %d %s, want 404 and "was deleted"`, a.Status, a.Body)
	}
}
