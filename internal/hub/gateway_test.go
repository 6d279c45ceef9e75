package hub

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestRequestsAreNotModified(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	host := strings.TrimPrefix(r.server.URL, "http://")
	for sent, want := range map[string]string{
		"/sandbox/a/":                      "/",
		"/sandbox/a/x/y?q=1;z&w=%2f+%zz":   "/x/y?q=1;z&w=%2f+%zz",
		"/sandbox/a/x%2Fy%20z":             "/x%2Fy%20z",
		"/sandbox/a//double//slash/":       "//double//slash/",
		"/sandbox/a/up/../here/./":         "/up/../here/./",
		"/sandbox/a/proxy/3000/https://x/": "/proxy/3000/https://x/",
		"/sandbox/%61/sub":                 "/sub",
	} {
		// The raw path, which our clients never send.
		s := raw(t, host, "PUT "+sent+" HTTP/1.1\r\nHost: "+host+
			"\r\nContent-Length: 4\r\nConnection: close\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Prefix: /evil\r\nX-Real: yes\r\n\r\nbody")
		if s.Method != "PUT" || s.URI != want || s.Body != "body" || s.Host != host || s.Header.Get("X-Real") != "yes" {
			t.Errorf(`%s: got %+v, want method "PUT", URI %q, body "body", host %q and header X-Real "yes"`, sent, s, want, host)
		}
		// A forwarded prefix from loopback is trusted, because it comes from a proxy in front of the hub.
		if p := s.Header.Get("X-Forwarded-Prefix"); p != "/evil/sandbox/a" || s.Header.Get("X-Forwarded-For") != "127.0.0.1" ||
			s.Header.Get("X-Forwarded-Host") != host || s.Header.Get("X-Forwarded-Proto") != "http" {
			t.Errorf("%s: %v", sent, s.Header)
		}
	}
	if a := r.do("GET", "/sandbox/a?q=1", ""); a.Status != 308 || a.Header.Get("Location") != "/sandbox/a/?q=1" {
		t.Errorf(`got %d %v, want status 308 and header Location "/sandbox/a/?q=1"`, a.Status, a.Header)
	}
	for _, path := range []string{"/sandbox/b/", "/sandbox/B/", "/sandbox/", "/sandbox/a%2Fb/"} {
		if a := r.do("GET", path, ""); a.Status != 404 || a.Code != "404" {
			t.Errorf("%s: got %d %s, want 404", path, a.Status, a.Body)
		}
	}
	// A dot segment cannot leave the sandbox or bypass authentication.
	if s := raw(t, host, "GET /sandbox/a/../../api/v1/sandbox HTTP/1.1\r\nHost: "+host+
		"\r\nConnection: close\r\n\r\n"); s.URI != "/../../api/v1/sandbox" {
		t.Errorf(`got %+v, want URI "/../../api/v1/sandbox"`, s)
	}
}

// raw sends a request unmodified and decodes the request that the sandbox received.
func raw(t *testing.T, host, request string) seen {
	t.Helper()
	c, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, request)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var s seen
	b, _ := io.ReadAll(res.Body)
	if err := json.Unmarshal(b, &s); err != nil {
		t.Errorf("%q: %d %s", request, res.StatusCode, b)
	}
	return s
}

