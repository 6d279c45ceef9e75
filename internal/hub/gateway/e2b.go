package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
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

// E2B clients address a sandbox by {port}-{id}.{domain}, or by headers on any host name of the hub.
// They have a token of the sandbox, and recognize a missing sandbox by a certain reply.
const (
	headerE2BID         = "E2b-Sandbox-Id"
	headerE2BPort       = "E2b-Sandbox-Port"
	headerAccessToken   = "X-Access-Token"
	headerTrafficToken  = "E2b-Traffic-Access-Token"
	daemonPort          = 49983 // serves processes and files
	interpreterPort     = 49999 // runs code
	filesPath           = "/files"
	healthPath          = "/health"
	controlLabel        = "api" // first label of the host name of the control API
	parameterSignature  = "signature"
	parameterExpiration = "signature_expiration"
)

// messageMissing is how E2B clients recognize that a sandbox is missing or paused.
const messageMissing = "The sandbox was not found"

var errMissing = errors.New(messageMissing) //nolint:staticcheck // clients compare the text

// locateE2B finds the target of a request of an E2B client.
func (p policy) locateE2B(q request, find lookup) (target, bool) {
	path := q.url.EscapedPath()
	to := target{path: path, full: path, e2b: true}
	if site, _, below := p.findSite(q.host); below {
		id, ok := naming.ParseE2BID(site.Name)
		to.name, to.port, to.byHost = id, site.Port, true
		return to, ok && site.Port != 0
	}
	// Older clients send the header to the control API as well.
	if text := q.header.Get(headerE2BID); text != "" && !isControlCall(q) {
		id, ok := naming.ParseE2BID(text)
		if !ok {
			id = "sb-" + strings.Repeat("0", 16) // No sandbox has this ID; the client gets the reply that it expects.
		}
		to.name, to.port = id, daemonPort
		if port, err := strconv.Atoi(q.header.Get(headerE2BPort)); err == nil && sandbox.CheckPort(port) == nil {
			to.port = port
		}
		return to, true
	}
	// A signed URL names no sandbox.
	if l, ok := parseLink(q.method, q.url); ok {
		if id, ok := find.FindSigned(l); ok {
			to.name, to.port = id, daemonPort
			return to, true
		}
	}
	return target{}, false
}

// isPort reports whether an E2B client addresses a port of programs, and not a service of E2B.
func (t target) isPort() bool {
	return t.e2b && t.port != daemonPort && t.port != interpreterPort
}

// parseLink returns the content of a signed URL.
func parseLink(method string, u *url.URL) (token.Link, bool) {
	if u.Path != filesPath {
		return token.Link{}, false
	}
	v := u.Query()
	if v.Get(parameterSignature) == "" {
		return token.Link{}, false
	}
	return token.Link{Path: v.Get("path"), User: v.Get("username"), Write: method == http.MethodPost,
			Expires: v.Get(parameterExpiration), Signature: v.Get(parameterSignature)},
		method == http.MethodPost || method == http.MethodGet || method == http.MethodHead
}

// decideE2B decides about requests of E2B clients that the hub itself replies to.
func decideE2B(q request, d decision) decision {
	sb := d.sandbox
	running := sb.State == sandbox.Running
	missing := decision{action: reject, target: d.target, reason: errMissing, status: http.StatusBadGateway, e2b: true}
	switch {
	case d.target.port == daemonPort && d.target.path == healthPath && q.method == http.MethodGet:
		if !running {
			return missing
		}
		d.action = confirmHealth
	case !running && (sb.Spec.Annotations[naming.AnnotationAutoResume] == "" || sb.State == sandbox.Deleting):
		return missing
	}
	return d
}

// e2bReply returns the status and message by which an E2B client recognizes an error.
func e2bReply(e *op.Error) (status int, message string) {
	switch e.Code {
	case op.NotFound, op.Conflict, op.Unavailable:
		return http.StatusBadGateway, messageMissing
	}
	return e.Code.HTTPStatus(), e.Msg
}

// isControlHost reports whether a host is api.{domain}, where E2B clients expect the control API.
// No sandbox can have that name.
func (p policy) isControlHost(host string) bool { return p.domains.Has(host, controlLabel) }

// checkControl returns why a request must not be served at api.{domain}. Only programs use it: a
// browser would give a page that it shows there the origin of the control API. Programs send a
// key, even to a hub without keys; browsers cannot.
func checkControl(q request) error {
	if q.fromBrowser() {
		return op.Errorf(op.Denied, "the control API at %s is for programs, not for browsers; open the hub by its own name", q.host)
	}
	if q.identity.Via == auth.ViaOpen && !q.hasKey() {
		return op.Errorf(op.Unauthenticated,
			"the control API at %s requires a key; send X-API-Key, with any value if the hub has no keys", q.host)
	}
	if !isControlCall(q) {
		return op.Errorf(op.NotFound, "%s serves only the control API for E2B clients, such as /sandboxes", q.host)
	}
	return nil
}

