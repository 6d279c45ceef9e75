package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/identity"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth/origin"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// asksIdentity reports whether a request asks what a sandbox is. The hub answers it, because a
// page must learn that its sandbox sleeps or has ended without waking it.
func (q request) asksIdentity(to target, sb sandbox.Sandbox) bool {
	return q.method == http.MethodGet && to.port == 0 && to.path == identity.Path && fleet.IsNative(sb)
}

// noWake is the query parameter of automatic requests of a page.
const noWake = "wake=false"

// start is the query parameter with which a person starts a stopped sandbox. Looking at its page does not.
const start = "wake=true"

// asksToStart reports whether a person starts the sandbox.
func (q request) asksToStart() bool {
	return slices.Contains(strings.Split(q.url.RawQuery, "&"), start)
}

// pageURL is the URL of the requested page, relative to itself, with a query that has or lacks start.
func pageURL(r *http.Request, starts bool) string {
	path, query, _ := strings.Cut(r.RequestURI, "?")
	parts := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool { return p == "" || p == start })
	if starts {
		parts = append(parts, start)
	}
	to := "./" + path[strings.LastIndexByte(path, '/')+1:]
	if len(parts) == 0 {
		return to
	}
	return to + "?" + strings.Join(parts, "&")
}

// asksToStayAsleep reports whether a request must not wake the sandbox.
func (q request) asksToStayAsleep(to target) bool {
	return to.port == 0 && slices.Contains(strings.Split(q.url.RawQuery, "&"), noWake)
}

// hubURL is the URL of the hub's page for a caller at a sandbox; empty for a caller with a share
// link, which gives no access to the hub.
func (p policy) hubURL(q request) string {
	if q.shared {
		return ""
	}
	if _, domain, below := p.findSite(q.host); below {
		return p.home(q.base, domain) + "/"
	}
	return q.base.String() + "/"
}

// describe replies with the identity of a sandbox.
func (g *Gateway) describe(w http.ResponseWriter, r *http.Request, d decision) {
	sb := d.sandbox
	me := identity.Identity{Name: sb.Spec.Name, ID: sb.ID, Owner: sb.Spec.Owner, State: string(sb.State), Message: sb.Message, Hub: d.location,
		Share: g.Shares}
	if at, action, ok := fleet.Deadline(sb, g.Fleet.LastActive(sb)); ok {
		expiry, expires := fleet.Expiry(sb)
		me.Expires, me.OnEnd, me.IfUnused = new(at.UTC()), string(action), !expires || at.Before(expiry)
	}
	body, err := op.JSON(struct {
		op.Envelope
		Data identity.Identity `json:"data"`
	}{op.SuccessEnvelope(r.Context()), me})
	if err != nil {
		g.refuse(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Security-Policy", origin.Data)
	h.Set("Cache-Control", "no-store")
	w.Write(body)
}