// TestPagesUnderPrefix: redirects and cookies stay under the prefix.
func TestPagesUnderPrefix(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux.HandleFunc("/give", func(w http.ResponseWriter, q *http.Request) {
			for k, v := range q.URL.Query() {
				for _, one := range v {
					w.Header().Add(k, strings.ReplaceAll(one, "PREFIX", q.Header.Get("X-Forwarded-Prefix")))
				}
			}
			w.WriteHeader(302)
		})
	}})
	r.create(`{"name":"a"}`)
	host := strings.TrimPrefix(r.server.URL, "http://")
	for _, c := range []struct{ header, given, want string }{
		{"Location", "/login?next=/x", "/sandbox/a/login?next=/x"},
		{"Location", "PREFIX/login", "/sandbox/a/login"},
		{"Location", "PREFIXY/login", "/sandbox/a/sandbox/aY/login"},
		{"Location", "relative/x", "relative/x"},
		{"Location", "../up", "../up"},
		{"Location", "http://" + host + "/abs", "/sandbox/a/abs"},
		{"Location", "http://" + host, "/sandbox/a/"},
		{"Location", "https://other.example/x", "https://other.example/x"},
		{"Location", "//other.example/x", "//other.example/x"},
		{"Content-Location", "/x", "/sandbox/a/x"},
		{"Service-Worker-Allowed", "/", "/sandbox/a/"},
		{"Clear-Site-Data", `"*"`, ""},
		{"Strict-Transport-Security", "max-age=1", ""},
		{"Set-Cookie", "k=v; Path=/; HttpOnly; Domain=" + host, "k=v; HttpOnly; Path=/sandbox/a/"},
		{"Set-Cookie", "k=v; path=/sub; SameSite=Lax", "k=v; SameSite=Lax; Path=/sandbox/a/sub"},
		{"Set-Cookie", "k=v", "k=v; Path=/sandbox/a/"},
		{"Set-Cookie", "k=v; Path=PREFIX/deep", "k=v; Path=/sandbox/a/deep"},
		{"Set-Cookie", "cove_session_abc=stolen; Path=/", ""},
	} {
		a := r.do("GET", "/sandbox/a/give?"+url.Values{c.header: {c.given}}.Encode(), "")
		if got := a.Header.Get(c.header); got != c.want || a.Status != 302 {
			t.Errorf("%s %q: %q (%d)", c.header, c.given, got, a.Status)
		}
	}
	if a := r.do("GET", "/sandbox/a/x", "", "X-Request-Id", "mine"); a.Header.Values("X-Request-Id")[0] != "mine" ||
		len(a.Header.Values("X-Request-Id")) != 1 || len(a.Header.Values("X-Content-Type-Options")) != 1 {
		t.Errorf(`got %v, want the request ID "mine" and the content type options once each`, a.Header)
	}
	// Behind another proxy with a prefix.
	if a := r.do("GET", "/sandbox/a/give?Location=/x", "", "X-Forwarded-Prefix", "/hub"); a.Header.Get("Location") != "/hub/sandbox/a/x" {
		t.Errorf(`got %v, want header Location "/hub/sandbox/a/x"`, a.Header)
	}
}

func TestAdmittedOrigins(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	s := r.seen("GET", "/sandbox/a/x", "", "Origin", r.server.URL, "Sec-Fetch-Site", "same-origin")
	if s.Header.Get("Origin") != r.server.URL || s.Header.Get("Sec-Fetch-Site") == "" {
		t.Errorf("got %v, want header Origin %q and a header Sec-Fetch-Site", s.Header, r.server.URL)
	}
	s = r.seen("GET", "/sandbox/a/x", "", "Origin", "https://app.example.com", "Sec-Fetch-Site", "cross-site")
	if s.Header.Get("Origin") != "" || s.Header.Get("Sec-Fetch-Site") != "" {
		t.Errorf("got %v, want no header Origin and no header Sec-Fetch-Site", s.Header)
	}
	// A host that looks like a port of the sandbox is not forwarded to it.
	if s := r.seen("GET", "/sandbox/a/x", "", "Host", "10-0-0-5.example.com"); s.Host != "localhost" ||
		s.Header.Get("X-Forwarded-Host") != "10-0-0-5.example.com" {
		t.Errorf(`got %+v, want host "localhost" and header X-Forwarded-Host "10-0-0-5.example.com"`, s)
	}
}

