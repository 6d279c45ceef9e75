package socket

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestIdleConnections: a kept connection is returned once, and only while the server
// at its other end is open and silent.
func TestIdleConnections(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pair := func() (ours, theirs net.Conn) {
		t.Helper()
		ours, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if theirs, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		return ours, theirs
	}
	closed := func(c net.Conn) bool {
		_, err := c.Write([]byte("x"))
		return err != nil
	}
	var i idle
	if i.take("a") != nil {
		t.Error("got a connection before any was kept")
	}
	first, _ := pair()
	second, _ := pair()
	i.put("a", first)
	i.put("a", second)
	if !closed(first) {
		t.Error("the replaced connection is still open")
	}
	if i.take("b") != nil || i.take("a") != second || i.take("a") != nil {
		t.Error("a kept connection is not returned exactly once, for its own sandbox")
	}
	dead, theirs := pair()
	theirs.Close()
	i.put("a", dead)
	if i.take("a") != nil || !closed(dead) {
		t.Error("a connection closed by the server is returned or stays open")
	}
	talks, theirs := pair()
	theirs.Write([]byte("unasked"))
	i.put("a", talks)
	if i.take("a") != nil || !closed(talks) {
		t.Error("a connection with unread data is returned or stays open")
	}
	forgotten, _ := pair()
	i.put("a", forgotten)
	testenv.Poll(t, "the unused connection is closed", func() bool { return closed(forgotten) })
	last, _ := pair()
	i.put("a", last)
	if i.close(); !closed(last) || i.take("a") != nil {
		t.Error("a connection is left after close")
	}
}
