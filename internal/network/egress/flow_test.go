package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.answer = func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Host, "named.test") {
			http.Redirect(rw, r, "https://other.test:"+w.secure+"/there", http.StatusTemporaryRedirect)
		}
	}
	if status, body, err := get(t, w.trusting(t, "http", w.ours, w.real), "https://named.test:"+w.secure+"/"); status != 200 {
		t.Fatalf("got %v, %q, %v, want status 200", status, body, err)
	}
	list := w.requests()
	if len(list) != 2 || !slices.Equal(list[0].auth, []string{token}) || list[1].path != "/there" || len(list[1].auth) != 0 {
		t.Errorf(`got %+v, want 2 requests, the first with %q, the second to "/there" without credentials`, list, token)
	}
}

func TestWebSocketsPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.answer = func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, append([]byte("re: "), b...)) != nil {
				return
			}
		}
	}
	for _, url := range []string{"wss://named.test:" + w.secure, "ws://named.test:" + w.plain} {
		for _, scheme := range []string{"http", "socks5h"} {
			c, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPClient: w.trusting(t, scheme, w.ours)})
			if err != nil {
				t.Fatalf("%s %s: %v", scheme, url, err)
			}
			for i := range 3 {
				c.Write(t.Context(), websocket.MessageText, fmt.Append(nil, i))
				if _, b, err := c.Read(t.Context()); string(b) != fmt.Sprint("re: ", i) {
					t.Errorf("%s %s: %q %v, want %v", scheme, url, b, err, fmt.Sprint("re: ", i))
				}
			}
			c.Close(websocket.StatusNormalClosure, "")
		}
	}
	for _, r := range w.requests() {
		if !slices.Equal(r.auth, []string{token}) {
			t.Errorf("%+v, want auth %v", r, []string{token})
		}
	}
	// Removing a credential closes its open tunnels.
	for _, url := range []string{"wss://named.test:" + w.secure, "ws://named.test:" + w.plain} {
		c, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPClient: w.trusting(t, "http", w.ours)})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.SetCredentials(nil); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Read(t.Context()); err == nil {
			t.Error("the tunnel is still open after its credential was revoked")
		}
		c.CloseNow()
		if err := w.SetCredentials(w.credentials()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBothWaysStream: each side waits for all data that the other has sent so far, in one
// request, so nothing can have been held back.
func TestBothWaysStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream = func(rw http.ResponseWriter, r *http.Request) {
		ctl := http.NewResponseController(rw)
		ctl.EnableFullDuplex()
		rw.WriteHeader(200)
		ctl.Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintf(rw, "re: %s\n", lines.Text())
			ctl.Flush()
		}
	}
	body, in := io.Pipe()
	defer in.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://named.test:"+w.secure+"/", body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := w.trusting(t, "http", w.ours).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	back := bufio.NewReader(res.Body)
	for i := range 5 {
		fmt.Fprintf(in, "%d\n", i)
		if line, err := back.ReadString('\n'); line != fmt.Sprintf("re: %d\n", i) {
			t.Fatalf("got %q, %v, want \"re: %d\"", line, err, i)
		}
	}
	in.Close()
	if rest, err := io.ReadAll(back); err != nil || len(rest) != 0 {
		t.Errorf("got %q, %v, want the end", rest, err)
	}
}

// TestEchoesAreScrubbed: headers of any kind, and errors about malformed responses, never
// contain the value.
func TestEchoesAreScrubbed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.answer = func(rw http.ResponseWriter, r *http.Request) {
		auth := r.Header.Get("Authorization")
		rw.Header().Set("Link", auth)
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Set("X-Echo", "got "+auth+", thanks")
		rw.Header().Add("X-Echo", strings.TrimPrefix(auth, "Bearer "))
		rw.Header().Set("Trailer", "X-End")
		io.WriteString(rw, "fine")
		rw.Header().Set("X-End", auth)
	}
	for _, url := range []string{"https://named.test:" + w.secure, "http://named.test:" + w.plain} {
		var early textproto.MIMEHeader
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { early = h; return nil },
		})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := w.trusting(t, "http", w.ours).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		all := fmt.Sprint(early, res.Header, res.Trailer)
		if err != nil || string(body) != "fine" || strings.Contains(all, "5f1c9e77a0") || strings.Count(all, redacted) < 4 {
			t.Errorf("%s: %q %s %v, want \"fine\" and headers with the value redacted", url, body, all, err)
		}
	}
}

func TestMalformedResponsesRevealNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cert, err := w.real.Certificate("named.test")
	if err != nil {
		t.Fatal(err)
	}
	for what, reply := range map[string]string{
		"no answer":     "$\r\n\r\n",
		"status":        "HTTP/1.1 $ x\r\n\r\n",
		"header":        "HTTP/1.1 200 OK\r\n$\r\n\r\n",
		"length":        "HTTP/1.1 200 OK\r\nContent-Length: $\r\n\r\n",
		"chunk":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n$\r\n",
		"trailer":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n$\r\n\r\n",
		"other upgrade": "HTTP/1.1 101 Switching\r\nUpgrade: $\r\nConnection: Upgrade\r\n\r\n",
	} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*cert}})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				io.WriteString(c, strings.ReplaceAll(reply, "$", r.Header.Get("Authorization")))
			}
		}()
		_, to, _ := net.SplitHostPort(l.Addr().String())
		if err := w.SetCredentials([]Credential{{Host: "named.test:" + to, Header: "Authorization", Value: hidden(token)}}); err != nil {
			t.Fatal(err)
		}
		c := w.tunnel(t, "named.test:"+to)
		s := tls.Client(direct{c}, &tls.Config{RootCAs: w.ours.Pool(), ServerName: "named.test"})
		fmt.Fprintf(s, "GET / HTTP/1.1\r\nHost: named.test:%s\r\nConnection: close\r\n\r\n", to)
		all, _ := io.ReadAll(s)
		if strings.Contains(string(all), "5f1c9e77a0") {
			t.Errorf("%s: %q, want all without \"5f1c9e77a0\"", what, all)
		}
		c.Conn.Close()
		l.Close()
		<-done
	}
}

// TestResponsesAreUnchanged: the proxy adds nothing to responses.
func TestResponsesAreUnchanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.answer = func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header()["Date"], rw.Header()["Content-Type"] = nil, nil
		rw.Header().Set("Set-Cookie", "a=b")
		rw.Header().Add("Set-Cookie", "c=d")
		rw.WriteHeader(418)
		io.WriteString(rw, "<html>")
	}
	for _, url := range []string{"https://named.test:" + w.secure, "http://named.test:" + w.plain, "http://other.test:" + w.plain} {
		res, err := w.trusting(t, "http", w.ours).Get(url)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := fmt.Sprint(res.StatusCode, res.Header); got != "418 map[Content-Length:[6] Set-Cookie:[a=b c=d]]" {
			t.Errorf("%s: %s, want \"418 map[Content-Length:[6] Set-Cookie:[a=b c=d]]\"", url, got)
		}
	}
}

// TestEarlyHandshake: a program need not wait until the tunnel is open.
func TestEarlyHandshake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, err := net.Dial("unix", w.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	named := "named.test:" + w.secure
	s := tls.Client(&hasty{Conn: c, ahead: "CONNECT " + named + " HTTP/1.1\r\nHost: x\r\n\r\n"},
		&tls.Config{RootCAs: w.ours.Pool(), ServerName: "named.test"})
	if _, err := io.WriteString(s, "GET / HTTP/1.1\r\nHost: "+named+"\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(s); err != nil || !strings.HasSuffix(string(all), "fine") {
		t.Errorf("%q %v, want all ending in \"fine\"", all, err)
	}
}

// hasty sends a prefix together with its first write, and skips the response to it.
type hasty struct {
	net.Conn
	ahead string
	back  *bufio.Reader
}

func (h *hasty) Write(b []byte) (int, error) {
	_, err := h.Conn.Write(append([]byte(h.ahead), b...))
	h.ahead = ""
	return len(b), err
}

func (h *hasty) Read(b []byte) (int, error) {
	if h.back == nil {
		h.back = bufio.NewReader(h.Conn)
		if _, err := http.ReadResponse(h.back, &http.Request{Method: http.MethodConnect}); err != nil {
			return 0, err
		}
	}
	return h.back.Read(b)
}

func TestStatsCountTransferredBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	big := strings.Repeat("x", 1<<20)
	w.answer = func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, big) }
	var last Stats
	for _, url := range []string{"https://named.test:" + w.secure, "https://other.test:" + w.secure,
		"http://named.test:" + w.plain, "http://other.test:" + w.plain} {
		res, err := w.trusting(t, "http", w.ours, w.real).Post(url, "text/plain", strings.NewReader(big))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); n != 1<<20 {
			t.Errorf("got %d bytes, %v, want %d", n, err, 1<<20)
		}
		res.Body.Close()
		testenv.Poll(t, "it is counted", func() bool {
			s := w.Stats()
			return s.Sent-last.Sent >= 1<<20 && s.Received-last.Received >= 1<<20
		})
		last = w.Stats()
	}
	get(t, w.client(t, "http"), "http://gone.test/")
	get(t, w.client(t, "http"), "http://10.0.0.1/")
	if s := w.Stats(); s.Sent > 5<<20 || s.Received > 5<<20 || s.Allowed != 4 || s.Denied != 1 || s.Failed != 1 ||
		s.Brokered != 2 || s.Open == 0 {
		t.Errorf("%+v, want at most %d sent and %d received, allowed 4, denied 1, failed 1, brokered 2 and some open",
			s, 5<<20, 5<<20)
	}
	w.Close()
	if s := w.Stats(); s.Sent < last.Sent || s.Received < last.Received || s.Open != 0 {
		t.Errorf("%+v after %+v, want Sent at least %v, Received at least %v, Open 0", s, last, last.Sent, last.Received)
	}
	var brokered int
	for _, r := range w.Records() {
		if r.Brokered {
			brokered++
		}
	}
	if brokered != 2 {
		t.Errorf("got %d brokered records, want 2", brokered)
	}
}

func TestCloseEndsBrokeredTunnels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idle := w.tunnel(t, "named.test:"+w.secure)
	busy := w.tunnel(t, "named.test:"+w.secure)
	s := tls.Client(direct{busy}, &tls.Config{RootCAs: w.ours.Pool(), ServerName: "named.test"})
	if err := s.Handshake(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for _, c := range []io.Reader{idle, s} {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a tunnel is still open after the proxy was closed")
		}
	}
}

// TestRealPrograms: common programs trust the authority through a bundle that an
// environment variable names.
func TestRealPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.Serve(l) }()
	t.Cleanup(func() { w.Close(); <-served })
	bundle := filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(bundle, append(w.real.PEM(), w.ours.PEM()...), 0o600); err != nil {
		t.Fatal(err)
	}
	curl := []string{"curl", "-sS", "-H", "AUTHORIZATION: mine", "URL"}
	python := []string{"python3", "-c",
		"import sys, urllib.request as r; print(r.urlopen(r.Request(sys.argv[1], headers={'authorization': " +
			"'mine'})).read().decode(), end='')", "URL"}
	git := []string{"git", "-c", "http.extraHeader=authorization: mine", "ls-remote", "URL"}
	for _, c := range []struct {
		proxy, url string
		run        []string
		want       string
	}{
		{"http", "https://named.test:" + w.secure, curl, token},
		{"socks5h", "https://named.test:" + w.secure, curl, token},
		{"http", "https://other.test:" + w.secure, curl, "mine"},
		{"http", "http://named.test:" + w.plain, curl, token},
		{"socks5h", "http://named.test:" + w.plain, curl, token},
		{"http", "https://named.test:" + w.secure, python, token},
		{"http", "https://other.test:" + w.secure, python, "mine"},
		{"http", "https://named.test:" + w.secure, git, token},
		{"http", "https://other.test:" + w.secure, git, "mine"},
	} {
		t.Run(c.run[0]+" "+c.proxy+" "+c.url[:12], func(t *testing.T) {
			testenv.Need(t, c.run[0])
			args := slices.Clone(c.run[1:])
			args[len(args)-1] = c.url
			cmd := exec.CommandContext(t.Context(), c.run[0], args...)
			proxy := c.proxy + "://" + l.Addr().String()
			cmd.Env = []string{
				"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "http_proxy=" + proxy, "https_proxy=" + proxy,
				"CURL_CA_BUNDLE=" + bundle, "SSL_CERT_FILE=" + bundle, "GIT_SSL_CAINFO=" + bundle,
			}
			before := len(w.requests())
			out, err := cmd.CombinedOutput()
			// The host does not support git, but received the request.
			if c.run[0] != "git" && (err != nil || string(out) != "fine") {
				t.Errorf("got %q, %v, want \"fine\"", out, err)
			}
			list := w.requests()[before:]
			if len(list) == 0 || !slices.Equal(list[0].auth, []string{c.want}) {
				t.Errorf("the host saw %+v; %s, want a request with %q", list, out, c.want)
			}
		})
	}
}
