// Package naming owns the names that the hub gives: paths and host names of sandboxes, keys of
// their annotations, and references of imported images.
package naming

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Path is the path of a sandbox on the hub.
func Path(name string) string { return "/sandbox/" + name }

// Site is content of a sandbox that has its own origin: that of its server or, if Port is
// not 0, of the service on a port.
type Site struct {
	Name string
	Port int
}

// Key identifies a site. Unlike a label, it is never ambiguous.
func (s Site) Key() string { return s.Name + ":" + strconv.Itoa(s.Port) }

// Label is the first label of the site's host name: {name} or {port}-{name}.
func (s Site) Label() string {
	if s.Port == 0 {
		return s.Name
	}
	return strconv.Itoa(s.Port) + "-" + s.Name
}

// HasLabel reports whether the label identifies the site. The label of a sandbox named 3000-a
// does not, because it means port 3000 of a. Such a sandbox is addressed by its ID.
func (s Site) HasLabel() bool {
	back, ok := parseLabel(s.Label())
	return ok && back == s
}

func parseLabel(label string) (Site, bool) {
	if digits, name, ok := strings.Cut(label, "-"); ok {
		port, err := strconv.Atoi(digits)
		if err == nil && sandbox.CheckPort(port) == nil && strconv.Itoa(port) == digits && sandbox.CheckName(name) == nil {
			return Site{name, port}, true
		}
	}
	return Site{Name: label}, sandbox.CheckName(label) == nil && !sandbox.IsReserved(label)
}

// e2bSuffix follows sandbox IDs that old E2B clients send.
const e2bSuffix = "-6532622b"

// E2BID returns the ID of a sandbox in the form that E2B clients use: without dashes.
func E2BID(id string) string { return strings.ReplaceAll(id, "-", "") }

// ParseE2BID returns the ID of the sandbox that an E2B client addresses.
func ParseE2BID(text string) (id string, ok bool) {
	digits, ok := strings.CutPrefix(strings.TrimSuffix(text, e2bSuffix), "sb")
	if !ok || len(digits) != 16 || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", false
	}
	return "sb-" + digits, true
}

// Path returns the path on the hub under which it serves a path of the site.
func (s Site) Path(path string) string {
	if s.Port == 0 {
		return Path(s.Name) + path
	}
	return Path(s.Name) + "/proxy/" + strconv.Itoa(s.Port) + path
}

// Domains are the domains under which sandboxes have host names.
type Domains []string

// Match returns the longest domain that equals a host or contains it.
func (d Domains) Match(host string) (found string, ok bool) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	for _, domain := range d {
		domain = strings.ToLower(strings.Trim(domain, "."))
		if (host == domain || strings.HasSuffix(host, "."+domain)) && (!ok || len(domain) > len(found)) {
			found, ok = domain, true
		}
	}
	return found, ok
}

// Find returns the site of a host, with or without a port. below is true for all hosts under a
// domain, even if no sandbox can have that host name.
func (d Domains) Find(host string) (site Site, domain string, below bool) {
	name, _ := splitPort(host)
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	domain, ok := d.Match(name)
	if !ok || name == domain {
		return Site{}, "", false
	}
	site, ok = parseLabel(strings.TrimSuffix(name, "."+domain))
	if !ok {
		return Site{}, domain, true
	}
	return site, domain, true
}

// Has reports whether a host consists of the given label and a domain.
func (d Domains) Has(host, label string) bool {
	name, _ := splitPort(host)
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	domain, ok := d.Match(name)
	return ok && name == label+"."+domain
}

// Origin returns the URL of a site on its own host name, for a caller that reaches the hub at
// base. A page there shares no cookies and no scripts with other sites. Browsers resolve every
// name under localhost; other domains are used only if base has a host name, not an IP address.
func (d Domains) Origin(base url.URL, site Site) (*url.URL, bool) {
	host, at := splitPort(base.Host)
	domain, ok := d.Match(host)
	if !ok {
		if domain, ok = d.shared(host); !ok {
			return nil, false
		}
	}
	u := &url.URL{Scheme: base.Scheme, Host: site.Label() + "." + domain, Path: "/"}
	if at != "" {
		u.Host = net.JoinHostPort(u.Host, at)
	}
	return u, site.HasLabel()
}

// shared returns a domain for a hub whose own name is under no domain.
func (d Domains) shared(host string) (string, bool) {
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || !strings.Contains(host, ".") {
		return "", false
	}
	for _, domain := range d {
		if domain = strings.ToLower(strings.Trim(domain, ".")); domain != "localhost" && !strings.HasSuffix(domain, ".localhost") {
			return domain, true
		}
	}
	return "", false
}

// Port returns the URL of a port on its own host name.
func (d Domains) Port(base url.URL, name string, port int) (string, bool) {
	u, ok := d.Origin(base, Site{name, port})
	if !ok {
		return "", false
	}
	return u.String(), true
}

func splitPort(host string) (name, port string) {
	if name, port, err := net.SplitHostPort(host); err == nil {
		return name, port
	}
	return host, ""
}
