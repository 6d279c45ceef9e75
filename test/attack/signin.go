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

// patience is how long a reply may take on a busy machine.
const patience = time.Minute

// Raw sends a request as it is and returns the reply, or nothing if there is none.
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

// Status returns that of a reply; 0 means that it was cut off.
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

// Secrets that nobody may be told.
const (
	secretToken = "a-shared-secret-token"
	secretKey   = "an-api-key-of-ours"
)

// NewSignIn makes credentials.
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

// Env is the environment that the sandbox gets.
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

// refused are the ways in which others were entered, by name. They lead to the paths of a
// sandbox below prefix.
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
	get("not yet valid", "/v1/sandbox", bearer(t, jwt.SigningMethodRS256, s.private, jwt.MapClaims{"exp": in(2 * time.Hour), "nbf": in(time.Hour)}))
	get("no expiry", "/v1/sandbox", bearer(t, jwt.SigningMethodRS256, s.private, jwt.MapClaims{}))
	get("other key", "/v1/sandbox", bearer(t, jwt.SigningMethodRS256, other, jwt.MapClaims{"exp": in(time.Hour)}))
	get("other algorithm", "/v1/sandbox", bearer(t, jwt.SigningMethodRS512, s.private, jwt.MapClaims{"exp": in(time.Hour)}))
	get("huge header", "/v1/sandbox", "X-Huge: "+strings.Repeat("h", 1<<20)+"\r\n")
	get("websocket", "/v1/shell/ws", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")
	get("invented ticket", "/v1/sandbox?ticket=tkt_abc", "")
	get("port header", "/v1/sandbox", "x-aio-proxy-port: 8091\r\n")
	get("options", "/v1/sandbox", "Access-Control-Request-Method: GET\r\n")
	list["lower-case method"] = "get " + prefix + "/v1/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	list["options star"] = "OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	list["preview host"] = "GET " + prefix + "/v1/sandbox HTTP/1.1\r\nHost: 8091-x\r\n"
	list["absolute form"] = "GET http://127.0.0.1" + prefix + "/v1/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	return list
}

// Dial connects to what is attacked.
type Dial func() (net.Conn, error)

func (d Dial) send(t *testing.T, request string) string {
	t.Helper()
	c, err := d()
	if err != nil {
		t.Fatal(err)
	}
	return Raw(t, c, request+"Connection: close\r\n\r\n")
}

// AttackBelow tries every way into a sandbox that is served below a path.
func (s *SignIn) AttackBelow(t *testing.T, dial Dial, prefix string) {
	t.Helper()
	for name, request := range s.refused(t, prefix) {
		t.Run(name, func(t *testing.T) {
			reply := dial.send(t, request)
			if code := Status(t, reply); code != 0 && (code < 400 || code >= 500) {
				t.Errorf("got %.300q, want status 4xx or no reply", reply)
			}
			if strings.Contains(reply, "a-shared-secret") || strings.Contains(reply, "home_dir") {
				t.Errorf("it tells: %.300q, want reply without \"a-shared-secret\", reply without \"home_dir\"", reply)
			}
		})
	}
}

// Attack tries every way in, and then the three that are open.
func (s *SignIn) Attack(t *testing.T, dial Dial) {
	t.Helper()
	s.AttackBelow(t, dial, "")
	for name, header := range map[string]string{
		"jwt": bearer(t, jwt.SigningMethodRS256, s.private, jwt.MapClaims{"exp": in(time.Hour), "sub": "me"}), "token": bearerOf(secretToken), "key": "X-API-Key: " + secretKey + "\r\n",
	} {
		if reply := dial.send(t, "GET /v1/sandbox HTTP/1.1\r\nHost: 127.0.0.1\r\n"+header); Status(t, reply) != 200 {
			t.Errorf("%s: got %.200q, want status 200", name, reply)
		}
	}
	if reply := dial.send(t, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"); Status(t, reply) != 200 || !strings.HasSuffix(reply, "OK\n") {
		t.Errorf("healthz: got %.200q, want status 200 and OK", reply)
	}
}

// CheckLog fails if a log holds a secret.
func (s *SignIn) CheckLog(t testing.TB, log string) {
	t.Helper()
	if strings.Contains(log, "a-shared-secret") || strings.Contains(log, secretKey) {
		t.Error("the log holds a secret")
	}
}
