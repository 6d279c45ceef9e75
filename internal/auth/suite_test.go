package auth

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// entryPoints are kinds of requests: methods, shapes and hosts, each of which is routed
// differently behind the guard.
var entryPoints = map[string][]string{
	"list":            {"GET /api/v1/sandbox"},
	"create":          {"POST /api/v1/sandbox", "Content-Type: application/json"},
	"delete":          {"DELETE /api/v1/sandbox/a"},
	"tools":           {"POST /mcp", "Content-Type: application/json", "Accept: application/json, text/event-stream"},
	"ticket":          {"POST /tickets"},
	"page":            {"GET /v1/docs", asPage, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"},
	"sandbox":         {"POST /sandbox/a/v1/bash/exec"},
	"port":            {"GET /sandbox/a/proxy/3000/"},
	"port by header":  {"GET /", "X-Aio-Proxy-Port: 3000"},
	"E2B by header":   {"POST /process.Process/Start", "E2b-Sandbox-Id: sb0123456789abcdef", "Content-Type: application/connect+json"},
	"E2B by host":     {"GET /files", "Host: 49983-sb0123456789abcdef.box.example"},
	"E2B's control":   {"POST /v2/sandboxes", "Content-Type: application/json"},
	"E2B's own name":  {"GET /v2/sandboxes", "Host: api.box.example"},
	"secret":          {"PUT /api/v1/secret/x", "Content-Type: application/json"},
	"shell":           {"GET /sandbox/a/v1/shell/ws", webSocket},
	"site":            {"GET /v1/docs", "Host: a.box.example"},
	"site of a port":  {"POST /x", "Host: 3000-a.box.example"},
	"site by socket":  {"GET /v1/shell/ws", webSocket, "Host: a.box.example"},
	"cleaned path":    {"GET //api/./v1//sandbox"},
	"absolute target": {"GET http://localhost/api/v1/sandbox"},
}

// forgeries are credentials that must not be accepted. They are made for the server that
// they are tried on: most are a valid credential with one thing wrong.
func forgeries(t *testing.T, s, other *server) map[string]string {
	t.Helper()
	all := forgedSecrets()
	maps.Copy(all, forgedTokens(t))
	maps.Copy(all, forgedSessions(s, other))
	return all
}

// forgedSecrets are shared secrets and access tokens that are wrong or in the wrong place.
func forgedSecrets() map[string]string {
	return map[string]string{
		"nothing":                "X-Nothing: 1",
		"empty bearer":           "Authorization: Bearer ",
		"scheme alone":           "Authorization: Bearer",
		"token cut":              "Authorization: Bearer " + theToken[1:],
		"token longer":           "Authorization: Bearer " + theToken + "=",
		"token in capitals":      "Authorization: Bearer " + strings.ToUpper(theToken),
		"token with a null":      "Authorization: Bearer " + theToken + "%00",
		"token as basic":         "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(theToken+":")),
		"token as digest":        "Authorization: Digest username=" + theToken,
		"token twice":            "Authorization: Bearer " + theToken + "\r\nAuthorization: Bearer " + theToken,
		"token as key":           "X-API-Key: " + theToken,
		"token to a proxy":       "Proxy-Authorization: Bearer " + theToken,
		"token as cookie":        "Cookie: Authorization=Bearer " + theToken,
		"token as subprotocol":   "Sec-WebSocket-Protocol: bearer, " + theToken,
		"key cut":                "X-API-Key: " + theKey[:len(theKey)-1],
		"key longer":             "X-API-Key: " + theKey + theKey,
		"key as bearer":          "Authorization: Bearer " + theKey,
		"key twice":              "X-API-Key: " + theKey + "\r\nX-Api-Key: " + theKey,
		"key under another name": "X-Auth-Key: " + theKey,
		"key quoted":             `X-API-Key: "` + theKey + `"`,
		"key of the prefix":      "X-API-Key: cove_",
		"user of a proxy":        "X-Forwarded-User: root\r\nRemote-User: root\r\nX-Auth-Request-Email: root@localhost",
		"address of a proxy":     "X-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1\r\nForwarded: for=127.0.0.1",
		"call of another hub":    `X-Cove-Internal-Call: {"Subject":"alice","Role":"admin"}`,
		"certificate of a proxy": "X-SSL-Client-Verify: SUCCESS\r\nX-SSL-Client-S-DN: CN=root",
		"access token cut":       "X-Access-Token: " + theAccess[1:],
		"access token longer":    "X-Access-Token: " + theAccess + "0",
		"access token as bearer": "Authorization: Bearer " + theAccess,
		"access token as key":    "X-API-Key: " + theAccess,
		"token as access token":  "X-Access-Token: " + theToken,
		"key as access token":    "X-Access-Token: " + theKey,
	}
}

// forgedTokens are signed bearer tokens with one thing wrong.
func forgedTokens(t *testing.T) map[string]string {
	t.Helper()
	now := time.Now()
	hour := now.Add(time.Hour).Unix()
	claims := func(change map[string]any) jwt.MapClaims {
		c := jwt.MapClaims{"sub": "alice", "exp": hour, "iss": "https://id.example", "aud": "cove"}
		for k, v := range change {
			if c[k] = v; v == nil {
				delete(c, k)
			}
		}
		return c
	}
	rs := func(change map[string]any) string {
		return "Authorization: Bearer " + sign(t, jwt.SigningMethodRS256, signer(), claims(change), nil)
	}
	good := sign(t, jwt.SigningMethodRS256, signer(), claims(nil), nil)
	parts := strings.Split(good, ".")
	return map[string]string{
		"jwt expired":              rs(map[string]any{"exp": now.Add(-time.Hour).Unix()}),
		"jwt of the future":        rs(map[string]any{"nbf": hour}),
		"jwt without end":          rs(map[string]any{"exp": nil}),
		"jwt with an end as text":  rs(map[string]any{"exp": "never"}),
		"jwt without a subject":    rs(map[string]any{"sub": nil}),
		"jwt of an empty subject":  rs(map[string]any{"sub": ""}),
		"jwt of a blank subject":   rs(map[string]any{"sub": " \t"}),
		"jwt of a number":          rs(map[string]any{"sub": 0}),
		"jwt of many":              rs(map[string]any{"sub": []string{"alice"}}),
		"jwt of a long subject":    rs(map[string]any{"sub": strings.Repeat("x", maxSubject+1)}),
		"jwt of a split subject":   rs(map[string]any{"sub": "alice\r\nadmin"}),
		"jwt of another issuer":    rs(map[string]any{"iss": "https://evil.example"}),
		"jwt of a longer issuer":   rs(map[string]any{"iss": "https://id.example.evil.example"}),
		"jwt without an issuer":    rs(map[string]any{"iss": nil}),
		"jwt for another audience": rs(map[string]any{"aud": "other"}),
		"jwt for no audience":      rs(map[string]any{"aud": []string{}}),
		"jwt without an audience":  rs(map[string]any{"aud": nil}),
		"jwt without an algorithm": "Authorization: Bearer " + sign(t, jwt.SigningMethodNone,
			jwt.UnsafeAllowNoneSignatureType, claims(nil), nil),
		"jwt by HMAC":  "Authorization: Bearer " + sign(t, jwt.SigningMethodHS256, []byte(theToken), claims(nil), nil),
		"jwt by RS384": "Authorization: Bearer " + sign(t, jwt.SigningMethodRS384, signer(), claims(nil), nil),
		"jwt by PS256": "Authorization: Bearer " + sign(t, jwt.SigningMethodPS256, signer(), claims(nil), nil),
		"jwt with an extension": "Authorization: Bearer " + sign(t, jwt.SigningMethodRS256, signer(),
			claims(nil), map[string]any{"crit": []string{"b64"}, "b64": false}),
		"jwt without a signature": "Authorization: Bearer " + parts[0] + "." + parts[1] + ".",
		"jwt with another payload": "Authorization: Bearer " + parts[0] + "." +
			base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"root","exp":99999999999,`+
				`"iss":"https://id.example","aud":"cove"}`)) + "." + parts[2],
		"jwt as key":    "X-API-Key: " + good,
		"jwt as cookie": "Cookie: jwt=" + good,
	}
}

// forgedSessions are session cookies with one thing wrong.
func forgedSessions(s, other *server) map[string]string {
	now := time.Now()
	name, value, _ := strings.Cut(s.openSession(), "=")
	_, foreign, _ := strings.Cut(other.openSession(), "=")
	cookie := func(v string) string { return "Cookie: " + name + "=" + v }
	resign := func(key, payload []byte) string {
		mac := hmac.New(sha256.New, key)
		mac.Write(payload)
		return base64.RawURLEncoding.EncodeToString(payload) + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	operator := append(binary.BigEndian.AppendUint64(nil, uint64(now.Add(time.Hour).Unix())), operatorFlag, 0)
	ended := s.cookies.seal(Identity{Subject: "alice"}, session{end: now.Add(-time.Second)})
	elsewhere := s.cookies.seal(Identity{Subject: "alice", Site: "b"}, session{end: now.Add(time.Hour)})
	return map[string]string{
		"session expired":             cookie(ended),
		"session of another site":     cookie(elsewhere),
		"session of another server":   cookie(foreign),
		"session without a signature": cookie(strings.Split(value, ".")[0] + "."),
		"session cut":                 cookie(value[:len(value)-4]),
		"session of the operator":     cookie(resign(make([]byte, 32), operator)),
		"session by the token":        cookie(resign([]byte(theToken), operator)),
		"session too long":            cookie(strings.Repeat("A", 2000) + "." + strings.Split(value, ".")[1]),
		"session under a link's name": "Cookie: " + name + linkMark + "abc=" + foreign,
		"session under another name":  "Cookie: " + CookiePrefix + "ffffffffffff=" + value,
		"session as a header":         "X-Session: " + value,
		"session quoted":              cookie(`"` + value + `"`),
		"session as access token":     "X-Access-Token: " + value,
	}
}

// theAccess is the token of one sandbox.
const theAccess = "cova_0123456789abcdef"

// targets are credentials in the target of a request.
func targets(t *testing.T, s, other *server) map[string]string {
	t.Helper()
	used := s.ticket()
	s.send("GET /?ticket=" + used)
	forSite, err := s.IssueFor(NewContext(context.Background(), Identity{Subject: "alice"}), "b")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"used ticket":           "ticket=" + used,
		"ticket of another":     "ticket=" + other.ticket(),
		"ticket of a site":      "ticket=" + forSite,
		"invented ticket":       "ticket=tkt_" + strings.Repeat("A", 43),
		"two tickets":           "ticket=" + s.ticket() + "&ticket=" + s.ticket(),
		"token in the query":    "token=" + theToken,
		"key in the query":      "api_key=" + theKey,
		"bearer in the query":   "access_token=" + theToken + "&authorization=Bearer%20" + theToken,
		"ticket in a fragment":  "x#ticket=tkt_" + strings.Repeat("A", 43),
		"ticket under a name":   "Ticket=tkt_" + strings.Repeat("B", 43),
		"link that is no link":  "token=covs_" + strings.Repeat("a", 60),
		"pass that is no pass":  "pass=~" + strings.Repeat("A", 32),
		"key of another's name": "X-API-Key=" + theKey,
	}
}

// TestForgeriesAtEveryEntryPoint tries every forgery at every entry point: more than 1,600
// attempts, none of which reaches the handler.
func TestForgeriesAtEveryEntryPoint(t *testing.T) {
	t.Parallel()
	c := closed()
	c.Issuer, c.Audience = "https://id.example", "cove"
	c.Site = func(r *http.Request) string {
		label, _, ok := strings.Cut(r.Host, ".box.example")
		if !ok {
			return ""
		}
		return label
	}
	c.Visit = func(r *http.Request) (Identity, bool, error) {
		given := r.Header.Get("X-Access-Token")
		if given != theAccess {
			return Identity{}, given != "", errors.New("no such token")
		}
		return Identity{KeyID: "visit.x"}, true, nil
	}
	c.VisitHeaders = []string{"X-Access-Token"}
	s, other := serve(t, c), serve(t, closed())
	headers := forgeries(t, s, other)
	before := s.reached.Load()
	attempts := 0
	try := func(entry, forgery, start string, lines []string) {
		attempts++
		r, err := s.raw(message(start, lines...))
		if err != nil || r.status != 401 && r.status != 403 && r.status != 400 {
			t.Errorf("%s at %s: got status %d and error %v, want a rejection", forgery, entry, r.status, err)
		}
		if strings.Contains(r.body, theToken) || strings.Contains(r.body, theKey) || r.header.Get("Set-Cookie") != "" {
			t.Errorf("%s at %s: got %s, want neither a secret nor a session", forgery, entry, r.body)
		}
	}
	for entry, lines := range entryPoints {
		for forgery, header := range headers {
			try(entry, forgery, lines[0], append(lines[1:len(lines):len(lines)], header))
		}
	}
	for entry, lines := range entryPoints {
		unmade := s.reached.Load()
		at := targets(t, s, other)
		before += s.reached.Load() - unmade // making them sends a request
		for forgery, query := range at {
			try(entry, forgery, lines[0]+"?"+query, lines[1:])
		}
	}
	if n := s.reached.Load() - before; n != 0 {
		t.Errorf("got %d requests in the handler, want none", n)
	}
	if t.Logf("%d attempts", attempts); attempts < 1600 {
		t.Errorf("got %d attempts, want at least 1600", attempts)
	}
	// The token of a sandbox is accepted there, and other credentials are ignored.
	if r := s.send("POST /process.Process/Start", "X-Access-Token: "+theAccess, "Authorization: Bearer "+theToken[1:]); r.status != 200 {
		t.Errorf("with an access token: got status %d %s, want 200", r.status, r.body)
	}
	// All entry points accept the key.
	for entry, lines := range entryPoints {
		if r := s.send(lines[0], append(lines[1:len(lines):len(lines)], "X-API-Key: "+theKey)...); r.status != 200 {
			t.Errorf("%s with the key: got status %d %s, want 200", entry, r.status, r.body)
		}
	}
}
