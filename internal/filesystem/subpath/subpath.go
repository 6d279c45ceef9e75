// Package subpath rewrites responses of a server that callers reach under a path prefix of another
// host, behind a reverse proxy: redirects, cookies, and headers that apply to the complete host.
//
// It owns the rules and has no state. The proxy decides which server a request reaches, and
// which callers are allowed.
package subpath

import (
	"net/http"
	"net/url"
	"strings"
)

// Site is the address at which callers reach a server.
type Site struct {
	// Host is the host that callers use, with its port.
	Host string
	// Path is the prefix of the server; empty if the complete host belongs to the server.
	Path string
	// Known is the suffix of Path that the server itself adds to its paths; empty if it adds none.
	Known string
	// IsServer reports whether a URL with a host other than Host addresses the server.
	IsServer func(*url.URL) bool
}

// RewriteLocations rewrites the addresses in Location and Content-Location.
func (s Site) RewriteLocations(h http.Header) {
	for _, name := range []string{"Location", "Content-Location"} {
		if v := h.Get(name); v != "" {
			h.Set(name, s.Location(v))
		}
	}
}

// Confine limits cookies and service workers to the prefix, and removes headers that affect the rest
// of the host, which belongs to other servers.
func (s Site) Confine(h http.Header) {
	h.Del("Clear-Site-Data")
	h.Del("Strict-Transport-Security")
	if v := h.Get("Service-Worker-Allowed"); v != "" {
		h.Set("Service-Worker-Allowed", s.Resolve(v))
	}
	for i, line := range h["Set-Cookie"] {
		h["Set-Cookie"][i] = s.Cookie(line)
	}
}

// Location translates an address of the server to that of the caller. Addresses of other hosts are
// not changed.
func (s Site) Location(v string) string {
	u, err := url.Parse(v)
	if err != nil {
		return v
	}
	if u.Host != "" {
		if !strings.EqualFold(u.Host, s.Host) && (s.IsServer == nil || !s.IsServer(u)) {
			return v
		}
		// Without scheme and host the address is valid for any host of the caller. It starts with a
		// single slash, since two would start a host.
		u.Scheme, u.Host, u.User = "", "", nil
		v = "/" + strings.TrimLeft(strings.TrimPrefix(u.String(), "."), "/")
	}
	return s.Resolve(v)
}

// Resolve translates an absolute path of the server to that of the caller, unless the server has
// already done so. Other values are not changed.
func (s Site) Resolve(path string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || contains(s.Path, path) {
		return path
	}
	if contains(s.Known, path) {
		return strings.TrimSuffix(s.Path, s.Known) + path
	}
	return s.Path + path
}

// contains reports whether path is the folder or below it.
func contains(folder, path string) bool {
	rest, ok := strings.CutPrefix(path, folder)
	return ok && folder != "" && (rest == "" || strings.IndexByte("/?#", rest[0]) >= 0)
}

// Cookie rewrites the value of a Set-Cookie header so that the cookie has a path below the
// prefix and no domain.
func (s Site) Cookie(line string) string {
	parts := strings.Split(line, ";")
	kept := parts[:1]
	path := s.Path + "/"
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case strings.EqualFold(key, "domain"):
		case strings.EqualFold(key, "path"):
			if value = strings.Trim(value, `" `); strings.HasPrefix(value, "/") {
				path = s.Resolve(value)
			}
		default:
			kept = append(kept, part)
		}
	}
	return strings.Join(append(kept, " Path="+path), ";")
}

// DropCookies removes the Set-Cookie headers of cookies whose name starts with namePrefix.
func DropCookies(h http.Header, namePrefix string) {
	lines := h["Set-Cookie"]
	kept := lines[:0]
	for _, line := range lines {
		if !strings.HasPrefix(strings.TrimSpace(line), namePrefix) {
			kept = append(kept, line)
		}
	}
	if len(kept) == 0 {
		h.Del("Set-Cookie")
		return
	}
	h["Set-Cookie"] = kept
}

// DropDomains limits cookies to the host that sets them.
func DropDomains(h http.Header) {
	for i, line := range h["Set-Cookie"] {
		parts := strings.Split(line, ";")
		kept := parts[:1]
		for _, part := range parts[1:] {
			if key, _, _ := strings.Cut(strings.TrimSpace(part), "="); !strings.EqualFold(strings.TrimSpace(key), "domain") {
				kept = append(kept, part)
			}
		}
		h["Set-Cookie"][i] = strings.Join(kept, ";")
	}
}

// SetPath sets an escaped path of u without changing its escapes.
func SetPath(u *url.URL, escaped string) {
	if escaped == "" {
		escaped = "/"
	}
	plain, err := url.PathUnescape(escaped)
	if err != nil {
		plain = escaped
	}
	u.Path, u.RawPath = plain, escaped
}
