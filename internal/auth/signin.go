package auth

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
)

// A person signs in with a form that the rejection of a page shows, and signs out again. The
// form works without scripts. Both paths belong to the server itself, not to its sites.
const (
	signInPath  = "/sign-in"
	signOutPath = "/sign-out"
	maxForm     = 32 << 10
)

// serveSession serves both paths. It returns false for other requests, and on a server that
// asks for no credentials.
func (g *Guard) serveSession(w http.ResponseWriter, r *http.Request) bool {
	if g.open || r.Method != http.MethodPost || r.URL.RawPath != "" || r.URL.Path != signInPath &&
		r.URL.Path != signOutPath || g.c.Site(r) != "" {
		return false
	}
	// A page of another origin must not sign its visitor in as somebody else.
	if !g.fromOwnPage(r) {
		g.refuse(w, r, &refusal{status: http.StatusForbidden, reason: "sign-in without origin",
			detail: "signing in and out is for pages of this server; programs send Authorization or X-API-Key instead"})
		return true
	}
	if r.URL.Path == signOutPath {
		g.signOut(w, r)
	} else {
		g.signIn(w, r)
	}
	return true
}

func (g *Guard) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		g.refuse(w, r, &refusal{status: http.StatusBadRequest, reason: "invalid form", detail: "the form is invalid or too large"})
		return
	}
	id, ok := g.keys.identifySecret(strings.TrimSpace(r.PostForm.Get("key")))
	if !ok {
		no := g.unauthorized("invalid key")
		no.next = r.PostForm.Get("next")
		g.refuse(w, r, no)
		return
	}
	base, now := Base(r, g.c.Trusted), g.c.Now()
	http.SetCookie(w, g.cookies.make(g.cookies.nameFor(base), base, id, session{end: now.Add(sessionLife)}))
	goOn(w, pathOf(base, r.PostForm.Get("next")))
}

// goOn leads from the form to a page of this server. It is no redirect: the page may redirect to its own site, and browsers
// refuse that to a form which may only be sent to this server.
func goOn(w http.ResponseWriter, to string) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	to = html.EscapeString(to)
	fmt.Fprintf(w, pageText, "Signed in", `<meta http-equiv="refresh" content="0; url=`+to+`"><p><a href="`+to+`">Go on</a></p>`)
}

// identifySecret returns who sends a secret, whichever kind it is.
func (k *keyring) identifySecret(secret string) (Identity, bool) {
	if secret == "" {
		return Identity{}, false
	}
	if equalsSecret(k.apiKey, secret) || k.isKey(secret) {
		return Identity{Via: ViaAPIKey, Operator: true}, true
	}
	id, problem := k.bearer("Bearer " + secret)
	return id, problem == ""
}

// signOut ends the session: the browser forgets it, and this server no longer accepts it, nor
// the sessions on sites and the passes that descend from it.
func (g *Guard) signOut(w http.ResponseWriter, r *http.Request) {
	base := Base(r, g.c.Trusted)
	name := g.cookies.nameFor(base)
	_, sessions := takeSessions(r.Header.Clone(), name)
	for _, value := range sessions {
		if _, s, ok := g.cookies.open(value); ok {
			g.started.finish(s, g.c.Now())
		}
	}
	gone := g.cookies.make(name, base, Identity{}, session{end: g.c.Now()})
	gone.Value, gone.MaxAge = "", -1
	http.SetCookie(w, gone)
	h := w.Header()
	h.Set("Location", pathOf(base, ""))
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(http.StatusSeeOther)
}

// pathOf returns the path of a page of this server. What the form said cannot lead elsewhere.
func pathOf(base *url.URL, next string) string {
	if strings.ContainsFunc(next, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		next = ""
	}
	return base.Path + "/" + strings.TrimLeft(next, `/\`)
}
