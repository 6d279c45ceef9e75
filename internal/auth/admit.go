package auth

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/auth/origin"
)

// admission is a request that was admitted.
type admission struct {
	request  *http.Request
	cookie   *http.Cookie // to set, or nil
	redirect string       // URL of a redirect that replaces the response, or empty
	session  session      // of the request; without an end there is none
}

// serve forwards the request to next. WebSockets and streams end with the session.
func (g *Guard) serve(w http.ResponseWriter, a admission, next http.Handler) {
	if a.cookie != nil {
		http.SetCookie(w, a.cookie)
	}
	if a.redirect == "" {
		r := a.request
		if !a.session.end.IsZero() {
			ctx, leave := g.started.join(r.Context(), a.session, g.c.Now())
			defer leave()
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r)
		return
	}
	origin.Redirect(w, a.redirect, "")
}

// admit finds a credential and removes all our credentials from the request. A handler can
// forward the request to a service that must not learn them.
func (g *Guard) admit(r *http.Request) (admission, *refusal) {
	base := Base(r, g.c.Trusted)
	name := g.cookies.nameFor(base)
	if token, ok := g.linkToken(r); ok {
		return g.followLink(token, name, base)
	}
	if id, known, err := g.c.Visit(r); known {
		return g.admitVisit(r, id, err)
	}
	out := originForm(r)
	adoptOriginal(out)
	tickets := takeTickets(out)
	key := g.keys.takeKey(out)
	links, sessions := takeSessions(out.Header, name)

	f := found{Identity: Identity{Via: ViaOpen, Operator: true}}
	var cookie *http.Cookie
	if g.open {
		// Consume the ticket here too, so that a URL with a ticket behaves the same way.
		if len(tickets) == 1 {
			g.tickets.use(tickets[0])
		}
	} else {
		var no *refusal
		if f, no = g.identify(out.Header, sent{site: g.c.Site(r), key: key, tickets: tickets, links: links, sessions: sessions}); no != nil {
			if key.fault == "" {
				no.queryHint(r.URL)
			}
			return admission{}, no
		}
		if f.Via == ViaCookie && !g.fromOwnPage(r) {
			return admission{}, &refusal{status: http.StatusForbidden, reason: "session without origin",
				detail: "a session cookie alone does not permit this request: " +
					"it must come from a page of this server, with Sec-Fetch-Site: same-origin or this server's " +
					"Origin. Programs send Authorization or X-API-Key instead"}
		}
		g.keys.removeSecrets(out.Header)
		g.keys.removeSecretParameters(out)
		if f.ticket || key.query && origin.IsNavigation(r) {
			f.session = f.startedAt(g.c.Now())
			cookie = g.cookies.make(name, base, f.Identity, f.session)
		}
	}
	a := admission{request: out.WithContext(NewContext(r.Context(), f.Identity)), cookie: cookie, session: f.session}
	if (len(tickets) > 0 || key.query) && origin.IsNavigation(r) {
		a.redirect = sameURL(out.URL)
	}
	return a, nil
}

// admitVisit admits a request with a credential for its target. Its other credentials are
// ignored.
func (g *Guard) admitVisit(r *http.Request, id Identity, err error) (admission, *refusal) {
	if err != nil {
		no := &refusal{status: http.StatusUnauthorized, reason: "invalid credential of the target", detail: err.Error(), visit: true}
		if errors.Is(err, ErrForbidden) {
			no.status, no.reason = http.StatusForbidden, "the target requires a separate credential"
		}
		return admission{}, no
	}
	out := originForm(r)
	takeTickets(out)
	takeSessions(out.Header, "")
	g.keys.removeSecrets(out.Header)
	g.keys.removeSecretParameters(out)
	for _, name := range g.c.VisitHeaders {
		out.Header.Del(name)
	}
	id.Via, id.Operator = ViaVisit, false
	return admission{request: out.WithContext(NewContext(r.Context(), id))}, nil
}

// sent holds the credentials of a request that are not separate headers.
type sent struct {
	site                     string // that the request addresses
	key                      sandboxKey
	tickets, links, sessions []string
}

type found struct {
	Identity
	session session // without an end, the request itself has a credential
	ticket  bool    // a ticket was used, so its session starts
}

// startedAt returns the session that starts now.
func (f found) startedAt(now time.Time) session {
	if f.session.end.IsZero() {
		f.session.end = now.Add(sessionLife)
	}
	return f.session.begun()
}

