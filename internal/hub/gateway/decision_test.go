package gateway

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/identity"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	testID   = "sb-0123456789abcdef"
	testE2B  = "sb0123456789abcdef"
	sleepyID = "sb-00000000000000aa"
)

// shelf is a lookup in a map.
type shelf struct {
	boxes   map[string]sandbox.Sandbox
	anyPort bool
	signed  string // ID of the sandbox that signed all URLs
}

func (s shelf) Find(name string) (sandbox.Sandbox, error) {
	if name == "broken" {
		return sandbox.Sandbox{}, errors.New("disk failed")
	}
	sb, ok := s.boxes[name]
	if !ok {
		return sandbox.Sandbox{}, op.Errorf(op.NotFound, "no sandbox %q", name)
	}
	return sb, nil
}

func (s shelf) FindSigned(token.Link) (string, bool) { return s.signed, s.signed != "" }
func (s shelf) Abilities() sandbox.Abilities {
	return sandbox.Abilities{Provider: "test", AnyPort: s.anyPort}
}

// newShelf has one sandbox for each kind that affects decisions.
func newShelf() shelf {
	box := func(id, name string, state sandbox.State, serverPort int, annotations map[string]string) sandbox.Sandbox {
		return sandbox.Sandbox{ID: id, State: state, Spec: sandbox.Spec{Name: name, Owner: "anna",
			Server: sandbox.Server{Port: serverPort}, Annotations: annotations}}
	}
	resume := map[string]string{naming.AnnotationAutoResume: "true"}
	list := []sandbox.Sandbox{
		box(testID, "a", sandbox.Running, 0, nil), box("sb-0000000000000001", "own", sandbox.Running, 8000, nil),
		box("sb-0000000000000002", "3000-a", sandbox.Running, 0, nil),
		box("sb-0000000000000003", "paused", sandbox.Paused, 0, nil), box(sleepyID, "sleepy", sandbox.Paused, 0, resume),
		box("sb-0000000000000004", "deleting", sandbox.Deleting, 0, resume),
	}
	s := shelf{boxes: map[string]sandbox.Sandbox{}, anyPort: true}
	for _, sb := range list {
		s.boxes[sb.ID], s.boxes[sb.Spec.Name] = sb, sb
	}
	return s
}

var testPolicy = policy{domains: naming.Domains{"box.test", "localhost"}, publicHosts: []string{"hub.box.test"}, sessions: true,
	wakeWait: 30 * time.Second, pageWait: 2 * time.Second}

// sent is the part of a request that affects decisions. Zero values are the usual case.
type sent struct {
	method, host, path string
	header             string // name: value, separated by |
	via                string // how the caller authenticated; empty: with a key
	site               string // of the caller's session
	base               string // URL under which the caller reaches the hub
	port               int    // port that the caller's link is limited to
	reader             bool
	shared             bool
}

const (
	visits  = "Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: document|Accept: text/html"
	framed  = "Sec-Fetch-Mode: navigate|Sec-Fetch-Dest: iframe|Accept: text/html"
	passFor = "~AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

func (s sent) request(t *testing.T) request {
	t.Helper()
	or := func(text, usual string) string {
		if text == "" {
			return usual
		}
		return text
	}
	r := httptest.NewRequest(or(s.method, "GET"), "http://x"+s.path, nil)
	r.Host = or(s.host, "localhost")
	for line := range strings.SplitSeq(s.header, "|") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			r.Header.Set(name, value)
		}
	}
	base, err := url.Parse(or(s.base, "http://"+r.Host))
	if err != nil {
		t.Fatal(err)
	}
	call := &op.Call{Base: base, Reader: s.reader}
	if s.port != 0 || s.shared {
		call.Share = &op.Share{Port: s.port}
	}
	id := auth.Identity{Via: or(s.via, auth.ViaKey), Site: s.site}
	return newRequest(r.WithContext(auth.NewContext(op.WithCall(r.Context(), call), id)))
}

// wanted is the part of a decision that a case checks.
type wanted struct {
	action   action
	sandbox  string // name
	port     int
	path     string // path of the request to the sandbox
	noWake   bool
	patience time.Duration // 0: wakeWait
	location string
	after    string // text after a pass
	session  string // key of the site for which a ticket or pass is issued
	code     op.Code
	status   int
	text     string // part of the reason
	e2b      bool
}

