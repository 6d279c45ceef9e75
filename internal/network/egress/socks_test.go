package egress

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strconv"
	"testing"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// tlsAny trusts the test's own server.
func tlsAny() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

func TestSocksReplies(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"ok.test", "127.0.0.1"}}, Private: loopback})
	echo, err := strconv.Atoi(echoServer(t))
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := free.Addr().(*net.TCPAddr).Port
	free.Close()
	r.names["ok.test"] = []string{"127.0.0.1"}
	hello := []byte{5, 2, 2, 0}
	name := func(s string, port int) []byte {
		return append(append([]byte{5, 1, 0, 3, byte(len(s))}, s...), byte(port>>8), byte(port))
	}
	for what, c := range map[string]struct {
		send, want []byte
	}{
		"name":            {append(hello, name("ok.test", echo)...), []byte{5, 0, 5, 0, 0, 1}},
		"address":         {append(hello, 5, 1, 0, 1, 127, 0, 0, 1, byte(echo>>8), byte(echo)), []byte{5, 0, 5, 0, 0, 1}},
		"not allowed":     {append(hello, name("no.test", 80)...), []byte{5, 0, 5, 2, 0, 1}},
		"address written": {append(hello, name("127.1", 80)...), []byte{5, 0, 5, 2, 0, 1}},
		"port 0":          {append(hello, name("ok.test", 0)...), []byte{5, 0, 5, 2, 0, 1}},
		"nobody there":    {append(hello, name("ok.test", dead)...), []byte{5, 0, 5, 5, 0, 1}},
		"v6 loopback":     {append(hello, append(append([]byte{5, 1, 0, 4}, net.IPv6loopback...), 0, 80)...), []byte{5, 0, 5, 2, 0, 1}},
		"bind":            {append(hello, 5, 2, 0, 1, 1, 1, 1, 1, 0, 80), []byte{5, 0, 5, 7, 0, 1}},
		"odd address":     {append(hello, 5, 1, 0, 9), []byte{5, 0, 5, 8, 0, 1}},
		"password only":   {[]byte{5, 1, 2}, []byte{5, 0xff}},
	} {
		c1, err := net.Dial("unix", r.path)
		if err != nil {
			t.Fatal(err)
		}
		c1.Write(bytes.Clone(c.send))
		got := make([]byte, len(c.want))
		if _, err := io.ReadFull(c1, got); err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%s: % x %v, want % x", what, got, err, c.want)
		}
		c1.Close()
	}
}
