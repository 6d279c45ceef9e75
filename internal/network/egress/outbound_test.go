package egress

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/network/outbound"
	"github.com/cove-sandbox/cove/internal/network/socks"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// handed is a listener whose clients pass connections, as the first process of a sandbox does.
type handed struct{ *net.UnixListener }

func (handed) TakeSocket(c net.Conn) (net.Conn, error) {
	oob := make([]byte, 64)
	_, n, _, _, err := c.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	msgs, err := syscall.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return nil, errors.New("no descriptor")
	}
	fds, err := syscall.ParseUnixRights(&msgs[0])
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fds[0]), "")
	defer f.Close()
	return net.FileConn(f)
}

// program returns both ends of the connection of a program.
func program(t *testing.T) (net.Conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	inside, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close() })
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return inside, c.(*net.TCPConn)
}

// give passes a connection to the proxy.
func give(t *testing.T, c *outbound.Connection, conn *net.TCPConn) {
	t.Helper()
	f, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Give(fd); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	c.Close()
}

// code returns the reply of the proxy.
func code(err error) socks.Reply {
	if refused, ok := errors.AsType[*outbound.RefusedError](err); ok {
		return refused.Code
	}
	if err != nil {
		return 0xff
	}
	return socks.OK
}

func TestOutbound(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Private: loopback, Network: sandbox.Network{Mode: sandbox.NetworkAllow,
		Allow: []string{"!no.echo.test", "echo.test", "*.echo.test", "gone.test:81", "!port.test:80", "port.test:80", "absent.test"}}})
	for _, name := range []string{"echo.test", "gone.test", "port.test", "no.echo.test", "other.test"} {
		r.names[name] = []string{"127.0.0.1"}
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); r.Serve(handed{l}) }()
	t.Cleanup(func() { r.Close(); <-served })
	hub := &outbound.Hub{Path: path}

	for name, want := range map[string]socks.Reply{
		"echo.test": socks.OK, "ECHO.test.": socks.OK, "gone.test": socks.OK, "no.echo.test": socks.Denied, "port.test": socks.Denied,
		"other.test": socks.Denied, "127.1": socks.Denied, "127.0.0.1": socks.Denied, "0x7f.1": socks.Denied, "a b": socks.Denied,
		strings.Repeat("a.", 120) + "test": socks.Denied, "absent.test": socks.HostUnreachable, "sub.echo.test": socks.HostUnreachable,
	} {
		if got := code(hub.Lookup(t.Context(), name)); got != want {
			t.Errorf("look up %.40s: got %v, want %v", name, got, want)
		}
	}
	for _, to := range []string{
		"other.test:80", "gone.test:80", "port.test:80", "198.18.0.1:80", "169.254.169.254:80", "[::ffff:10.0.0.1]:80",
		"[fd00:ec2::254]:80", "echo.test:0",
	} {
		conn := r.request(t, hub, to)
		if got := code(conn.Admission(t.Context())); got != socks.Denied {
			t.Errorf("%s: got %v, want %v", to, got, socks.Denied)
		}
	}

	r.tryConnections(t, hub)
	// Without a first process that can pass connections.
	plain := &outbound.Hub{Path: r.path}
	if got := code(r.request(t, plain, "echo.test:80").Result(t.Context())); got != socks.UnknownCommand {
		t.Errorf("a listener that receives no connections: got %v, want %v", got, socks.UnknownCommand)
	}
	// It copies their data instead.
	r.tryConnections(t, &outbound.Hub{Path: r.path, Copies: true})
	var refused []string
	for _, rec := range r.Records() {
		if rec.Protocol == "tcp" && rec.Program != "test" {
			t.Errorf("program: got %q, want test", rec.Program)
		}
		if rec.Protocol == "dns" && rec.Verdict == Refused && len(rec.Host) < 80 {
			refused = append(refused, rec.Host)
		}
	}
	slices.Sort(refused)
	if want := []string{"no.echo.test", "other.test", "port.test"}; !slices.Equal(refused, want) {
		t.Errorf("refused names: got %q, want %q", refused, want)
	}
}

// tryConnections passes connections of programs to the proxy.
func (r *rig) tryConnections(t *testing.T, hub *outbound.Hub) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) }))
	t.Cleanup(web.Close)
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	for host, want := range map[string]string{"echo.test": "200 echo.test", "other.test": "421"} {
		conn := r.request(t, hub, "echo.test:"+port)
		if err := errors.Join(conn.Admission(t.Context()), conn.Result(t.Context())); err != nil {
			t.Fatal(err)
		}
		inside, given := program(t)
		give(t, conn, given)
		req, _ := http.NewRequest(http.MethodGet, "http://"+net.JoinHostPort(host, port), nil)
		req.Close = true
		req.Write(inside)
		res, err := http.ReadResponse(bufio.NewReader(inside), req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		if got := fmt.Sprintf("%d %s", res.StatusCode, strings.TrimSuffix(string(body), ":"+port)); !strings.HasPrefix(got, want) {
			t.Errorf("host %s: got %q, want %q", host, got, want)
		}
	}
	web.Close()
	conn := r.request(t, hub, "echo.test:"+port)
	if err := conn.Admission(t.Context()); err != nil {
		t.Errorf("admission to a closed port: got %v, want none", err)
	}
	if got := code(conn.Result(t.Context())); got != socks.Refused {
		t.Errorf("a closed port: got %v, want %v", got, socks.Refused)
	}
}

// request requests a connection.
func (r *rig) request(t *testing.T, hub *outbound.Hub, to string) *outbound.Connection {
	t.Helper()
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := hub.Connect(t.Context(), host, n, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestLookupAsks: a name that waits for approval is not looked up outside, and the connection to it waits.
func TestLookupAsks(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: sandbox.Network{Mode: sandbox.NetworkAsk, Allow: []string{"!no.test"}}})
	r.dialer.cfg.Resolve = nil // a lookup would panic
	for name, want := range map[string]socks.Reply{"ask.test": socks.OK, "no.test": socks.Denied, "a b": socks.Denied} {
		if got := r.lookup(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if !r.admits("ask.test", 80) || r.admits("no.test", 80) {
		t.Error("connections: got another decision than for the names")
	}
}

// TestNamesOfRequestRules: a name is looked up if a rule allows some requests to it.
func TestNamesOfRequestRules(t *testing.T) {
	t.Parallel()
	r, err := Parse(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{
		"GET read.test/v1/*", "!*.test", "GET late.test/v1/*", "!POST part.example", "part.example", "!DELETE gone.example"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"read.test": true, "late.test": false, "other.test": false, "part.example": true, "gone.example": false,
	} {
		if err := r.allowName(name); (err == nil) != want {
			t.Errorf("%s: got %v, want allowed %v", name, err, want)
		}
	}
}
