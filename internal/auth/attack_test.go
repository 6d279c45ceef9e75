package auth

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// No request without a credential may reach the handler.
func TestRequestsWithoutCredentialsAreRejected(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	paths := []string{
		"/", "/index.html", "/v1/sandbox", "/v1/shell/exec", "/metrics", "/readyz", "/proxy/3000/", "/tickets", "/auth",
		"/v1/sandbox?x=.js", "/v1/sandbox?.css", "/v1/sandbox.js", "/v1/sandbox/.png", "/static/app.js", "/favicon.ico",
		"//v1/sandbox", "///v1/sandbox", "/v1//sandbox", "/./v1/sandbox", "/x/../v1/sandbox", "/v1/sandbox/",
		"/healthz/..;/v1/sandbox", "/healthz/../v1/sandbox", "/healthz/%2e%2e/v1/sandbox", "/healthz;/../v1/sandbox", "/..;/v1/sandbox",
		"/%76%31/sandbox", "/v1%2fsandbox", "/v1%2Fsandbox", "/%2fv1/sandbox", "/v1/sandbox%00", "/v1/sandbox%20",
		"/v1/sandbox%0d%0aX:1", `/\v1/sandbox`,
		"/healthz/", "/healthz?", "/healthz?x=1", "/healthz;x", "/healthz%20", "/healthz%00", "/health%7a",
		"/%68ealthz", "//healthz", "/./healthz",
		"/HEALTHZ", "/healthz.js", "/healthz/x", "/healthz%2f", "/healthz%2fv1", "/healthz#x", "/healthz%3fx", "/healthz\\",
		"/v1/sandbox?token=" + theToken, "/v1/sandbox?access_token=" + theToken, "/v1/sandbox?api_key=" + theKey,
		"/v1/sandbox?x-api-key=" + theKey,
		"/v1/sandbox?authorization=Bearer%20" + theToken, "/v1/sandbox?ticket=" + theToken, "/v1/sandbox?ticket=", "/v1/sandbox?jwt=x",
		"http://localhost/v1/sandbox", "http://localhost/healthz", "http://evil.example/v1/sandbox",
		"http://user:" + theToken + "@localhost/v1/sandbox",
		"http://localhost//v1/sandbox", "https://localhost/healthz", "*",
	}
	var starts []string
	for _, p := range paths {
		starts = append(starts, "GET "+p)
	}
	for _, m := range []string{"HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND",
		"get", "Get", "gET", "FOO", "PRI", "GET1"} {
		starts = append(starts, m+" /v1/sandbox", m+" /healthz")
	}
	starts = append(starts, "CONNECT localhost:8080", "OPTIONS *", "GET /v1/sandbox HTTP/1.0", "GET / HTTP/1.0", "GET /healthz/ HTTP/1.0")
	headers := map[string][]string{
		"plain":           nil,
		"preview host":    {"Host: 8091-x"},
		"preview host 2":  {"Host: 8091-x.localhost:8080"},
		"odd host":        {"Host: healthz"},
		"header preview":  {"X-Aio-Proxy-Port: 8091"},
		"method override": {"X-HTTP-Method-Override: GET", "X-Method-Override: GET"},
		"rewritten URL":   {"X-Original-URL: /healthz", "X-Rewrite-URL: /healthz", "X-Forwarded-Uri: /healthz", "X-Original-Uri: /healthz"},
		"claims of origin": {"X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "X-Forwarded-Host: localhost",
			"X-Forwarded-Prefix: /healthz", "Forwarded: for=127.0.0.1"},
		"claims of a user": {"X-Forwarded-User: root", "Remote-User: root", "X-Auth-Request-User: root"},
		"page":             {asPage},
		"upgrade":          {webSocket},
		"preflight":        {"Origin: http://localhost", "Access-Control-Request-Method: POST"},
	}
	for name, h := range headers {
		for _, start := range starts {
			r, err := s.raw(message(start, h...))
			if err != nil {
				t.Errorf("%s with %s: got error %v, want a reply", start, name, err)
				continue
			}
			// net/http itself rejects invalid requests with 400; 403 is for an Origin other than the target.
			if r.status != 401 && r.status != 400 && (r.status != 403 || name != "preflight") {
				t.Errorf("%s with %s: got status %d, want 401", start, name, r.status)
			}
			if r.status == 401 && r.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with %s: got no WWW-Authenticate, want one", start, name)
			}
			if strings.Contains(r.body, theToken) || strings.Contains(r.body, theKey) {
				t.Errorf("%s with %s: got a secret in the reply, want none", start, name)
			}
		}
	}
	if n := s.reached.Load(); n != 0 {
		t.Errorf("got %d requests in the handler, want 0", n)
	}
}

