package rest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// classTable has a route of each class. All of them return a hostile page.
func classTable() *op.Table {
	hostile := "<script>fetch('/v1/bash/exec')</script>"
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Disposition", `inline; filename="a.html"`)
		io.WriteString(w, hostile)
	})
	raw := func(name string, class op.Content) op.Op {
		return op.Handle(op.Spec{Name: name, Content: class, Route: "GET /" + name, Tag: "t", Doc: "Doc."}, page)
	}
	framed := op.Handle(op.Spec{Name: "framed", Content: op.ContentForeign, Framed: true, Route: "GET /framed", Tag: "t", Doc: "Doc."}, page)
	blob := op.New(op.Spec{Name: "blob", Content: op.ContentForeign, Route: "GET /blob", Tag: "t", Doc: "Doc."},
		func(context.Context, op.None) (*op.Blob, error) {
			return &op.Blob{Type: "image/svg+xml", Size: -1, Body: io.NopCloser(strings.NewReader(hostile))}, nil
		})
	data := op.New(op.Spec{Name: "data", Route: "GET /data", Tag: "t", Doc: "Doc."},
		func(context.Context, op.None) (string, error) { return hostile, nil })
	return op.NewTable([]op.Op{raw("api", op.ContentAPI), raw("page", op.ContentPage),
		raw("foreign", op.ContentForeign), raw("site", op.ContentSite), framed, blob, data})
}

func TestContentClasses(t *testing.T) {
	t.Parallel()
	isolated := func(w http.ResponseWriter, r *http.Request, _ *op.Op) bool {
		if r.Header.Get("Sec-Fetch-Mode") != "navigate" {
			return false
		}
		w.WriteHeader(http.StatusSeeOther)
		return true
	}
	s := New(Config{Table: classTable(), Isolate: isolated})
	linked := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	sibling := []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	typed := []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	script := []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}
	worker := []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "same-origin", "Sec-Fetch-Dest",
		"serviceworker", "Service-Worker", "script"}
	for _, c := range []struct {
		path                                         string
		linked, sibling, typed, script, worker, bare int
	}{
		{"/data", 403, 403, 200, 403, 403, 200},
		{"/api", 403, 403, 200, 403, 403, 200},
		{"/page", 200, 200, 200, 200, 200, 200},
		{"/foreign", 403, 403, 200, 403, 403, 200},
		{"/framed", 403, 403, 200, 403, 403, 200},
		{"/blob", 403, 403, 200, 403, 403, 200},
		{"/site", 303, 303, 303, 200, 200, 200},
	} {
		for _, try := range []struct {
			name    string
			headers []string
			want    int
		}{{"linked", linked, c.linked}, {"sibling", sibling, c.sibling}, {"typed", typed, c.typed},
			{"script", script, c.script}, {"worker", worker, c.worker}, {"bare", nil, c.bare}} {
			r := httptest.NewRequestWithContext(t.Context(), "GET", c.path, nil)
			for i := 0; i < len(try.headers); i += 2 {
				r.Header.Set(try.headers[i], try.headers[i+1])
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != try.want {
				t.Errorf("%s, %s: got %d %s, want %d", c.path, try.name, w.Code, w.Body, try.want)
			}
			if w.Code == 200 {
				checkConfined(t, c.path, w.Header())
			}
		}
	}
}

// checkConfined fails if a browser could execute content of the response.
func checkConfined(t *testing.T, path string, h http.Header) {
	t.Helper()
	policy, media, disposition := strings.Join(h["Content-Security-Policy"], ", "), h.Get("Content-Type"), h.Get("Content-Disposition")
	sandboxed := slices.ContainsFunc(strings.FieldsFunc(policy, func(c rune) bool { return c == ';' || c == ',' }),
		func(d string) bool { return strings.TrimSpace(d) == "sandbox" })
	switch path {
	case "/site":
		return // isolated by the handler
	case "/page":
		if !strings.Contains(policy, "default-src 'self'") || strings.Contains(policy, "unsafe-inline") {
			t.Errorf("%s: got the policy %q, want a strict one", path, policy)
		}
	case "/api", "/data":
		if !sandboxed || strings.Contains(media, "html") {
			t.Errorf("%s: got %q as %q, want a policy with sandbox and no HTML", path, policy, media)
		}
	default:
		if download := strings.HasPrefix(disposition, "attachment"); !sandboxed || download == (path == "/framed") {
			t.Errorf("%s: got %q with the policy %q, want sandbox, and a download unless it is for a frame", path, disposition, policy)
		}
	}
	if h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%s: got a response without nosniff, want it", path)
	}
}
