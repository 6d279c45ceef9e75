package auth

import (
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// TestSignIn: a person signs in with any secret of the server, uses the session and signs out.
// Then the session has ended, even for a stored copy of the cookie.
func TestSignIn(t *testing.T) {
	t.Parallel()
	g := New(Config{Token: "the-token", APIKey: "the-key", SandboxKeys: []string{"the-sandbox-key"},
		Identify: func(secret string) (Identity, bool) {
			return Identity{Subject: "anna", KeyID: "k1"}, secret == "annas-key"
		},
		Recall: func(id string) (Identity, bool) { return Identity{Subject: "anna", KeyID: "k1"}, id == "k1" },
	})
	h := g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := FromContext(r.Context())
		w.Write([]byte(id.Via + " " + id.Subject))
	}))
	send := func(method, path, body string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://box.example"+path, strings.NewReader(body))
		r.Header.Set("Accept", "text/html")
		if method == http.MethodPost {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Origin", "http://box.example")
		}
		for i := 0; i < len(header); i += 2 {
			if header[i+1] == "" {
				r.Header.Del(header[i])
			} else {
				r.Header.Set(header[i], header[i+1])
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	if w := send("GET", "/files?api_key=oops", ""); w.Code != 401 ||
		!strings.Contains(w.Body.String(), `name="next" value="files"`) || strings.Contains(w.Body.String(), "oops") {
		t.Errorf("got %d %s, want the form with the next page", w.Code, w.Body)
	}
	for secret, want := range map[string]string{"the-token": "cookie ", "the-key": "cookie ",
		"the-sandbox-key": "cookie ", "annas-key": "cookie anna"} {
		w := send("POST", "/sign-in", url.Values{"key": {" " + secret + "\n"}, "next": {"files"}}.Encode())
		cookie := w.Header().Get("Set-Cookie")
		if w.Code != 200 || leadsTo(w) != "/files" || !strings.Contains(cookie, "HttpOnly; SameSite=Lax") {
			t.Fatalf("%s: got %d to %q with %q, want a session and the page", secret, w.Code, leadsTo(w), cookie)
		}
		cookie, _, _ = strings.Cut(cookie, ";")
		if got := send("GET", "/", "", "Cookie", cookie).Body.String(); got != want {
			t.Errorf("%s: got %q, want %q", secret, got, want)
		}
		if w := send("POST", "/sign-out", "", "Cookie", cookie); w.Code != 303 || !strings.Contains(w.Header().Get("Set-Cookie"), "Max-Age=0") {
			t.Errorf("%s: got %d %q, want a response that deletes the cookie", secret, w.Code, w.Header().Get("Set-Cookie"))
		}
		if w := send("GET", "/", "", "Cookie", cookie); w.Code != 401 {
			t.Errorf("%s: got %d with the cookie of an ended session, want 401", secret, w.Code)
		}
	}
	for _, next := range []string{"//evil.example/", `/\evil.example`, "///evil.example", "x\r\nSet-Cookie: a=b",
		`x"><script>alert(1)</script>`, "x; url=//evil.example"} {
		w := send("POST", "/sign-in", url.Values{"key": {"the-key"}, "next": {next}}.Encode())
		if strings.Contains(w.Body.String(), "<script") {
			t.Errorf("next %q: got %s, want no markup of it", next, w.Body)
		}
		if to := leadsTo(w); !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") ||
			strings.HasPrefix(to, `/\`) || strings.ContainsAny(to, "\r\n") {
			t.Errorf("next %q leads to %q, want a page of this server", next, to)
		}
	}
	for name, w := range map[string]*httptest.ResponseRecorder{
		"wrong key":      send("POST", "/sign-in", "key=wrong&next=%3Cscript%3E"),
		"no key":         send("POST", "/sign-in", ""),
		"foreign origin": send("POST", "/sign-in", "key=the-key", "Origin", "http://evil.example"),
		"no origin":      send("POST", "/sign-in", "key=the-key", "Origin", ""),
		"null origin":    send("POST", "/sign-in", "key=the-key", "Origin", "null"),
		"too long":       send("POST", "/sign-in", "key="+strings.Repeat("x", 64<<10)),
		"by GET":         send("GET", "/sign-in?key=the-key", ""),
		"below":          send("POST", "/sign-in/", "key=the-key"),
	} {
		if w.Code < 400 || w.Header().Get("Set-Cookie") != "" || strings.Contains(w.Body.String(), "<script>") {
			t.Errorf("%s: got %d %q, want a refusal without a session", name, w.Code, w.Header().Get("Set-Cookie"))
		}
	}
}

// leadsTo returns the target of the page after sign-in.
func leadsTo(w *httptest.ResponseRecorder) string {
	_, to, _ := strings.Cut(w.Body.String(), `content="0; url=`)
	to, _, _ = strings.Cut(to, `"`)
	return html.UnescapeString(to)
}