func check(t *testing.T, got decision, want wanted) {
	t.Helper()
	if got.action != want.action {
		t.Fatalf("got action %d (%v), want %d", got.action, got.reason, want.action)
	}
	session := ""
	if got.session.Name != "" {
		session = got.session.Key()
	}
	if got.location != want.location || got.path != want.after || session != want.session {
		t.Errorf("got location %q, path %q, session %q; want %+v", got.location, got.path, session, want)
	}
	switch want.action {
	case forward:
		if want.patience == 0 {
			want.patience = testPolicy.wakeWait
		}
		if got.sandbox.Spec.Name != want.sandbox || got.sandbox.Spec.Owner != "anna" || got.target.port != want.port ||
			got.target.path != want.path || got.wake == want.noWake || got.patience != want.patience {
			t.Errorf("got %+v, want %+v", got, want)
		}
	case reject:
		var code op.Code
		if e, ok := op.AsError(got.reason); ok {
			code = e.Code
		}
		if code != want.code || got.status != want.status || got.e2b != want.e2b || !strings.Contains(got.reason.Error(), want.text) {
			t.Errorf("got %q, code %q, status %d, E2B %v; want %+v", got.reason, code, got.status, got.e2b, want)
		}
	}
}

func TestDecideForward(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sent sent
		want wanted
	}{
		"server by path":     {sent{path: "/sandbox/a/x//y/../z%2F"}, wanted{sandbox: "a", path: "/x//y/../z%2F"}},
		"server by ID":       {sent{path: "/sandbox/" + testID + "/x"}, wanted{sandbox: "a", path: "/x"}},
		"server by host":     {sent{host: "a.box.test:8080", path: "/x"}, wanted{sandbox: "a", path: "/x"}},
		"root by host":       {sent{host: "a.localhost", path: "/"}, wanted{sandbox: "a", path: "/"}},
		"port by path":       {sent{path: "/sandbox/a/proxy/3000/x"}, wanted{sandbox: "a", path: "/proxy/3000/x"}},
		"port by host":       {sent{host: "3000-a.localhost", path: "/x"}, wanted{sandbox: "a", port: 3000, path: "/x"}},
		"port, other server": {sent{path: "/sandbox/own/proxy/3000/x"}, wanted{sandbox: "own", port: 3000, path: "/x"}},
		"path kept":          {sent{path: "/sandbox/own/absproxy/3000/x"}, wanted{sandbox: "own", path: "/absproxy/3000/x"}},
		"link to the port":   {sent{path: "/sandbox/a/proxy/3000/x", port: 3000}, wanted{sandbox: "a", port: 3000, path: "/x"}},
		"request of a page":  {sent{path: "/sandbox/paused/x?a=1&wake=false"}, wanted{sandbox: "paused", path: "/x", noWake: true}},
		"port, wake=false": {sent{host: "3000-paused.localhost", path: "/x?wake=false"},
			wanted{sandbox: "paused", port: 3000, path: "/x"}},
		"identity, another server": {sent{path: "/sandbox/own/v1/sandbox/identity"},
			wanted{sandbox: "own", path: "/v1/sandbox/identity"}},
		"identity, changed": {sent{method: "POST", path: "/sandbox/a/v1/sandbox/identity"},
			wanted{sandbox: "a", path: "/v1/sandbox/identity"}},
		"read-only":      {sent{path: "/sandbox/paused/x", reader: true}, wanted{sandbox: "paused", path: "/x", noWake: true}},
		"paused sandbox": {sent{path: "/sandbox/paused/x"}, wanted{sandbox: "paused", path: "/x"}},
		"page": {sent{path: "/sandbox/a/x", header: "Accept: text/html"},
			wanted{sandbox: "a", path: "/x", patience: 2 * time.Second}},
		"own name, by path": {sent{host: "hub.box.test", path: "/sandbox/a/x"}, wanted{sandbox: "a", path: "/x"}},
		"E2B by host":       {sent{host: "3000-" + testE2B + ".box.test", path: "/x"}, wanted{sandbox: "a", port: 3000, path: "/x"}},
		"E2B by header":     {sent{path: "/x", header: "E2b-Sandbox-Id: " + testE2B}, wanted{sandbox: "a", port: daemonPort, path: "/x"}},
		"E2B header and port": {sent{path: "/x", header: "E2b-Sandbox-Id: " + testE2B + "|E2b-Sandbox-Port: 80"},
			wanted{sandbox: "a", port: 80, path: "/x"}},
		"E2B old ID": {sent{path: "/x", header: "E2b-Sandbox-Id: " + testE2B + "-6532622b"},
			wanted{sandbox: "a", port: daemonPort, path: "/x"}},
		"E2B wakes": {sent{path: "/x", header: "E2b-Sandbox-Id: sb00000000000000aa"},
			wanted{sandbox: "sleepy", port: daemonPort, path: "/x"}},
		"visit with a pass": {sent{path: "/sandbox/a/" + passFor + "/x", header: visits, via: auth.ViaPass, site: "a:0"},
			wanted{sandbox: "a", path: "/x", patience: 2 * time.Second}},
		"session of the site": {sent{host: "a.localhost", path: "/x", via: auth.ViaCookie, site: "a:0"}, wanted{sandbox: "a", path: "/x"}},
		"worker of a site":    {sent{host: "a.localhost", path: "/x", header: "Service-Worker: script"}, wanted{sandbox: "a", path: "/x"}},
		"browser with a key":  {sent{path: "/sandbox/a/x", header: visits}, wanted{sandbox: "a", path: "/x", patience: 2 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.want.action = forward
			check(t, testPolicy.decide(c.sent.request(t), newShelf()), c.want)
		})
	}
}

