package gateway

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/hub/access"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// E2B's clients address a sandbox by {port}-{id}.{domain}, or by headers on any name of the hub.
// They have a token of the sandbox, and know a sandbox that is gone by certain replies.
const (
	headerClientID      = "E2b-Sandbox-Id"
	headerClientPort    = "E2b-Sandbox-Port"
	headerAccessToken   = "X-Access-Token"
	headerTrafficToken  = "E2b-Traffic-Access-Token"
	daemonPort          = 49983 // serves processes and files
	interpreterPort     = 49999 // runs code
	filesPath           = "/files"
	healthPath          = "/health"
	messageNoSandbox    = "The sandbox was not found"
	controlLabel        = "api" // of the host of the control API, below a domain
	parameterSignature  = "signature"
	parameterExpiration = "signature_expiration"
)

// routeByClient finds the requests of E2B's clients.
func (g *Gateway) routeByClient(r *http.Request) (route, bool) {
	to := route{path: r.URL.EscapedPath(), full: r.URL.EscapedPath(), client: true}
	if site, _, below := g.findSite(r); below {
		id, ok := naming.ParseE2BID(site.Name)
		to.name, to.port, to.byHost = id, site.Port, true
		return to, ok && site.Port != 0
	}
	// Older clients send the header with their calls of the control API, too.
	if text := r.Header.Get(headerClientID); text != "" && !isControlCall(r) {
		id, ok := naming.ParseE2BID(text)
		if !ok {
			// Nobody has that ID, but the reply is for such a client.
			id = "sb-" + strings.Repeat("0", 16)
		}
		to.name, to.port = id, daemonPort
		if port, err := strconv.Atoi(r.Header.Get(headerClientPort)); err == nil && sandbox.CheckPort(port) == nil {
			to.port = port
		}
		return to, true
	}
	if id, ok := g.findSigned(r); ok {
		to.name, to.port = id, daemonPort
		return to, true
	}
	return route{}, false
}

// linkOf returns what a signed URL says.
func linkOf(r *http.Request) (token.Link, bool) {
	q := r.URL.Query()
	if r.URL.Path != filesPath || q.Get(parameterSignature) == "" {
		return token.Link{}, false
	}
	return token.Link{Path: q.Get("path"), User: q.Get("username"), Write: r.Method == http.MethodPost,
			Expires: q.Get(parameterExpiration), Signature: q.Get(parameterSignature)}, r.Method == http.MethodPost ||
			r.Method == http.MethodGet || r.Method == http.MethodHead
}

// findSigned finds the sandbox of a signed URL that names none: that whose token signed it.
func (g *Gateway) findSigned(r *http.Request) (id string, ok bool) {
	l, ok := linkOf(r)
	if !ok || g.Tokens == nil {
		return "", false
	}
	list, err := g.Provider.List(r.Context(), sandbox.Filter{})
	if err != nil {
		return "", false
	}
	ids := make([]string, len(list))
	for i, sb := range list {
		ids[i] = sb.ID
	}
	return g.Tokens.FindSigned(ids, l, time.Now())
}

// identifyVisitor identifies an E2B client by the token or signature of the sandbox that it
// addresses.
func (g *Gateway) identifyVisitor(r *http.Request) (id auth.Identity, known, ok bool) {
	to, ours := g.routeByClient(r)
	if !ours || g.Tokens == nil {
		// A link that no sandbox has signed is for none of them, and not for the hub either.
		_, signed := linkOf(r)
		return auth.Identity{}, signed && g.Tokens != nil && !g.isBelow(r), false
	}
	sb, err := g.Provider.Get(r.Context(), to.name)
	if err != nil {
		sb = sandbox.Sandbox{ID: to.name} // the reply says that it is gone
	}
	daemon := to.port == daemonPort
	given, traffic := r.Header.Get(headerAccessToken), r.Header.Get(headerTrafficToken)
	link, signed := linkOf(r)
	switch {
	case given != "" && g.Tokens.IsAccess(sb.ID, given):
		return access.Visitor(sb, 0, token.KeyOf(given)), true, true
	case !daemon && traffic != "" && g.Tokens.IsTraffic(sb.ID, traffic):
		return access.Visitor(sb, to.port, token.KeyOf(traffic)), true, true
	case daemon && signed && g.Tokens.IsSigned(sb.ID, link, time.Now()):
		key, _ := g.Tokens.SignedBy(sb.ID, link, time.Now())
		return access.Visitor(sb, daemonPort, key), true, true
	case daemon && isHealthCheck(r):
		return access.Visitor(sb, daemonPort, ""), true, true
	case !daemon && to.port != interpreterPort && g.isPublic(sb):
		return access.Visitor(sb, to.port, ""), true, true
	case given != "" || traffic != "" || signed:
		return auth.Identity{}, true, false
	}
	// The sandbox's own services are not open, even where the hub is; a key opens them.
	closed := (daemon || to.port == interpreterPort) && r.Header.Get("X-Api-Key") == "" && !hasBearer(r)
	return auth.Identity{}, closed, false
}

