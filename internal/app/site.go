package app

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/auth/origin"
	"github.com/cove-sandbox/cove/internal/guest/preview"
)

// sites keeps foreign pages off the origin of the API if no hub does so: services on ports, VS Code
// and JupyterLab. Each is a site with a host name below localhost, or below a wildcard entry of
// public_hosts. At other addresses pages have no origin, and their path contains a pass. Frames
// get a pass too, because browsers do not send them cookies of another host.
type sites struct {
	guard   *auth.Guard
	domains []string // every name below them resolves to this server
	tools   []string // sites that are not ports; their paths start with their names
}

// toolPaths are the additional paths of the page that waits for a tool.
var toolPaths = []string{"workbench", "ui", "vendor"}

const (
	// portSuffix follows the port in the host name of a service.
	portSuffix = "-sandbox"
	headerPort = "X-Aio-Proxy-Port"
	// toolAPI is the API with which the page that waits for a tool reads its state and installs it.
	toolAPI = "/v1/sandbox/components"
	// devtools is the browser's own DevTools page. Its query names the host it connects to.
	devtools = "devtools"
)

// newSites returns the sites of a server. The caller sets the guard.
func (a *Aio) newSites() *sites {
	s := &sites{domains: []string{"localhost"}}
	for _, host := range a.cfg.PublicHosts {
		if domain, wild := strings.CutPrefix(strings.ToLower(host), "*."); wild {
			name, _ := splitPort(domain)
			s.domains = append(s.domains, name)
		}
	}
	s.tools = append(s.tools, devtools)
	if !a.cfg.DisableCodeServer {
		s.tools = append(s.tools, "code-server")
	}
	if !a.cfg.DisableJupyter {
		s.tools = append(s.tools, "jupyter")
	}
	return s
}

// sources returns the hosts of all sites, as a policy names them.
func (s *sites) sources() (list []string) {
	for _, domain := range s.domains {
		list = append(list, "*."+domain+":*")
	}
	return list
}

// signIn configures authentication to distinguish sites.
func (s *sites) signIn(c *auth.Config) {
	c.Site = s.byHost
	c.SignInURL = s.signInURL
	c.FindPass = func(path string) string {
		pass, _ := cutPass(path)
		return pass
	}
}

// cutPass splits an escaped path into its pass and the rest.
func cutPass(path string) (pass, rest string) {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !auth.IsPass(first) {
		return "", path
	}
	return first, path[1+len(first):]
}

// byHost returns the site that a request addresses by its host name; empty if it addresses the
// server itself.
func (s *sites) byHost(r *http.Request) string {
	if port := preview.HostPort(r); port != 0 {
		return strconv.Itoa(port)
	}
	name, _ := splitPort(r.Host)
	label, domain, _ := strings.Cut(strings.ToLower(strings.TrimSuffix(name, ".")), ".")
	if slices.Contains(s.tools, label) && slices.Contains(s.domains, domain) {
		return label
	}
	return ""
}

// hasName reports whether a request addresses a site by a name below localhost, which DNS rebinding
// cannot use.
func (s *sites) hasName(r *http.Request) bool {
	name, _ := splitPort(r.Host)
	return s.byHost(r) != "" && strings.HasSuffix(strings.ToLower(name), ".localhost")
}

// byPath returns the site of an escaped path; empty for the server itself.
func (s *sites) byPath(path string) string {
	if port := preview.PathPort(path); port != 0 {
		return strconv.Itoa(port)
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if slices.Contains(s.tools, first) {
		return first
	}
	return ""
}

// visit is a request with its site.
type visit struct {
	*sites
	site string // site of the requested content; empty for the server itself
	path string // escaped, without a pass
	host string // site of the host name; empty for the server itself
	pass bool
}

type visitKey struct{}

type sitesKey struct{}

// apply enables the sites for the requests of a server.
func (s *sites) apply(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sitesKey{}, s)))
	})
}

