package hub

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/network/egress"
)

// program sends a request for a URL through the egress proxy of a sandbox, and returns the response.
func (r *rig) program(name, agent, url string) (int, string) {
	r.t.Helper()
	c, err := net.Dial("unix", r.socket(name))
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nUser-Agent: %s\r\nConnection: close\r\n\r\n", url, agent)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// outside is a server that sandboxes may connect to.
func outside(t *testing.T) (url string, s setup) {
	out := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(out.Close)
	return out.URL, setup{hub: Config{Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}
}

// TestDeniedConnectionsAreEvents: an event names the program, the rule and the command that allows the connection,
// which works as printed.
func TestDeniedConnectionsAreEvents(t *testing.T) {
	t.Parallel()
	url, s := outside(t)
	r := newRig(t, s)
	r.create(`{"name":"a","network":{"mode":"allow","allow":["!192.0.2.0/24"]}}`)
	events := r.stream("/api/v1/sandbox/a/events", "")
	denied := func() lifecycle.Event {
		t.Helper()
		for {
			e, ok := events.next()
			if !ok {
				t.Fatal("the stream ended, want an event about a denied connection")
			}
			if e.Type == "denied" {
				return e
			}
		}
	}
	host := strings.TrimPrefix(url, "http://")
	if status, text := r.program("a", "pip/24.0\tx", url); status != 403 || !strings.Contains(text, "cove egress allow NAME "+host) {
		t.Errorf("got %d %q, want 403 with the command", status, text)
	}
	want := `program "pip/24.0\\tx": this sandbox must not connect to ` + host + ": its egress policy is allow, and none of its 1 " +
		"rules matches; its owner can allow it with cove egress allow a " + host
	if e := denied(); e.Message != want {
		t.Errorf("got %q, want %q", e.Message, want)
	}
	r.program("a", "curl/8", "http://192.0.2.7/")
	if e := denied(); !strings.Contains(e.Message, `program "curl/8"`) || !strings.Contains(e.Message, `the rule "!192.0.2.0/24"`) {
		t.Errorf("got %q, want program and rule", e.Message)
	}
	if a := r.do("POST", "/api/v1/sandbox/a/egress/allow", `{"rules":["`+host+`"]}`); a.Status != 200 {
		t.Errorf("got %d %s, want 200", a.Status, a.Body)
	}
	if status, text := r.program("a", "pip/24.0", url); status != 200 {
		t.Errorf("got %d %q, want it allowed", status, text)
	}
	if a := r.do("GET", "/api/v1/sandbox/a/network", ""); !strings.Contains(a.Body, `"rule":"`+host+`"`) ||
		!strings.Contains(a.Body, `"program":"curl/8"`) {
		t.Errorf("got %s, want the rules and programs of its connections", a.Body)
	}
}

// TestDenialsCannotFloodEvents: a hostile program makes a limited number of events, so it cannot evict those of others.
func TestDenialsCannotFloodEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a","network":{"mode":"none"}}`)
	before := r.hub.history.Last()
	for i := range 300 {
		if status, _ := r.program("a", strings.Repeat("\u202e", 10000), fmt.Sprintf("http://h%d.example/", i)); status != 403 {
			t.Fatalf("got %d, want 403", status)
		}
	}
	n := 0
	for _, e := range r.hub.history.After(before).Events {
		if len(e.Message) > 1000 || strings.Contains(e.Message, "\u202e") {
			t.Errorf("got a message of %d bytes, want it short and escaped: %.200q", len(e.Message), e.Message)
		}
		n++
	}
	if n == 0 || n > 60 { // ten, and one every six seconds on a busy machine
		t.Errorf("got %d events, want a few", n)
	}
}

// TestEgressAllow: rules are added to those that exist, and rejected if they cannot take effect.
func TestEgressAllow(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	for _, c := range []struct {
		network, rules string
		status         int
		want           string
	}{
		{`{"mode":"none"}`, `["a.example:443","*.b.example"]`, 200, `"allow":["a.example:443","*.b.example"]`},
		{`{"allow":["a.example"]}`, `["a.example","[2001:db8::1]:80","192.0.2.0/24"]`, 200,
			`"allow":["a.example","[2001:db8::1]:80","192.0.2.0/24"]`},
		{`{"mode":"open"}`, `["a.example"]`, 409, "its egress policy is open"},
		{`{"allow":["!*.example"]}`, `["a.example"]`, 409, `the rule \"!*.example\"`},
		{`{"allow":["!192.0.2.0/24"]}`, `["192.0.2.7:80"]`, 409, "has no effect"},
		{`{"mode":"none"}`, `["!a.example"]`, 400, "denies"},
		{`{"mode":"none"}`, `["a b"]`, 400, "invalid network rule"},
		{`{"mode":"none"}`, `[]`, 422, "rules"},
	} {
		r.create(`{"name":"a","network":` + c.network + `}`)
		a := r.do("POST", "/api/v1/sandbox/a/egress/allow", `{"rules":`+c.rules+`}`)
		if a.Status != c.status || !strings.Contains(a.Body, c.want) {
			t.Errorf("%s %s: got %d %s, want %d with %s", c.network, c.rules, a.Status, a.Body, c.status, c.want)
		}
		r.do("DELETE", "/api/v1/sandbox/a", "")
	}
}

// TestEgressLearn: a recording has a beginning, an end and an audit trail, and its rules are applied only on request.
func TestEgressLearn(t *testing.T) {
	t.Parallel()
	url, s := outside(t)
	host := strings.TrimPrefix(url, "http://")
	r := newRig(t, s)
	r.create(`{"name":"a","network":{"allow":["!192.0.2.7"]}}`)
	want := func(method, path, body string, status int, text string) {
		t.Helper()
		if a := r.do(method, "/api/v1/sandbox/a"+path, body); a.Status != status || !strings.Contains(a.Body, text) {
			t.Errorf("%s %s %s: got %d %s, want %d with %s", method, path, body, a.Status, a.Body, status, text)
		}
	}
	want("GET", "/egress/learn", "", 404, "start one with cove egress learn")
	want("DELETE", "/egress/learn", "", 404, "start one with cove egress learn")
	want("POST", "/egress/learn", `{"minutes":0}`, 422, "minutes")
	want("POST", "/egress/learn", `{"minutes":2000}`, 422, "minutes")
	want("POST", "/egress/learn", `{}`, 200, `"allow_all":false`)
	r.program("a", "curl/8", url)
	want("DELETE", "/egress/learn?apply=true", "", 409, "proposes no rules")
	want("GET", "/network", "", 200, `"allow":["!192.0.2.7"]`)
	want("POST", "/egress/learn", `{"allow_all":true,"minutes":60}`, 200, `"active":true`)
	r.program("a", "curl/8", url)
	want("GET", "/egress/learn", "", 200, `"rules":["`+host+`"]`)
	want("GET", "/network", "", 200, `"rule":"learning mode"`)
	want("DELETE", "/egress/learn", "", 200, `"active":false`)
	want("GET", "/network", "", 200, `"allow":["!192.0.2.7"]`)
	want("DELETE", "/egress/learn?apply=true", "", 200, `"program":"curl/8"`)
	want("GET", "/network", "", 200, `"allow":["!192.0.2.7","`+host+`"]`)
	if status, _ := r.program("a", "curl/8", url); status != 200 {
		t.Errorf("got %d, want it allowed by the rules", status)
	}
	var kinds []string
	for _, e := range r.hub.history.After(0).Events {
		kinds = append(kinds, e.Kind)
	}
	if got := strings.Count(strings.Join(kinds, " "), "learning"); got != 4 {
		t.Errorf("got %v, want an event for each beginning and end", kinds)
	}
}

// TestEgressAsk: the owner sees what waits, and answers live, once or with a rule.
func TestEgressAsk(t *testing.T) {
	t.Parallel()
	url, s := outside(t)
	host := strings.TrimPrefix(url, "http://")
	r := newRig(t, s)
	r.create(`{"name":"a","network":{"mode":"open"}}`)
	want := func(method, path, body string, status int, text string) {
		t.Helper()
		if a := r.do(method, "/api/v1/sandbox/a"+path, body); a.Status != status || !strings.Contains(a.Body, text) {
			t.Errorf("%s %s %s: got %d %s, want %d with %s", method, path, body, a.Status, a.Body, status, text)
		}
	}
	waiting := func(agent string) <-chan int {
		got := make(chan int, 1)
		go func() { status, _ := r.program("a", agent, url); got <- status }()
		poll(t, "the connection waits", func() bool {
			return strings.Contains(r.do("GET", "/api/v1/sandbox/a/egress/pending", "").Body, `"program":"`+agent+`"`)
		})
		return got
	}
	status := func(got <-chan int, want int) {
		t.Helper()
		if n := <-got; n != want {
			t.Errorf("got %d, want %d", n, want)
		}
	}
	want("POST", "/egress/deny", `{"hosts":["*"]}`, 409, "cove egress ask")
	want("POST", "/egress/allow", `{"rules":["`+host+`"],"once":true}`, 409, "cove egress ask")
	want("POST", "/egress/ask", ``, 200, `"mode":"ask"`)
	want("GET", "/egress/pending", "", 200, "[]")
	events := r.stream("/api/v1/sandbox/a/events", "")
	first := waiting("one")
	for {
		e, ok := events.next()
		if !ok {
			t.Fatal("the stream ended, want an event about a waiting connection")
		}
		if e.Type == "pending" {
			if !strings.Contains(e.Message, `program "one": a connection to `+host+" waits") ||
				!strings.Contains(e.Message, "cove egress allow a "+host) || !strings.Contains(e.Message, "cove egress deny a "+host) {
				t.Errorf("got %q, want the program, the host and the commands", e.Message)
			}
			break
		}
	}
	want("POST", "/egress/allow", `{"rules":["*"],"once":true}`, 400, "programs choose")
	want("POST", "/egress/allow", `{"rules":["192.0.2.0/24"],"once":true}`, 400, "use a name or an address")
	want("POST", "/egress/deny", `{"hosts":["*"]}`, 200, `"mode":"ask"`)
	status(first, 403)
	want("POST", "/egress/allow", `{"rules":["`+host+`"],"once":true}`, 200, `"mode":"ask"`)
	if n, _ := r.program("a", "two", url); n != 200 {
		t.Errorf("got %d, want it approved", n)
	}
	want("GET", "/network", "", 200, `"rule":"approved once"`)
	want("POST", "/egress/deny", `{"hosts":["127.0.0.1"]}`, 200, `"mode":"ask"`) // the ports of HTTP
	// Rules release what waits, and are stored.
	r.do("PUT", "/api/v1/sandbox/a/network", `{"mode":"none"}`)
	want("POST", "/egress/ask", ``, 200, `"mode":"ask"`)
	second := waiting("three")
	want("POST", "/egress/allow", `{"rules":["`+host+`"]}`, 200, `"mode":"ask"`)
	status(second, 200)
	want("GET", "/network", "", 200, `"mode":"ask","allow":["`+host+`"]`)
}

// TestRulesForRequests: a sandbox that is created with rules for methods and paths trusts the hub, so they apply. Without
// that, they are rejected with an explanation.
func TestRulesForRequests(t *testing.T) {
	t.Parallel()
	url, s := outside(t)
	authority, err := certificate.OpenAuthority(filepath.Join(t.TempDir(), "authority.pem"))
	if err != nil {
		t.Fatal(err)
	}
	inside := &initServers{}
	s.stores.authority = authority
	s.hub.changeEgress = func(c *egress.Config) {
		c.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
	}
	s.more = inside.add
	r := newRig(t, s)
	port := url[strings.LastIndexByte(url, ':'):]
	r.create(`{"name":"a","network":{"allow":["GET api.test` + port + `/v1/*"]}}`)
	for path, want := range map[string]int{"/v1/x": 200, "/v2": 403} {
		if status, text := r.program("a", "x", "http://api.test"+port+path); status != want {
			t.Errorf("%s: got %d %q, want %d", path, status, text, want)
		}
	}
	if got := inside.last(t, 1); got.Env["SSL_CERT_FILE"] == "" || len(got.Files) != 1 || !strings.Contains(string(got.Files[0].Content),
		string(authority.PEM())) {
		t.Errorf("the server inside got %v and %d files, want the authority", got.Env, len(got.Files))
	}
	if a := r.do("POST", "/api/v1/sandbox/a/egress/allow", `{"rules":["PUT api.test`+port+`/v2"]}`); a.Status != 200 {
		t.Errorf("got %d %s, want more rules for requests", a.Status, a.Body)
	}
	r.create(`{"name":"b"}`)
	for method, c := range map[string][2]string{
		"PUT":  {"/network", `{"allow":["GET api.test/v1/*"]}`},
		"POST": {"/egress/allow", `{"rules":["GET api.test/v1/*"]}`},
	} {
		r.do("PUT", "/api/v1/sandbox/b/network", `{"mode":"none"}`)
		if a := r.do(method, "/api/v1/sandbox/b"+c[0], c[1]); a.Status != 409 || !strings.Contains(a.Body, "do not trust the hub") {
			t.Errorf("%s: got %d %s, want 409 that explains it", c[0], a.Status, a.Body)
		}
	}
	if o := r.object(r.do("GET", "/api/v1/sandbox/b", "")); o.Network.Mode != "none" {
		t.Errorf("got %+v, want the policy unchanged", o.Network)
	}
	bare := newRig(t, setup{})
	a := bare.do("POST", "/api/v1/sandbox", `{"network":{"allow":["GET api.test"]}}`)
	if a.Status != 400 || !strings.Contains(a.Body, "cannot read requests") {
		t.Errorf("got %d %s, want 400 from a hub without authority", a.Status, a.Body)
	}
}
