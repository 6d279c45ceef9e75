package e2e

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/attack"
)

func status(t *testing.T, reply string) int { t.Helper(); return attack.Status(t, reply) }

// The program rejects attacks that succeeded against similar products.
func TestRequestsWithoutCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	in := attack.NewSignIn(t)
	// At this level, the log contains rejected requests.
	s := launch(t, aio, []string{"serve", "--listen", "127.0.0.1:0", "--log-level", "info"}, t.TempDir(), in.Env())
	t.Cleanup(func() { s.stop(t) })
	in.Attack(t, func() (net.Conn, error) { return net.DialTimeout("tcp", s.addr(), patience) })
	in.CheckLog(t, s.log.String())
}

// A program in the sandbox has no credentials and needs none to reach its own sandbox.
func TestInsideNeedsNoCredentials(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	s := serve(t, "AUTH_TOKEN=a-shared-secret-token", "RUN_HOOK_POST_READY="+aio+" sandbox hook-list > "+out+
		"/list; env > "+out+"/env; touch "+out+"/done")
	testenv.Poll(t, "the hook's end", func() bool { _, err := os.Stat(out + "/done"); return err == nil })
	if b, err := os.ReadFile(out + "/list"); err != nil || string(b) != "[]\n" {
		t.Errorf("%q %v, want %q", b, err, "[]\n")
	}
	if b, err := os.ReadFile(out + "/env"); err != nil || strings.Contains(string(b), "a-shared-secret") {
		t.Errorf("a child process has the token: %s %v, want without \"a-shared-secret\"", b, err)
	}
	if code, _ := s.get(t, "/v1/sandbox"); code != 401 {
		t.Errorf("outside: %d, want code 401", code)
	}
}

// A ticket opens one page and sets a cookie for later requests. A second use of the ticket fails.
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
	open := "GET /v1/docs?ticket=" + ticket.Ticket + " HTTP/1.1\r\nHost: " + s.addr() +
		"\r\nAccept: text/html\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\nConnection: close\r\n\r\n"
	reply := raw(t, s.addr(), open)
	_, cookie, ok := strings.Cut(reply, "Set-Cookie: ")
	if status(t, reply) != 303 || !ok {
		t.Fatalf("got %.400q, want status 303 with a cookie", reply)
	}
	cookie, _, _ = strings.Cut(cookie, ";")
	if reply := raw(t, s.addr(), "GET /v1/docs HTTP/1.1\r\nHost: "+s.addr()+"\r\nCookie: "+cookie+
		"\r\nConnection: close\r\n\r\n"); status(t, reply) != 200 {
		t.Errorf("with the cookie: got %.300q, want status 200", reply)
	}
	if reply := raw(t, s.addr(), open); status(t, reply) != 401 {
		t.Errorf("second use of the ticket: got %.300q, want status 401", reply)
	}
}

// Without credentials, a server on loopback accepts only local callers.
func TestLoopbackIsForThisMachine(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for name, header := range map[string]string{
		"rebound name":  "Host: evil.example\r\n",
		"preview host":  "Host: 8091-x\r\n",
		"other page":    "Host: " + s.addr() + "\r\nOrigin: http://evil.example\r\n",
		"other site":    "Host: " + s.addr() + "\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\n",
		"opaque origin": "Host: " + s.addr() + "\r\nOrigin: null\r\n",
		"foreign socket": "Host: " + s.addr() +
			"\r\nOrigin: http://evil.example\r\nConnection: Upgrade\r\nUpgrade: " +
			"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
		"forwarded prefix": "Host: evil.example\r\nX-Forwarded-Host: 127.0.0.1\r\n",
	} {
		if reply := raw(t, s.addr(), "GET /v1/sandbox HTTP/1.1\r\n"+header+"\r\n"); status(t, reply) != 403 {
			t.Errorf("%s: got %.200q, want status 403", name, reply)
		}
	}
}
