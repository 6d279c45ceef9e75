package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// key makes a key pair and what JWT_PUBLIC_KEY holds.
func key(t *testing.T) (*rsa.PrivateKey, string, []byte) {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&k.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	return k, base64.StdEncoding.EncodeToString(text), text
}

func token(t *testing.T, method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	s, err := jwt.NewWithClaims(method, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func status(t *testing.T, reply string) int {
	t.Helper()
	fields := strings.Fields(reply)
	if len(fields) < 2 {
		return 0 // cut off
	}
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatalf("got %.200q, want an HTTP reply", reply)
	}
	return n
}

// The ways in which others were entered: each is refused by the whole program.
func TestNobodyGetsIn(t *testing.T) {
	t.Parallel()
	private, public, text := key(t)
	other, _, _ := key(t)
	s := serve(t, "JWT_PUBLIC_KEY="+public, "AUTH_TOKEN=a-shared-secret-token", "AIO_API_KEY=an-api-key-of-ours")
	hour := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	bearer := func(tok string) string { return "Authorization: Bearer " + tok + "\r\n" }
	refused := map[string]string{}
	get := func(name, target, header string) {
		refused[name] = "GET " + target + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header
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
	get("token in the query", "/v1/sandbox?token=a-shared-secret-token&access_token=a-shared-secret-token", "")
	get("wrong token", "/v1/sandbox", bearer("wrong"))
	get("no algorithm", "/v1/sandbox", bearer(token(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, jwt.MapClaims{"exp": hour(time.Hour)})))
	get("public key as secret", "/v1/sandbox", bearer(token(t, jwt.SigningMethodHS256, text, jwt.MapClaims{"exp": hour(time.Hour)})))
	get("expired", "/v1/sandbox", bearer(token(t, jwt.SigningMethodRS256, private, jwt.MapClaims{"exp": hour(-time.Hour)})))
	get("not yet valid", "/v1/sandbox", bearer(token(t, jwt.SigningMethodRS256, private, jwt.MapClaims{"exp": hour(2 * time.Hour), "nbf": hour(time.Hour)})))
	get("no expiry", "/v1/sandbox", bearer(token(t, jwt.SigningMethodRS256, private, jwt.MapClaims{})))
	get("other key", "/v1/sandbox", bearer(token(t, jwt.SigningMethodRS256, other, jwt.MapClaims{"exp": hour(time.Hour)})))
	get("other algorithm", "/v1/sandbox", bearer(token(t, jwt.SigningMethodRS512, private, jwt.MapClaims{"exp": hour(time.Hour)})))
	get("huge header", "/v1/sandbox", "X-Huge: "+strings.Repeat("h", 1<<20)+"\r\n")
	get("websocket", "/v1/shell/ws", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")
	get("invented ticket", "/v1/sandbox?ticket=tkt_abc", "")
	get("port header", "/v1/sandbox", "x-aio-proxy-port: 8091\r\n")
	get("options", "/v1/sandbox", "Access-Control-Request-Method: GET\r\n")
	refused["lower-case method"] = "get /v1/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	refused["options star"] = "OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	refused["preview host"] = "GET /v1/sandbox HTTP/1.1\r\nHost: 8091-x\r\n"
	refused["absolute form"] = "GET http://127.0.0.1/v1/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	for name, request := range refused {
		t.Run(name, func(t *testing.T) {
			reply := raw(t, s.addr(), request+"Connection: close\r\n\r\n")
			if code := status(t, reply); code != 0 && (code < 400 || code >= 500) {
				t.Errorf("got %.300q, want status 4xx or no reply", reply)
			}
			if strings.Contains(reply, "a-shared-secret") || strings.Contains(reply, "home_dir") {
				t.Errorf("it tells: %.300q, want reply without \"a-shared-secret\", reply without \"home_dir\"", reply)
			}
		})
	}
	for name, header := range map[string]string{
		"jwt": bearer(token(t, jwt.SigningMethodRS256, private, jwt.MapClaims{"exp": hour(time.Hour), "sub": "me"})), "token": bearer("a-shared-secret-token"), "key": "X-API-Key: an-api-key-of-ours\r\n",
	} {
		if reply := raw(t, s.addr(), "GET /v1/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\n"+header+"Connection: close\r\n\r\n"); status(t, reply) != 200 {
			t.Errorf("%s: got %.200q, want status 200", name, reply)
		}
	}
	if code, body := s.get(t, "/healthz"); code != 200 || body != "OK\n" {
		t.Errorf("healthz: %d %s, want code 200, %q", code, body, "OK\n")
	}
	if log := s.log.String(); strings.Contains(log, "a-shared-secret") || strings.Contains(log, "an-api-key") {
		t.Error("the log holds a secret")
	}
}

// A program inside needs no credentials, holds none, and reaches its own sandbox.
func TestInsideNeedsNoCredentials(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	s := serve(t, "AUTH_TOKEN=a-shared-secret-token", "RUN_HOOK_POST_READY="+aio+" sandbox hook-list > "+out+"/list; env > "+out+"/env; touch "+out+"/done")
	testenv.Poll(t, "the hook's end", func() bool { _, err := os.Stat(out + "/done"); return err == nil })
	if b, err := os.ReadFile(out + "/list"); err != nil || string(b) != "[]\n" {
		t.Errorf("%q %v, want %q", b, err, "[]\n")
	}
	if b, err := os.ReadFile(out + "/env"); err != nil || strings.Contains(string(b), "a-shared-secret") {
		t.Errorf("a child holds the token: %s %v, want without \"a-shared-secret\"", b, err)
	}
	if code, _ := s.get(t, "/v1/sandbox"); code != 401 {
		t.Errorf("outside: %d, want code 401", code)
	}
}

// A ticket opens one page; its cookie goes on; a second use does not.
func TestTicket(t *testing.T) {
	t.Parallel()
	s := serve(t, "AUTH_TOKEN=a-shared-secret-token")
	req, err := http.NewRequest("POST", s.URL+"/tickets", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer a-shared-secret-token")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var ticket struct {
		Ticket    string `json:"ticket"`
		ExpiresIn int    `json:"expires_in"`
	}
	if err := json.NewDecoder(res.Body).Decode(&ticket); err != nil || ticket.ExpiresIn != 30 {
		t.Fatalf("%+v %v, want ExpiresIn 30", ticket, err)
	}
	res.Body.Close()
	open := "GET /v1/docs?ticket=" + ticket.Ticket + " HTTP/1.1\r\nHost: " + s.addr() + "\r\nAccept: text/html\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\nConnection: close\r\n\r\n"
	reply := raw(t, s.addr(), open)
	_, cookie, ok := strings.Cut(reply, "Set-Cookie: ")
	if status(t, reply) != 303 || !ok {
		t.Fatalf("got %.400q, want status 303 with a cookie", reply)
	}
	cookie, _, _ = strings.Cut(cookie, ";")
	if reply := raw(t, s.addr(), "GET /v1/docs HTTP/1.1\r\nHost: "+s.addr()+"\r\nCookie: "+cookie+"\r\nConnection: close\r\n\r\n"); status(t, reply) != 200 {
		t.Errorf("with the cookie: got %.300q, want status 200", reply)
	}
	if reply := raw(t, s.addr(), open); status(t, reply) != 401 {
		t.Errorf("second use of the ticket: got %.300q, want status 401", reply)
	}
}

// Without credentials on loopback only this machine's own callers get in.
func TestLoopbackIsForThisMachine(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for name, header := range map[string]string{
		"rebound name":     "Host: evil.example\r\n",
		"preview host":     "Host: 8091-x\r\n",
		"other page":       "Host: " + s.addr() + "\r\nOrigin: http://evil.example\r\n",
		"other site":       "Host: " + s.addr() + "\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n",
		"opaque origin":    "Host: " + s.addr() + "\r\nOrigin: null\r\n",
		"foreign socket":   "Host: " + s.addr() + "\r\nOrigin: http://evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
		"forwarded prefix": "Host: evil.example\r\nX-Forwarded-Host: 127.0.0.1\r\n",
	} {
		if reply := raw(t, s.addr(), "GET /v1/sandbox HTTP/1.1\r\n"+header+"\r\n"); status(t, reply) != 403 {
			t.Errorf("%s: got %.200q, want status 403", name, reply)
		}
	}
}
