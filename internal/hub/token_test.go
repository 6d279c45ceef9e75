package hub

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/hub/e2b"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
)

// TestE2BTokensExpireWithKey: when a key is revoked, its access to a sandbox ends: tokens,
// signed URLs, and open sockets. The access of the tenant's other keys stays valid.
func TestE2BTokensExpireWithKey(t *testing.T) {
	t.Parallel()
	keys, err := tenant.Open(tenant.Config{Path: filepath.Join(t.TempDir(), "keys.json")})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, setup{auth: &auth.Config{}, stores: stores{tenants: keys}})
	secret := func(name string) (string, tenant.Key) {
		t.Helper()
		s, k, err := keys.Add("acme", tenant.RoleUser, name, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return s, k
	}
	first, firstKey := secret("first")
	second, _ := secret("second")
	made := created(t, r.do("POST", "/v2/sandboxes", `{"templateID":"base"}`, "X-Api-Key", first))
	joined := created(t, r.do("POST", "/v2/sandboxes/"+made.SandboxID+"/connect", `{}`, "X-Api-Key", second))
	if made.AccessToken == joined.AccessToken || made.TrafficToken == joined.TrafficToken {
		t.Errorf("two keys got the tokens %v and %v, want different tokens for each", made, joined)
	}
	doors := func(c e2b.Created) map[string]int {
		to := []string{"E2b-Sandbox-Id", c.SandboxID, "E2b-Sandbox-Port"}
		return map[string]int{
			"access":   r.do("GET", "/x", "", append(to, "49983", "X-Access-Token", c.AccessToken)...).Status,
			"traffic":  r.do("GET", "/x", "", append(to, "49999", "E2b-Traffic-Access-Token", c.TrafficToken)...).Status,
			"signed":   r.do("GET", signedURL(c.AccessToken, "/home/user/x"), "", append(to, "49983")...).Status,
			"nameless": r.do("GET", signedURL(c.AccessToken, "/home/user/x"), "").Status,
		}
	}
	poll(t, "the hub knows the sandbox", func() bool { return doors(made)["nameless"] == 200 || doors(made)["nameless"] == 502 })
	open := func(what string, c e2b.Created, want bool) {
		t.Helper()
		for door, status := range doors(c) {
			if refused := status == http.StatusUnauthorized; refused == want {
				t.Errorf("%s: %s: got %d, want it open: %v", what, door, status, want)
			}
		}
	}
	open("the creator", made, true)
	open("another key", joined, true)
	socket, _, err := websocket.Dial(t.Context(), r.server.URL+"/ws", &websocket.DialOptions{HTTPHeader: http.Header{
		"E2b-Sandbox-Id": {made.SandboxID}, "E2b-Sandbox-Port": {"49983"}, "X-Access-Token": {made.AccessToken},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.CloseNow()
	if err := keys.Revoke(firstKey.ID); err != nil {
		t.Fatal(err)
	}
	open("the revoked creator", made, false)
	open("another key after that", joined, true)
	if _, _, err := socket.Read(t.Context()); err == nil {
		t.Error("a socket is open after its key was revoked, want it closed")
	}
}

func created(t *testing.T, a reply) (c e2b.Created) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.Body), &c); err != nil || a.Status/100 != 2 || c.AccessToken == "" || c.TrafficToken == "" {
		t.Fatalf("got %d %s, want a sandbox with tokens", a.Status, a.Body)
	}
	return c
}

// signedURL returns the URL that a client signs with a token.
func signedURL(token, path string) string {
	sum := sha256.Sum256([]byte(path + ":read:user:" + token))
	return "/files?" + url.Values{"path": {path}, "username": {"user"},
		"signature": {"v1_" + base64.RawStdEncoding.EncodeToString(sum[:])}}.Encode()
}
