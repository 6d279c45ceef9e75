// Package address knows where sandboxes are seen: below a path of the hub, and on
// host names of their own.
package address

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Prefix is the path of a sandbox below the hub.
func Prefix(name string) string { return "/sandbox/" + name }

// Site is content of a sandbox that has an origin of its own: what its server
// serves or, if Port is not 0, the service on a port.
type Site struct {
	Name string
	Port int
}

// Key names a site. Other than a label, it is never ambiguous.
func (s Site) Key() string { return s.Name + ":" + strconv.Itoa(s.Port) }

// Label is the site's label of a host name: {name} or {port}-{name}.
func (s Site) Label() string {
	if s.Port == 0 {
		return s.Name
	}
	return strconv.Itoa(s.Port) + "-" + s.Name
}

// HasLabel reports whether the label leads back to the site. That of a sandbox named
// 3000-a does not: it is the label of port 3000 of a. Such a sandbox is addressed by
// its ID.
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

// clientSuffix follows the IDs of sandboxes in what old E2B clients send.
const clientSuffix = "-6532622b"

// ClientID returns the ID of a sandbox in the form that E2B's clients use: without dashes.
func ClientID(id string) string { return strings.ReplaceAll(id, "-", "") }

// ParseClientID returns the ID of the sandbox that an E2B client means.
func ParseClientID(text string) (id string, ok bool) {
	digits, ok := strings.CutPrefix(strings.TrimSuffix(text, clientSuffix), "sb")
	if !ok || len(digits) != 16 || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", false
	}
	return "sb-" + digits, true
}

// Path is where the hub itself shows a path of the site.
func (s Site) Path(path string) string {
	if s.Port == 0 {
		return Prefix(s.Name) + path
	}
	return Prefix(s.Name) + "/proxy/" + strconv.Itoa(s.Port) + path
}

// Domains are the names below which sandboxes have host names.
type Domains []string

// Match returns the domain that a host is, or is below: the longest, if one is below another.
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

// Find returns the site of a host, with or without a port. below is true for every host
// below a domain, even if no sandbox can have it.
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

// Has reports whether a host is the one with the given label directly below a domain.
func (d Domains) Has(host, label string) bool {
	name, _ := splitPort(host)
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	domain, ok := d.Match(name)
	return ok && name == label+"."+domain
}

// Origin returns the URL of a site on a host of its own, for a caller who reaches the hub
// at base. A page there shares no cookies and no scripts with others. Below localhost
// browsers find every name; other domains are used if the caller uses a name at all.
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

// shared returns a domain for a hub that has a name elsewhere.
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

// Port returns the URL of a port on a host of its own.
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
