package hub

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/span"
)

// sessionPrefix begins the names of the hub's own cookies, which no sandbox may set.
const sessionPrefix = "cove_session_"

// rewrite turns a request to the hub into one to the sandbox. The hub's own
// credentials were taken out by the sign-in.
func rewrite(r *httputil.ProxyRequest) {
	t := r.In.Context().Value(tripKey{}).(*trip)
	out := r.Out
	// The sandbox goes on with the trace.
	span.Inject(r.In.Context(), out.Header)
	host := serverHost
	out.Header.Del("X-Forwarded-Prefix")
	switch {
	case t.port == 0:
	case native(t.sb):
		out.Header.Set(headerPort, strconv.Itoa(t.port))
	default:
		host = portHost + strconv.Itoa(t.port)
	}
	out.URL = &url.URL{Scheme: "http", Host: host, RawQuery: r.In.URL.RawQuery}
	setPath(out.URL, t.path)

	out.Header.Set("X-Forwarded-Proto", t.base.Scheme)
	out.Header.Set("X-Forwarded-Host", t.base.Host)
	if p := t.base.Path + t.prefix; p != "" {
		out.Header.Set("X-Forwarded-Prefix", p)
	}
	if ip, ok := remote(r.In); ok {
		out.Header.Set("X-Forwarded-For", ip)
	}
	if id := op.CallOf(r.In.Context()).ID; id != "" {
		out.Header.Set("X-Request-Id", id)
	}
	// The host stays as it was sent, since origins are compared with it, unless
	// the server inside would take it for the name of one of its ports.
	out.Host = r.In.Host
	if t.port == 0 && previewName(out.Host) {
		out.Host = "localhost"
	}
	sameOrigin(out)
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

// remote is the address of who asks; over a unix socket there is none.
func remote(r *http.Request) (string, bool) {
	i := strings.LastIndexByte(r.RemoteAddr, ':')
	if i <= 0 {
		return "", false
	}
	return strings.Trim(r.RemoteAddr[:i], "[]"), true
}

// previewName tells names of the form {port}-{anything}.
func previewName(host string) bool {
	digits, _, ok := strings.Cut(host, "-")
	return ok && digits != "" && len(digits) <= 5 && strings.Trim(digits, "0123456789") == ""
}

// sameOrigin makes a request that the hub's sign-in let in from a page of another
// origin look like one of no page: the server inside would refuse it, but
// whether it may come in was the hub's to say.
func sameOrigin(out *http.Request) {
	origin := out.Header.Get("Origin")
	if origin == "" {
		return
	}
	if u, err := url.Parse(origin); err == nil && strings.EqualFold(u.Host, out.Host) {
		return
	}
	out.Header.Del("Origin")
	for _, h := range []string{"Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"} {
		out.Header.Del(h)
	}
}

// restore makes an answer right for where the caller sees the sandbox.
func restore(res *http.Response) error {
	t := res.Request.Context().Value(tripKey{}).(*trip)
	t.status = res.StatusCode
	h := res.Header
	// The hub has set its own.
	h.Del("X-Request-Id")
	h.Del("X-Content-Type-Options")
	if t.host {
		dropSessions(h)
		return nil
	}
	// These would reach beyond the sandbox: the whole host is the hub's.
	h.Del("Clear-Site-Data")
	h.Del("Strict-Transport-Security")
	at := t.base.Path + t.prefix
	for _, name := range []string{"Location", "Content-Location"} {
		if v := h.Get(name); v != "" {
			h.Set(name, t.locate(v, at))
		}
	}
	if v := h.Get("Service-Worker-Allowed"); v != "" {
		h.Set("Service-Worker-Allowed", below(v, at))
	}
	for i, line := range h["Set-Cookie"] {
		h["Set-Cookie"][i] = cookieBelow(line, at)
	}
	dropSessions(h)
	return nil
}

// locate puts an address that the server inside gave below the prefix.
func (t *trip) locate(v, at string) string {
	u, err := url.Parse(v)
	if err != nil {
		return v
	}
	if u.Host != "" {
		if !strings.EqualFold(u.Host, t.base.Host) && u.Host != serverHost {
			return v
		}
		// Ours: without scheme and host it is right however the caller got here.
		u.Scheme, u.Host, u.User = "", "", nil
		v = u.String()
		if v == "" || v[0] != '/' {
			v = "/" + v
		}
	}
	return below(v, at)
}

// below puts an absolute path under the prefix, unless it is there already.
func below(path, at string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		return path
	}
	rest, ok := strings.CutPrefix(path, at)
	if ok && (rest == "" || strings.IndexByte("/?#", rest[0]) >= 0) {
		return path
	}
	return at + path
}

// cookieBelow keeps a cookie to its sandbox: a path below the prefix, no domain.
func cookieBelow(line, at string) string {
	parts := strings.Split(line, ";")
	kept := parts[:1]
	path := at + "/"
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case strings.EqualFold(key, "domain"):
		case strings.EqualFold(key, "path"):
			if value = strings.Trim(value, `" `); strings.HasPrefix(value, "/") {
				path = below(value, at)
			}
		default:
			kept = append(kept, part)
		}
	}
	return strings.Join(append(kept, " Path="+path), ";")
}

// dropSessions keeps a sandbox from setting cookies that are the hub's.
func dropSessions(h http.Header) {
	lines := h["Set-Cookie"]
	kept := lines[:0]
	for _, line := range lines {
		if !strings.HasPrefix(strings.TrimSpace(line), sessionPrefix) {
			kept = append(kept, line)
		}
	}
	if len(kept) == 0 {
		h.Del("Set-Cookie")
		return
	}
	h["Set-Cookie"] = kept
}
