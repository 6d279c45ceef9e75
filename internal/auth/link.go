package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"time"
)

// linkMark separates the name of the session cookie from the part that distinguishes the
// cookies of links. Each of them is valid below a different path.
const linkMark = "_link_"

// linkToken returns the token in a request for a link.
func (g *Guard) linkToken(r *http.Request) (token string, ok bool) {
	if g.c.Link == nil || r.URL.Path != g.c.LinkPath || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return "", false
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || len(values["token"]) != 1 {
		return "", false
	}
	return values["token"][0], true
}

// followLink starts the session of a link and redirects the caller to its target. All
// rejections are identical, so that they reveal nothing about a token.
func (g *Guard) followLink(token, name string, base *url.URL) (admission, *refusal) {
	refused := &refusal{status: http.StatusForbidden, reason: "invalid link", detail: "the link is invalid or has expired; request a new one"}
	if len(token) > maxToken {
		return admission{}, refused
	}
	link, ok := g.c.Link(token)
	if !ok || link.Identity.KeyID == "" || len(link.Identity.KeyID) > maxKeyID || len(link.Identity.Subject) > maxSubject {
		return admission{}, refused
	}
	now := g.c.Now()
	life := min(link.Expires.Sub(now), sessionLife)
	if life < time.Second {
		return admission{}, refused
	}
	sum := sha256.Sum256([]byte(link.Identity.KeyID))
	c := g.cookies.make(name+linkMark+hex.EncodeToString(sum[:6]), base, link.Identity, session{end: now.Add(life)})
	c.Path = base.Path + link.Scope
	return admission{cookie: c, redirect: base.Path + link.Path}, nil
}
