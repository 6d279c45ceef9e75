package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/page"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// route is where a request goes.
type route struct {
	name   string
	port   int    // 0: the sandbox's server
	path   string // after the prefix, as it was sent: escaped, not cleaned
	full   string // after the sandbox's own prefix; other than path, it names a port
	prefix string // /sandbox/{name}, with its pass, or empty on a host of its own
	pass   string // segment of the prefix that carries a session; empty: there is none
	byHost bool   // found by host name
	client bool   // of an E2B client
}

// site is whose content the route leads to. The sandbox's server shows ports by path.
func (to route) site() naming.Site {
	if to.port != 0 {
		return naming.Site{Name: to.name, Port: to.port}
	}
	port, _, _ := to.pathPort()
	return naming.Site{Name: to.name, Port: port}
}

// hasOrigin reports whether the site has its host for itself.
func (to route) hasOrigin() bool { return to.byHost && to.site().Port == to.port }

// pathPort finds the port in /proxy/{port}/… and /absproxy/{port}/…; rest is what follows it.
func (to route) pathPort() (port int, rest string, keepsPath bool) {
	rest, ok := strings.CutPrefix(to.full, "/proxy/")
	if !ok {
		if rest, keepsPath = strings.CutPrefix(to.full, "/absproxy/"); !keepsPath {
			return 0, "", false
		}
	}
	digits, _, _ := strings.Cut(rest, "/")
	port, err := strconv.Atoi(digits)
	if err != nil || sandbox.CheckPort(port) != nil || strconv.Itoa(port) != digits {
		return 0, "", false
	}
	return port, rest[len(digits):], keepsPath
}

// sitePath is the path on a host of the site's own.
func (to route) sitePath() string {
	path := to.full
	if port, rest, keepsPath := to.pathPort(); port != 0 && !keepsPath && !(to.byHost && to.port != 0) {
		path = rest
	}
	if path == "" {
		return "/"
	}
	return path
}

type routeKey struct{}

// Front sees requests before they are routed. It finds those for a sandbox by
// host name, and keeps the path of those below /sandbox/ from being cleaned: double
// slashes, dots and escapes mean something to the server inside. All of them then
// pass through the table like any other, under a path that routes as it is.
func (g *Gateway) Front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Tracer != nil {
			r = r.WithContext(span.Extract(r.Context(), r.Header))
		}
		if g.isControlHost(r) && !g.isOwnName(r.Host) {
			if err := checkControl(r); err != nil {
				g.refuse(w, r, err)
				return
			}
		}
		to, ok := g.routeByClient(r)
		below := ok
		if !ok {
			to, below, ok = g.routeByHost(r)
		}
		if below && !ok {
			// Nothing of the hub's own is served where a sandbox could have a name.
			page.Write(w, r, http.StatusNotFound, 0, "no sandbox has the host name "+strconv.Quote(r.Host)+
				"; if it is the hub's own, add it to public_hosts")
			return
		}
		if !below {
			to, ok = routeByPath(r)
		}
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		inner := r.WithContext(context.WithValue(r.Context(), routeKey{}, to))
		u := *r.URL
		u.Path, u.RawPath = naming.Path(to.name)+"/", ""
		if to.path == "" {
			u.Path = naming.Path(to.name)
		}
		inner.URL = &u
		next.ServeHTTP(w, inner)
	})
}

// routeOf is where a request goes that has come through the table.
func routeOf(r *http.Request) (route, bool) {
	if to, ok := r.Context().Value(routeKey{}).(route); ok {
		return to, true
	}
	return routeByPath(r)
}

// routeByPath takes the path of a request apart.
func routeByPath(r *http.Request) (route, bool) { return parsePath(r.URL.EscapedPath()) }

// parsePath takes /sandbox/{name}/… and /sandbox/{name}/{pass}/… apart.
func parsePath(escaped string) (route, bool) {
	rest, ok := strings.CutPrefix(escaped, "/sandbox/")
	if !ok {
		return route{}, false
	}
	segment, _, _ := strings.Cut(rest, "/")
	name, err := url.PathUnescape(segment)
	if err != nil || sandbox.CheckName(name) != nil {
		return route{}, false
	}
	to := route{name: name, path: rest[len(segment):], prefix: naming.Path(name)}
	to.full = to.path
	if pass, _, _ := strings.Cut(strings.TrimPrefix(to.path, "/"), "/"); auth.IsPass(pass) {
		to.pass, to.path, to.prefix = pass, to.path[1+len(pass):], to.prefix+"/"+pass
		to.full = to.path
	}
	return to, true
}

// routeByHost takes {name}.{domain} and {port}-{name}.{domain} apart. below is true for all
// hosts below a domain.
func (g *Gateway) routeByHost(r *http.Request) (to route, below, ok bool) {
	site, _, below := g.findSite(r)
	if !below || site.Name == "" {
		return route{}, below, false
	}
	return route{name: site.Name, port: site.Port, path: r.URL.EscapedPath(), full: r.URL.EscapedPath(), byHost: true}, true, true
}

// toPort takes the port out of /proxy/{port}/…. The hub itself goes to the port of a
// sandbox whose server does not know such paths.
func (to route) toPort() route {
	port, rest, keepsPath := to.pathPort()
	if to.byHost || to.port != 0 || port == 0 || keepsPath {
		return to
	}
	to.port, to.path, to.prefix = port, rest, to.prefix+"/proxy/"+strconv.Itoa(port)
	return to
}
