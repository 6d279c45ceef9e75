package auth

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"
)

// A server keeps connections for half a second if it did not read their requests to the end.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

const (
	theToken = "shared-token-hunter2"
	theKey   = "api-key-hunter3"
)

// signer is one key for all tests, because generating a key is slow.
var signer = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
})

// clock is a settable time.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// seen is the request that the handler behind the guard received.
type seen struct {
	Method, URI, Path, Query, Host string
	Header                         http.Header
	Identity                       Identity
	Known                          bool
	Body                           string
}

// server is a real HTTP server behind a guard.
type server struct {
	*Guard
	t       *testing.T
	network string
	addr    string
	reached atomic.Int64
	log     lockedBuffer
	clock   clock
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func healthOnly(method, path string) bool { return method == "GET" && path == "/healthz" }

// closed is a configuration with every credential.
func closed() Config {
	return Config{JWTPublicKey: &signer().PublicKey, Token: theToken, APIKey: theKey, Public: healthOnly}
}

func open() Config { return Config{Open: true, Public: healthOnly} }

func serve(t *testing.T, c Config) *server {
	t.Helper()
	return serveOn(t, c, "tcp", "127.0.0.1:0")
}

func serveUnix(t *testing.T, c Config) *server {
	t.Helper()
	return serveOn(t, c, "unix", filepath.Join(t.TempDir(), "s"))
}

func serveOn(t *testing.T, c Config, network, address string) *server {
	t.Helper()
	s := &server{t: t, network: network}
	if c.Now == nil {
		c.Now = s.clock.now
	}
	c.Log = slog.New(slog.NewTextHandler(&s.log, nil))
	s.Guard = New(c)
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	h := &http.Server{
		Handler: s.Wrap(http.HandlerFunc(s.handle)), MaxHeaderBytes: 32 << 10, DisableGeneralOptionsHandler: true,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo), ReadHeaderTimeout: time.Minute,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Serve(l)
	}()
	t.Cleanup(func() {
		_ = h.Close()
		<-done
		for _, secret := range []string{theToken, theKey} {
			if strings.Contains(s.log.String(), secret) {
				t.Errorf("got log %s, want no secret in it", s.log.String())
			}
		}
	})
	return s
}

func (s *server) handle(w http.ResponseWriter, r *http.Request) {
	s.reached.Add(1)
	id, known := FromContext(r.Context())
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	_ = json.NewEncoder(w).Encode(seen{
		Method: r.Method, URI: r.RequestURI, Path: r.URL.Path, Query: r.URL.RawQuery, Host: r.Host,
		Header: r.Header, Identity: id, Known: known, Body: string(body),
	})
}

// reply is an answer read from the wire.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) seen(t *testing.T) seen {
	t.Helper()
	var s seen
	if err := json.Unmarshal([]byte(r.body), &s); err != nil {
		t.Fatalf("got status %d %s, want the reply of the handler", r.status, r.body)
	}
	return s
}

// raw sends bytes unmodified. The client of net/http would normalize what an attacker sends.
func (s *server) raw(request string) (reply, error) {
	conn, err := net.Dial(s.network, s.addr)
	if err != nil {
		return reply{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	wrote := make(chan struct{})
	go func() { // a server that rejects a request early does not read all of it
		defer close(wrote)
		_, _ = io.WriteString(conn, request)
	}()
	method, _, _ := strings.Cut(request, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		conn.Close()
		<-wrote
		return reply{}, fmt.Errorf("read reply: %w", err)
	}
	defer res.Body.Close()
	var body []byte
	if res.StatusCode != http.StatusSwitchingProtocols {
		body, _ = io.ReadAll(res.Body)
	}
	conn.Close()
	<-wrote
	return reply{res.StatusCode, res.Header, string(body)}, nil
}

// send sends a request with a start line and headers. It adds Host and Connection if they are missing.
func (s *server) send(start string, headers ...string) reply {
	s.t.Helper()
	r, err := s.raw(message(start, headers...))
	if err != nil {
		s.t.Fatalf("%s: %v", start, err)
	}
	return r
}

func message(start string, headers ...string) string {
	if !strings.Contains(start, " HTTP/") {
		start += " HTTP/1.1"
	}
	all := strings.ToLower("\n" + strings.Join(headers, "\n"))
	if !strings.Contains(all, "\nhost:") {
		headers = append([]string{"Host: localhost"}, headers...)
	}
	if !strings.Contains(all, "\nconnection:") {
		headers = append(headers, "Connection: close")
	}
	return start + "\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
}

func (s *server) ticket() string {
	s.t.Helper()
	ticket, _, err := s.Issue(NewContext(context.Background(), Identity{Subject: "alice", Via: ViaJWT}))
	if err != nil {
		s.t.Fatal(err)
	}
	return ticket
}

// openSession uses a ticket and returns the cookie as "name=value".
func (s *server) openSession(headers ...string) string {
	s.t.Helper()
	r := s.send("GET /?ticket="+s.ticket(), headers...)
	cookie, _, _ := strings.Cut(r.header.Get("Set-Cookie"), ";")
	if cookie == "" {
		s.t.Fatalf("got status %d %s without a cookie, want one", r.status, r.body)
	}
	return cookie
}

func sign(t testing.TB, method jwt.SigningMethod, key any, claims jwt.MapClaims, header map[string]any) string {
	t.Helper()
	tok := jwt.NewWithClaims(method, claims)
	for k, v := range header {
		tok.Header[k] = v
	}
	s, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func goodJWT(t testing.TB) string {
	t.Helper()
	return sign(t, jwt.SigningMethodRS256, signer(), jwt.MapClaims{"sub": "alice", "exp": time.Now().Add(time.Hour).Unix()}, nil)
}

const (
	webSocket = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
	asPage    = "Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"
)
