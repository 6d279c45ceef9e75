package host

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// TestDoor: a connection that begins with the word is treated like one over the socket. Other
// connections are closed, and do not block it.
func TestDoor(t *testing.T) {
	// The address of the listener does not contain the port, so the test selects one.
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	l, err := ListenDoor(address+"/word", "unix:/run/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	send := func(text string) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, text)
		return c
	}
	for _, text := range []string{"GET / HTTP/1.1\r\nHost: word\r\n\r\n", "wore", "worD and more"} {
		c := send(text)
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("%q: got %q, want a closed connection", text, got)
		}
	}
	send("wo") // hangs, but does not block others
	send("wordhello")
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Errorf("after the word: got %q, %v, want hello", got, err)
	}
	if c.LocalAddr().Network() != "unix" || c.LocalAddr().String() != "/run/s" || c.RemoteAddr().Network() != "unix" {
		t.Errorf("addresses: got %v and %v, want those of the socket", c.LocalAddr(), c.RemoteAddr())
	}
	c.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: got %v, want %v", err, net.ErrClosed)
	}
	if _, err := ListenDoor("127.0.0.1:-1/word", "unix:/run/s"); err == nil || !strings.Contains(err.Error(), "listen on 127.0.0.1:-1") {
		t.Errorf("an invalid port: got %v, want an error that names the address", err)
	}
}
