package tunnel_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/tunnel"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type identity struct {
	cert, key []byte
	pin       string
}

func newIdentity(t *testing.T) (id identity) {
	t.Helper()
	var err error
	if id.cert, id.key, err = tunnel.NewIdentity(); err != nil {
		t.Fatal(err)
	}
	if id.pin, err = tunnel.Pin(id.cert); err != nil {
		t.Fatal(err)
	}
	return id
}

// rig is a sandbox's end at an address, with an echo at port 7 inside.
type rig struct {
	t            *testing.T
	hub, sandbox identity
	address      string
	out          string // the socket for outgoing connections
}

func newRig(t *testing.T) *rig { return newRigWith(t, func(*tunnel.ServerConfig) {}) }

func newRigWith(t *testing.T, change func(*tunnel.ServerConfig)) *rig {
	r := &rig{t: t, hub: newIdentity(t), sandbox: newIdentity(t)}
	cfg := tunnel.ServerConfig{Cert: r.sandbox.cert, Key: r.sandbox.key, Hub: r.hub.pin,
		Dial: func(_ context.Context, port int) (net.Conn, error) {
			if port != 7 {
				return nil, fmt.Errorf("no server at port %d", port)
			}
			near, far := net.Pipe()
			go func() { defer far.Close(); io.Copy(far, far) }()
			return near, nil
		},
		Stats: func() []byte { return []byte(`{"memory":1}`) },
	}
	change(&cfg)
	s, err := tunnel.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.address, r.out = in.Addr().String(), filepath.Join(t.TempDir(), "out")
	out, err := net.Listen("unix", r.out)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() { s.Serve(in) })
	work.Go(func() { s.ServeOutgoing(out) })
	t.Cleanup(func() { in.Close(); out.Close(); s.Close(); work.Wait() })
	return r
}

func (r *rig) open(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", r.address)
}

// client is the end of a hub that expects a sandbox with a pin.
func (r *rig) client(who identity, pin string) *tunnel.Client {
	r.t.Helper()
	c, err := tunnel.NewClient(who.cert, who.key, pin, r.open)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func TestDial(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.client(r.hub, r.sandbox.pin)
	conn, err := c.Dial(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("hello ", 100_000)
	go io.WriteString(conn, big)
	got := make([]byte, len(big))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != big {
		t.Errorf("got %d bytes, %v, want the same back", len(got), err)
	}
	conn.Close()
	if _, err := c.Dial(t.Context(), 9); !errors.Is(err, tunnel.ErrRefused) || !strings.Contains(err.Error(), "no server at port 9") {
		t.Errorf("got %v, want the reason", err)
	}
	if stats, err := c.Stats(t.Context()); err != nil || string(stats) != `{"memory":1}` {
		t.Errorf("got %q, %v", stats, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Dial(gone, 7); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// TestAuthentication: clients without the hub's key are refused, and the hub refuses other sandboxes.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stranger := newIdentity(t)
	for what, c := range map[string]*tunnel.Client{
		"another key":               r.client(stranger, r.sandbox.pin),
		"the sandbox's own key":     r.client(r.sandbox, r.sandbox.pin),
		"the hub at another's door": r.client(r.hub, stranger.pin),
	} {
		if conn, err := c.Dial(t.Context(), 7); err == nil {
			conn.Close()
			t.Errorf("%s: accepted", what)
		}
		if out, err := c.Stats(t.Context()); err == nil {
			t.Errorf("%s: got %q", what, out)
		}
	}
	// Without a certificate, in clear text, and with an older protocol.
	for what, talk := range map[string]func(net.Conn) error{
		"no certificate": func(c net.Conn) error {
			secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"cove-tunnel/1"}})
			_, err := secure.Write([]byte{'d', 0, 7})
			if err == nil {
				_, err = io.ReadFull(secure, make([]byte, 1))
			}
			return err
		},
		"clear text": func(c net.Conn) error {
			c.Write([]byte{'d', 0, 7})
			c.Write(make([]byte, 64))
			reply, err := io.ReadAll(c)
			if len(reply) > 0 && !strings.HasPrefix(string(reply), "\x15\x03") { // an alert
				return nil
			}
			return errors.Join(err, io.EOF)
		},
		"TLS 1.2": func(c net.Conn) error {
			return tls.Client(c, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12,
				NextProtos: []string{"cove-tunnel/1"}}).Handshake()
		},
	} {
		c, err := r.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(time.Minute))
		if err := talk(c); err == nil {
			t.Errorf("%s: accepted", what)
		}
		c.Close()
	}
	for _, pin := range []string{"", "short", strings.Repeat("z", 63)} {
		if _, err := tunnel.NewClient(r.hub.cert, r.hub.key, pin, r.open); err == nil {
			t.Errorf("pin %q: accepted", pin)
		}
	}
}

// TestIdleConnections: unauthenticated idle connections do not exclude the hub.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 800 { // more than the limit of handshakes
		c, err := r.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	conn, err := r.client(r.hub, r.sandbox.pin).Dial(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func answer(l net.Listener, work *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		work.Go(func() {
			defer c.Close()
			io.Copy(c, c)
			if half, ok := c.(interface{ CloseWrite() error }); ok {
				half.CloseWrite()
			}
		})
	}
}

// TestOutgoing: connections of programs inside arrive at the hub, many at once, also
// those that were opened before the hub listened, and those after it reconnected.
func TestOutgoing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.client(r.hub, r.sandbox.pin)
	ask := func(i int) error {
		conn, err := net.Dial("unix", r.out)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		want := fmt.Sprint("request ", i)
		io.WriteString(conn, want)
		conn.(*net.UnixConn).CloseWrite()
		got, err := io.ReadAll(conn)
		if string(got) != want {
			return fmt.Errorf("got %q, %v, want %q", got, err, want)
		}
		return nil
	}
	for round := range 2 {
		early := make(chan error, 1)
		go func() { early <- ask(-1) }()
		l := c.Listen(nil)
		var work sync.WaitGroup
		work.Go(func() { answer(l, &work) })
		if err := <-early; err != nil {
			t.Errorf("round %d, before the hub listens: %v", round, err)
		}
		var asking sync.WaitGroup
		for i := range 20 {
			asking.Go(func() {
				if err := ask(i); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		asking.Wait()
		l.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept after close: got %v, want %v", err, net.ErrClosed)
		}
		work.Wait()
	}
}
