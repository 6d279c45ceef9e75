package auth

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
)

// A rejected page shows a form to sign in, which works without scripts. Both paths belong to
// the server itself, not to its sites.
const (
	signInPath  = "/sign-in"
	signOutPath = "/sign-out"
	maxForm     = 32 << 10
)

// serveSession serves both paths. It returns false for other requests, and on a server without
// credentials.
func (g *Guard) serveSession(w http.ResponseWriter, r *http.Request) bool {
	if g.open || r.Method != http.MethodPost || r.URL.RawPath != "" || r.URL.Path != signInPath &&
		r.URL.Path != signOutPath || g.c.Site(r) != "" {
		return false
	}
	// A page of another origin must not sign in its visitor as another user.
	if !g.fromOwnPage(r) {
		g.refuse(w, r, &refusal{status: http.StatusForbidden, reason: "sign-in without origin",
			detail: "only pages of this server can sign in or out; programs send Authorization or X-API-Key instead"})
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
	continueTo(w, pathOf(base, r.PostForm.Get("next")))
}

// continueTo opens a page of this server after the form. It is not a redirect: the page may
// redirect to its site, which browsers block for a form that may be sent only to this server.
func continueTo(w http.ResponseWriter, to string) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	to = html.EscapeString(to)
	_, _ = fmt.Fprint(w, formatPage("Signed in", `<meta http-equiv="refresh" content="0; url=`+to+`"><p><a href="`+to+`">Continue</a></p>`))
}

// identifySecret identifies the sender of a secret of any kind.
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

// signOut ends the session: the browser deletes it, and this server rejects it and the
// sessions and passes that were derived from it.
func (g *Guard) signOut(w http.ResponseWriter, r *http.Request) {
	base := Base(r, g.c.Trusted)
	name := g.cookies.nameFor(base)
	_, sessions := takeSessions(r.Header.Clone(), name)
	for _, value := range sessions {
		if _, s, ok := g.cookies.open(value); ok {
			g.started.finish(s, g.c.Now())
		}
	}
	deleted := g.cookies.make(name, base, Identity{}, session{end: g.c.Now()})
	deleted.Value, deleted.MaxAge = "", -1
	http.SetCookie(w, deleted)
	h := w.Header()
	h.Set("Location", pathOf(base, ""))
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(http.StatusSeeOther)
}

// pathOf returns the path of a page of this server, regardless of the content of the form.
func pathOf(base *url.URL, next string) string {
	if strings.ContainsFunc(next, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		next = ""
	}
	return base.Path + "/" + strings.TrimLeft(next, `/\`)
}
