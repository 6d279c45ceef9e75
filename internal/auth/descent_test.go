package auth

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// issuing is a server whose handler makes tickets, as POST /tickets does.
func issuing(t *testing.T, c Config) *server {
	t.Helper()
	s := &server{}
	c.Now = s.clock.now
	g := New(c)
	addr := serveHandler(t, g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ticket, _, err := g.Issue(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return
		}
		w.Write([]byte(ticket))
	})))
	s.Guard, s.t, s.network, s.addr = g, t, "tcp", addr
	return s
}

func cookieOf(r reply) string {
	cookie, _, _ := strings.Cut(r.header.Get("Set-Cookie"), ";")
	return cookie
}

// Tickets and sessions that are derived from a ticket end with the session of that ticket.
func TestDerivedSessionsEndWithTheFirst(t *testing.T) {
	t.Parallel()
	s := issuing(t, closed())
	const own = "Origin: http://localhost"
	first := s.send("POST /tickets", "X-API-Key: "+theKey).body
	r := s.send("POST /tickets?ticket=" + first)
	cookie, ticket := cookieOf(r), r.body
	for hour := range 30 {
		// Alternately by ticket and by cookie, each derived from the previous one.
		var again reply
		if hour%2 == 0 {
			again = s.send("POST /tickets?ticket=" + ticket)
		} else {
			again = s.send("POST /tickets", "Cookie: "+cookie, own)
		}
		if alive := time.Duration(hour)*time.Hour < sessionLife; (again.status == 200) != alive {
			t.Fatalf("after %d hours: got status %d %s, want it to work for exactly %v", hour, again.status, again.body, sessionLife)
		}
		if again.status == 200 {
			ticket = again.body
			if c := cookieOf(again); c != "" {
				cookie = c
			}
			if hour%2 == 0 { // the next request uses the cookie
				used := s.send("GET /?ticket=" + ticket)
				cookie, ticket = cookieOf(used), used.body
			} else { // the ticket must not expire before it is used
				s.clock.advance(time.Hour)
				ticket = s.send("POST /tickets", "Cookie: "+cookie, own).body
				continue
			}
		}
		s.clock.advance(time.Hour)
	}
	if r := s.send("GET /", "Cookie: "+cookie); r.status != 401 {
		t.Errorf("got status %d, want 401 after the end of the last session", r.status)
	}
	if r := s.send("GET /", "X-API-Key: "+theKey); r.status != 200 {
		t.Errorf("got status %d, want 200 with an independent credential", r.status)
	}
}

// Requests that a session has started end with it.
func TestARequestEndsWithItsSession(t *testing.T) {
	t.Parallel()
	c := closed()
	var offset clock
	c.Now = offset.now
	g := New(c)
	ended := make(chan error, 1)
	addr := serveHandler(t, g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/stream" {
			return
		}
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	})))
	s := &server{Guard: g, t: t, network: "tcp", addr: addr}
	cookie := s.openSession()
	offset.advance(sessionLife - 2*time.Second)
	s.send("GET /stream", "Cookie: "+cookie)
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the session", err)
	}
}