func TestDecideDescribe(t *testing.T) {
	t.Parallel()
	const path = identity.Path
	for name, c := range map[string]struct {
		sent sent
		hub  string
	}{
		"by path":     {sent{path: "/sandbox/paused" + path, base: "https://x/hub"}, "https://x/hub/"},
		"by host":     {sent{host: "paused.box.test:99", path: path + "?x"}, "http://hub.box.test:99/"},
		"with a pass": {sent{path: "/sandbox/paused/" + passFor + path, via: auth.ViaPass, site: "paused:0"}, "http://localhost/"},
		"read-only":   {sent{path: "/sandbox/paused" + path, reader: true}, "http://localhost/"},
		"with a link": {sent{path: "/sandbox/paused" + path, shared: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, testPolicy.decide(c.sent.request(t), newShelf()), wanted{action: describe, location: c.hub})
		})
	}
	d := testPolicy.decide(sent{path: "/sandbox/a" + path, port: 3000}.request(t), newShelf())
	check(t, d, wanted{action: reject, code: op.NotFound}) // a link to a port
}

func TestDecideReject(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sent sent
		want wanted
	}{
		"forward proxy":   {sent{method: "CONNECT", path: "/"}, wanted{status: 405, text: "not a forward proxy"}},
		"unknown sandbox": {sent{path: "/sandbox/none/"}, wanted{code: op.NotFound, text: `"none"`}},
		"invalid name":    {sent{path: "/sandbox/B%2Fc/x"}, wanted{code: op.NotFound, text: `"B/c"`}},
		"failure":         {sent{path: "/sandbox/broken/"}, wanted{text: "disk failed"}},
		"unknown host":    {sent{host: "_.localhost", path: "/api/v1/sandbox"}, wanted{status: 404, text: `the host name "_.localhost"`}},
		"link to another": {sent{path: "/sandbox/a/proxy/4000/x", port: 3000}, wanted{code: op.NotFound}},
		"link, server":    {sent{path: "/sandbox/a/x", port: 3000}, wanted{code: op.NotFound}},
		"session elsewhere": {sent{path: "/sandbox/a/x", via: auth.ViaCookie, site: "b:0"},
			wanted{code: op.Denied, text: "session of this page"}},
		"session of a port":   {sent{host: "a.localhost", path: "/proxy/3000/x", via: auth.ViaCookie, site: "a:0"}, wanted{code: op.Denied}},
		"pass without a path": {sent{path: "/sandbox/a/x", via: auth.ViaPass, site: "a:0"}, wanted{code: op.Denied}},
		"path without a pass": {sent{path: "/sandbox/a/" + passFor + "/x"}, wanted{code: op.Denied}},
		"worker by path":      {sent{path: "/sandbox/a/x", header: "Service-Worker: script"}, wanted{code: op.Denied, text: "service worker"}},
		"control, page": {sent{host: "api.localhost", path: "/sandboxes", header: "Origin: null"},
			wanted{code: op.Denied, text: "not for browsers"}},
		"control, browser":    {sent{host: "api.localhost", path: "/sandboxes", header: "Sec-Fetch-Site: none"}, wanted{code: op.Denied}},
		"control, no key":     {sent{host: "api.localhost", path: "/sandboxes", via: auth.ViaOpen}, wanted{code: op.Unauthenticated}},
		"control, other path": {sent{host: "api.localhost", path: "/mcp"}, wanted{code: op.NotFound, text: "only the control API"}},
		"E2B, no sandbox":     {sent{path: "/x", header: "E2b-Sandbox-Id: sbffffffffffffffff"}, wanted{code: op.NotFound, e2b: true}},
		"E2B, invalid ID":     {sent{path: "/x", header: "E2b-Sandbox-Id: none"}, wanted{code: op.NotFound, e2b: true}},
		"E2B, paused": {sent{path: "/x", header: "E2b-Sandbox-Id: sb0000000000000003"},
			wanted{status: 502, text: messageMissing, e2b: true}},
		"E2B, being deleted": {sent{path: "/x", header: "E2b-Sandbox-Id: sb0000000000000004"},
			wanted{status: 502, text: messageMissing, e2b: true}},
		"E2B, health, paused": {sent{path: "/health", header: "E2b-Sandbox-Id: sb00000000000000aa"},
			wanted{status: 502, text: messageMissing, e2b: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.want.action = reject
			check(t, testPolicy.decide(c.sent.request(t), newShelf()), c.want)
		})
	}
}

