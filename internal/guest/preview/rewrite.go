package preview

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
)

// sessionPrefix begins the names of the sign-in's cookies. The sign-in takes them
// out; callers inside do not pass through it. No service may set one.
const sessionPrefix = "cove_session_"

// rewrite turns a request to the sandbox into one to a service. The host stays as it was
// sent, since services compare origins with it.
func rewrite(r *httputil.ProxyRequest) {
	t := r.In.Context().Value(tripKey{}).(*trip)
	out := r.Out
	out.URL = &url.URL{Scheme: "http", Host: net.JoinHostPort("localhost", strconv.Itoa(t.port)), RawQuery: r.In.URL.RawQuery, ForceQuery: r.In.URL.ForceQuery}
	setPath(out.URL, t.path)
	out.Host = r.In.Host
	h := out.Header
	h.Del(headerPort)
	h.Del("X-Forwarded-Prefix")
	dropCookies(h)

	h.Set("X-Forwarded-Proto", t.base.Scheme)
	h.Set("X-Forwarded-Host", t.base.Host)
	seen := t.base.Path
	if t.strip {
		seen = t.at()
	}
	if seen != "" {
		h.Set("X-Forwarded-Prefix", seen)
	}
	// Everybody on the way says whom it saw; a hub that comes by a unix socket has no address.
	chain := append([]string{}, r.In.Header["X-Forwarded-For"]...)
	if ip, _, err := net.SplitHostPort(r.In.RemoteAddr); err == nil {
		chain = append(chain, ip)
	}
	if len(chain) > 0 {
		h.Set("X-Forwarded-For", strings.Join(chain, ", "))
	}
	if id := op.CallOf(r.In.Context()).ID; id != "" {
		h.Set("X-Request-Id", id)
	}
}

// setPath keeps the path as it was sent, escapes and all.
func setPath(u *url.URL, escaped string) {
	if escaped == "" {
		escaped = "/"
	}
	plain, err := url.PathUnescape(escaped)
	if err != nil {
		plain = escaped
	}
	u.Path, u.RawPath = plain, escaped
}

// dropCookies takes the sign-in's cookies out of a request. Others keep their bytes.
func dropCookies(h http.Header) {
	lines := h["Cookie"]
	if !strings.Contains(strings.Join(lines, ";"), sessionPrefix) {
		return
	}
	h.Del("Cookie")
	for _, line := range lines {
		var kept []string
		for part := range strings.SplitSeq(line, ";") {
			if part = strings.TrimSpace(part); part != "" && !strings.HasPrefix(part, sessionPrefix) {
				kept = append(kept, part)
			}
		}
		if len(kept) > 0 {
			h.Add("Cookie", strings.Join(kept, "; "))
		}
	}
}

// restore makes an answer right for where the caller sees the service.
func restore(res *http.Response) error {
	t := res.Request.Context().Value(tripKey{}).(*trip)
	h := res.Header
	h.Del("X-Request-Id") // the server has set its own
	for _, name := range []string{"Location", "Content-Location"} {
		if v := h.Get(name); v != "" {
			h.Set(name, t.locate(v))
		}
	}
	if t.prefix != "" {
		// These would reach beyond the service: the rest of the host is the sandbox's.
		h.Del("Clear-Site-Data")
		h.Del("Strict-Transport-Security")
		if v := h.Get("Service-Worker-Allowed"); v != "" {
			h.Set("Service-Worker-Allowed", t.below(v))
		}
	}
	lines := h["Set-Cookie"]
	kept := lines[:0]
	for _, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), sessionPrefix) {
			continue
		}
		if t.prefix != "" {
			line = t.cookie(line)
		}
		kept = append(kept, line)
	}
	if len(lines) > 0 {
		h["Set-Cookie"] = kept
	}
	return nil
}

// locate turns an address that the service gave into the caller's. Those of other
// hosts stay as they are.
func (t *trip) locate(v string) string {
	u, err := url.Parse(v)
	if err != nil {
		return v
	}
	if u.Host != "" {
		if !strings.EqualFold(u.Host, t.base.Host) && !t.own(u) {
			return v
		}
		// Without scheme and host it is right however the caller got here. The path
		// is kept to one slash, as two would begin a host.
		u.Scheme, u.Host, u.User = "", "", nil
		v = u.String()
		v = "/" + strings.TrimLeft(strings.TrimPrefix(v, "."), "/")
	}
	return t.below(v)
}

// own tells whether an address is the service's as it knows itself.
func (t *trip) own(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if port != strconv.Itoa(t.port) {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return strings.EqualFold(u.Hostname(), "localhost") || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// below puts an absolute path of the service's where the caller sees it. A service
// that knows its prefix has done so itself.
func (t *trip) below(path string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || within(path, t.at()) {
		return path
	}
	if !t.strip && within(path, t.prefix) {
		return t.base.Path + path
	}
	return t.at() + path
}

// within tells whether a path is a folder or something in it.
func within(path, folder string) bool {
	rest, ok := strings.CutPrefix(path, folder)
	return ok && folder != "" && (rest == "" || strings.IndexByte("/?#", rest[0]) >= 0)
}

// cookie keeps a cookie to its service: a path below the prefix, no domain.
func (t *trip) cookie(line string) string {
	parts := strings.Split(line, ";")
	kept := parts[:1]
	path := t.at() + "/"
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case strings.EqualFold(key, "domain"):
		case strings.EqualFold(key, "path"):
			if value = strings.Trim(value, `" `); strings.HasPrefix(value, "/") {
				path = t.below(value)
			}
		default:
			kept = append(kept, part)
		}
	}
	return strings.Join(append(kept, " Path="+path), ";")
}
