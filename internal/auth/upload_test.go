package auth

import (
	"testing"
)

// TestUploadsAreTheOnlyPublicRequestsWithAQuery: the ticket of an upload reaches its operation; no other query makes a request public.
func TestUploadsAreTheOnlyPublicRequestsWithAQuery(t *testing.T) {
	t.Parallel()
	c := closed()
	c.Public = func(method, path string) bool { return path == "/upload" || path == "/healthz" }
	s := serve(t, c)
	got := s.send("PUT /upload?upload=abc", "X-Forwarded-User: admin", "Cookie: a=b").seen(t)
	if got.URI != "/upload?upload=abc" || got.Known || got.Header.Get("X-Forwarded-User") != "" || got.Header.Get("Cookie") != "" {
		t.Errorf("got %+v in the handler, want the ticket and nothing else", got)
	}
	for _, target := range []string{"GET /healthz?upload=abc", "PUT /upload?upload=a&ticket=b", "PUT /upload?token=a", "PUT /upload?",
		"PUT /upload/../secret?upload=a", "PUT /other?upload=a", "PUT /uploa%64?upload=a"} {
		if r := s.send(target); r.status != 401 && r.status != 400 {
			t.Errorf("%s: got status %d, want 401", target, r.status)
		}
	}
}