func TestDecideRedirect(t *testing.T) {
	t.Parallel()
	cookie, open := auth.ViaCookie, auth.ViaOpen
	for name, c := range map[string]struct {
		sent sent
		want wanted
	}{
		"folder": {sent{path: "/sandbox/a?q", base: "http://x/hub"}, wanted{action: redirectFolder, location: "/hub/sandbox/a/"}},
		"site": {sent{path: "/sandbox/a/x", header: visits, via: cookie},
			wanted{action: redirectOrigin, location: "http://a.localhost/x", session: "a:0"}},
		"site, open hub": {sent{path: "/sandbox/a", header: visits, via: open},
			wanted{action: redirectOrigin, location: "http://a.localhost/"}},
		"port": {sent{path: "/sandbox/a/proxy/3000/x", header: visits, via: cookie},
			wanted{action: redirectOrigin, location: "http://3000-a.localhost/x", session: "a:3000"}},
		"port that keeps the path": {sent{path: "/sandbox/a/absproxy/3000/x", header: visits, via: cookie},
			wanted{action: redirectOrigin, location: "http://3000-a.localhost/absproxy/3000/x", session: "a:3000"}},
		"port at the host of the server": {sent{host: "a.localhost:99", path: "/proxy/3000/x", header: visits, via: cookie, site: "a:0"},
			wanted{action: redirectOrigin, location: "http://3000-a.localhost:99/x", session: "a:3000"}},
		"name like a port": {sent{path: "/sandbox/3000-a/x", header: visits, via: cookie},
			wanted{action: redirectOrigin, location: "http://sb-0000000000000002.localhost/x", session: "sb-0000000000000002:0"}},
		"domain of another hub name": {sent{host: "hub.box.test", path: "/sandbox/a/x", header: visits, via: cookie},
			wanted{action: redirectOrigin, location: "http://a.box.test/x", session: "a:0"}},
		"frame": {sent{path: "/sandbox/a/x", header: framed, via: cookie},
			wanted{action: redirectPass, location: "/sandbox/a/", after: "/x", session: "a:0"}},
		"frame at a site": {sent{host: "a.box.test:99", path: "/proxy/3000/x", header: framed, via: cookie, site: "a:0"},
			wanted{action: redirectPass, location: "http://hub.box.test:99/sandbox/a/", after: "/proxy/3000/x", session: "a:3000"}},
		"IP address": {sent{host: "127.0.0.1:99", path: "/sandbox/a", header: visits, via: open},
			wanted{action: redirectPass, location: "/sandbox/a/", after: "/", session: "a:0"}},
		"copied pass": {sent{path: "/sandbox/a/" + passFor + "/x", header: visits, via: cookie},
			wanted{action: redirectHub, location: "/sandbox/a/x"}},
		"session of another site": {sent{path: "/sandbox/a/x", header: visits, via: cookie, site: "b:0"},
			wanted{action: redirectOrigin, location: "http://a.localhost/x", session: "a:0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, testPolicy.decide(c.sent.request(t), newShelf()), c.want)
		})
	}
}

