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

// rewriteRequest turns a request to the hub into a request to the sandbox. Authentication has
// already removed the hub's credentials.
func rewriteRequest(r *httputil.ProxyRequest) {
	x := exchangeOf(r.In.Context())
	out := r.Out
	// The sandbox continues the trace.
	span.Inject(r.In.Context(), out.Header)
	host := fleet.ServerHost
	out.Header.Del("X-Forwarded-Prefix")
	out.Header.Del(op.AccessHeader)
	out.Header.Del(op.CallerHeader)
	if x.port == 0 { // other services do not need it
		op.CallOf(r.In.Context()).SendCaller(out.Header)
	}
	out.Header.Del(headerPort) // so that a page of one port cannot select another
	switch call := op.CallOf(r.In.Context()); {
	case !call.Reader:
	case call.Share != nil:
		out.Header.Set(op.AccessHeader, string(op.AccessWatch))
	default:
		out.Header.Set(op.AccessHeader, string(op.AccessRead))
	}
	out.Header.Del(headerE2BPort)
	if x.e2b {
		out.Header.Set(headerE2BID, naming.E2BID(x.sandbox.ID))
	}
	switch {
	case x.port == 0:
	case fleet.IsNative(x.sandbox):
		out.Header.Set(headerPort, strconv.Itoa(x.port))
	default:
		host = fleet.PortHost(x.port)
	}
	out.URL = &url.URL{Scheme: "http", Host: host, RawQuery: r.In.URL.RawQuery}
	subpath.SetPath(out.URL, x.path)

	out.Header.Set("X-Forwarded-Proto", x.base.Scheme)
	out.Header.Set("X-Forwarded-Host", x.base.Host)
	if p := x.base.Path + x.prefix; p != "" {
		out.Header.Set("X-Forwarded-Prefix", p)
	}
	if ip, ok := remoteAddress(r.In); ok {
		out.Header.Set("X-Forwarded-For", ip)
	}
	if id := op.CallOf(r.In.Context()).ID; id != "" {
		out.Header.Set("X-Request-Id", id)
	}
	// The server inside compares origins with the host, so the host is kept, unless the server
	// would take it for the host name of a port.
	out.Host = r.In.Host
	if x.port == 0 && isPreviewName(out.Host) {
		out.Host = "localhost"
	}
	if mask := x.sandbox.Spec.Annotations[naming.AnnotationMask]; mask != "" && x.isPort() {
		out.Host = strings.ReplaceAll(mask, "${PORT}", strconv.Itoa(x.port))
	}
	hideForeignOrigin(out)
	if id, _ := auth.FromContext(r.In.Context()); id.Via == auth.ViaPass || id.Via == auth.ViaVisit {
		hideFetch(out) // the URL contains its own credential, so the page that opened it does not matter
	}
}

// remoteAddress is the address of the client, unless it is connected by a Unix socket.
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

// hideForeignOrigin removes the origin of a request from a page of another origin. The hub has
// admitted it; the server inside would reject it.
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

// hideFetch removes the headers with which browsers describe the page that sent a request.
func hideFetch(out *http.Request) {
	for _, h := range []string{"Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"} {
		out.Header.Del(h)
	}
}

// rewriteResponse adapts a response to the address under which the caller sees the sandbox.
func rewriteResponse(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	x.status = res.StatusCode
	h := res.Header
	// The hub has already set these.
	h.Del("X-Request-Id")
	h.Del("X-Content-Type-Options")
	subpath.DropCookies(h, auth.CookiePrefix)
	confineOrigin(x.target, h)
	if x.byHost {
		subpath.DropDomains(h)
		return nil
	}
	site := subpath.Site{Host: x.base.Host, Path: x.base.Path + x.prefix,
		IsServer: func(u *url.URL) bool { return u.Host == fleet.ServerHost }}
	site.RewriteLocations(h)
	site.Confine(h)
	return nil
}
