package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"time"
)

// linkMark stands between the name of the session cookie and what tells the
// cookies of links apart: each counts below a path of its own.
const linkMark = "_link_"

// linked finds the token of a link.
func (g *Guard) linked(r *http.Request) (token string, ok bool) {
	if g.c.Link == nil || r.URL.Path != g.c.LinkPath || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return "", false
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || len(values["token"]) != 1 {
		return "", false
	}
	return values["token"][0], true
}

// follow begins the session of a link and sends the caller where it leads. Why a
// token is refused is nobody's business: all refusals are alike.
func (g *Guard) follow(token, name string, base *url.URL) (admission, *refusal) {
	refused := &refusal{status: http.StatusForbidden, reason: "the link is not valid", detail: "the link is not valid any more; ask for a new one"}
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
	c := g.newCookie(name+linkMark+hex.EncodeToString(sum[:6]), base, link.Identity)
	c.Value, c.MaxAge = g.seal(link.Identity, now.Add(life)), int(life/time.Second)
	c.Path = base.Path + link.Scope
	return admission{cookie: c, redirect: base.Path + link.Path}, nil
}
