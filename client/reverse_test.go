package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// reflector is a server of the caller's machine, which sends everything back after its client's end of input.
func reflector(t *testing.T) (dial func(context.Context) (net.Conn, error), stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				defer c.Close()
				b, err := io.ReadAll(c)
				if err == nil {
					c.Write(b)
				}
			})
		}
	})
	stop = func() { l.Close(); wait.Wait() }
	t.Cleanup(stop)
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}, stop
}

// reverse serves a port in a sandbox, and returns when programs can connect.
func reverse(t *testing.T, g *client.Guest, port int, dial func(context.Context) (net.Conn, error)) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- g.Reverse(ctx, port, dial, func() { close(ready) }) }()
	var once sync.Once
	var ended error
	stop = func() error {
		once.Do(func() { cancel(); ended = <-done })
		return ended
	}
	t.Cleanup(func() { stop() })
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("listen on port %d: %v", port, err)
	}
	return stop
}

// exchange sends bytes as a program in the sandbox, ends its input, and returns the reply.
func exchange(port int, send []byte) ([]byte, error) {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	go func() {
		c.Write(send)
		c.(*net.TCPConn).CloseWrite()
	}()
	return io.ReadAll(c)
}

// TestReverse: programs in a sandbox reach a server of the caller's machine, with half-closed connections, many at once. When the
// caller ends, no listener remains.
func TestReverse(t *testing.T) {
	t.Parallel()
	g := newRig(t).create(t, "a")
	dial, stopServer := reflector(t)
	port := testenv.FreePort(t)
	stop := reverse(t, g, port, dial)
	big := bytes.Repeat([]byte("0123456789"), 300_000)
	if b, err := exchange(port, big); err != nil || !bytes.Equal(b, big) {
		t.Errorf("got %d bytes and error %v, want %d", len(b), err, len(big))
	}
	if b, err := exchange(port, nil); err != nil || len(b) > 0 {
		t.Errorf("got %q and error %v, want nothing", b, err)
	}
	var wait sync.WaitGroup
	var open []net.Conn
	for i := range testenv.Times(200, 1000) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		fmt.Fprintf(c, "program %d", i)
	}
	for i, c := range open {
		wait.Go(func() {
			defer c.Close()
			c.(*net.TCPConn).CloseWrite()
			if b, err := io.ReadAll(c); err != nil || string(b) != fmt.Sprintf("program %d", i) {
				t.Errorf("program %d: got %q and error %v, want its own data", i, b, err)
			}
		})
	}
	wait.Wait()
	stopServer()
	if b, err := exchange(port, []byte("x")); err == nil {
		t.Errorf("without a server: got %q, want a reset connection", b)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the error of the context", err)
	}
	testenv.Poll(t, "the port is closed", func() bool {
		_, err := exchange(port, nil)
		return err != nil
	})
}

// TestReverseRefusals: ports that belong to the sandbox or to a program are refused, and a lost connection is reported.
func TestReverseRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := r.create(t, "a")
	dial, _ := reflector(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	used := l.Addr().(*net.TCPAddr).Port
	for port, want := range map[int]string{reservedPort: "reserved for the sandbox", used: "in use", 0: "port", 70000: "port"} {
		err := g.Reverse(t.Context(), port, dial, func() { t.Errorf("port %d: it listens", port) })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("port %d: got %v, want %q", port, err, want)
		}
	}
	port := testenv.FreePort(t)
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() { done <- g.Reverse(t.Context(), port, dial, func() { close(ready) }) }()
	<-ready
	if err := g.Reverse(t.Context(), port, dial, func() {}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second caller: got %v, want the port in use", err)
	}
	if err := r.Delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("after the sandbox was deleted: got no error, want one")
	}
}

// listenRaw opens the WebSocket of a listener and returns a function that reads the next announced ID.
func listenRaw(t *testing.T, r *rig, port int) (c *websocket.Conn, id func(context.Context) (string, error)) {
	t.Helper()
	c = r.socket(t, fmt.Sprintf("/v1/sandbox/ports/%d/listen", port))
	id = func(ctx context.Context) (string, error) {
		_, b, err := c.Read(ctx)
		var a struct{ ID string }
		if err == nil {
			err = json.Unmarshal(b, &a)
		}
		return a.ID, err
	}
	if first, err := id(t.Context()); err != nil || first != "" {
		t.Fatalf("got %q, %v, want the port", first, err)
	}
	return c, id
}

// socket opens a WebSocket of the sandbox a.
func (r *rig) socket(t *testing.T, path string) *websocket.Conn {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), r.server.URL+"/sandbox/a"+path,
		&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer secret"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	return c
}

// TestReverseAttacks: a connection can be taken only with its ID, once, and at its port. A program that opens many connections
// is slowed down. Those that the caller does not take end with the listener.
func TestReverseAttacks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(t, "a")
	port, other := testenv.FreePort(t), testenv.FreePort(t)
	c, next := listenRaw(t, r, port)
	listenRaw(t, r, other)
	program, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	id, err := next(t.Context())
	if err != nil || len(id) < 26 {
		t.Fatalf("got ID %q, %v, want one that cannot be guessed", id, err)
	}
	taken := func(port int, id string) error {
		ws := r.socket(t, fmt.Sprintf("/v1/sandbox/ports/%d/accept?id=%s", port, id))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, _, err := ws.Read(ctx)
		return err
	}
	for _, forged := range []string{"", "x", strings.ToLower(id), id[:25], id + "A", "%00", "../" + id} {
		if err := taken(port, forged); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
			t.Errorf("ID %q: got %v, want it refused", forged, err)
		}
	}
	if err := taken(other, id); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("at another port: got %v, want it refused", err)
	}
	ws := r.socket(t, fmt.Sprintf("/v1/sandbox/ports/%d/accept?id=%s", port, id))
	fmt.Fprint(program, "hello")
	if _, b, err := ws.Read(t.Context()); err != nil || string(b) != "hello" {
		t.Errorf("got %q, %v, want hello", b, err)
	}
	if err := taken(port, id); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("a second time: got %v, want it refused", err)
	}
	var flood []net.Conn
	for range 200 {
		f, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		flood = append(flood, f)
	}
	var ids []string
	for range 63 {
		id, err := next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	// The caller refuses one, which makes room for another.
	if err := c.Write(t.Context(), websocket.MessageText, []byte(ids[0])); err != nil {
		t.Fatal(err)
	}
	if _, err := next(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.CloseNow()
	for _, f := range flood {
		if b, err := io.ReadAll(f); err == nil && len(b) > 0 {
			t.Errorf("got %q, want a connection that ends", b)
		}
	}
	if err := taken(port, ids[1]); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("after the end of the listener: got %v, want it refused", err)
	}
	fmt.Fprint(program, " again")
	if _, b, err := ws.Read(t.Context()); err != nil || string(b) != " again" {
		t.Errorf("a connection that was taken: got %q, %v, want it open", b, err)
	}
}
