package auth

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// Base returns the URL of the server as the caller sees it: scheme, host and path prefix
// (empty, or absolute without a trailing slash). X-Forwarded-Proto, -Host and -Prefix count
// only from a Unix socket, loopback or a trusted proxy. All parts are sanitized.
func Base(r *http.Request, trusted []netip.Prefix) *url.URL {
	u := &url.URL{Scheme: "http", Host: cleanHost(r.Host)}
	if r.TLS != nil {
		u.Scheme = "https"
	}
	if trustedPeer(r, trusted) {
		if proto := strings.ToLower(forwarded(r, "X-Forwarded-Proto")); proto == "http" || proto == "https" {
			u.Scheme = proto
		}
		if host := cleanHost(forwarded(r, "X-Forwarded-Host")); host != "" {
			u.Host = host
		}
		u.Path = cleanPrefix(forwarded(r, "X-Forwarded-Prefix"))
	}
	if u.Host == "" {
		u.Host = ownAddress(r)
	}
	return u
}

// forwarded returns the first element of a header: the value of the outermost proxy in a
// chain.
func forwarded(r *http.Request, name string) string {
	first, _, _ := strings.Cut(r.Header.Get(name), ",")
	return strings.TrimSpace(first)
}

func trustedPeer(r *http.Request, trusted []netip.Prefix) bool {
	if overUnix(r) {
		return true
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr := peer.Addr().Unmap().WithZone("")
	if addr.IsLoopback() {
		return true
	}
	for _, p := range trusted {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

func overUnix(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// ownAddress replaces a host that is missing or invalid.
func ownAddress(r *http.Request) string {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return net.JoinHostPort(local.AddrPort().Addr().Unmap().WithZone("").String(), strconv.Itoa(local.Port))
	}
	return "localhost"
}

// cleanHost returns host[:port] in lower case, empty if it is invalid.
func cleanHost(s string) string {
	host, port, ok := splitHost(s)
	if !ok {
		return ""
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" {
		host += ":" + port
	}
	return host
}

// splitHost splits host[:port]. The host is a name, an IPv4 address or an IPv6 address in
// brackets (returned without them); the port is empty or a number from 1 to 65535.
func splitHost(s string) (host, port string, ok bool) {
	host = strings.ToLower(s)
	if inner, isV6 := strings.CutPrefix(host, "["); isV6 {
		inner, port, ok = strings.Cut(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !ok || err != nil || !addr.Is6() || addr.Zone() != "" {
			return "", "", false
		}
		if port == "" {
			return addr.String(), "", true
		}
		port, ok = strings.CutPrefix(port, ":")
		return addr.String(), port, ok && validPort(port)
	}
	host, port, found := strings.Cut(host, ":")
	if found && !validPort(port) || !validName(host) {
		return "", "", false
	}
	return host, port, true
}

func validPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0 && s[0] != '0' && s[0] != '+'
}

func validName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// cleanPrefix returns an absolute path without a trailing slash, empty if it is invalid. Only
// characters without a special meaning in URLs, cookies and HTML are allowed.
func cleanPrefix(s string) string {
	s = strings.TrimSuffix(s, "/")
	if s == "" || s == "/" || len(s) > 256 || s[0] != '/' || path.Clean(s) != s {
		return ""
	}
	if strings.ContainsFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("/-_.~", c))
	}) {
		return ""
	}
	return s
}
