//go:build linux

package replica_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/replica"
	"github.com/cove-sandbox/cove/internal/network/tunnel"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// site is one replica, whose server responds with its name and the client's address.
type site struct {
	t      *testing.T
	name   string
	public net.Listener
	cancel context.CancelFunc
	served sync.WaitGroup
	leads  chan *replica.Member
}

func start(t *testing.T, dir, name string) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, name: name, public: l, leads: make(chan *replica.Member, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.served.Go(func() {
		m, err := replica.Join(ctx, l, replica.Config{Dir: dir, Address: "127.0.0.1:0", MaxConns: 100, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			return
		}
		s.leads <- m
		for {
			c, err := m.Accept()
			if err != nil {
				return
			}
			s.served.Go(func() { s.answer(c) })
		}
	})
	t.Cleanup(s.stop)
	return s
}

// answer responds to every line.
func (s *site) answer(c net.Conn) {
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		fmt.Fprintf(c, "%s heard %s from %s\n", s.name, lines.Text(), c.RemoteAddr())
	}
}

// stop ends the replica as the end of its process does.
func (s *site) stop() {
	s.cancel()
	select {
	case m := <-s.leads:
		m.Close()
		m.Leave()
	default:
		s.public.Close()
	}
	s.served.Wait()
}

func (s *site) dial() net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.public.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// ask sends a line on a new connection.
func (s *site) ask(line string) string {
	s.t.Helper()
	c := s.dial()
	defer c.Close()
	return exchange(s.t, c, line)
}

func exchange(t *testing.T, c net.Conn, line string) string {
	t.Helper()
	fmt.Fprintln(c, line)
	got, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Errorf("no answer to %q: %v", line, err)
	}
	return strings.TrimSpace(got)
}

// TestTurns: the active replica serves requests to any replica. When it ends, another takes over and also
// serves requests that arrived in between.
func TestTurns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := start(t, dir, "a")
	if got := a.ask("one"); !strings.HasPrefix(got, "a heard one from 127.0.0.1:") {
		t.Errorf("got %q from the active replica", got)
	}
	b := start(t, dir, "b")
	// A client that is local at the other replica is not local here.
	if got := b.ask("two"); got != "a heard two from [::]:0" {
		t.Errorf("got %q through another replica", got)
	}
	// A connection carries multiple requests, and its end is forwarded.
	c := b.dial()
	defer c.Close()
	for _, line := range []string{"three", "four"} {
		if got := exchange(t, c, line); !strings.HasPrefix(got, "a heard "+line) {
			t.Errorf("got %q", got)
		}
	}
	c.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Errorf("got %q, %v after the end, want the end", rest, err)
	}
	a.stop()
	if got := b.ask("five"); !strings.HasPrefix(got, "b heard five from ") {
		t.Errorf("got %q after the first replica ended", got)
	}
	again := start(t, dir, "again")
	if got := again.ask("six"); got != "b heard six from [::]:0" {
		t.Errorf("got %q from a restarted replica", got)
	}
	b.stop()
	if got := again.ask("seven"); !strings.HasPrefix(got, "again heard seven from ") {
		t.Errorf("got %q after the second replica ended", got)
	}
}

// TestStandbyReplicaStops: a standby replica stops on request and closes the connections that wait at it.
func TestStandbyReplicaStops(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := start(t, dir, "a")
	if got := a.ask("one"); !strings.HasPrefix(got, "a heard one") {
		t.Errorf("got %q", got)
	}
	b := start(t, dir, "b")
	c := b.dial()
	defer c.Close()
	if got := exchange(t, c, "two"); !strings.HasPrefix(got, "a heard two") {
		t.Errorf("got %q", got)
	}
	b.stop()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open, want it closed")
	}
	if got := a.ask("three"); !strings.HasPrefix(got, "a heard three") {
		t.Errorf("got %q", got)
	}
}

// TestOnlyReplicasForwardConnections: a client without the key of the folder cannot forward connections or addresses.
func TestOnlyReplicasForwardConnections(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := start(t, dir, "a")
	a.ask("one")
	data, err := os.ReadFile(filepath.Join(dir, "replica.json"))
	var at struct{ Address string }
	if err == nil {
		err = json.Unmarshal(data, &at)
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "replica.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want a file that only the hub can read", info.Mode(), err)
	}
	try := func(dial func() (net.Conn, error)) {
		t.Helper()
		c, err := dial()
		if err != nil {
			return // rejected at once
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		c.Write(append([]byte{9}, "1.2.3.4:5hello\n"...))
		if got, _ := io.ReadAll(c); strings.Contains(string(got), "heard") {
			t.Errorf("a client without the key got %q", got)
		}
	}
	try(func() (net.Conn, error) { return net.Dial("tcp", at.Address) })
	cert, key, err := tunnel.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, pairs := range [][]tls.Certificate{nil, {own}} {
		try(func() (net.Conn, error) {
			return tls.Dial("tcp", at.Address, &tls.Config{InsecureSkipVerify: true, Certificates: pairs, NextProtos: []string{"cove-tunnel/1"}})
		})
	}
	if got := a.ask("two"); !strings.HasPrefix(got, "a heard two") {
		t.Errorf("got %q", got)
	}
}

// TestFloodedReplica: clients without the key that hold connections to the port for replicas, and a client that opens
// many connections to a replica, do not block other clients.
func TestFloodedReplica(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := start(t, dir, "a")
	a.ask("one")
	b := start(t, dir, "b")
	if got := b.ask("two"); !strings.HasPrefix(got, "a heard two") {
		t.Errorf("got %q", got)
	}
	data, err := os.ReadFile(filepath.Join(dir, "replica.json"))
	var at struct{ Address string }
	if err == nil {
		err = json.Unmarshal(data, &at)
	}
	if err != nil {
		t.Fatal(err)
	}
	hold := func(from, to string) net.Conn {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range 600 {
		hold("127.0.0.1", at.Address)
	}
	if got := b.ask("three"); !strings.HasPrefix(got, "a heard three") {
		t.Errorf("while clients without the key hold the port for replicas: got %q", got)
	}
	for range 150 {
		hold("127.0.0.1", b.public.Addr().String())
	}
	c := hold("127.0.0.2", b.public.Addr().String())
	c.SetDeadline(time.Now().Add(time.Minute))
	if got := exchange(t, c, "four"); !strings.HasPrefix(got, "a heard four") {
		t.Errorf("another client, while one client holds many connections: got %q", got)
	}
}
