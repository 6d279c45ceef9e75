package gateway

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/filesystem/subpath"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// rewriteRequest turns a request to the hub into one to the sandbox. The sign-in has
// removed the hub's own credentials.
func rewriteRequest(r *httputil.ProxyRequest) {
	t := tripOf(r.In.Context())
	out := r.Out
	// The sandbox continues the trace.
	span.Inject(r.In.Context(), out.Header)
	host := fleet.ServerHost
	out.Header.Del("X-Forwarded-Prefix")
	out.Header.Del(op.AccessHeader)
	out.Header.Del(op.CallerHeader)
	if t.port == 0 { // what serves a port need not know
		op.CallOf(r.In.Context()).SendCaller(out.Header)
	}
	out.Header.Del(headerPort) // a page of one port would name another
	if op.CallOf(r.In.Context()).Reader {
		out.Header.Set(op.AccessHeader, string(op.AccessRead))
	}
	out.Header.Del(headerClientPort)
	if t.client {
		out.Header.Set(headerClientID, naming.E2BID(t.sb.ID))
	}
	switch {
	case t.port == 0:
	case fleet.IsNative(t.sb):
		out.Header.Set(headerPort, strconv.Itoa(t.port))
	default:
		host = fleet.PortHost(t.port)
	}
	out.URL = &url.URL{Scheme: "http", Host: host, RawQuery: r.In.URL.RawQuery}
	subpath.SetPath(out.URL, t.path)

	out.Header.Set("X-Forwarded-Proto", t.base.Scheme)
	out.Header.Set("X-Forwarded-Host", t.base.Host)
	if p := t.base.Path + t.prefix; p != "" {
		out.Header.Set("X-Forwarded-Prefix", p)
	}
	if ip, ok := remoteAddress(r.In); ok {
		out.Header.Set("X-Forwarded-For", ip)
	}
	if id := op.CallOf(r.In.Context()).ID; id != "" {
		out.Header.Set("X-Request-Id", id)
	}
	// The host stays as it was sent, since origins are compared with it, unless
	// the server inside would take it for the name of one of its ports.
	out.Host = r.In.Host
	if t.port == 0 && isPreviewName(out.Host) {
		out.Host = "localhost"
	}
	hideForeignOrigin(out)
	if id, _ := auth.FromContext(r.In.Context()); id.Via == auth.ViaPass || id.Via == auth.ViaVisit {
		hideFetch(out) // the URL has a credential of its own, whichever page it was opened from
	}
}

// remoteAddress is the address of the client; over a unix socket there is none.
func remoteAddress(r *http.Request) (string, bool) {
	i := strings.LastIndexByte(r.RemoteAddr, ':')
	if i <= 0 {
		return "", false
	}
	return strings.Trim(r.RemoteAddr[:i], "[]"), true
}

// isPreviewName reports whether a host has the form {port}-{anything}.
func isPreviewName(host string) bool {
	digits, _, ok := strings.Cut(host, "-")
	return ok && digits != "" && len(digits) <= 5 && strings.Trim(digits, "0123456789") == ""
}

// hideForeignOrigin removes the origin of a request that the hub's sign-in let in from
// a page of another origin. The server inside would refuse it, but that decision was
// the hub's.
func hideForeignOrigin(out *http.Request) {
	origin := out.Header.Get("Origin")
	if origin == "" {
		return
	}
	if u, err := url.Parse(origin); err == nil && strings.EqualFold(u.Host, out.Host) {
		return
	}
	out.Header.Del("Origin")
	hideFetch(out)
}

// hideFetch removes what a browser says about the page that sent a request.
func hideFetch(out *http.Request) {
	for _, h := range []string{"Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"} {
		out.Header.Del(h)
	}
}

// rewriteResponse fits a response to where the caller sees the sandbox.
func rewriteResponse(res *http.Response) error {
	t := tripOf(res.Request.Context())
	t.status = res.StatusCode
	h := res.Header
	// The hub has set its own.
	h.Del("X-Request-Id")
	h.Del("X-Content-Type-Options")
	subpath.DropCookies(h, auth.CookiePrefix)
	confineOrigin(t, h)
	if t.byHost {
		subpath.DropDomains(h)
		return nil
	}
	site := subpath.Site{Host: t.base.Host, Path: t.base.Path + t.prefix,
		IsServer: func(u *url.URL) bool { return u.Host == fleet.ServerHost }}
	site.RewriteLocations(h)
	site.Confine(h)
	return nil
}
