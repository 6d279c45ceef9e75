// Package subpath rewrites the responses of a server that callers see below a path
// prefix of another host, as it is behind a reverse proxy: redirects, cookies and
// headers that speak for the whole host.
//
// It owns the rules and no state. It refuses nothing: which server a request reaches
// and who may send it are decided by the proxy.
package subpath

import (
	"net/http"
	"net/url"
	"strings"
)

// Site is where callers see a server.
type Site struct {
	// Host is the host that callers use, with its port.
	Host string
	// Path is the prefix below which callers see the server; empty if the whole host is the server's.
	Path string
	// Known is the end of Path that the server itself puts in front of its paths; empty if it
	// knows none of it.
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

// Confine keeps cookies and service workers below the prefix, and removes the headers
// that would reach beyond it: the rest of the host belongs to others.
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

// Location translates an address that the server gave into the caller's. Addresses of other
// hosts stay as they are.
func (s Site) Location(v string) string {
	u, err := url.Parse(v)
	if err != nil {
		return v
	}
	if u.Host != "" {
		if !strings.EqualFold(u.Host, s.Host) && (s.IsServer == nil || !s.IsServer(u)) {
			return v
		}
		// Without scheme and host the address is right however the caller got here. It
		// starts with a single slash, as two would start a host.
		u.Scheme, u.Host, u.User = "", "", nil
		v = "/" + strings.TrimLeft(strings.TrimPrefix(u.String(), "."), "/")
	}
	return s.Resolve(v)
}

// Resolve translates an absolute path of the server into the caller's, unless the server
// has done so itself. Anything else stays as it is.
func (s Site) Resolve(path string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || contains(s.Path, path) {
		return path
	}
	if contains(s.Known, path) {
		return strings.TrimSuffix(s.Path, s.Known) + path
	}
	return s.Path + path
}

// contains reports whether path is the folder or something in it.
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

// SetPath gives u an escaped path and keeps its escapes as they are.
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
