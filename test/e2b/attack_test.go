package e2b

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// box is a sandbox in a response of the control API.
type box struct {
	ID      string `json:"sandboxID"`
	Access  string `json:"envdAccessToken"`
	Traffic string `json:"trafficAccessToken"`
}

func (h *hub) create(t *testing.T, key, more string) box {
	t.Helper()
	status, body := h.call(t, http.MethodPost, "/v2/sandboxes",
		`{"templateID":"base","timeout":3600,"metadata":{"of":"test"}`+more+`}`, "X-API-Key", key, "Content-Type", "application/json")
	var b box
	if err := json.Unmarshal([]byte(body), &b); status != http.StatusCreated || err != nil || b.Access == "" || b.Traffic == "" {
		t.Fatalf("create: got %d %s, want 201 with both tokens", status, body)
	}
	return b
}

// parties are tenants with their keys and sandboxes: one of our sandboxes has no public ports.
type parties struct {
	ours, theirs, viewer string // keys
	mine, other, closed  box
}

// request is a request and the expected status.
type request struct {
	name, method, path, body string
	want                     int
	header                   []string
}

const (
	statPath  = "/filesystem.Filesystem/Stat"
	statBody  = `{"path":"/"}`
	filesPath = "/files?path=/etc/hostname"
)

func hostOf(port int, id string) string { return fmt.Sprintf("%d-%s.localhost", port, id) }

// attack checks requests with missing, wrong and foreign credentials.
func (h *hub) attack(t *testing.T) {
	t.Helper()
	p := parties{ours: h.tenant(t, "ours", "user"), theirs: h.tenant(t, "theirs", "user"), viewer: h.tenant(t, "ours", "viewer")}
	p.mine, p.other = h.create(t, p.ours, ""), h.create(t, p.theirs, "")
	p.closed = h.create(t, p.ours, `,"network":{"allowPublicTraffic":false}`)
	for _, c := range slices.Concat(tokenRequests(p), portRequests(p), daemonRequests(p), controlRequests(p)) {
		header := append([]string{"Content-Type", "application/json"}, c.header...)
		status, body := h.call(t, c.method, c.path, c.body, header...)
		if status != c.want {
			t.Errorf("%s: got %d %s, want %d", c.name, status, body, c.want)
		}
		if c.want != http.StatusOK && (strings.Contains(body, p.mine.Access) || strings.Contains(body, "root:x:0")) {
			t.Errorf("%s: got %s, want no secret", c.name, body)
		}
	}
	if _, body := h.call(t, "GET", "/v2/sandboxes", "", "X-API-Key", p.theirs); strings.Contains(body, p.mine.ID) ||
		!strings.Contains(body, p.other.ID) {
		t.Errorf("the other tenant's list: got %s, want only %s", body, p.other.ID)
	}
	both := "/sandboxes/metrics?sandbox_ids=" + p.mine.ID + "," + p.other.ID
	if status, body := h.call(t, "GET", both, "", "X-API-Key", p.theirs); status != http.StatusOK ||
		strings.Contains(body, p.mine.ID) || !strings.Contains(body, p.other.ID) {
		t.Errorf("metrics that name another tenant's sandbox: got %d %s, want only those of %s", status, body, p.other.ID)
	}
	if _, body := h.call(t, "GET", "/sandboxes/"+p.mine.ID, "", "X-API-Key", p.viewer); strings.Contains(body,
		p.mine.Access) || !strings.Contains(body, p.mine.ID) {
		t.Errorf("a viewer: got %s, want the sandbox without its token", body)
	}
	h.garbage(t, p.mine)
}