func TestPortsByHostAndPath(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "env.json")
	os.WriteFile(file, []byte(`[{"name":"own","port":8000}]`), 0o600)
	r := newRig(t, setup{hub: Config{Environments: file, Domains: []string{"Sandbox.Example.com", "localhost"}}})
	service := httptest.NewServer(http.HandlerFunc((&guestServer{}).echo))
	t.Cleanup(service.Close)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(service.URL, "http://"))
	o := r.create(`{"name":"a","ports":[`+port+`]}`, "Host", "sandbox.example.com:99")
	if got := o.Endpoints["host-"+port]; got != "http://"+port+"-a.sandbox.example.com:99/" {
		t.Error(got)
	}
	// The project's own server forwards to its ports itself, selected by path or by header.
	host := port + "-a.sandbox.example.com"
	if s := r.seen("GET", "/x//y?z", "", "Host", host); s.URI != "/x//y?z" ||
		s.Header.Get("X-Aio-Proxy-Port") != port || s.Host != host || s.Header.Get("X-Forwarded-Prefix") != "" ||
		s.Header.Get("X-Forwarded-Host") != host {
		t.Errorf("got %+v, "+
			`want URI "/x//y?z", header X-Aio-Proxy-Port %q, host %q, no header X-Forwarded-Prefix and header X-Forwarded-Host %q`,
			s, port, host, host)
	}
	if s := r.seen("GET", "/", "", "Host", "3000-a.localhost:1234"); s.URI != "/" || s.Header.Get("X-Aio-Proxy-Port") != "3000" {
		t.Errorf(`got %+v, want URI "/" and header X-Aio-Proxy-Port "3000"`, s)
	}
	if s := r.seen("GET", "/sandbox/a/proxy/3000/x", ""); s.URI != "/proxy/3000/x" || s.Header.Get("X-Aio-Proxy-Port") != "" {
		t.Errorf(`got %+v, want URI "/proxy/3000/x" and no header X-Aio-Proxy-Port`, s)
	}
	// A page of one port cannot select another port.
	if s := r.seen("GET", "/sandbox/a/proxy/3000/x", "", "X-Aio-Proxy-Port", "4000"); s.URI != "/proxy/3000/x" ||
		s.Header.Get("X-Aio-Proxy-Port") != "" {
		t.Errorf("got %+v, want no header that names a port", s)
	}
	// For any other server, the hub forwards to the port.
	r.create(`{"name":"b","environment":"own"}`)
	if s := r.seen("GET", "/sandbox/b/proxy/"+port+"/x?y", ""); s.URI != "/x?y" ||
		s.Header.Get("X-Forwarded-Prefix") != "/sandbox/b/proxy/"+port || s.Header.Get("X-Aio-Proxy-Port") != "" {
		t.Errorf(`got %+v, want URI "/x?y", header X-Forwarded-Prefix %q and no header X-Aio-Proxy-Port`, s, "/sandbox/b/proxy/"+port)
	}
	if s := r.seen("POST", "/y", "body", "Host", port+"-b.localhost"); s.URI != "/y" || s.Body != "body" {
		t.Errorf(`got %+v, want URI "/y" and body "body"`, s)
	}
	free := strconv.Itoa(testenv.FreePort(t))
	if a := r.do("GET", "/sandbox/b/proxy/"+free+"/", ""); a.Status != 502 || !strings.Contains(a.Error, "nothing listens on port "+free) {
		t.Errorf("got %d %s, want 502", a.Status, a.Body)
	}
	// The sandbox's own server has a host name, too.
	if s := r.seen("GET", "/x//y?z", "", "Host", "a.localhost:1234"); s.URI != "/x//y?z" ||
		s.Header.Get("X-Aio-Proxy-Port") != "" || s.Header.Get("X-Forwarded-Prefix") != "" || s.Host != "a.localhost:1234" {
		t.Errorf("got %+v, want the unmodified request at the server", s)
	}
	// Other hosts under a domain never address the hub, no matter which sandboxes exist.
	for _, host := range []string{"99999-a.localhost", "x-a.localhost", "03000-a.localhost", "3000-a.deep.localhost",
		"_.localhost", "-.sandbox.example.com"} {
		if a := r.do("GET", "/api/v1/sandbox", "", "Host", host); a.Status != 404 {
			t.Errorf("%s: got %d %s, want 404", host, a.Status, a.Body)
		}
	}
	// All other hosts address the hub.
	for _, host := range []string{"3000-a.elsewhere", "3000-a", "localhost", "sandbox.example.com.", "a.example.com"} {
		if a := r.do("GET", "/api/v1/sandbox", "", "Host", host); a.Status != 200 || a.Code != "0" {
			t.Errorf("%s: got %d %s, want 200", host, a.Status, a.Body)
		}
	}
	if a := r.do("GET", "/api/v1/sandbox", "", "Host", "3000-nobody.localhost"); a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}
}

func TestWebSocketsAreForwarded(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			c, _, err := websocket.Dial(t.Context(), r.server.URL+"/sandbox/a/ws", nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.CloseNow()
			c.SetReadLimit(8 << 20)
			for _, size := range []int{0, 1, 70_000, 3 << 20} {
				want := make([]byte, size)
				rand.Read(want)
				if err := c.Write(t.Context(), websocket.MessageBinary, want); err != nil {
					t.Error(err)
				}
				if _, got, err := c.Read(t.Context()); err != nil || string(got) != string(want) {
					t.Errorf("got %v, want the %d bytes that were sent", err, size)
				}
			}
			if n := r.openRequests("a"); n == 0 {
				t.Error("an open WebSocket does not count as use")
			}
			c.Close(websocket.StatusNormalClosure, "")
		})
	}
	wait.Wait()
	poll(t, "all are counted out", func() bool { return r.openRequests("a") == 0 })
}

