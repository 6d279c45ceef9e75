package e2e

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const hostileRequests = 10_000

// After 10,000 random and hostile requests, the server still runs, its memory has not grown, and its
// log has no stack traces. A leak grows with each round; the heap alone also varies with the load of
// the machine.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	s := serve(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const rounds = 5
	memory := make([]int, rounds)
	for round := range memory {
		flood(t, s, seed+uint64(round), hostileRequests/rounds)
		memory[round] = rss(t, s)
	}
	least := memory[1] - memory[0]
	for round := range rounds - 1 {
		least = min(least, memory[round+1]-memory[round])
	}
	if least > 1<<10 {
		t.Errorf("memory after each round: got %d KiB, each at least %d KiB more, want it to stop growing", memory, least)
	}
	if status, _ := s.get(t, "/healthz"); status != http.StatusOK {
		t.Errorf("the server answers %d, want status 200", status)
	}
	for _, bad := range []string{"panic", "goroutine ", ".go:"} {
		if strings.Contains(s.log.String(), bad) {
			t.Errorf("the log has %q: %s, want a log without %q", bad, s.log, bad)
		}
	}
}

func flood(t *testing.T, s *server, seed uint64, n int) {
	t.Helper()
	const workers = 8
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for range n / workers {
				hostile(t, s.addr(), r)
			}
		})
	}
	wait.Wait()
}

// hostile sends one request. The status must not be 500.
func hostile(t *testing.T, addr string, r *rand.Rand) {
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Errorf("the server does not respond: %v", err)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	request := compose(r)
	go func() {
		io.WriteString(c, request)
		c.(*net.TCPConn).CloseWrite() // an announced body never arrives
	}()
	if r.IntN(20) == 0 {
		return // the caller disconnects
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return // an invalid request may be cut off
	}
	defer res.Body.Close()
	io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10))
	if res.StatusCode == http.StatusInternalServerError {
		t.Errorf("500 for %.300q, want status other than 500", request)
	}
}

func compose(r *rand.Rand) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	junk := func(max int) string {
		b := make([]byte, r.IntN(max))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return string(b)
	}
	word := func() string {
		return pick("v1", "sandbox", "hooks", "shell", "exec", "..", ".", "", "%2e%2e", "%00", "..;", "%2f", "mcp",
			"openapi.json", "proxy", "8080", "tickets", "é", strings.Repeat("a", r.IntN(3000)), fmt.Sprint(r.Int64()))
	}
	path := ""
	for range 1 + r.IntN(6) {
		path += "/" + word()
	}
	if r.IntN(3) == 0 {
		path = pick("/v1/sandbox", "/v1/sandbox/hooks", "/v1/sandbox/hooks/x", "/mcp", "/tickets", "/auth",
			"/v1/openapi.json", "/llms.txt", "/metrics", "/v1/docs", "*", "http://evil/v1/sandbox", "//v1/sandbox")
	}
	if r.IntN(3) == 0 {
		path += "?" + pick("x=.js", "ticket="+word(), "event=%ff", "stream=true", "a=b&&=;=%", "token=abc")
	}
	method := pick("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "get", "BREW",
		"G\x00T", strings.Repeat("M", 100))
	body := pick("", "{}", "[]", "null", `{"name":"x","command":"true"}`, `{"name":1}`, `{"name":"`+strings.Repeat("n", 5000)+`"}`,
		strings.Repeat("[", 5000), `{"method":"tools/call","params":{"name":"sandbox_list_hooks",`+
			`"arguments":{"event":5}}}`, `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, `{"method":7}`, junk(500))
	var h strings.Builder
	fmt.Fprintf(&h, "%s %s %s\r\n", method, path, pick("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "SPDY/3"))
	fmt.Fprintf(&h, "Host: %s\r\n", pick("127.0.0.1", "localhost", "8091-x", "evil.example", "", "a b", "[::1]:80"))
	length := fmt.Sprint(len(body))
	if r.IntN(10) == 0 {
		length = pick("-1", "99999999999999999999", "5", "abc")
	}
	fmt.Fprintf(&h, "Content-Length: %s\r\n", length)
	for range r.IntN(5) {
		h.WriteString(pick("Content-Type: application/json", "Content-Type: multipart/form-data; boundary=x",
			"Content-Type: "+strings.Repeat("x", r.IntN(2000)),
			"Authorization: Bearer x.y.z", "Authorization: Basic AAA", "Cookie: a=b; c", "Upgrade: websocket",
			"Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
			"Origin: http://evil.example", "X-Forwarded-Prefix: /../..//%00", "X-Forwarded-Host: a,b",
			"X-Forwarded-Proto: javascript", "X-Request-Id: "+strings.Repeat("i", r.IntN(200)),
			"Transfer-Encoding: chunked", "Expect: 100-continue", "Range: bytes=9-1", "Accept-Encoding: gzip;q=x",
			"Last-Event-ID: \xff", "Mcp-Session-Id: nope", "X-Junk: "+strings.ReplaceAll(junk(50), "\n", "")) + "\r\n")
	}
	h.WriteString("Connection: close\r\n\r\n")
	return h.String() + body
}

func rss(t *testing.T, s *server) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var kib int
	_, line, _ := strings.Cut(string(b), "VmRSS:")
	if _, err := fmt.Sscan(line, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