// wrongTokens are bearer tokens that must be rejected.
func wrongTokens(t *testing.T) map[string]string {
	t.Helper()
	public, err := x509.MarshalPKIXPublicKey(&signer().PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	valid := jwt.MapClaims{"sub": "alice", "exp": now.Add(time.Hour).Unix()}
	with := func(k string, v any) jwt.MapClaims {
		c := jwt.MapClaims{}
		for key, value := range valid {
			c[key] = value
		}
		if v == nil {
			delete(c, k)
		} else {
			c[k] = v
		}
		return c
	}
	good := goodJWT(t)
	parts := strings.Split(good, ".")
	none := sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, valid, nil)
	header := func(alg string) string {
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":%q,"typ":"JWT"}`, alg))
	}
	return map[string]string{
		"empty":                         "",
		"wrong token":                   theToken + "x",
		"prefix of the token":           theToken[:len(theToken)-1],
		"token in upper case":           strings.ToUpper(theToken),
		"API key as bearer":             theKey,
		"two tokens":                    theToken + " " + theToken,
		"list":                          theToken + ", Bearer " + theToken,
		"quoted":                        `"` + theToken + `"`,
		"alg none":                      none,
		"alg none in capitals":          strings.Replace(none, strings.Split(none, ".")[0], header("NONE"), 1),
		"alg None with a signature":     header("None") + "." + parts[1] + "." + parts[2],
		"alg empty":                     header("") + "." + parts[1] + ".",
		"alg RS256 without a signature": parts[0] + "." + parts[1] + ".",
		"HS256 with the public PEM":     sign(t, jwt.SigningMethodHS256, publicPEM, valid, nil),
		"HS256 with the base64 PEM":     sign(t, jwt.SigningMethodHS256, []byte(base64.StdEncoding.EncodeToString(publicPEM)), valid, nil),
		"HS256 with the public DER":     sign(t, jwt.SigningMethodHS256, public, valid, nil),
		"HS256 with an empty key":       sign(t, jwt.SigningMethodHS256, []byte{}, valid, nil),
		"RS384":                         sign(t, jwt.SigningMethodRS384, signer(), valid, nil),
		"RS512":                         sign(t, jwt.SigningMethodRS512, signer(), valid, nil),
		"PS256":                         sign(t, jwt.SigningMethodPS256, signer(), valid, nil),
		"another key":                   sign(t, jwt.SigningMethodRS256, other, valid, nil),
		"another key, sent along": sign(t, jwt.SigningMethodRS256, other, valid,
			map[string]any{"jwk": map[string]any{"kty": "RSA"}, "jku": "http://evil.example/k"}),
		"expired":              sign(t, jwt.SigningMethodRS256, signer(), with("exp", now.Add(-time.Minute).Unix()), nil),
		"not valid yet":        sign(t, jwt.SigningMethodRS256, signer(), with("nbf", now.Add(time.Minute).Unix()), nil),
		"without exp":          sign(t, jwt.SigningMethodRS256, signer(), with("exp", nil), nil),
		"exp is a text":        sign(t, jwt.SigningMethodRS256, signer(), with("exp", "tomorrow"), nil),
		"exp is negative":      sign(t, jwt.SigningMethodRS256, signer(), with("exp", -1), nil),
		"exp is zero":          sign(t, jwt.SigningMethodRS256, signer(), with("exp", 0), nil),
		"critical extension":   sign(t, jwt.SigningMethodRS256, signer(), valid, map[string]any{"crit": []string{"x"}, "x": 1}),
		"subject with control": sign(t, jwt.SigningMethodRS256, signer(), with("sub", "a\nb"), nil),
		"subject too long":     sign(t, jwt.SigningMethodRS256, signer(), with("sub", strings.Repeat("a", 300)), nil),
		"subject is a number":  sign(t, jwt.SigningMethodRS256, signer(), with("sub", 1), nil),
		"payload changed": parts[0] + "." +
			base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"root","exp":99999999999}`)) + "." + parts[2],
		"signature cut": good[:len(good)-2],
		"padding added": good + "==",
		"fourth part":   good + ".x",
		"too long":      sign(t, jwt.SigningMethodRS256, signer(), with("x", strings.Repeat("a", 9000)), nil),
		"dots":          "..",
		"garbage":       "\xff\xfe.\x01.x",
	}
}

// wrongHeaders are headers with a valid secret in a wrong place.
func wrongHeaders() map[string][]string {
	return map[string][]string{
		"basic with the token":        {"Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+theToken))},
		"token without a scheme":      {"Authorization: " + theToken},
		"unknown scheme":              {"Authorization: Token " + theToken},
		"scheme glued":                {"Authorization: Bearer" + theToken},
		"two headers, first right":    {"Authorization: Bearer " + theToken, "Authorization: Bearer x"},
		"two headers, second right":   {"Authorization: Bearer x", "Authorization: Bearer " + theToken},
		"two headers, both right":     {"Authorization: Bearer " + theToken, "authorization: Bearer " + theToken},
		"token as API key":            {"X-API-Key: " + theToken},
		"wrong API key":               {"X-API-Key: " + theKey + "x"},
		"two API keys":                {"X-API-Key: " + theKey, "X-Api-Key: x"},
		"other header names":          {"X-Auth-Token: " + theToken, "Api-Key: " + theKey, "X_API_KEY: " + theKey},
		"proxy header":                {"Proxy-Authorization: Bearer " + theToken},
		"token as cookie":             {"Cookie: token=" + theToken},
		"token as WebSocket protocol": {webSocket, "Sec-WebSocket-Protocol: " + theToken},
	}
}

func TestWrongCredentials(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	for name, token := range wrongTokens(t) {
		r, err := s.raw(message("GET /v1/sandbox", "Authorization: Bearer "+token))
		if err != nil || r.status != 401 && r.status != 400 {
			t.Errorf("%s: got status %d and error %v, want 401", name, r.status, err)
		}
	}
	for name, h := range wrongHeaders() {
		if r := s.send("GET /v1/sandbox", h...); r.status != 401 {
			t.Errorf("%s: got status %d, want 401", name, r.status)
		}
	}
	if n := s.reached.Load(); n != 0 {
		t.Errorf("got %d requests in the handler, want 0", n)
	}
}

func TestHugeHeadersAreRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	for name, h := range map[string]string{
		"one header":   "X: " + strings.Repeat("a", 1<<20),
		"token":        "Authorization: Bearer " + strings.Repeat("a.", 1<<19),
		"many headers": strings.Repeat("X: y\r\n", 1<<17) + "X: y",
		"cookies":      "Cookie: " + strings.Repeat(CookiePrefix+"a=b;", 1<<16),
	} {
		if r := s.send("GET /v1/sandbox", h); r.status != 431 {
			t.Errorf("%s: got status %d, want 431", name, r.status)
		}
	}
	if s.reached.Load() != 0 {
		t.Errorf("got %d requests in the handler, want 0", s.reached.Load())
	}
}

func TestUnconfiguredGuardRejectsAllRequests(t *testing.T) {
	t.Parallel()
	s := serve(t, Config{})
	for _, h := range []string{"X: y", "Authorization: Bearer ", "Authorization: Bearer x", "X-API-Key: ", "X-API-Key: x"} {
		if r := s.send("GET /", h); r.status != 401 {
			t.Errorf("%q: got status %d, want 401", h, r.status)
		}
	}
	if r := s.send("GET /healthz"); r.status != 401 {
		t.Errorf("public without Public: got status %d, want 401", r.status)
	}
}

// Host and headers of a public request must not affect its routing.
func TestPublicRequestsCarryOnlyTheUserAgent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{"closed": closed(), "open": open()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c)
			got := s.send("GET /healthz", "Host: 8091-x", "X-Aio-Proxy-Port: 8091", "User-Agent: probe", "Origin: http://evil.example",
				"Cookie: a=b", "Authorization: Bearer wrong", "Upgrade: websocket", "Content-Length: 4").seen(t)
			if got.Host != "localhost" || len(got.Header) != 1 || got.Header.Get("User-Agent") != "probe" || got.URI != "/healthz" || got.Known {
				t.Errorf("got %+v in the handler, want only the user agent of the caller", got)
			}
		})
	}
	s := serve(t, closed())
	got := s.send("GET /healthz", "Host: 8091-x", "Authorization: Bearer "+theToken).seen(t)
	if got.Host != "8091-x" || !got.Known {
		t.Errorf("with a credential: got %+v in the handler, want the whole request", got)
	}
}

// pages are requests of browsers and other clients, with the status that they get.
var pages = []struct {
	name    string
	start   string
	headers []string
	want    int
}{
	{"no browser", "POST /v1", nil, 200},
	{"own page", "POST /v1", []string{"Host: localhost:8080", "Origin: http://localhost:8080", "Sec-Fetch-Site: same-origin"}, 200},
	{"own page, standard port", "POST /v1", []string{"Host: x.example", "Origin: http://x.example"}, 200},
	{"own page behind TLS", "POST /v1", []string{"Host: x.example", "Origin: https://x.example", "X-Forwarded-Proto: https"}, 200},
	{"own page, port written out", "POST /v1", []string{"Host: x.example:443", "Origin: https://x.example", "X-Forwarded-Proto: https"}, 200},
	{"own page, IPv6", "POST /v1", []string{"Host: [::1]:8080", "Origin: http://[::1]:8080"}, 200},
	{"own WebSocket", "GET /v1/shell/ws", []string{webSocket, "Host: localhost:8080",
		"Origin: http://localhost:8080", "Sec-Fetch-Mode: websocket"}, 200},
	{"own WebSocket, called foreign by its scheme", "GET /v1/shell/ws",
		[]string{webSocket, "Host: localhost:8080", "Origin: http://localhost:8080", "Sec-Fetch-Site: cross-site"}, 200},
	{"address typed in", "GET /", []string{asPage, "Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 200},
	{"link from elsewhere", "GET /", []string{asPage, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate",
		"Sec-Fetch-Dest: document"}, 200},
	{"allowed origin", "POST /v1", []string{"Origin: https://app.example", "Sec-Fetch-Site: cross-site"}, 200},
	{"frame in an allowed page", "GET /", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate",
		"Sec-Fetch-Dest: iframe", "Referer: https://app.example/"}, 200},

	{"TLS that the request did not have", "POST /v1", []string{"Host: x.example", "Origin: https://x.example"}, 403},
	{"no TLS though the request had it", "POST /v1", []string{"Host: x.example", "Origin: http://x.example",
		"X-Forwarded-Proto: https"}, 403},
	{"TLS on the port without it", "POST /v1", []string{"Host: x.example:80", "Origin: https://x.example", "X-Forwarded-Proto: https"}, 403},
	{"another name of this server", "POST /v1", []string{"Host: 10.0.0.1:8080", "Origin: https://sandbox.example"}, 403},
	{"another name of this server, same scheme", "POST /v1", []string{"Host: 10.0.0.1:8080", "Origin: http://sandbox.example"}, 403},
	{"a name below localhost", "POST /v1", []string{"Host: localhost:8080", "Origin: http://x.localhost:9"}, 403},
	{"a name below localhost, same port", "POST /v1", []string{"Host: localhost:8080", "Origin: http://3000-evil.localhost:8080"}, 403},
	{"WebSocket from a name below localhost", "GET /v1/shell/ws", []string{webSocket, "Host: localhost:8080",
		"Origin: http://3000-evil.localhost:8080"}, 403},
	{"loopback by another address", "POST /v1", []string{"Host: localhost:8080", "Origin: http://127.0.0.1:8080"}, 403},
	{"foreign origin", "POST /v1", []string{"Origin: http://evil.example"}, 403},
	{"foreign origin, GET", "GET /v1", []string{"Origin: http://evil.example"}, 403},
	{"foreign origin, odd method", "get /v1", []string{"Origin: http://evil.example"}, 403},
	{"null origin", "POST /v1", []string{"Origin: null"}, 403},
	{"empty origin", "POST /v1", []string{"Origin: "}, 403},
	{"two origins", "POST /v1", []string{"Origin: http://localhost", "Origin: http://localhost"}, 403},
	{"another port", "POST /v1", []string{"Host: localhost:8080", "Origin: http://localhost:3000", "Sec-Fetch-Site: same-site"}, 403},
	{"another scheme", "POST /v1", []string{"Host: x.example", "Origin: http://x.example", "Sec-Fetch-Site: cross-site"}, 403},
	{"subdomain", "POST /v1", []string{"Host: x.example", "Origin: http://a.x.example"}, 403},
	{"name that begins alike", "POST /v1", []string{"Host: x.example", "Origin: http://x.example.evil.example"}, 403},
	{"user in the origin", "POST /v1", []string{"Host: x.example", "Origin: http://x.example@evil.example"}, 403},
	{"path in the origin", "POST /v1", []string{"Host: x.example", "Origin: http://x.example/"}, 403},
	{"extension", "POST /v1", []string{"Origin: chrome-extension://localhost"}, 403},
	{"origin with the allowed one as prefix", "POST /v1", []string{"Origin: https://app.example.evil.example"}, 403},
	{"allowed name without TLS", "POST /v1", []string{"Origin: http://app.example"}, 403},
	{"forwarded host is ignored", "POST /v1", []string{"Origin: http://evil.example", "X-Forwarded-Host: evil.example"}, 403},
	{"image", "GET /v1", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, 403},
	{"script from a neighbour port", "GET /v1", []string{"Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors",
		"Sec-Fetch-Dest: script"}, 403},
	{"frame", "GET /", []string{asPage, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, 403},
	{"frame with a false referrer", "GET /", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: iframe",
		"Referer: https://app.example.evil.example/"}, 403},
	{"form", "POST /v1", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate",
		"Sec-Fetch-Dest: document", "Origin: http://evil.example"}, 403},
	{"form without origin", "POST /v1", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 403},
	{"contradictory sites", "POST /v1", []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"}, 403},
	{"WebSocket", "GET /v1/shell/ws", []string{webSocket, "Origin: http://evil.example", "Sec-Fetch-Site: cross-site"}, 403},
	{"WebSocket that claims to navigate", "GET /v1/shell/ws", []string{webSocket, "Origin: http://evil.example",
		"Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 403},
	{"WebSocket from a neighbour port", "GET /v1/shell/ws", []string{webSocket, "Host: localhost:8080",
		"Origin: http://localhost:3000"}, 403},
	{"preflight", "OPTIONS /v1", []string{"Origin: http://evil.example", "Access-Control-Request-Method: POST"}, 403},
}

func TestForeignPages(t *testing.T) {
	t.Parallel()
	withAll := closed()
	withAll.AllowedOrigins = []string{"https://app.example"}
	withAll.PublicHosts = []string{"sandbox.example", "*.localhost"}
	s := serve(t, withAll)
	for _, tt := range pages {
		before := s.reached.Load()
		// With the right credential, so that only the origin decides.
		r := s.send(tt.start, append(tt.headers, "X-API-Key: "+theKey)...)
		if r.status != tt.want {
			t.Errorf("%s: got status %d, want %d: %s", tt.name, r.status, tt.want, r.body)
		}
		if (s.reached.Load() > before) != (tt.want == 200) {
			t.Errorf("%s: got handler reached %v, want %v", tt.name, tt.want != 200, tt.want == 200)
		}
		if tt.want == 403 && r.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: got CORS headers on a rejection, want none", tt.name)
		}
	}
}

func TestOpenServerAnswersOnlyToItsOwnNames(t *testing.T) {
	t.Parallel()
	c := open()
	c.PublicHosts = []string{"sandbox.example", "*.wild.example", "port.example:8080"}
	s := serve(t, c)
	insecure := c
	insecure.Insecure = true
	everywhere := serve(t, insecure)
	tests := []struct {
		host           string
		want, insecure int
	}{
		{"localhost", 200, 200}, {"localhost:8080", 200, 200}, {"LOCALHOST", 200, 200}, {"localhost.", 200, 200},
		{"3000-x.localhost:8080", 200, 200},
		{"127.0.0.1:8080", 200, 200}, {"127.9.9.9", 200, 200}, {"[::1]:8080", 200, 200}, {"[::ffff:127.0.0.1]", 200, 200},
		{"sandbox.example", 200, 200}, {"Sandbox.Example:99", 200, 200}, {"sandbox.example.", 200, 200},
		{"a.wild.example", 200, 200}, {"port.example:8080", 200, 200},
		{"evil.example", 403, 403}, {"localhost.evil.example", 403, 403}, {"127.0.0.1.evil.example", 403, 403},
		{"evillocalhost", 403, 403}, {"8091-x", 403, 403},
		{"wild.example", 403, 403}, {"evilwild.example", 403, 403}, {"port.example", 403, 403},
		{"port.example:1", 403, 403}, {"a.sandbox.example", 403, 403},
		{"192.0.2.1:8080", 403, 200}, {"10.0.0.1", 403, 200}, {"[2001:db8::1]:80", 403, 200}, {"0.0.0.0:8080", 403, 200}, {"[::]", 403, 200},
		{"127.1", 403, 403}, {"0x7f.1", 403, 403}, {"2130706433", 403, 403}, {"localhost:0", 403, 403},
		{"localhost:99999", 403, 403}, {"", 403, 403},
		{"localhost@evil.example", 403, 403}, {"localhost,evil.example", 403, 403}, {"::1", 403, 403},
		{"[::1", 403, 403}, {"[::1%25lo]", 403, 403},
	}
	for _, tt := range tests {
		for name, v := range map[*server]int{s: tt.want, everywhere: tt.insecure} {
			r := name.send("POST /v1/shell/exec HTTP/1.1", "Host: "+tt.host)
			// net/http itself refuses some with 400.
			if r.status != v && (v != 403 || r.status != 400) {
				t.Errorf("host %q: got status %d, want %d", tt.host, r.status, v)
			}
			if r.status == 403 && !strings.Contains(r.body, "rebinding") {
				t.Errorf("host %q: got %s, want rebinding as the reason", tt.host, r.body)
			}
		}
	}
	if r := s.send("GET / HTTP/1.0", "X: y", "host: evil.example"); r.status != 403 {
		t.Errorf("HTTP/1.0: got status %d, want 403", r.status)
	}
	if r := s.send("GET http://evil.example/ HTTP/1.1", "Host: localhost"); r.status != 403 {
		t.Errorf("absolute target of another host: got status %d, want 403", r.status)
	}
	if r := s.send("GET /", "Host: localhost", "Host: evil.example"); r.status != 400 {
		t.Errorf("two hosts: got status %d, want 400", r.status)
	}
	// A browser considers a rebound page to be of the same origin.
	if r := s.send("POST /v1", "Host: evil.example", "Origin: http://evil.example", "Sec-Fetch-Site: same-origin"); r.status != 403 {
		t.Errorf("rebound page: got status %d, want 403", r.status)
	}
	if r := s.send("POST /v1", "Host: localhost:8080", "Origin: http://evil.example"); r.status != 403 {
		t.Errorf("foreign page: got status %d, want 403", r.status)
	}
	if r := s.send("GET /v1/shell/ws", webSocket, "Host: localhost:8080", "Origin: http://evil.example"); r.status != 403 {
		t.Errorf("foreign WebSocket: got status %d, want 403", r.status)
	}
	unix := serveUnix(t, open())
	if r := unix.send("GET /", "Host: any.example"); r.status != 200 {
		t.Errorf("Unix socket: got status %d %s, want 200", r.status, r.body)
	}
}