func TestATicketIsForOneSite(t *testing.T) {
	t.Parallel()
	c := closed()
	c.Site = func(r *http.Request) string {
		site, _, _ := strings.Cut(r.Host, ".box.example")
		if site == r.Host {
			return ""
		}
		return site
	}
	c.SignInURL = func(*http.Request, *url.URL) string { return "http://hub.example/open" }
	s := serve(t, c)
	alice := NewContext(context.Background(), Identity{Subject: "alice"})
	forSite := func(site string) string {
		ticket, err := s.IssueFor(alice, site)
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	for _, host := range []string{"hub.example", "b.box.example", "3000-a.box.example"} {
		if r := s.send("GET /?ticket="+forSite("a"), "Host: "+host); r.status != 401 {
			t.Errorf("ticket of a at %s: got status %d, want 401", host, r.status)
		}
	}
	r := s.send("GET /?ticket="+forSite("a"), "Host: a.box.example")
	if got := r.seen(t).Identity; got != (Identity{Subject: "alice", Via: ViaTicket, Site: "a"}) {
		t.Errorf("got %+v, want alice on the site a", got)
	}
	cookie := cookieOf(r)
	_, value, _ := strings.Cut(cookie, "=")
	if got := s.send("GET /", "Host: a.box.example", "Cookie: "+cookie).seen(t).Identity; got.Site != "a" {
		t.Errorf("got %+v, want the session on the site a", got)
	}
	// With the cookie name of the other host.
	for _, host := range []string{"hub.example", "b.box.example", "3000-a.box.example"} {
		name := cookieOf(s.send("GET /?ticket="+s.ticket(), "Host: "+host))
		name, _, _ = strings.Cut(name, "=")
		if r := s.send("GET /", "Host: "+host, "Cookie: "+name+"="+value); r.status != 401 {
			t.Errorf("session of a at %s: got status %d, want 401", host, r.status)
		}
	}
	// A session of the server itself is not valid on a site.
	hubCookie := s.openSession("Host: hub.example")
	_, hubValue, _ := strings.Cut(hubCookie, "=")
	name, _, _ := strings.Cut(cookie, "=")
	if r := s.send("GET /", "Host: a.box.example", "Cookie: "+name+"="+hubValue); r.status != 401 {
		t.Errorf("session of the server on a site: got status %d, want 401", r.status)
	}
	// An unlimited ticket starts a session that is valid only on the site.
	if got := s.send("GET /?ticket="+s.ticket(), "Host: b.box.example").seen(t).Identity; got.Site != "b" {
		t.Errorf("got %+v, want the session limited to b", got)
	}
	// A person without a session is redirected to sign in, once.
	if r := s.send("GET /x", "Host: a.box.example", asPage); r.status != 303 || r.header.Get("Location") != "http://hub.example/open" {
		t.Errorf("got status %d to %q, want a redirect to sign in", r.status, r.header.Get("Location"))
	}
	if r := s.send("GET /x?ticket="+forSite("b"), "Host: a.box.example", asPage); r.status != 401 {
		t.Errorf("refused ticket: got status %d, want 401 and no loop", r.status)
	}
	if r := s.send("GET /x", "Host: a.box.example"); r.status != 401 {
		t.Errorf("program: got status %d, want 401", r.status)
	}
}

// Two cookies with one name mean that a page of a neighboring host name has set one of them.
func TestAForeignSessionDoesNotReplaceOurs(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	mine := s.openSession()
	ticket, _, err := s.Issue(NewContext(context.Background(), Identity{Subject: "mallory"}))
	if err != nil {
		t.Fatal(err)
	}
	theirs := cookieOf(s.send("GET /?ticket=" + ticket))
	for _, cookies := range []string{mine + "; " + theirs, theirs + "; " + mine} {
		if r := s.send("GET /", "Cookie: "+cookies); r.status != 401 || !strings.Contains(r.body, "two callers") {
			t.Errorf("got status %d %s, want 401", r.status, r.body)
		}
	}
	if got := s.send("GET /", "Cookie: "+mine+"; "+mine).seen(t).Identity.Subject; got != "alice" {
		t.Errorf("the same one twice: got %q, want alice", got)
	}
}

func TestASessionCookieAloneAllowsOnlyReading(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	cookie := "Cookie: " + s.openSession("Host: localhost:8080")
	for _, tt := range []struct {
		name, start string
		headers     []string
		want        int
	}{
		{"reading", "GET /v1", nil, 200},
		{"own page", "POST /v1", []string{"Origin: http://localhost:8080", "Sec-Fetch-Site: same-origin"}, 200},
		{"own page, old browser", "POST /v1", []string{"Origin: http://localhost:8080"}, 200},
		{"own page, without Origin", "POST /v1", []string{"Sec-Fetch-Site: same-origin"}, 200},
		{"own WebSocket", "GET /ws", []string{webSocket, "Origin: http://localhost:8080"}, 200},
		{"with an API key", "POST /v1", []string{"X-API-Key: " + theKey}, 200},
		{"nothing else", "POST /v1", nil, 403},
		{"nothing else, DELETE", "DELETE /v1", nil, 403},
		{"nothing else, unknown method", "FOO /v1", nil, 403},
		{"typed in", "POST /v1", []string{"Sec-Fetch-Site: none"}, 403},
		{"WebSocket without Origin", "GET /ws", []string{webSocket}, 403},
		{"neighbor", "POST /v1", []string{"Origin: http://a.localhost:8080", "Sec-Fetch-Site: same-site"}, 403},
		{"other port", "POST /v1", []string{"Origin: http://localhost:3000"}, 403},
		{"other port, WebSocket", "GET /ws", []string{webSocket, "Origin: http://localhost:3000"}, 403},
		{"page without an origin", "POST /v1", []string{"Origin: null", "Sec-Fetch-Site: cross-site"}, 403},
		{"referrer only", "POST /v1", []string{"Referer: http://localhost:8080/"}, 403},
	} {
		if r := s.send(tt.start, append(tt.headers, "Host: localhost:8080", cookie)...); r.status != tt.want {
			t.Errorf("%s: got status %d %s, want %d", tt.name, r.status, r.body, tt.want)
		}
	}
}

func TestPasses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{"closed": closed(), "open": open()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.FindPass = func(path string) string {
				_, rest, ok := strings.Cut(path, "/box/")
				segment, _, _ := strings.Cut(rest, "/")
				if !ok || !IsPass(segment) {
					return ""
				}
				return segment
			}
			s := serve(t, c)
			ctx := NewContext(context.Background(), Identity{Subject: "alice", Operator: name == "open"})
			ctx = context.WithValue(ctx, sessionKey{}, session{end: s.clock.now().Add(time.Hour)})
			pass := s.Pass(ctx, "3000-a")
			if again := s.Pass(ctx, "3000-a"); again != pass || s.Pass(ctx, "a") == pass || !IsPass(pass) {
				t.Errorf("got %s and %s, want one for each session and site", pass, again)
			}
			for _, headers := range [][]string{nil, {"Origin: null", "Sec-Fetch-Site: cross-site"},
				{webSocket, "Origin: null"}, {"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"}} {
				r := s.send("GET /box/"+pass+"/x", headers...)
				if got := r.seen(t).Identity; got.Site != "3000-a" || got.Via != ViaPass || got.Subject != "alice" {
					t.Errorf("%v: got %+v, want alice on the site", headers, got)
				}
				if want := strings.Contains(strings.Join(headers, "\n"), "null"); (r.header.Get("Access-Control-Allow-Origin") == "null") != want {
					t.Errorf("%v: got headers %v, want CORS %v", headers, r.header, want)
				}
			}
			if r := s.send("OPTIONS /box/"+pass+"/x", "Origin: null", "Access-Control-Request-Method: DELETE",
				"Access-Control-Request-Headers: content-type"); r.status != 204 || r.header.Get("Access-Control-Allow-Credentials") != "" {
				t.Errorf("preflight: got status %d and headers %v, want 204 without credentials", r.status, r.header)
			}
			// The visitor's session is ignored if a pass is sent.
			if got := s.send("GET /box/"+pass+"/x", "Cookie: "+CookiePrefix+"abc=x; a=b", "X-API-Key: "+theKey).
				seen(t); got.Identity.Site != "3000-a" || got.Header.Get("Cookie") != "a=b" || name == "closed" && got.Header.Get("X-Api-Key") != "" {
				t.Errorf("got %+v, want the pass alone", got)
			}
			for _, bad := range []string{"~" + strings.Repeat("A", 32), pass[:len(pass)-1] + "A", "~", strings.ToUpper(pass)} {
				r := s.send("GET /box/"+bad+"/x", "Origin: null", "Sec-Fetch-Site: cross-site")
				if bad != pass && r.status != 403 && r.status != 401 {
					t.Errorf("%s: got status %d, want a rejection", bad, r.status)
				}
			}
			if r := s.send("GET /box/"+pass+"/x", "Origin: http://evil.example"); r.status != 403 {
				t.Errorf("foreign page: got status %d, want 403", r.status)
			}
			s.clock.advance(2 * time.Hour)
			r := s.send("GET /box/"+pass+"/x", "Origin: null")
			if name == "closed" && r.status == 200 || name == "open" && r.status != 200 {
				t.Errorf("after the session: got status %d, want 401; an open server has no sessions", r.status)
			}
		})
	}
}

func TestPassesAreBounded(t *testing.T) {
	t.Parallel()
	g := New(open())
	first := g.Pass(context.Background(), "first")
	for i := range maxPasses {
		g.Pass(context.Background(), strings.Repeat("x", i%50)+string(rune('a'+i%26))+time.Duration(i).String())
	}
	if n := g.passes.byUse.Len(); n != maxPasses || len(g.passes.byText) != n {
		t.Errorf("got %d passes, want %d", n, maxPasses)
	}
	if _, ok := g.passes.find(first, time.Now()); ok {
		t.Error("got the oldest, want it evicted")
	}
}