func TestDecideWithOtherAbilities(t *testing.T) {
	t.Parallel()
	s := newShelf()
	s.anyPort = false
	check(t, testPolicy.decide(sent{path: "/sandbox/own/proxy/3000/x"}.request(t), s),
		wanted{action: reject, code: op.Invalid, text: `provider test reaches only the server of sandbox "own", not its port 3000`})
	check(t, testPolicy.decide(sent{path: "/sandbox/own/x"}.request(t), s), wanted{action: forward, sandbox: "own", path: "/x"})

	noSessions := testPolicy
	noSessions.sessions = false
	check(t, noSessions.decide(sent{path: "/sandbox/a/x", header: visits, via: auth.ViaCookie}.request(t), s),
		wanted{action: redirectOrigin, location: "http://a.localhost/x"})
	check(t, noSessions.decide(sent{host: "127.0.0.1", path: "/sandbox/a/x", header: visits, via: auth.ViaCookie}.request(t), s),
		wanted{action: reject, code: op.NotFound})
}

func TestDecideForE2BClients(t *testing.T) {
	t.Parallel()
	s := newShelf()
	check(t, testPolicy.decide(sent{path: "/health", header: "E2b-Sandbox-Id: " + testE2B}.request(t), s), wanted{action: confirmHealth})
	signed := sent{path: "/files?path=x&signature=v1_x"}.request(t)
	if d := testPolicy.locate(signed, s); d.action != serveHub {
		t.Errorf("URL that no sandbox signed: got %+v, want the hub", d)
	}
	s.signed = sleepyID
	check(t, testPolicy.decide(signed, s), wanted{action: forward, sandbox: "sleepy", port: daemonPort, path: "/files"})
	if _, ok := parseLink(http.MethodDelete, signed.url); ok {
		t.Error("DELETE of a signed URL: got a link, want none")
	}
}

func TestLocateHub(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]sent{
		"API":                     {path: "/api/v1/sandbox"},
		"own name under a domain": {host: "hub.box.test", path: "/"},
		"other host":              {host: "3000-a.elsewhere", path: "/"},
		"control API":             {host: "api.localhost", path: "/v2/sandboxes", header: "Sec-Fetch-Mode: cors"},
		"control API, open hub":   {host: "api.localhost", path: "/sandboxes", via: auth.ViaOpen, header: "X-Api-Key: x"},
		"control API with an ID":  {path: "/sandboxes", header: "E2b-Sandbox-Id: " + testE2B},
	} {
		if d := testPolicy.locate(s.request(t), newShelf()); d.action != serveHub {
			t.Errorf("%s: got %+v, want the hub's own operations", name, d)
		}
	}
}

// A target that Front has found is final, because the router has already rewritten the path.
func TestDecideKeepsTarget(t *testing.T) {
	t.Parallel()
	q := sent{path: "/sandbox/a/"}.request(t)
	q.target = &target{name: "own", path: "/x", byHost: true}
	check(t, testPolicy.decide(q, newShelf()), wanted{action: forward, sandbox: "own", path: "/x"})
}

func TestE2BReply(t *testing.T) {
	t.Parallel()
	for code, want := range map[op.Code]int{op.NotFound: 502, op.Conflict: 502, op.Unavailable: 502, op.Denied: 403, op.Invalid: 400} {
		status, text := e2bReply(&op.Error{Code: code, Msg: "reason"})
		if status != want || (text == messageMissing) != (want == 502) {
			t.Errorf("%s: got %d %q, want status %d", code, status, text, want)
		}
	}
}
