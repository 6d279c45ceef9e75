package relay_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/relay"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newRelay opens a relay on a free port.
func newRelay(t *testing.T, cfg relay.Config) *relay.Relay {
	t.Helper()
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	o, err := relay.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close(); o.Close() })
	if err := o.Open(); err != nil {
		t.Fatal(err)
	}
	return o
}

// startEgress starts a server in place of the egress proxy and returns its target.
func startEgress(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	return "unix:" + serve(t, "unix", filepath.Join(t.TempDir(), "egress.sock"), handle)
}

func serve(t *testing.T, network, address string, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen(network, address)
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
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func dial(t *testing.T, o *relay.Relay) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", o.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	return c.(*net.TCPConn)
}

func TestNewRejectsInvalidConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ target, listen, says string }{
		{"/run/egress.sock", "", "use unix:/path or tcp:host:port"},
		{"unix:relative", "", "use unix:/path or tcp:host:port"},
		{"tcp:host", "", "use unix:/path or tcp:host:port"},
		{"tcp::80", "", "use unix:/path or tcp:host:port"},
		{"udp:host:80", "", "use unix:/path or tcp:host:port"},
		{"unix:/x", "0.0.0.0:3128", "use a loopback address"},
		{"unix:/x", "192.0.2.1:3128", "use a loopback address"},
		{"unix:/x", "localhost", "use a loopback address"},
	} {
		if _, err := relay.New(relay.Config{Target: c.target, Listen: c.listen}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q %q: %v, want an error containing %q", c.target, c.listen, err, c.says)
		}
	}
}

func TestWithoutTargetRelayDoesNotListen(t *testing.T) {
	t.Parallel()
	o := newRelay(t, relay.Config{})
	base := []string{"A=1"}
	if o.URL() != "" || o.Address() != "" || o.Env() != nil || !slices.Equal(o.Environ(base), base) {
		t.Errorf("%q %q %v, want no URL, no address, no env and %q", o.URL(), o.Address(), o.Env(), base)
	}
}

// TestForwardsBothDirections: the directions end independently.
func TestForwardsBothDirections(t *testing.T) {
	t.Parallel()
	handle := func(c net.Conn) {
		all, _ := io.ReadAll(c) // until the client closes its direction
		fmt.Fprintf(c, "received %d: %.5s", len(all), all)
	}
	for name, target := range map[string]string{
		"unix": startEgress(t, handle),
		"tcp":  "tcp:" + serve(t, "tcp", "127.0.0.1:0", handle),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, newRelay(t, relay.Config{Target: target}))
			io.WriteString(c, strings.Repeat("\x05bytes", 1<<20))
			c.CloseWrite()
			if b, err := io.ReadAll(c); err != nil || string(b) != "received 6291456: \x05byte" {
				t.Errorf("%q %v, want %q", b, err, "received 6291456: \x05byte")
			}
		})
	}
}

func TestServerMayCloseItsDirectionFirst(t *testing.T) {
	t.Parallel()
	rest := make(chan string, 1)
	o := newRelay(t, relay.Config{Target: startEgress(t, func(c net.Conn) {
		io.WriteString(c, "first")
		c.(*net.UnixConn).CloseWrite()
		b, _ := io.ReadAll(c)
		rest <- string(b)
	})})
	c := dial(t, o)
	if b, err := io.ReadAll(c); err != nil || string(b) != "first" {
		t.Fatalf("%q %v, want \"first\"", b, err)
	}
	io.WriteString(c, "second")
	c.Close()
	if got := <-rest; got != "second" {
		t.Errorf("got %q, want \"second\"", got)
	}
}

func TestCloseEndsOpenConnections(t *testing.T) {
	t.Parallel()
	joined, ended := make(chan struct{}), make(chan struct{})
	o := newRelay(t, relay.Config{Target: startEgress(t, func(c net.Conn) {
		close(joined)
		io.Copy(io.Discard, c)
		close(ended)
	})})
	c := dial(t, o)
	<-joined
	o.Close()
	<-ended
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the client's connection is still open")
	}
	// A process that another test starts holds the listener until it calls exec.
	testenv.Poll(t, "the port is closed", func() bool {
		c, err := net.Dial("tcp", o.Address())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if err := o.Open(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("open after close: %v, want net.ErrClosed", err)
	}
}

func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	joined := make(chan struct{}, 100)
	o := newRelay(t, relay.Config{MaxConns: 1, Target: startEgress(t, func(c net.Conn) {
		joined <- struct{}{}
		io.Copy(c, c)
	})})
	first := dial(t, o)
	<-joined
	if _, err := io.ReadAll(dial(t, o)); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("second connection: %v, want it closed or reset", err)
	}
	io.WriteString(first, "x")
	if _, err := first.Read(make([]byte, 1)); err != nil {
		t.Errorf("first connection: %v", err)
	}
	first.Close()
	// Another connection is accepted after the first one has ended.
	testenv.Poll(t, "a new connection is accepted", func() bool {
		c := dial(t, o)
		defer c.Close()
		select {
		case <-joined:
			return true
		case <-time.After(time.Second):
			return false
		}
	})
}

func TestSelectsAnotherPortIfTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	o := newRelay(t, relay.Config{Listen: taken.Addr().String(), Target: startEgress(t, func(c net.Conn) { io.WriteString(c, "there") })})
	if strings.HasSuffix(o.URL(), taken.Addr().String()) {
		t.Fatalf("got URL %s, which has the port of another listener", o.URL())
	}
	if b, err := io.ReadAll(dial(t, o)); err != nil || string(b) != "there" {
		t.Errorf("%q %v, want \"there\"", b, err)
	}
	if !slices.Contains(o.Env(), "http_proxy="+o.URL()) {
		t.Errorf("environment %v does not contain %v", o.Env(), "http_proxy="+o.URL())
	}
}

// TestClientsWaitForRestartingHub: the socket appears only after the client has connected.
func TestClientsWaitForRestartingHub(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "egress.sock")
	o := newRelay(t, relay.Config{Target: "unix:" + path, Patience: 30 * time.Second})
	c := dial(t, o)
	io.WriteString(c, "early")
	c.CloseWrite()
	serve(t, "unix", path, func(c net.Conn) { io.Copy(c, c) })
	if b, err := io.ReadAll(c); err != nil || string(b) != "early" {
		t.Errorf("%q %v, want \"early\"", b, err)
	}
}

func TestUnreachableHubReturns503(t *testing.T) {
	t.Parallel()
	o := newRelay(t, relay.Config{Target: "unix:" + filepath.Join(t.TempDir(), "none"), Patience: time.Millisecond})
	c := dial(t, o)
	io.WriteString(c, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 503 ||
		!strings.Contains(string(b), "the egress proxy of this sandbox does not respond") {
		t.Errorf("%d %q %v, want StatusCode 503, containing \"the egress proxy of this sandbox does not respond\"", res.StatusCode, b, err)
	}
	s := dial(t, o)
	s.Write([]byte{5, 1, 0})
	if b, _ := io.ReadAll(s); len(b) != 0 {
		t.Errorf("SOCKS client received %q, want nothing", b)
	}
}

func TestEnvironKeepsExistingProxy(t *testing.T) {
	t.Parallel()
	o, err := relay.New(relay.Config{Target: "unix:/x"})
	if err != nil {
		t.Fatal(err)
	}
	const url, own = "http://127.0.0.1:8118", "localhost,.localhost,127.0.0.1,127.0.0.0/8,::1,[::1]"
	for _, c := range []struct {
		name string
		base []string
		want map[string]string // "" is unset
	}{
		{"plain", []string{"A=1"}, map[string]string{"A": "1", "http_proxy": url, "HTTP_PROXY": url, "https_proxy": url, "HTTPS_PROXY": url,
			"all_proxy": url, "ALL_PROXY": url, "no_proxy": own, "NO_PROXY": own, "NODE_USE_ENV_PROXY": "1"}},
		{"existing proxy", []string{"HTTPS_PROXY=http://127.0.0.1:9"},
			map[string]string{"HTTPS_PROXY": "http://127.0.0.1:9", "http_proxy": "", "no_proxy": ""}},
		{"empty proxy", []string{"http_proxy="}, map[string]string{"http_proxy": url}},
		{"exceptions", []string{"NO_PROXY=a.example"}, map[string]string{"no_proxy": own + ",a.example", "NO_PROXY": own + ",a.example"}},
		{"exceptions twice", []string{"NO_PROXY=a", "no_proxy=a"}, map[string]string{"no_proxy": own + ",a", "NO_PROXY": own + ",a"}},
	} {
		got := o.Environ(c.base)
		for name, want := range c.want {
			var values []string
			for _, pair := range got {
				if v, ok := strings.CutPrefix(pair, name+"="); ok {
					values = append(values, v)
				}
			}
			if want == "" && len(values) == 0 {
				continue
			}
			if len(values) != 1 || values[0] != want {
				t.Errorf("%s: %s is %q, want %q", c.name, name, values, want)
			}
		}
	}
}
