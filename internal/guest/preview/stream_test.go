package preview_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/guest/preview"
)

// TestEventsAreNotBuffered: each event is read before the next one is written.
func TestEventsAreNotBuffered(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	ended := make(chan struct{})
	port := service(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; ; i++ {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	})
	r := newRig(t, preview.Config{}, auth.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/proxy/%d/", r.server.URL, port), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for i := range 5 {
		if lines.Scan(); lines.Text() != fmt.Sprintf("data: %d", i) {
			t.Fatalf("got %q, want %q", lines.Text(), fmt.Sprintf("data: %d", i))
		}
		lines.Scan()
		next <- struct{}{}
	}
	cancel() // the client disconnects, which must end the request of the service
	<-ended
}

// TestResponseBeforeTheRequestEnds: both directions of one request at the same time.
func TestResponseBeforeTheRequestEnds(t *testing.T) {
	t.Parallel()
	port := service(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.(http.Flusher).Flush()
		in := bufio.NewScanner(r.Body)
		for in.Scan() {
			fmt.Fprintf(w, "echo %s\n", in.Text())
			w.(http.Flusher).Flush()
		}
	})
	r := newRig(t, preview.Config{}, auth.Config{})
	body, feed := io.Pipe()
	defer feed.Close()
	req, err := http.NewRequestWithContext(t.Context(), "POST", fmt.Sprintf("%s/proxy/%d/", r.server.URL, port), body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	out := bufio.NewScanner(res.Body)
	for _, word := range []string{"one", "two"} {
		io.WriteString(feed, word+"\n")
		if out.Scan(); out.Text() != "echo "+word {
			t.Fatalf("got %q, want %q", out.Text(), "echo "+word)
		}
	}
	feed.Close()
	if out.Scan() {
		t.Errorf("got %q after the last line, want the end", out.Text())
	}
}

func TestLargeBodies(t *testing.T) {
	t.Parallel()
	port := service(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	})
	r := newRig(t, preview.Config{}, auth.Config{})
	text := strings.Repeat("0123456789abcdef", 8<<20/16)
	if res, body := r.do("POST", fmt.Sprintf("/proxy/%d/", port), text); res.StatusCode != 200 || body != text {
		t.Errorf("got %d, %d bytes, want status 200 and the %d bytes that were sent", res.StatusCode, len(body), len(text))
	}
}

func echoSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"p"}})
	if err != nil {
		return
	}
	defer c.CloseNow()
	for {
		kind, b, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if string(b) == "bye" {
			c.Close(4001, "so long")
			return
		}
		if c.Write(r.Context(), kind, b) != nil {
			return
		}
	}
}

func TestWebSockets(t *testing.T) {
	t.Parallel()
	port := service(t, "[::1]:0", echoSocket)
	r := newRig(t, preview.Config{}, auth.Config{})
	for name, dial := range map[string]struct {
		path   string
		header http.Header
	}{
		"path":   {fmt.Sprintf("/proxy/%d/ws?x=1", port), nil},
		"header": {"/ws", http.Header{"X-Aio-Proxy-Port": {strconv.Itoa(port)}}},
		// A page served through the preview: its origin is compared with the host.
		"page": {fmt.Sprintf("/proxy/%d/ws", port), http.Header{"Origin": {r.server.URL}}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c, _, err := websocket.Dial(ctx, r.server.URL+dial.path, &websocket.DialOptions{HTTPHeader: dial.header,
				HTTPClient: r.client, Subprotocols: []string{"p"}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.CloseNow()
			if c.Subprotocol() != "p" {
				t.Errorf(`protocol %q, want subprotocol "p"`, c.Subprotocol())
			}
			for i := range 100 {
				want := strings.Repeat("x", i*100)
				if err := c.Write(ctx, websocket.MessageBinary, []byte(want)); err != nil {
					t.Fatal(err)
				}
				if _, b, err := c.Read(ctx); err != nil || string(b) != want {
					t.Fatalf("%d: got %d bytes, %v, want the %d bytes that were sent", i, len(b), err, len(want))
				}
			}
			c.Write(ctx, websocket.MessageText, []byte("bye"))
			if _, _, err := c.Read(ctx); websocket.CloseStatus(err) != 4001 {
				t.Errorf("close frame: got %v, want close code 4001", err)
			}
		})
	}
}

// TestOneSideMayCloseFirst: a raw upgraded connection, closed one direction at a time.
func TestOneSideMayCloseFirst(t *testing.T) {
	t.Parallel()
	port := service(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
		all, _ := io.ReadAll(rw) // until the client closes its direction
		fmt.Fprintf(c, "received %s", all)
	})
	r := newRig(t, preview.Config{}, auth.Config{})
	c, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	fmt.Fprintf(c, "GET /proxy/%d/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n", port)
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("got %v %v, want status 101", res, err)
	}
	io.WriteString(c, "everything")
	c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(in); err != nil || string(b) != "received everything" {
		t.Errorf(`got %q %v, want "received everything"`, b, err)
	}
}