// TestHalfClose: if one side of an upgraded connection is closed, the other stays open.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux.HandleFunc("/raw", func(w http.ResponseWriter, q *http.Request) {
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
			b, _ := io.ReadAll(rw)
			fmt.Fprintf(c, "got %s", b)
		})
	}})
	r.create(`{"name":"a"}`)
	host := strings.TrimPrefix(r.server.URL, "http://")
	c, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET /sandbox/a/raw HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("got %v %v, want status 101", res, err)
	}
	io.WriteString(c, "hello")
	c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(in); string(b) != "got hello" {
		t.Errorf(`got %q %v, want "got hello"`, b, err)
	}
}

// TestStreamsAreNotBuffered: each chunk arrives before the next is sent, in both directions.
func TestStreamsAreNotBuffered(t *testing.T) {
	t.Parallel()
	step := make(chan string)
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux.HandleFunc("/sse", func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			http.NewResponseController(w).Flush()
			for {
				select {
				case s, ok := <-step:
					if !ok {
						return
					}
					fmt.Fprintf(w, "data: %s\n\n", s)
					http.NewResponseController(w).Flush()
				case <-q.Context().Done():
					return
				}
			}
		})
		g.mux.HandleFunc("/slow", func(w http.ResponseWriter, q *http.Request) {
			http.NewResponseController(w).EnableFullDuplex()
			in := bufio.NewReader(q.Body)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				io.WriteString(w, "heard "+line)
				http.NewResponseController(w).Flush()
			}
		})
	}})
	r.create(`{"name":"a"}`)
	res, err := http.Get(r.server.URL + "/sandbox/a/sse")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	for i := range 5 {
		step <- strconv.Itoa(i)
		if line, err := in.ReadString('\n'); line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("got %v %v, want line %q", line, err, fmt.Sprintf("data: %d\n", i))
		}
		in.ReadString('\n')
	}
	close(step)

	body, w := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.server.URL+"/sandbox/a/slow", body)
	if err != nil {
		t.Fatal(err)
	}
	go io.WriteString(w, "zero\n")
	slow, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Body.Close()
	in = bufio.NewReader(slow.Body)
	for i, want := range []string{"zero", "one", "two"} {
		if i > 0 {
			io.WriteString(w, want+"\n")
		}
		if line, err := in.ReadString('\n'); line != "heard "+want+"\n" {
			t.Fatalf("got %v %v, want line %q", line, err, "heard "+want+"\n")
		}
	}
	w.Close()
}

// TestCanceledRequest: a request that the client cancels is also canceled in the sandbox.
func TestCanceledRequest(t *testing.T) {
	t.Parallel()
	entered, left := make(chan struct{}), make(chan struct{})
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux.HandleFunc("/wait", func(w http.ResponseWriter, q *http.Request) {
			close(entered)
			<-q.Context().Done()
			close(left)
		})
	}})
	r.create(`{"name":"a"}`)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", r.server.URL+"/sandbox/a/wait", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-entered; cancel() }()
	if _, err := http.DefaultClient.Do(req); err == nil {
		t.Error("canceled request: got a response, want an error")
	}
	<-left
	poll(t, "it is counted out", func() bool { return r.openRequests("a") == 0 })
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	remotes := map[string]bool{}
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux.HandleFunc("/from", func(w http.ResponseWriter, q *http.Request) {
			mu.Lock()
			remotes[q.RemoteAddr] = true
			mu.Unlock()
		})
	}})
	r.create(`{"name":"a"}`)
	for range 50 {
		r.do("GET", "/sandbox/a/from", "")
	}
	if len(remotes) != 1 {
		t.Errorf("%d connections", len(remotes))
	}
}

// TestBrokenServers: errors of the server inside are reported as errors of the sandbox.
func TestBrokenServers(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{more: func(g *guestServer) {
		g.mux.HandleFunc("/cut", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		g.mux.HandleFunc("/half", func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "half")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
	}})
	r.create(`{"name":"a"}`)
	if a := r.do("GET", "/sandbox/a/cut", ""); a.Status != 502 || a.Code != "502" || !strings.Contains(a.Error, "closed the connection") {
		t.Errorf("got %d %s, want 502", a.Status, a.Body)
	}
	res, err := http.Get(r.server.URL + "/sandbox/a/half")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("truncated response: got %q and no error, want an error", b)
	}
}
