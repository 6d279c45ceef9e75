package e2b

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
)

// box is a sandbox as the control API tells of it.
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

// attack checks what strangers and neighbors get.
func (h *hub) attack(t *testing.T) {
	t.Helper()
	ours, theirs, viewer := h.tenant(t, "ours", "user"), h.tenant(t, "theirs", "user"), h.tenant(t, "ours", "viewer")
	mine, other, closed := h.create(t, ours, ""), h.create(t, theirs, ""), h.create(t, ours, `,"network":{"allowPublicTraffic":false}`)
	list := `{"path":"/"}`
	const stat, files = "/filesystem.Filesystem/Stat", "/files?path=/etc/hostname"
	host := func(port int, id string) string { return fmt.Sprintf("%d-%s.localhost", port, id) }
	for _, c := range []struct {
		what, method, path, body string
		want                     int
		header                   []string
	}{
		{"own token, by header", "POST", stat, list, 200, []string{"E2b-Sandbox-Id", mine.ID, "X-Access-Token", mine.Access}},
		{"own token, by host", "POST", stat, list, 200, []string{"Host", host(49983, mine.ID), "X-Access-Token", mine.Access}},
		{"own key instead", "POST", stat, list, 200, []string{"E2b-Sandbox-Id", mine.ID, "X-API-Key", ours}},
		{"SDK 1's form of the ID", "POST", stat, list, 200, []string{"E2b-Sandbox-Id", mine.ID + "-6532622b", "X-Access-Token", mine.Access}},
		{"no token", "POST", stat, list, 401, []string{"E2b-Sandbox-Id", mine.ID}},
		{"empty token", "POST", stat, list, 401, []string{"E2b-Sandbox-Id", mine.ID, "X-Access-Token", ""}},
		{"token of another sandbox", "POST", stat, list, 401, []string{"E2b-Sandbox-Id", mine.ID, "X-Access-Token", other.Access}},
		{"token of another sandbox, by host", "POST", stat, list, 401, []string{"Host", host(49983, mine.ID), "X-Access-Token", other.Access}},
		{"host and header disagree", "POST", stat, list, 401, []string{"Host", host(49983, other.ID),
			"E2b-Sandbox-Id", mine.ID, "X-Access-Token", mine.Access}},
		{"traffic token for files", "POST", stat, list, 401, []string{"E2b-Sandbox-Id", mine.ID, "X-Access-Token", mine.Traffic}},
		{"traffic token in its own header for files", "POST", stat, list, 401,
			[]string{"E2b-Sandbox-Id", mine.ID, "E2b-Traffic-Access-Token", mine.Traffic}},
		{"traffic token for the interpreter", "GET", "/contexts", "", 200,
			[]string{"E2b-Sandbox-Id", mine.ID, "E2b-Sandbox-Port", "49999", "E2b-Traffic-Access-Token", mine.Traffic}},
		{"interpreter without a token", "GET", "/contexts", "", 401, []string{"E2b-Sandbox-Id", mine.ID, "E2b-Sandbox-Port", "49999"}},
		{"another's traffic token", "GET", "/contexts", "", 401,
			[]string{"E2b-Sandbox-Id", mine.ID, "E2b-Sandbox-Port", "49999", "E2b-Traffic-Access-Token", other.Traffic}},
		{"closed port", "GET", "/", "", 502, []string{"E2b-Sandbox-Id", mine.ID, "E2b-Sandbox-Port", "3000",
			"E2b-Traffic-Access-Token", mine.Traffic}},
		{"public port", "GET", "/", "", 502, []string{"Host", host(3000, mine.ID)}},
		{"port that is not public", "GET", "/", "", 401, []string{"Host", host(3000, closed.ID)}},
		{"port that is not public, with its token", "GET", "/", "", 502, []string{"Host", host(3000, closed.ID),
			"E2b-Traffic-Access-Token", closed.Traffic}},
		{"port of nobody", "GET", "/", "", 502, []string{"Host", host(3000, "sb0000000000000000")}},
		{"no port of the daemon is public", "GET", "/contexts", "", 401, []string{"Host", host(49999, mine.ID)}},
		{"another tenant's key", "POST", stat, list, 502, []string{"E2b-Sandbox-Id", mine.ID, "X-API-Key", theirs}},
		{"a viewer's key", "POST", stat, list, 403, []string{"E2b-Sandbox-Id", mine.ID, "X-API-Key", viewer}},
		{"token as a key of the hub", "GET", "/v2/sandboxes", "", 401, []string{"X-API-Key", mine.Access}},
		{"token for the hub's own API", "GET", "/api/v1/sandbox", "", 401, []string{"X-Access-Token", mine.Access}},
		{"nobody's ID", "POST", stat, list, 401, []string{"E2b-Sandbox-Id", "sb0000000000000000", "X-Access-Token", mine.Access}},
		{"ID that is a path", "POST", stat, list, 401, []string{"E2b-Sandbox-Id", "../" + mine.ID, "X-Access-Token", mine.Access}},
		{"health needs nothing", "GET", "/health", "", 204, []string{"E2b-Sandbox-Id", mine.ID}},
		{"health of nobody", "GET", "/health", "", 502, []string{"E2b-Sandbox-Id", "sb0000000000000000"}},
		{"health is exact", "GET", "/health/../files", "", 401, []string{"E2b-Sandbox-Id", mine.ID}},
		{"health by another method", "POST", "/health", "", 401, []string{"E2b-Sandbox-Id", mine.ID}},
		{"signature that nobody made", "GET", files + "&signature=v1_AAAA", "", 401, nil},
		{"signature that nobody made, by host", "GET", files + "&signature=v1_AAAA", "", 401, []string{"Host", host(49983, mine.ID)}},
		{"file without a signature", "GET", files, "", 401, []string{"Host", host(49983, mine.ID)}},
		{"foreign page", "POST", stat, list, 403, []string{"E2b-Sandbox-Id", mine.ID, "X-Access-Token", mine.Access,
			"Origin", "http://evil.example"}},
		{"binary codec", "POST", stat, "\x0a\x01/", 415, []string{"E2b-Sandbox-Id", mine.ID, "X-Access-Token",
			mine.Access, "Content-Type", "application/proto"}},
		{"init of the daemon", "POST", "/init", `{}`, 404, []string{"E2b-Sandbox-Id", mine.ID, "X-Access-Token", mine.Access}},
		{"user that is a path", "POST", stat, list, 401, []string{"E2b-Sandbox-Id", mine.ID, "X-Access-Token",
			mine.Access, "Authorization", "Basic Li4vcm9vdDo="}},
		{"their list is theirs", "GET", "/sandboxes/" + mine.ID, "", 404, []string{"X-API-Key", theirs}},
		{"kill a neighbor's", "DELETE", "/sandboxes/" + mine.ID, "", 404, []string{"X-API-Key", theirs}},
		{"pause a neighbor's", "POST", "/sandboxes/" + mine.ID + "/pause", "{}", 404, []string{"X-API-Key", theirs}},
		{"connect to a neighbor's", "POST", "/v2/sandboxes/" + mine.ID + "/connect", "{}", 404, []string{"X-API-Key", theirs}},
		{"fork a neighbor's", "POST", "/sandboxes/" + mine.ID + "/fork", "{}", 404, []string{"X-API-Key", theirs}},
		{"a viewer creates nothing", "POST", "/v2/sandboxes", `{"templateID":"base"}`, 403, []string{"X-API-Key", viewer}},
		{"control API at its own name", "GET", "/v2/sandboxes", "", 200, []string{"Host", "api.localhost", "X-API-Key", ours}},
		{"control API with the header of older clients", "POST", "/sandboxes/" + mine.ID + "/connect",
			`{"timeout":60}`, 200, []string{"E2b-Sandbox-Id", mine.ID, "X-API-Key", ours}},
		{"control API at its own name without a key", "GET", "/v2/sandboxes", "", 401, []string{"Host", "api.localhost"}},
		{"no key", "GET", "/v2/sandboxes", "", 401, nil},
		{"builds", "POST", "/v3/templates", `{}`, 501, []string{"X-API-Key", ours}},
		{"teams", "GET", "/teams", "", 501, []string{"X-API-Key", ours}},
	} {
		header := append([]string{"Content-Type", "application/json"}, c.header...)
		status, body := h.call(t, c.method, c.path, c.body, header...)
		if status != c.want {
			t.Errorf("%s: got %d %s, want %d", c.what, status, body, c.want)
		}
		if c.want != http.StatusOK && (strings.Contains(body, mine.Access) || strings.Contains(body, "root:x:0")) {
			t.Errorf("%s: got %s, want nothing secret", c.what, body)
		}
	}
	if _, body := h.call(t, "GET", "/v2/sandboxes", "", "X-API-Key", theirs); strings.Contains(body, mine.ID) ||
		!strings.Contains(body, other.ID) {
		t.Errorf("the neighbor's list: got %s, want only %s", body, other.ID)
	}
	if _, body := h.call(t, "GET", "/sandboxes/"+mine.ID, "", "X-API-Key", viewer); strings.Contains(body,
		mine.Access) || !strings.Contains(body, mine.ID) {
		t.Errorf("a viewer: got %s, want the sandbox without its token", body)
	}
	h.garbage(t, mine)
}

// garbage sends frames that no client sends. The server refuses each and goes on.
func (h *hub) garbage(t *testing.T, b box) {
	t.Helper()
	for what, frame := range map[string]string{
		"nothing":             "",
		"half a head":         "\x00\x00",
		"longer than it says": "\x00\x00\x00\x00\x02{}trailing",
		"shorter":             "\x00\x00\x00\xff\xff{}",
		"huge":                "\x00\xff\xff\xff\xff{}",
		"compressed":          "\x01\x00\x00\x00\x02{}",
		"unknown flags":       "\x80\x00\x00\x00\x02{}",
		"not JSON":            "\x00\x00\x00\x00\x03{{{",
		"another type":        "\x00\x00\x00\x00\x10{\"process\":\"list\"",
	} {
		status, body := h.call(t, "POST", "/process.Process/Start", frame, "E2b-Sandbox-Id", b.ID, "X-Access-Token",
			b.Access, "Content-Type", "application/connect+json")
		if status != http.StatusOK || !strings.Contains(body, `"error"`) {
			t.Errorf("frame of %s: got %d %q, want a stream that ends with an error", what, status, body)
		}
	}
	// A stream that is cut leaves its process alone, and the server answers.
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
