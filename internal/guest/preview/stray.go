package preview

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

// strayCookie holds the port of the page that was opened last below /proxy/{port}/. A WebSocket
// says nothing else about where it comes from.
const strayCookie = "aio-preview"

// findStray finds the preview that a request belongs to whose path lacks the prefix: pages of
// development servers load absolute paths, such as /@vite/client, and open WebSockets at the
// root. WebSockets are forwarded; anything else is redirected below the prefix, so that what it
// loads in turn is found, too. Paths of the sandbox itself are never taken.
func (s *Service) findStray(r *http.Request) (to route, redirect string) {
	segment, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if segment != "" && (s.cfg.Own == nil || s.cfg.Own(segment)) {
		return route{}, ""
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		cookies := r.CookiesNamed(strayCookie)
		if len(cookies) == 0 {
			return route{}, ""
		}
		port := parsePort(cookies[0].Value)
		return route{port: port, path: r.URL.EscapedPath(), prefix: "/proxy/" + strconv.Itoa(port), strip: true}, ""
	}
	if segment == "" {
		return route{}, ""
	}
	base := baseOf(r)
	from, err := url.Parse(r.Header.Get("Referer"))
	if err != nil || !strings.EqualFold(from.Host, base.Host) {
		return route{}, ""
	}
	page, ok := byPath(strings.TrimPrefix(from.EscapedPath(), base.Path))
	if !ok || !page.strip || page.fault != "" {
		return route{}, ""
	}
	redirect = base.Path + page.prefix + r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		redirect += "?" + r.URL.RawQuery
	}
	return route{}, redirect
}

// baseOf is the URL of the sandbox as the caller sees it.
func baseOf(r *http.Request) *url.URL {
	if base := op.CallOf(r.Context()).Base; base != nil {
		return base
	}
	return &url.URL{Scheme: "http", Host: r.Host}
}

// markPage lets WebSockets of a page find its port.
func (t *forwarding) markPage(h http.Header) {
	if t.strip && t.prefix != "" && strings.HasPrefix(h.Get("Content-Type"), "text/html") {
		c := http.Cookie{Name: strayCookie, Value: strconv.Itoa(t.port), Path: t.base.Path + "/", HttpOnly: true, SameSite: http.SameSiteLaxMode}
		h.Add("Set-Cookie", c.String())
	}
}