// tokenRequests use the tokens and keys of sandboxes.
func tokenRequests(p parties) []request {
	return []request{
		{"own token, by header", "POST", statPath, statBody, 200, []string{"E2b-Sandbox-Id", p.mine.ID, "X-Access-Token", p.mine.Access}},
		{"own token, by host", "POST", statPath, statBody, 200, []string{"Host", hostOf(49983, p.mine.ID), "X-Access-Token", p.mine.Access}},
		{"own key instead", "POST", statPath, statBody, 200, []string{"E2b-Sandbox-Id", p.mine.ID, "X-API-Key", p.ours}},
		{"SDK 1's form of the ID", "POST", statPath, statBody, 200,
			[]string{"E2b-Sandbox-Id", p.mine.ID + "-6532622b", "X-Access-Token", p.mine.Access}},
		{"no token", "POST", statPath, statBody, 401, []string{"E2b-Sandbox-Id", p.mine.ID}},
		{"empty token", "POST", statPath, statBody, 401, []string{"E2b-Sandbox-Id", p.mine.ID, "X-Access-Token", ""}},
		{"token of another sandbox", "POST", statPath, statBody, 401, []string{"E2b-Sandbox-Id", p.mine.ID, "X-Access-Token", p.other.Access}},
		{"token of another sandbox, by host", "POST", statPath, statBody, 401,
			[]string{"Host", hostOf(49983, p.mine.ID), "X-Access-Token", p.other.Access}},
		{"host and header disagree", "POST", statPath, statBody, 401, []string{"Host", hostOf(49983, p.other.ID),
			"E2b-Sandbox-Id", p.mine.ID, "X-Access-Token", p.mine.Access}},
		{"traffic token for files", "POST", statPath, statBody, 401, []string{"E2b-Sandbox-Id", p.mine.ID, "X-Access-Token", p.mine.Traffic}},
		{"traffic token in its own header for files", "POST", statPath, statBody, 401,
			[]string{"E2b-Sandbox-Id", p.mine.ID, "E2b-Traffic-Access-Token", p.mine.Traffic}},
		{"traffic token for the interpreter", "GET", "/contexts", "", 200,
			[]string{"E2b-Sandbox-Id", p.mine.ID, "E2b-Sandbox-Port", "49999", "E2b-Traffic-Access-Token", p.mine.Traffic}},
		{"interpreter without a token", "GET", "/contexts", "", 401, []string{"E2b-Sandbox-Id", p.mine.ID, "E2b-Sandbox-Port", "49999"}},
		{"another sandbox's traffic token", "GET", "/contexts", "", 401,
			[]string{"E2b-Sandbox-Id", p.mine.ID, "E2b-Sandbox-Port", "49999", "E2b-Traffic-Access-Token", p.other.Traffic}},
		{"token as a key of the hub", "GET", "/v2/sandboxes", "", 401, []string{"X-API-Key", p.mine.Access}},
		{"token for the hub's own API", "GET", "/api/v1/sandbox", "", 401, []string{"X-Access-Token", p.mine.Access}},
	}
}