// isBelow reports whether a host belongs to a sandbox.
func (g *Gateway) isBelow(r *http.Request) bool {
	_, _, below := g.findSite(r)
	return below
}

// isPublic reports whether the ports of a sandbox are open to everybody.
func (g *Gateway) isPublic(sb sandbox.Sandbox) bool {
	return g.PublicPorts && sb.Spec.Annotations[naming.AnnotationClosed] == ""
}

func hasBearer(r *http.Request) bool {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "Bearer")
}

func isHealthCheck(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Path == healthPath && r.URL.RawPath == ""
}

// serveClient replies to what the hub itself answers E2B's clients. It reports whether it has.
func (g *Gateway) serveClient(w http.ResponseWriter, r *http.Request, to route, sb sandbox.Sandbox) bool {
	awake := sb.State == sandbox.Running
	switch {
	// The path of the request itself is the table's by now.
	case to.port == daemonPort && to.path == healthPath && r.Method == http.MethodGet:
		if !awake {
			g.refuseClient(w, r, to, http.StatusBadGateway, messageNoSandbox)
			return true
		}
		w.WriteHeader(http.StatusNoContent)
		return true
	case !awake && (sb.Spec.Annotations[naming.AnnotationAutoResume] == "" || sb.State == sandbox.Deleting):
		g.refuseClient(w, r, to, http.StatusBadGateway, messageNoSandbox)
		return true
	}
	return false
}

// refuseClient replies as E2B's clients expect it.
func (g *Gateway) refuseClient(w http.ResponseWriter, r *http.Request, to route, status int, message string) {
	body, err := op.JSON(map[string]any{"sandboxId": naming.E2BID(to.name), "message": message, "code": status})
	if err != nil {
		body = nil
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(body)
	}
}

// failClient turns an error into such a reply.
func (g *Gateway) failClient(w http.ResponseWriter, r *http.Request, to route, err error) {
	e, ok := op.AsError(err)
	if !ok {
		g.refuse(w, r, err)
		return
	}
	op.CallOf(r.Context()).Code = e.Code
	switch e.Code {
	case op.NotFound, op.Conflict, op.Unavailable:
		g.refuseClient(w, r, to, http.StatusBadGateway, messageNoSandbox)
	default:
		g.refuseClient(w, r, to, e.Code.HTTPStatus(), e.Msg)
	}
}

// isControlHost reports whether a request is for api.{domain}, where E2B's clients expect the
// control API. No sandbox can have that name.
func (g *Gateway) isControlHost(r *http.Request) bool {
	return g.Domains.Has(r.Host, controlLabel)
}

// checkControl returns why a request must not be served at api.{domain}. Only programs use it:
// a browser there would give a page that it shows the origin of the control API. They send a
// key, even to a hub without keys, which nothing but a program does.
func checkControl(r *http.Request) error {
	for name := range r.Header {
		// Node.js sends Sec-Fetch-Mode. Only browsers send the others, and always Sec-Fetch-Site.
		if name == "Origin" || strings.HasPrefix(name, "Sec-Fetch-") && name != "Sec-Fetch-Mode" {
			return op.Errorf(op.Denied, "the control API at %s is for programs, not for browsers; open the hub by its own name", r.Host)
		}
	}
	id, _ := auth.FromContext(r.Context())
	if id.Via == auth.ViaOpen && r.Header.Get("X-Api-Key") == "" && !hasBearer(r) {
		return op.Errorf(op.Unauthenticated,
			"the control API at %s requires a key; send X-API-Key, with any value if the hub has no keys", r.Host)
	}
	if !isControlCall(r) {
		return op.Errorf(op.NotFound, "%s serves only the control API for E2B's clients, such as /sandboxes", r.Host)
	}
	return nil
}

// isControlCall reports whether a request is for the control API, which takes a key and has
// paths that no sandbox's own services have. The sign-in has removed the key it has checked.
func isControlCall(r *http.Request) bool {
	id, signedIn := auth.FromContext(r.Context())
	if signedIn && id.Via == auth.ViaVisit || !signedIn && r.Header.Get("X-Api-Key") == "" {
		return false
	}
	return slices.ContainsFunc([]string{"/sandboxes", "/v2/", "/v3/", "/templates", "/snapshots", "/teams",
		"/volumes", "/secrets"}, func(prefix string) bool {
		return strings.HasPrefix(r.URL.Path, prefix)
	})
}
