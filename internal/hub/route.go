package hub

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/span"
)

// route is where a request leads.
type route struct {
	name   string
	port   int    // 0: the sandbox's server
	path   string // behind the prefix, as it was sent: escaped, not cleaned
	prefix string // that was taken off: /sandbox/{name}, or nothing behind a host of its own
	host   bool   // by host name
}

type routeKey struct{}

// Front sees requests before they are routed. It finds those for a sandbox by
// host name, and saves the path of those below /sandbox/ from being cleaned: two
// slashes, dots and escapes mean something to the server inside. All of
// them then pass through the table like any other, under a path that routes as it is.
func (h *Hub) Front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.cfg.Tracer != nil {
			r = r.WithContext(span.Extract(r.Context(), r.Header))
		}
		to, ok := h.byHost(r)
		if !ok {
			to, ok = byPath(r)
		}
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		inner := r.WithContext(context.WithValue(r.Context(), routeKey{}, to))
		u := *r.URL
		u.Path, u.RawPath = prefix(to.name)+"/", ""
		if to.path == "" {
			u.Path = prefix(to.name)
		}
		inner.URL = &u
		next.ServeHTTP(w, inner)
	})
}

// routeOf is where a request leads that has come through the table.
func routeOf(r *http.Request) (route, bool) {
	if to, ok := r.Context().Value(routeKey{}).(route); ok {
		return to, true
	}
	return byPath(r)
}

// byPath takes /sandbox/{name}/… apart.
func byPath(r *http.Request) (route, bool) {
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/sandbox/")
	if !ok {
		return route{}, false
	}
	segment, _, _ := strings.Cut(rest, "/")
	name, err := url.PathUnescape(segment)
	if err != nil || sandbox.CheckName(name) != nil {
		return route{}, false
	}
	return route{name: name, path: rest[len(segment):], prefix: prefix(name)}, true
}

// byHost takes {port}-{name}.{domain} apart.
func (h *Hub) byHost(r *http.Request) (route, bool) {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	label, below, ok := strings.Cut(strings.ToLower(strings.TrimSuffix(host, ".")), ".")
	if !ok {
		return route{}, false
	}
	if d, ok := h.domain(below); !ok || d != below {
		return route{}, false
	}
	digits, name, ok := strings.Cut(label, "-")
	port, err := strconv.Atoi(digits)
	if !ok || err != nil || sandbox.CheckPort(port) != nil || strconv.Itoa(port) != digits || sandbox.CheckName(name) != nil {
		return route{}, false
	}
	return route{name: name, port: port, path: r.URL.EscapedPath(), host: true}, true
}

// domain finds the one of our domains that a host is, or is below.
func (h *Hub) domain(host string) (string, bool) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	for _, d := range h.cfg.Domains {
		d = strings.ToLower(strings.Trim(d, "."))
		if host == d || strings.HasSuffix(host, "."+d) {
			return d, true
		}
	}
	return "", false
}

// native tells whether the server inside is this project's own, which shows the
// sandbox's other ports itself.
func native(sb sandbox.Sandbox) bool { return sb.Spec.Server.Port == 0 }

// service finds proxy/{port} in the path of a sandbox whose server knows nothing
// of it; there the hub itself leads to the port.
func (to route) service() route {
	rest, ok := strings.CutPrefix(to.path, "/proxy/")
	if !ok || to.host {
		return to
	}
	digits, _, _ := strings.Cut(rest, "/")
	port, err := strconv.Atoi(digits)
	if err != nil || sandbox.CheckPort(port) != nil {
		return to
	}
	to.port, to.path, to.prefix = port, rest[len(digits):], to.prefix+"/proxy/"+digits
	return to
}
