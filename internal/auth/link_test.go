package auth

import (
	"strings"
	"testing"
	"time"
)

// TestLinks: a link starts a session that is valid below its path, independent of other
// sessions of the browser. It ends when the link does.
func TestLinks(t *testing.T) {
	t.Parallel()
	ring := newKeyFile()
	guest := Identity{Subject: "acme", Role: "share", KeyID: "share.1"}
	ring.set("unused", guest)
	c := closed()
	c.Identify, c.Recall, c.LinkPath = ring.identify, ring.recall, "/share"
	c.Link = func(token string) (Link, bool) {
		switch token {
		case "covs_good":
			return Link{Identity: guest, Path: "/sandbox/sb-1/proxy/3000/", Scope: "/sandbox/sb-1/", Expires: time.Now().Add(time.Hour)}, true
		case "covs_over":
			return Link{Identity: guest, Path: "/", Scope: "/", Expires: time.Now()}, true
		case "covs_nobody":
			return Link{Path: "/", Scope: "/", Expires: time.Now().Add(time.Hour)}, true
		}
		return Link{}, false
	}
	s := serve(t, c)
	r := s.send("GET /share?token=covs_good", "X-Forwarded-Prefix: /hub")
	if r.status != 303 || r.header.Get("Location") != "/hub/sandbox/sb-1/proxy/3000/" {
		t.Fatalf("got status %d and headers %v, want a redirect to the target", r.status, r.header)
	}
	set := r.header.Get("Set-Cookie")
	if !strings.Contains(set, "Path=/hub/sandbox/sb-1/;") || !strings.Contains(set, "HttpOnly") || strings.Contains(set, "covs_good") {
		t.Errorf("got cookie %q, want its scope and not the token", set)
	}
	cookie, _, _ := strings.Cut(s.send("GET /share?token=covs_good").header.Get("Set-Cookie"), ";")
	guest.Via = ViaCookie
	got := s.send("GET /sandbox/sb-1/x", "Cookie: mine=1; "+cookie).seen(t)
	if got.Identity != guest || got.Header.Get("Cookie") != "mine=1" {
		t.Errorf("got %+v, want %+v and the other cookie", got, guest)
	}
	// In its scope the link takes precedence over the session of the server.
	if got := s.send("GET /sandbox/sb-1/x", "Cookie: "+s.openSession()+"; "+cookie).seen(t); got.Identity != guest {
		t.Errorf("got %+v, want %+v", got, guest)
	}
	if got := s.send("GET /sandbox/sb-1/x", "Cookie: "+cookie, "X-API-Key: "+theKey).seen(t); got.Identity.Via != ViaAPIKey {
		t.Errorf("got %+v, want the identity of the API key", got)
	}
	for _, target := range []string{"/share?token=covs_over", "/share?token=covs_nobody", "/share?token=covs_bad",
		"/share?token=", "/share?token=" + strings.Repeat("x", maxToken+1)} {
		if r := s.send("GET " + target); r.status != 403 || r.header.Get("Set-Cookie") != "" || strings.Contains(r.body, "covs_") {
			t.Errorf("%.40s: got status %d %s, want 403 without a cookie", target, r.status, r.body)
		}
	}
	for _, start := range []string{"GET /share", "GET /share/?token=covs_good", "POST /share?token=covs_good",
		"GET /x?token=covs_good", "GET /share?token=covs_good&token=covs_good"} {
		if r := s.send(start); r.status != 401 {
			t.Errorf("%s: got status %d, want 401", start, r.status)
		}
	}
	ring.set("unused", Identity{})
	if r := s.send("GET /sandbox/sb-1/x", "Cookie: "+cookie); r.status != 401 {
		t.Errorf("after it expired: got status %d, want 401", r.status)
	}
}

// TestOperatorIsKeptInSessions: a session that started with a secret of the server belongs to
// the operator, and no other session does.
func TestOperatorIsKeptInSessions(t *testing.T) {
	t.Parallel()
	ring := newKeyFile()
	c := closed()
	c.Identify, c.Recall = ring.identify, ring.recall
	s := serve(t, c)
	for header, want := range map[string]bool{"Authorization: Bearer " + theToken: true,
		"X-API-Key: cove_k1_hunter4": false, "Authorization: Bearer " + goodJWT(t): false} {
		if got := s.send("GET /x", "Cookie: "+s.openSession(header)).seen(t); got.Identity.Operator != want || got.Identity.Via != ViaCookie {
			t.Errorf("%.20s: got %+v, want operator %v by cookie", header, got.Identity, want)
		}
	}
}