// findSite finds the site of a request if sites are enabled, and rejects a request that leaves its
// site. Requests through a hub have no site, because the hub separates the sites of its sandboxes.
func findSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, ok := r.Context().Value(sitesKey{}).(*sites)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		r, v := s.visit(r)
		id, _ := auth.FromContext(r.Context())
		if v.pass && id.Site == "" {
			http.Error(w, "this pass is not valid for a site", http.StatusForbidden)
			return
		}
		for _, limit := range []string{v.host, id.Site} {
			if limit == "" || v.site == limit {
				continue
			}
			if slices.Contains(s.tools, limit) && limit != devtools && v.site == "" && isToolPath(v.path) {
				continue
			}
			http.Error(w, "this URL is not part of the site "+limit+"; open it from the sandbox's own page", http.StatusForbidden)
			return
		}
		ctx := context.WithValue(r.Context(), visitKey{}, v)
		if v.host != "" {
			ctx = origin.WithOwn(ctx)
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// visit returns the request without its pass, and its site. A header with a port has priority, as
// for the preview.
func (s *sites) visit(r *http.Request) (*http.Request, visit) {
	id, _ := auth.FromContext(r.Context())
	v := visit{sites: s, host: s.byHost(r), path: r.URL.EscapedPath(), pass: id.Via == auth.ViaPass}
	if v.pass {
		r = v.enter(r)
	}
	switch port := r.Header.Get(headerPort); {
	case port != "":
		v.site = s.byPath("/proxy/" + port + "/")
	case preview.HostPort(r) != 0:
		v.site = v.host
	default:
		v.site = s.byPath(v.path)
	}
	return r, v
}

// enter removes the pass from a request and adds it to the base URL.
func (v *visit) enter(r *http.Request) *http.Request {
	pass, rest := cutPass(v.path)
	if rest == "" {
		rest = "/"
	}
	v.path = rest
	u := *r.URL
	u.RawPath = rest
	if path, err := url.PathUnescape(rest); err == nil {
		u.Path = path
	}
	r = r.WithContext(r.Context())
	r.URL = &u
	call := op.CallOf(r.Context())
	if call.Base != nil {
		base := *call.Base
		base.Path += "/" + pass
		call.Base = &base
	}
	return r
}

func isToolPath(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains(toolPaths, first) || path == toolAPI || strings.HasPrefix(path, toolAPI+"/")
}

// isolate redirects a browser that opens a foreign page to a URL where the page has a separate
// origin, or none. It reports whether it has responded.
func isolate(w http.ResponseWriter, r *http.Request, _ *op.Op) bool {
	v, ok := r.Context().Value(visitKey{}).(visit)
	switch {
	case !ok || v.host != "":
		return false
	case v.pass:
	case origin.LoadsCode(r):
		http.Error(w, "content of "+v.site+" must not be loaded as code of this page", http.StatusForbidden)
		return true
	case v.site != "" && origin.IsVisit(r) && isPerson(r): // otherwise the port is invalid, and the response says so
		v.redirect(w, r)
		return true
	}
	origin.DropHostWide(w.Header())
	origin.Confine(w.Header(), origin.Opaque)
	return false
}

// isPerson reports whether the caller can be a person in a browser. Programs authenticate each
// request and are served by path.
func isPerson(r *http.Request) bool {
	id, _ := auth.FromContext(r.Context())
	return id.Via == "" || id.Via == auth.ViaOpen || id.Via == auth.ViaCookie || id.Via == auth.ViaTicket
}

func (v visit) redirect(w http.ResponseWriter, r *http.Request) {
	ctx, base, query := r.Context(), op.CallOf(r.Context()).Base, r.URL.RawQuery
	domain, named := v.domain(base)
	if named && v.site == devtools {
		_, at, _ := strings.Cut(v.at(base, domain), "://")
		query = strings.Replace(query, "ws="+base.Host+"/", "ws="+at+"/", 1) // and wss=
	}
	switch {
	case !named:
		origin.Redirect(w, base.Path+"/"+v.guard.Pass(ctx, v.site)+v.path, query)
		return
	case origin.IsFramed(r):
		origin.Redirect(w, v.at(base, domain)+"/"+v.guard.Pass(ctx, v.site)+v.sitePath(), query)
		return
	}
	if id, _ := auth.FromContext(ctx); id.Via != auth.ViaOpen && id.Via != "" {
		ticket, err := v.guard.IssueFor(ctx, v.site)
		if err != nil {
			http.Error(w, "cannot open "+v.site+": "+err.Error(), http.StatusTooManyRequests)
			return
		}
		query = strings.TrimPrefix(query+"&ticket="+ticket, "&")
	}
	origin.Redirect(w, v.at(base, domain)+v.sitePath(), query)
}

// domain returns the domain of the sites of a caller. There is none for a caller that reaches the
// server below a path, because the proxy in between does not forward other hosts.
func (s *sites) domain(base *url.URL) (string, bool) {
	if base == nil || base.Path != "" {
		return "", false
	}
	name, _ := splitPort(base.Host)
	if addr, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return "localhost", addr.Unmap().IsLoopback()
	}
	for _, domain := range s.domains {
		if name == domain || strings.HasSuffix(name, "."+domain) {
			return domain, true
		}
	}
	return "", false
}

// at returns the origin of the site.
func (v visit) at(base *url.URL, domain string) string {
	label := v.site
	if !slices.Contains(v.tools, label) {
		label += portSuffix
	}
	host := label + "." + domain
	if _, port := splitPort(base.Host); port != "" {
		host = net.JoinHostPort(host, port)
	}
	return base.Scheme + "://" + host
}

// sitePath returns the path on the site's host. The path of a service has no prefix, unless the
// service expects it.
func (v visit) sitePath() string {
	rest, ok := strings.CutPrefix(v.path, "/proxy/"+v.site)
	switch {
	case !ok:
		return v.path
	case rest == "":
		return "/"
	}
	return rest
}

// signInURL returns the URL where a person without a session on a site signs in: the same page at
// the server's own name.
func (s *sites) signInURL(r *http.Request, base *url.URL) string {
	site := s.byHost(r)
	domain, named := s.domain(base)
	if site == "" || !named {
		return ""
	}
	host := domain
	if _, port := splitPort(base.Host); port != "" {
		host = net.JoinHostPort(host, port)
	}
	path := r.URL.EscapedPath()
	if !slices.Contains(s.tools, site) {
		path = "/proxy/" + site + path
	}
	u := base.Scheme + "://" + host + path
	if r.URL.RawQuery != "" {
		u += "?" + r.URL.RawQuery
	}
	return u
}

func splitPort(host string) (name, port string) {
	if name, port, err := net.SplitHostPort(host); err == nil {
		return name, port
	}
	return host, ""
}