// portRequests address ports of sandboxes.
func portRequests(p parties) []request {
	return []request{
		{"closed port", "GET", "/", "", 502, []string{"E2b-Sandbox-Id", p.mine.ID, "E2b-Sandbox-Port", "3000",
			"E2b-Traffic-Access-Token", p.mine.Traffic}},
		{"public port", "GET", "/", "", 502, []string{"Host", hostOf(3000, p.mine.ID)}},
		{"port that is not public", "GET", "/", "", 403, []string{"Host", hostOf(3000, p.closed.ID)}},
		{"port that is not public, in a browser", "GET", "/", "", 401, []string{"Host", hostOf(3000, p.closed.ID),
			"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "cors"}},
		{"port that is not public, with its token", "GET", "/", "", 502, []string{"Host", hostOf(3000, p.closed.ID),
			"E2b-Traffic-Access-Token", p.closed.Traffic}},
		{"port of an unknown sandbox", "GET", "/", "", 502, []string{"Host", hostOf(3000, "sb0000000000000000")}},
		{"ports of the daemon are not public", "GET", "/contexts", "", 401, []string{"Host", hostOf(49999, p.mine.ID)}},
		{"another tenant's key", "POST", statPath, statBody, 502, []string{"E2b-Sandbox-Id", p.mine.ID, "X-API-Key", p.theirs}},
		{"a viewer's key", "POST", statPath, statBody, 403, []string{"E2b-Sandbox-Id", p.mine.ID, "X-API-Key", p.viewer}},
	}
}

// daemonRequests use IDs, routes and encodings that clients do not use.
func daemonRequests(p parties) []request {
	return []request{
		{"unknown ID", "POST", statPath, statBody, 401, []string{"E2b-Sandbox-Id", "sb0000000000000000", "X-Access-Token", p.mine.Access}},
		{"ID that is a path", "POST", statPath, statBody, 401, []string{"E2b-Sandbox-Id", "../" + p.mine.ID, "X-Access-Token", p.mine.Access}},
		{"health without credentials", "GET", "/health", "", 204, []string{"E2b-Sandbox-Id", p.mine.ID}},
		{"health of an unknown sandbox", "GET", "/health", "", 502, []string{"E2b-Sandbox-Id", "sb0000000000000000"}},
		{"health with a longer path", "GET", "/health/../files", "", 401, []string{"E2b-Sandbox-Id", p.mine.ID}},
		{"health by another method", "POST", "/health", "", 401, []string{"E2b-Sandbox-Id", p.mine.ID}},
		{"forged signature", "GET", filesPath + "&signature=v1_AAAA", "", 401, nil},
		{"forged signature, by host", "GET", filesPath + "&signature=v1_AAAA", "", 401, []string{"Host", hostOf(49983, p.mine.ID)}},
		{"file without a signature", "GET", filesPath, "", 401, []string{"Host", hostOf(49983, p.mine.ID)}},
		{"foreign page", "POST", statPath, statBody, 403, []string{"E2b-Sandbox-Id", p.mine.ID, "X-Access-Token", p.mine.Access,
			"Origin", "http://evil.example"}},
		{"binary codec", "POST", statPath, "\x0a\x01/", 415, []string{"E2b-Sandbox-Id", p.mine.ID, "X-Access-Token",
			p.mine.Access, "Content-Type", "application/proto"}},
		{"init of the daemon", "POST", "/init", `{}`, 404, []string{"E2b-Sandbox-Id", p.mine.ID, "X-Access-Token", p.mine.Access}},
		{"user that is a path", "POST", statPath, statBody, 401, []string{"E2b-Sandbox-Id", p.mine.ID, "X-Access-Token",
			p.mine.Access, "Authorization", "Basic Li4vcm9vdDo="}},
	}
}

// controlRequests use the control API.
func controlRequests(p parties) []request {
	return []request{
		{"another tenant's sandbox", "GET", "/sandboxes/" + p.mine.ID, "", 404, []string{"X-API-Key", p.theirs}},
		{"kill another tenant's", "DELETE", "/sandboxes/" + p.mine.ID, "", 404, []string{"X-API-Key", p.theirs}},
		{"pause another tenant's", "POST", "/sandboxes/" + p.mine.ID + "/pause", "{}", 404, []string{"X-API-Key", p.theirs}},
		{"connect to another tenant's", "POST", "/v2/sandboxes/" + p.mine.ID + "/connect", "{}", 404, []string{"X-API-Key", p.theirs}},
		{"fork another tenant's", "POST", "/sandboxes/" + p.mine.ID + "/fork", "{}", 404, []string{"X-API-Key", p.theirs}},
		{"create as a viewer", "POST", "/v2/sandboxes", `{"templateID":"base"}`, 403, []string{"X-API-Key", p.viewer}},
		{"control API at its own name", "GET", "/v2/sandboxes", "", 200, []string{"Host", "api.localhost", "X-API-Key", p.ours}},
		{"control API with the header of older clients", "POST", "/sandboxes/" + p.mine.ID + "/connect",
			`{"timeout":60}`, 200, []string{"E2b-Sandbox-Id", p.mine.ID, "X-API-Key", p.ours}},
		{"control API at its own name without a key", "GET", "/v2/sandboxes", "", 401, []string{"Host", "api.localhost"}},
		{"no key", "GET", "/v2/sandboxes", "", 401, nil},
		{"template without a name", "POST", "/v3/templates", `{}`, 400, []string{"X-API-Key", p.ours}},
		{"teams", "GET", "/teams", "", 501, []string{"X-API-Key", p.ours}},
		{"files of a template", "GET", "/templates/x/files/y", "", 404, []string{"X-API-Key", p.ours}},
		{"status of a build", "GET", "/templates/x/builds/y/status", "", 404, []string{"X-API-Key", p.ours}},
		{"metrics of no sandbox", "GET", "/sandboxes/metrics", "", 400, []string{"X-API-Key", p.ours}},
	}
}

// garbage sends invalid frames. The server refuses each of them and continues to work.
func (h *hub) garbage(t *testing.T, b box) {
	t.Helper()
	for what, frame := range map[string]string{
		"nothing":                "",
		"half a head":            "\x00\x00",
		"longer than announced":  "\x00\x00\x00\x00\x02{}trailing",
		"shorter than announced": "\x00\x00\x00\xff\xff{}",
		"huge":                   "\x00\xff\xff\xff\xff{}",
		"compressed":             "\x01\x00\x00\x00\x02{}",
		"unknown flags":          "\x80\x00\x00\x00\x02{}",
		"not JSON":               "\x00\x00\x00\x00\x03{{{",
		"another type":           "\x00\x00\x00\x00\x10{\"process\":\"list\"",
	} {
		status, body := h.call(t, "POST", "/process.Process/Start", frame, "E2b-Sandbox-Id", b.ID, "X-Access-Token",
			b.Access, "Content-Type", "application/connect+json")
		if status != http.StatusOK || !strings.Contains(body, `"error"`) {
			t.Errorf("frame of %s: got %d %q, want a stream that ends with an error", what, status, body)
		}
	}
	// The process continues if its stream is cut, and the server still responds.
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	message := `{"process":{"cmd":"/bin/sleep","args":["300"]},"tag":"cut"}`
	fmt.Fprintf(c, "POST /process.Process/Start HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: "+
		"%s\r\nX-Access-Token: %s\r\nContent-Type: application/connect+json\r\nContent-Length: "+
		"%d\r\n\r\n\x00\x00\x00\x00%c%s", b.ID, b.Access, len(message)+5, len(message), message)
	got := make([]byte, 15)
	if _, err := c.Read(got); err != nil || string(got) != "HTTP/1.1 200 OK" {
		t.Errorf("start: got %q %v, want 200", got, err)
	}
	c.Close()
	status, body := h.call(t, "POST", "/process.Process/SendSignal",
		`{"process":{"tag":"cut"},"signal":"SIGNAL_SIGKILL"}`, "E2b-Sandbox-Id", b.ID, "X-Access-Token", b.Access,
		"Content-Type", "application/json")
	if status != http.StatusOK {
		t.Errorf("after a cut stream: got %d %s, want the process killed", status, body)
	}
}
