package local

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// A connection that is kept for the next to ask is handed out once, and only while
// the server at its other end lives and is silent.
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
		t.Error("there was none")
	}
	first, _ := pair()
	second, _ := pair()
	i.put("a", first)
	i.put("a", second)
	if !closed(first) {
		t.Error("the one that was replaced is open")
	}
	if i.take("b") != nil || i.take("a") != second || i.take("a") != nil {
		t.Error("it is not handed out once, to whom it leads")
	}
	dead, theirs := pair()
	theirs.Close()
	i.put("a", dead)
	if i.take("a") != nil || !closed(dead) {
		t.Error("one that has ended is handed out or stays open")
	}
	talks, theirs := pair()
	theirs.Write([]byte("unasked"))
	i.put("a", talks)
	if i.take("a") != nil || !closed(talks) {
		t.Error("one on which something was said is handed out or stays open")
	}
	forgotten, _ := pair()
	i.put("a", forgotten)
	testenv.Poll(t, "it is closed when nobody wants it", func() bool { return closed(forgotten) })
	last, _ := pair()
	i.put("a", last)
	if i.close(); !closed(last) || i.take("a") != nil {
		t.Error("at the end one is left")
	}
}
