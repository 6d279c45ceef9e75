package auth

import (
	"strings"
	"testing"
)

// Clients of the public image send the key in one of these places. Services behind the guard
// must never receive it.
func TestSandboxKeyIsAcceptedInAllPlaces(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{SandboxKeys: []string{theKey, "second-key"}, Public: healthOnly})
	if r := s.send("GET /x"); r.status != 401 {
		t.Fatalf("without a key: got %d %s, want 401", r.status, r.body)
	}
	for name, request := range map[string][]string{
		"X-AIO-API-Key": {"GET /x", "X-AIO-API-Key: " + theKey},
		"X-API-Key":     {"GET /x", "X-API-Key: " + theKey},
		"bearer":        {"GET /x", "Authorization: Bearer " + theKey},
		"query":         {"GET /x?a=1&api_key=" + theKey + "&b=%20"},
		"second key":    {"GET /x", "X-AIO-API-Key: second-key"},
	} {
		r := s.send(request[0], request[1:]...)
		if r.status != 200 || r.seen(t).Identity.Via != ViaAPIKey || strings.Contains(r.body, theKey) || strings.Contains(r.body, "second-key") {
			t.Errorf("%s: got %d %s, want the identity of a key, and no key", name, r.status, r.body)
		}
	}
	for name, request := range map[string][]string{
		"wrong key":     {"GET /x", "X-AIO-API-Key: no"},
		"wrong query":   {"GET /x?api_key=no"},
		"wrong bearer":  {"GET /x", "Authorization: Bearer no"},
		"empty":         {"GET /x?api_key=", "X-AIO-API-Key:"},
		"part of a key": {"GET /x", "X-AIO-API-Key: " + theKey[:len(theKey)-1]},
	} {
		if r := s.send(request[0], request[1:]...); r.status != 401 {
			t.Errorf("%s: got %d %s, want 401", name, r.status, r.body)
		}
	}
	page := s.send("GET /page?api_key="+theKey, "Accept: text/html", "Sec-Fetch-Mode: navigate")
	cookie, _, _ := strings.Cut(page.header.Get("Set-Cookie"), ";")
	if page.status != 303 || page.header.Get("Location") != "./page" || cookie == "" {
		t.Fatalf("page: got %d to %q with cookie %q, want a redirect without the key and a session", page.status,
			page.header.Get("Location"), cookie)
	}
	if r := s.send("GET /page", "Cookie: "+cookie); r.status != 200 {
		t.Errorf("with the session of the page: got %d %s, want 200", r.status, r.body)
	}
}

// A reverse proxy authorizes a request with credentials in its URL.
func TestAuthReadsTheOriginalURL(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{Token: theToken, SandboxKeys: []string{theKey}})
	for name, uri := range map[string]string{"ticket": "/page?x=1&ticket=" + s.ticket(), "key": "/page?api_key=" + theKey} {
		if r := s.send("GET /auth", "X-Original-URI: "+uri); r.status != 200 {
			t.Errorf("%s: got %d %s, want 200", name, r.status, r.body)
		}
	}
	for name, request := range map[string][]string{
		"no credential":  {"GET /auth", "X-Original-URI: /page"},
		"wrong ticket":   {"GET /auth", "X-Original-URI: /page?ticket=tkt_no"},
		"another path":   {"GET /v1/x", "X-Original-URI: /page?api_key=" + theKey},
		"another method": {"POST /auth", "X-Original-URI: /page?api_key=" + theKey, "Content-Length: 0"},
	} {
		if r := s.send(request[0], request[1:]...); r.status != 401 {
			t.Errorf("%s: got %d %s, want 401", name, r.status, r.body)
		}
	}
}
