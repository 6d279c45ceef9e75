package auth

import (
	"net/http"
	"net/url"
	"strings"
)

// admission is a request that may go on.
type admission struct {
	request  *http.Request
	cookie   *http.Cookie // to set, or nil
	redirect string       // to answer with instead, or empty
}

func (a admission) serve(w http.ResponseWriter, next http.Handler) {
	if a.cookie != nil {
		http.SetCookie(w, a.cookie)
	}
	if a.redirect == "" {
		next.ServeHTTP(w, a.request)
		return
	}
	h := w.Header()
	h.Set("Location", a.redirect)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(http.StatusSeeOther)
}

// admit looks for a credential and takes all of ours out of the request: a
// handler may forward it to a service that must not learn them.
func (g *Guard) admit(r *http.Request) (admission, *refusal) {
	base := Base(r, g.c.Trusted)
	name := g.cookieName(base)
	if token, ok := g.linked(r); ok {
		return g.follow(token, name, base)
	}
	out := originForm(r)
	tickets := takeTickets(out)
	sessions := takeSessions(out.Header, name)

	id := Identity{Via: ViaOpen, Operator: true}
	var cookie *http.Cookie
	if g.open {
		// The ticket is spent here too, so that a link behaves the same way.
		if len(tickets) == 1 {
			g.tickets.use(tickets[0])
		}
	} else {
		found, no := g.identify(out.Header, tickets, sessions)
		if no != nil {
			no.queryHint(r.URL)
			return admission{}, no
		}
		id = found.Identity
		if found.ticket {
			cookie = g.newCookie(name, base, id)
		}
	}
	a := admission{request: out.WithContext(NewContext(r.Context(), id)), cookie: cookie}
	if len(tickets) > 0 && navigation(r) {
		a.redirect = sameURL(out.URL)
	}
	return a, nil
}

type found struct {
	Identity
	ticket bool // a ticket was used up; its session begins
}

// identify tries every credential: a header that is ours must go even if another
// one already did. What is not ours stays, as it may be meant for a preview.
func (g *Guard) identify(h http.Header, tickets, sessions []string) (found, *refusal) {
	if len(h["Authorization"]) > 1 || len(h["X-Api-Key"]) > 1 {
		return found{}, g.unauthorized("send each of Authorization and X-API-Key at most once")
	}
	var ids []Identity
	why := "credentials are needed"
	if id, problem := g.bearer(h.Get("Authorization")); problem == "" {
		ids = append(ids, id)
		h.Del("Authorization")
	} else if problem != noBearer {
		why = problem
	}
	if key := h.Get("X-Api-Key"); key != "" {
		if same(g.apiKey, key) {
			ids = append(ids, Identity{Via: ViaAPIKey, Operator: true})
			h.Del("X-Api-Key")
		} else if id, ok := g.known(key); ok {
			ids = append(ids, id)
			h.Del("X-Api-Key")
		} else {
			why = "the X-API-Key is not valid"
		}
	}
	used := false
	switch len(tickets) {
	case 0:
	case 1:
		owner, ok := g.tickets.use(tickets[0])
		if ok {
			owner, ok = g.recall(owner, ViaTicket)
		}
		if used = ok; ok {
			ids = append(ids, owner)
		} else {
			why = "the ticket was used before or has expired; get a new one"
		}
	default:
		why = "send one ticket only"
	}
	for _, s := range sessions {
		owner, ok := g.openSession(s)
		if ok {
			owner, ok = g.recall(owner, ViaCookie)
		}
		if ok {
			ids = append(ids, owner)
			break
		}
	}
	if len(ids) == 0 {
		return found{}, g.unauthorized(why)
	}
	return found{Identity: ids[0], ticket: used}, nil
}

// public compares with the request's very bytes: a path that was decoded, or
// has anything behind it, is not the one that was declared public.
func (g *Guard) public(r *http.Request) bool {
	return r.RequestURI != "" && r.RequestURI == r.URL.Path && r.URL.RawPath == "" && g.c.Public(r.Method, r.RequestURI)
}

// bare rebuilds a public request from its method and path alone. Host and headers
// also route (previews), so nothing that an unknown caller chose may remain.
func bare(r *http.Request) *http.Request {
	out := &http.Request{
		Method: r.Method, URL: &url.URL{Path: r.URL.Path}, RequestURI: r.URL.Path,
		Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor,
		Header: http.Header{}, Body: http.NoBody, Host: "localhost", RemoteAddr: r.RemoteAddr, TLS: r.TLS,
	}
	if agent := r.UserAgent(); agent != "" {
		out.Header.Set("User-Agent", agent)
	}
	return out.WithContext(r.Context())
}

// originForm clones the request and drops scheme, user and host from an absolute
// target, which only forward proxies have a use for.
func originForm(r *http.Request) *http.Request {
	out := r.Clone(r.Context())
	if out.Method != http.MethodConnect && (out.URL.Scheme != "" || out.URL.Host != "" || out.URL.User != nil || out.URL.Opaque != "") {
		out.URL.Scheme, out.URL.Host, out.URL.User, out.URL.Opaque = "", "", nil, ""
		out.RequestURI = out.URL.RequestURI()
	}
	return out
}

// navigation reports whether a person's browser asks for a page.
func navigation(r *http.Request) bool {
	mode := r.Header.Get("Sec-Fetch-Mode")
	return r.Method == http.MethodGet && (mode == "" || mode == "navigate") &&
		r.Header.Get("Upgrade") == "" && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// sameURL is a relative reference to u: right behind any prefix, and unable to lead
// to another host, which a path that begins with // could.
func sameURL(u *url.URL) string {
	p := u.EscapedPath()
	ref := "./" + p[strings.LastIndexByte(p, '/')+1:]
	if u.RawQuery != "" {
		ref += "?" + u.RawQuery
	}
	return ref
}
