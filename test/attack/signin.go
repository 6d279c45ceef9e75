package attack

import (
	"bufio"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// patience bounds the time of a response on a busy machine.
const patience = time.Minute

// Raw sends a request unmodified and returns the response, or "".
func Raw(t testing.TB, c net.Conn, request string) string {
	t.Helper()
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	go io.WriteString(c, request)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	dump, err := httputil.DumpResponse(res, true)
	if err != nil {
		return ""
	}
	return string(dump)
}

// Status returns the status of a response; 0 means that it was truncated.
func Status(t testing.TB, reply string) int {
	t.Helper()
	fields := strings.Fields(reply)
	if len(fields) < 2 {
		return 0
	}
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatalf("got %.200q, want an HTTP reply", reply)
	}
	return n
}

// SignIn is the set of credentials of a sandbox that is attacked.
type SignIn struct {
	private *rsa.PrivateKey
	public  []byte
}

// Secrets that no response may contain.
const (
	secretToken = "a-shared-secret-token"
	secretKey   = "an-api-key-of-ours"
)

// NewSignIn creates credentials.
func NewSignIn(t testing.TB) *SignIn {
	t.Helper()
	private, public := newKey(t)
	return &SignIn{private, public}
}

func newKey(t testing.TB) (*rsa.PrivateKey, []byte) {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// Env returns the environment of the sandbox.
func (s *SignIn) Env() []string {
	return []string{"JWT_PUBLIC_KEY=" + base64.StdEncoding.EncodeToString(s.public), "AUTH_TOKEN=" + secretToken, "AIO_API_KEY=" + secretKey}
}

func bearer(t testing.TB, method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	token, err := jwt.NewWithClaims(method, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return bearerOf(token)
}

func bearerOf(token string) string { return "Authorization: Bearer " + token + "\r\n" }

func in(d time.Duration) int64 { return time.Now().Add(d).Unix() }

// refused returns requests that bypassed the authentication of other servers, by name, to paths
// of a sandbox below prefix.
func (s *SignIn) refused(t testing.TB, prefix string) map[string]string {
	t.Helper()
	other, _ := newKey(t)
	list := map[string]string{}
	get := func(name, target, header string) {
		list[name] = "GET " + prefix + target + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header
	}
	get("nothing", "/v1/sandbox", "")
	get("suffix in the query", "/v1/sandbox?x=.js", "")
	get("encoded slash", "/v1%2fsandbox", "")
	get("doubled slash", "//v1/sandbox", "")
	get("doubled inside", "/v1//sandbox", "")
	get("semicolon", "/healthz/..;/v1/sandbox", "")
	get("dots", "/healthz/../v1/sandbox", "")
	get("encoded dots", "/healthz/%2e%2e/v1/sandbox", "")
	get("near the open path", "/healthz/", "")
	get("encoded open path", "/%68ealthz", "")
	get("open path, query to route", "/readyz?x=/healthz", "")
	get("metrics", "/metrics", "")
	get("page", "/v1/docs/docs.js", "")
	get("token in the query", "/v1/sandbox?token="+secretToken+"&access_token="+secretToken, "")
	get("wrong token", "/v1/sandbox", bearerOf("wrong"))
	get("no algorithm", "/v1/sandbox", bearer(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, jwt.MapClaims{"exp": in(time.Hour)}))
	get("public key as secret", "/v1/sandbox", bearer(t, jwt.SigningMethodHS256, s.public, jwt.MapClaims{"exp": in(time.Hour)}))
	get("expired", "/v1/sandbox", bearer(t, jwt.SigningMethodRS256, s.private, jwt.MapClaims{"exp": in(-time.Hour)}))
	get("not yet valid", "/v1/sandbox", bearer(t, jwt.SigningMethodRS256, s.private,
		jwt.MapClaims{"exp": in(2 * time.Hour), "nbf": in(time.Hour)}))
	get("no expiry", "/v1/sandbox", bearer(t, jwt.SigningMethodRS256, s.private, jwt.MapClaims{}))
	get("other key", "/v1/sandbox", bearer(t, jwt.SigningMethodRS256, other, jwt.MapClaims{"exp": in(time.Hour)}))
	get("other algorithm", "/v1/sandbox", bearer(t, jwt.SigningMethodRS512, s.private, jwt.MapClaims{"exp": in(time.Hour)}))
	get("huge header", "/v1/sandbox", "X-Huge: "+strings.Repeat("h", 1<<20)+"\r\n")
	get("websocket", "/v1/shell/ws",
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")
	get("invented ticket", "/v1/sandbox?ticket=tkt_abc", "")
	get("port header", "/v1/sandbox", "x-aio-proxy-port: 8091\r\n")
	get("options", "/v1/sandbox", "Access-Control-Request-Method: GET\r\n")
	list["lower-case method"] = "get " + prefix + "/v1/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	list["options star"] = "OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	list["preview host"] = "GET " + prefix + "/v1/sandbox HTTP/1.1\r\nHost: 8091-x\r\n"
	list["absolute form"] = "GET http://127.0.0.1" + prefix + "/v1/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	return list
}

// doors returns requests that are routed in different ways, without the end of their headers.
func doors(prefix string) map[string]string {
	socket := "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	all := map[string]string{}
	for name, start := range map[string]string{
		"context": "GET /v1/sandbox", "command": "POST /v1/bash/exec", "file": "GET /v1/file/download?path=/etc/passwd",
		"daemon": "GET /e2b/envd/files?path=/etc/passwd", "port": "GET /proxy/3000/", "tools": "POST /mcp",
		"ticket": "POST /tickets", "page": "GET /terminal?command=id", "browser": "GET /json/version",
		"delete": "DELETE /v1/skills", "cleaned path": "GET //v1/./sandbox", "python": "POST /v1/jupyter/execute",
		"node": "POST /v1/nodejs/execute", "code": "POST /v1/code/execute", "shell command": "POST /v1/shell/exec",
		"upload": "POST /v1/file/upload", "write": "POST /v1/file/write", "archive": "GET /v1/file/archive?path=/",
		"watch": "GET /v1/file/watch", "screenshot": "GET /v1/browser/screenshot",
		"script": "POST /v1/browser/page/evaluate", "cookies": "GET /v1/browser/cookies",
		"clipboard": "GET /v1/display/clipboard", "upstream": "PUT /v1/proxy/upstream", "hooks": "POST /v1/sandbox/hooks",
		"activity": "GET /v1/sandbox/activity/export", "live": "GET /v1/sandbox/observe/live",
	} {
		method, path, _ := strings.Cut(start, " ")
		all[name] = method + " " + prefix + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n"
		if method == http.MethodPost {
			all[name] += "Content-Length: 0\r\n"
		}
	}
	for name, path := range map[string]string{"shell": "/v1/shell/ws", "desktop": "/websockify", "tunnel": "/v1/sandbox/ports/22/tunnel",
		"listen": "/v1/sandbox/ports/9000/listen", "accept": "/v1/sandbox/ports/9000/accept?id=x"} {
		all[name] = "GET " + prefix + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + socket
	}
	return all
}

// forged returns headers that resemble a credential, each with one flaw.
func (s *SignIn) forged(t testing.TB) map[string]string {
	t.Helper()
	other, _ := newKey(t)
	valid := jwt.MapClaims{"exp": in(time.Hour), "sub": "me"}
	cookie := func(value string) string {
		return "Cookie: cove_session_000000000000=" + value + "; cove_session=" + value + "\r\n"
	}
	encoded := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return map[string]string{
		"token cut": bearerOf(secretToken[1:]), "token longer": bearerOf(secretToken + "x"),
		"token in capitals": bearerOf(strings.ToUpper(secretToken)), "token quoted": bearerOf(`"` + secretToken + `"`),
		"token twice": bearerOf(secretToken) + bearerOf(secretToken), "token as basic": "Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte("u:"+secretToken)) + "\r\n",
		"token without a scheme": "Authorization: " + secretToken + "\r\n", "token as key": "X-API-Key: " +
			secretToken + "\r\n", "token to a proxy": "Proxy-Authorization: Bearer " + secretToken + "\r\n",
		"token as cookie": cookie(secretToken), "token as subprotocol": "Sec-WebSocket-Protocol: " + secretToken +
			"\r\n", "token as access token": "X-Access-Token: " + secretToken + "\r\n",
		"key cut": "X-API-Key: " + secretKey[1:] + "\r\n", "key longer": "X-API-Key: " + secretKey + "x\r\n",
		"two halves of the key":      "X-API-Key: " + secretKey[:9] + "\r\nX-Api-Key: " + secretKey[9:] + "\r\n",
		"key as bearer with a space": bearerOf(secretKey + " x"), "key under another name": "X-Auth-Key: " +
			secretKey + "\r\nApi-Key: " + secretKey + "\r\n", "key folded": "X-API-Key:\r\n " + secretKey[1:] + "\r\n",
		"jwt by another key": bearer(t, jwt.SigningMethodRS256, other, valid), "jwt by HMAC": bearer(t, jwt.SigningMethodHS256, s.public, valid),
		"jwt without an algorithm": bearer(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, valid),
		"jwt by PS256":             bearer(t, jwt.SigningMethodPS256, s.private, valid),
		"jwt expired": bearer(t, jwt.SigningMethodRS256, s.private,
			jwt.MapClaims{"exp": in(-time.Hour), "sub": "me"}), "jwt without a subject": bearer(t, jwt.SigningMethodRS256,
			s.private, jwt.MapClaims{"exp": in(time.Hour)}),
		"jwt without an end": bearer(t, jwt.SigningMethodRS256, s.private, jwt.MapClaims{"sub": "me"}),
		"jwt of the future": bearer(t, jwt.SigningMethodRS256, s.private,
			jwt.MapClaims{"exp": in(2 * time.Hour), "nbf": in(time.Hour), "sub": "me"}),
		"jwt without a signature": bearerOf(encoded(`{"alg":"RS256","typ":"JWT"}`) + "." + encoded(`{"sub":"me","exp":99999999999}`) + "."),
		"session that is empty":   cookie(""), "session that is not ours": cookie(encoded("operator") + "." +
			encoded(strings.Repeat("x", 32))), "session of zeros": cookie(encoded(string(make([]byte, 10))) + "." +
			encoded(string(make([]byte, 32)))),
		"user of a proxy":        "X-Forwarded-User: root\r\nRemote-User: root\r\n",
		"address of a proxy":     "X-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n",
		"call of a hub":          "X-Cove-Internal-Call: {\"Subject\":\"root\",\"Role\":\"admin\"}\r\n",
		"own page":               "Origin: http://127.0.0.1\r\nSec-Fetch-Site: same-origin\r\n",
		"foreign page":           "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n",
		"page without an origin": "Origin: null\r\nSec-Fetch-Site: cross-site\r\n",
		"port by header":         "X-Aio-Proxy-Port: 49983\r\n",
		"client of a sandbox":    "E2b-Sandbox-Id: sb0000000000000000\r\nX-Access-Token: cova_0\r\n",
		"another method":         "X-HTTP-Method-Override: OPTIONS\r\n",
		"another path":           "X-Original-URL: /healthz\r\nX-Rewrite-URL: /healthz\r\n",
	}
}

// passes returns paths that resemble paths with a session.
func passes(prefix string) []string {
	var all []string
	for _, pass := range []string{"~", "~x", "~" + strings.Repeat("A", 43), "~" + strings.Repeat("A", 86) + "." +
		strings.Repeat("A", 43), "~..", "~%2e%2e", "~%00", "~" + secretToken, "~" + secretKey} {
		for _, path := range []string{"/v1/sandbox", "/v1/shell/ws", "/proxy/3000/"} {
			all = append(all, "GET "+prefix+"/"+pass+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\n")
		}
	}
	return all
}

// Dial connects to the server under attack.
type Dial func() (net.Conn, error)

func (d Dial) send(t *testing.T, request string) string {
	t.Helper()
	c, err := d()
	if err != nil {
		t.Fatal(err)
	}
	return Raw(t, c, request+"Connection: close\r\n\r\n")
}

// AttackBelow runs all attacks on a sandbox that is served below a path.
func (s *SignIn) AttackBelow(t *testing.T, dial Dial, prefix string) {
	t.Helper()
	attempts := 0
	try := func(t *testing.T, name, request string) {
		t.Helper()
		attempts++
		reply := dial.send(t, request)
		if code := Status(t, reply); code != 0 && (code < 400 || code >= 500) {
			t.Errorf("%s: got %.300q, want status 4xx or no reply", name, reply)
		}
		if strings.Contains(reply, "a-shared-secret") || strings.Contains(reply, "home_dir") {
			t.Errorf("%s: got %.300q, want a reply without secrets", name, reply)
		}
	}
	for name, request := range s.refused(t, prefix) {
		t.Run(name, func(t *testing.T) { try(t, name, request) })
	}
	forged := s.forged(t)
	for door, request := range doors(prefix) {
		t.Run("forged at the door "+door, func(t *testing.T) {
			for name, header := range forged {
				try(t, name, request+header)
			}
		})
	}
	t.Run("paths with a pass", func(t *testing.T) {
		for _, request := range passes(prefix) {
			try(t, request, request)
		}
	})
	if t.Logf("%d attempts to sign in", attempts); attempts < minSignIns {
		t.Errorf("%d attempts, want at least %d", attempts, minSignIns)
	}
}

// minSignIns is the minimum number of attempts to sign in at each server.
const minSignIns = 1200

// Attack runs all attacks, and then signs in with the three kinds of credentials.
func (s *SignIn) Attack(t *testing.T, dial Dial) {
	t.Helper()
	s.AttackBelow(t, dial, "")
	for name, header := range map[string]string{
		"jwt":   bearer(t, jwt.SigningMethodRS256, s.private, jwt.MapClaims{"exp": in(time.Hour), "sub": "me"}),
		"token": bearerOf(secretToken), "key": "X-API-Key: " + secretKey + "\r\n",
	} {
		if reply := dial.send(t, "GET /v1/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\n"+header); Status(t, reply) != 200 {
			t.Errorf("%s: got %.200q, want status 200", name, reply)
		}
	}
	if reply := dial.send(t, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"); Status(t, reply) != 200 || !strings.HasSuffix(reply, "OK\n") {
		t.Errorf("healthz: got %.200q, want status 200 and OK", reply)
	}
}

// CheckLog fails if a log contains a secret.
func (s *SignIn) CheckLog(t testing.TB, log string) {
	t.Helper()
	for line := range strings.Lines(log) {
		if strings.Contains(line, "a-shared-secret") || strings.Contains(line, secretKey) {
			t.Errorf("the log contains a secret: %s", line)
		}
	}
}