// isControlCall reports whether a request is for the control API, which requires a key and has
// paths that no service of a sandbox has. Authentication removes the key after checking it.
func isControlCall(q request) bool {
	if q.signedIn && q.identity.Via == auth.ViaVisit || !q.signedIn && q.header.Get("X-Api-Key") == "" {
		return false
	}
	return slices.ContainsFunc([]string{"/sandboxes", "/v2/", "/v3/", "/templates", "/snapshots", "/teams",
		"/volumes", "/secrets"}, func(prefix string) bool {
		return strings.HasPrefix(q.url.Path, prefix)
	})
}

// identifyVisitor identifies an E2B client by the token or signature of the sandbox that it
// addresses.
func (g *Gateway) identifyVisitor(r *http.Request) (id auth.Identity, known bool, err error) {
	q := newRequest(r)
	to, found := g.policy.locateE2B(q, finder{g, r.Context()})
	link, signed := parseLink(q.method, q.url)
	if !found || g.Tokens == nil {
		// A link that no sandbox signed is valid for none of them, and not for the hub either.
		_, _, below := g.policy.findSite(q.host)
		return auth.Identity{}, signed && g.Tokens != nil && !below, explainSignature(link)
	}
	sb, err := g.Provider.Get(r.Context(), to.name)
	if err != nil {
		sb = sandbox.Sandbox{ID: to.name} // The reply reports that it is missing.
	}
	daemon := to.port == daemonPort
	accessToken, trafficToken := q.header.Get(headerAccessToken), q.header.Get(headerTrafficToken)
	switch {
	case accessToken != "" && g.Tokens.IsAccess(sb.ID, accessToken):
		return access.Visitor(sb, 0, token.KeyOf(accessToken)), true, nil
	case !daemon && trafficToken != "" && g.Tokens.IsTraffic(sb.ID, trafficToken):
		return access.Visitor(sb, to.port, token.KeyOf(trafficToken)), true, nil
	case daemon && signed && g.Tokens.IsSigned(sb.ID, link, time.Now()):
		key, _ := g.Tokens.SignedBy(sb.ID, link, time.Now())
		return access.Visitor(sb, daemonPort, key), true, nil
	case daemon && q.isHealthCheck():
		return access.Visitor(sb, daemonPort, ""), true, nil
	case !daemon && to.port != interpreterPort && g.isPublic(sb):
		return access.Visitor(sb, to.port, ""), true, nil
	case accessToken != "" || trafficToken != "":
		return auth.Identity{}, true, errToken
	case !daemon && to.port != interpreterPort && sb.Spec.Annotations[naming.AnnotationClosed] != "" && q.isAnonymous():
		return auth.Identity{}, true, errClosed
	case signed:
		return auth.Identity{}, true, explainSignature(link)
	}
	// A sandbox's own services require a credential, even on a hub that requires none.
	return auth.Identity{}, (daemon || to.port == interpreterPort) && !q.hasKey(), errNoToken
}

// Errors of credentials. E2B's clients compare the text of errExpired.
var (
	errToken     = errors.New("invalid or expired access token")
	errExpired   = errors.New("signature is already expired")
	errSignature = errors.New("invalid signature")
	errClosed    = fmt.Errorf("%w: the ports of this sandbox require its traffic token; send e2b-traffic-access-token", auth.ErrForbidden)
	errNoToken   = errors.New("this address requires the access token of the sandbox; send X-Access-Token, or use a signed URL for a file")
)

// explainSignature returns why a URL is not signed.
func explainSignature(l token.Link) error {
	if at, err := strconv.ParseInt(l.Expires, 10, 64); err == nil && time.Now().Unix() > at {
		return errExpired
	}
	return errSignature
}

// isPublic reports whether every caller may use the ports of a sandbox.
func (g *Gateway) isPublic(sb sandbox.Sandbox) bool {
	return g.PublicPorts && sb.Spec.Annotations[naming.AnnotationClosed] == ""
}

func (q request) isHealthCheck() bool {
	return q.method == http.MethodGet && q.url.Path == healthPath && q.url.RawPath == ""
}

// rejectE2B replies in the form that E2B clients expect.
func rejectE2B(w http.ResponseWriter, r *http.Request, name string, status int, message string) {
	body, err := op.JSON(map[string]any{"sandboxId": naming.E2BID(name), "message": message, "code": status})
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