// TestCloseEndsOpenConnections: also a WebSocket whose client neither reads nor writes.
func TestCloseEndsOpenConnections(t *testing.T) {
	t.Parallel()
	port := service(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for r.Context().Err() == nil && c.Write(r.Context(), websocket.MessageBinary, make([]byte, 1<<20)) == nil {
		}
	})
	r := newRig(t, preview.Config{}, auth.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, fmt.Sprintf("%s/proxy/%d/", r.server.URL, port), &websocket.DialOptions{HTTPClient: r.client})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	r.svc.Close()
	if res, body := r.do("GET", fmt.Sprintf("/proxy/%d/", port), ""); res.StatusCode != 503 {
		t.Errorf("after close: got %d %s, want status 503", res.StatusCode, body)
	}
}

func TestRequestLimit(t *testing.T) {
	t.Parallel()
	inside, release := make(chan struct{}), make(chan struct{})
	port := service(t, "127.0.0.1:0", func(http.ResponseWriter, *http.Request) {
		inside <- struct{}{}
		<-release
	})
	r := newRig(t, preview.Config{MaxOpen: 1}, auth.Config{})
	path := fmt.Sprintf("/proxy/%d/", port)
	first := make(chan int)
	go func() {
		res, err := r.client.Get(r.server.URL + path)
		if err != nil {
			first <- 0
			return
		}
		res.Body.Close()
		first <- res.StatusCode
	}()
	<-inside
	if res, body := r.do("GET", path, ""); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %s, want status 503 and a header Retry-After", res.StatusCode, body)
	}
	close(release)
	if got := <-first; got != 200 {
		t.Errorf("the first got %d, want 200", got)
	}
}

func TestServiceWithoutHTTP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "SSH-2.0-something\r\n")
			c.Close()
		}
	}()
	defer func() { l.Close(); <-done }()
	r := newRig(t, preview.Config{}, auth.Config{})
	port := l.Addr().(*net.TCPAddr).Port
	if res, body := r.do("GET", fmt.Sprintf("/proxy/%d/", port), ""); res.StatusCode != 502 ||
		!strings.Contains(body, fmt.Sprintf("the service on port %d", port)) {
		t.Errorf("got %d %s, want status 502 and body that contains %q", res.StatusCode, body, fmt.Sprintf("the service on port %d", port))
	}
}

// TestTruncatedResponseIsAnError: a client must not accept a partial file as complete.
func TestTruncatedResponseIsAnError(t *testing.T) {
	t.Parallel()
	port := service(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	r := newRig(t, preview.Config{}, auth.Config{})
	res, err := r.client.Get(fmt.Sprintf("%s/proxy/%d/", r.server.URL, port))
	if err == nil {
		defer res.Body.Close()
		_, err = io.ReadAll(res.Body)
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want io.ErrUnexpectedEOF or io.EOF", err)
	}
}