// identify tries every credential, because our headers must be removed even if another
// credential was valid. Other headers remain, because they may be for a preview.
func (g *Guard) identify(h http.Header, s sent) (found, *refusal) {
	if len(h["Authorization"]) > 1 || len(h["X-Api-Key"]) > 1 {
		return found{}, g.unauthorized("send Authorization and X-API-Key at most once each")
	}
	var all []found
	why := "authentication required"
	if s.key.fault != "" {
		why = s.key.fault
	}
	if s.key.valid {
		all = append(all, found{Identity: Identity{Via: ViaAPIKey, Operator: true}})
	}
	if id, problem := g.keys.bearer(h.Get("Authorization")); problem == "" {
		all = append(all, found{Identity: id})
		h.Del("Authorization")
	} else if problem != noBearer {
		why = problem
	}
	if key := h.Get("X-Api-Key"); key != "" {
		if equalsSecret(g.keys.apiKey, key) {
			all = append(all, found{Identity: Identity{Via: ViaAPIKey, Operator: true}})
			h.Del("X-Api-Key")
		} else if id, ok := g.keys.identifyKey(key); ok {
			all = append(all, found{Identity: id})
			h.Del("X-Api-Key")
		} else {
			why = "invalid X-API-Key"
		}
	}
	used := false
	if f, problem := g.useTicket(s); problem == "" {
		used = true
		all = append(all, f)
	} else if problem != noTicket {
		why = problem
	}
	f, ok, ambiguous := g.findSession(s)
	if ambiguous {
		why = "the browser sent the sessions of two callers; delete the cookies of this site and sign in again"
	} else if ok {
		all = append(all, f)
	}
	if len(all) == 0 {
		return found{}, g.unauthorized(why)
	}
	all[0].ticket = used
	if used && all[0].Site == "" {
		all[0].Site = s.site
	}
	return all[0], nil
}

// noTicket means that no ticket was sent.
const noTicket = "no ticket"

// useTicket consumes the ticket of a request. The session that starts with it is limited to
// the site of the request.
func (g *Guard) useTicket(s sent) (_ found, problem string) {
	switch len(s.tickets) {
	case 0:
		return found{}, noTicket
	case 1:
	default:
		return found{}, "send only one ticket"
	}
	t, ok := g.tickets.use(s.tickets[0])
	if ok && (t.owner.Site != "" && t.owner.Site != s.site || g.started.isOver(t.session.id)) {
		ok = false
	}
	if ok {
		t.owner.Site = s.site
		t.owner, ok = g.keys.recall(t.owner, ViaTicket)
	}
	if !ok {
		return found{}, "the ticket has been used or has expired; create a new one"
	}
	return found{Identity: t.owner, session: t.session}, ""
}

// findSession finds the session of a request. Links have priority, because a browser sends
// their cookies only where they are valid. A page on a neighboring host name can add cookies
// to ours. It must not make its visitor act as another user.
func (g *Guard) findSession(s sent) (_ found, ok, ambiguous bool) {
	for _, value := range s.links {
		if f, ok := g.readSession(value, s.site); ok {
			return f, true, false
		}
	}
	var first found
	for _, value := range s.sessions {
		f, valid := g.readSession(value, s.site)
		switch {
		case !valid:
		case !ok:
			first, ok = f, true
		case f.Identity != first.Identity:
			return found{}, false, true
		}
	}
	return first, ok, false
}

func (g *Guard) readSession(value, site string) (found, bool) {
	owner, s, ok := g.cookies.open(value)
	if !ok || owner.Site != site || g.started.isOver(s.id) {
		return found{}, false
	}
	owner, ok = g.keys.recall(owner, ViaCookie)
	return found{Identity: owner, session: s}, ok
}

// public reports whether the request is public. It compares the raw request target: an escaped
// path, or a path with a suffix, is not public. The only query is the ticket of an upload, which the
// operation checks.
func (g *Guard) public(r *http.Request) bool {
	path, query, has := strings.Cut(r.RequestURI, "?")
	if has && (r.Method != http.MethodPut || !strings.HasPrefix(query, UploadTicket+"=") || strings.ContainsAny(query, "&;")) {
		return false
	}
	return path != "" && path == r.URL.Path && r.URL.RawPath == "" && g.c.Public(r.Method, path)
}

// UploadTicket is the name of the parameter with the ticket of an upload.
const UploadTicket = "upload"

// stripped rebuilds a public request from its method and path alone. Host and headers also
// affect routing (previews), so nothing else of an unknown caller may remain.
func stripped(r *http.Request) *http.Request {
	out := &http.Request{
		Method: r.Method, URL: &url.URL{Path: r.URL.Path}, RequestURI: r.URL.Path,
		Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor,
		Header: http.Header{}, Body: http.NoBody, Host: "localhost", RemoteAddr: r.RemoteAddr, TLS: r.TLS,
	}
	if agent := r.UserAgent(); agent != "" {
		out.Header.Set("User-Agent", agent)
	}
	if r.URL.RawQuery != "" { // an upload
		out.URL.RawQuery, out.RequestURI = r.URL.RawQuery, r.RequestURI
		out.Body, out.ContentLength = r.Body, r.ContentLength
	}
	return out.WithContext(r.Context())
}

// originForm clones the request and removes scheme, user and host from an absolute target,
// which only forward proxies need.
func originForm(r *http.Request) *http.Request {
	out := r.Clone(r.Context())
	if out.Method != http.MethodConnect && (out.URL.Scheme != "" || out.URL.Host != "" || out.URL.User != nil || out.URL.Opaque != "") {
		out.URL.Scheme, out.URL.Host, out.URL.User, out.URL.Opaque = "", "", nil, ""
		out.RequestURI = out.URL.RequestURI()
	}
	return out
}

// sameURL returns a relative reference to u. It is correct below any prefix, and cannot lead
// to another host, as a path that starts with // could.
func sameURL(u *url.URL) string {
	p := u.EscapedPath()
	ref := "./" + p[strings.LastIndexByte(p, '/')+1:]
	if u.RawQuery != "" {
		ref += "?" + u.RawQuery
	}
	return ref
}
