package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress/internal/clienthello"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// listed is a proxy that allows named.test and no credentials, in front of servers that
// would respond for any name.
func listed(t *testing.T, more ...string) *world {
	return newWorld(t, func(c *Config) {
		c.Credentials = nil
		c.Network = sandbox.Network{Mode: sandbox.NetworkAllow, Allow: append([]string{"named.test"}, more...)}
	})
}

func serverName(w *world, name string) *tls.Config {
	return &tls.Config{ServerName: name, InsecureSkipVerify: true}
}

// TestTunnelCannotCarryAnotherName: CONNECT and SOCKS to an allowed name with another
// name inside reach no server.
func TestTunnelCannotCarryAnotherName(t *testing.T) {
	t.Parallel()
	w := listed(t)
	get := func(host string) string {
		return "GET /x HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	}
	for name, c := range map[string]struct {
		port string
		tls  *tls.Config
		send string
		want string // statuses
	}{
		"SNI as allowed":            {w.secure, serverName(w, "named.test"), get("named.test"), "[200]"},
		"SNI in upper case":         {w.secure, serverName(w, "NAMED.test"), get("named.test"), "[200]"},
		"another SNI":               {w.secure, serverName(w, "other.test"), get("named.test"), "[]"},
		"subdomain as SNI":          {w.secure, serverName(w, "sub.named.test"), get("named.test"), "[]"},
		"no SNI":                    {w.secure, serverName(w, ""), get("named.test"), "[]"},
		"Host as allowed":           {w.plain, nil, get("named.test:" + w.plain), "[200]"},
		"another Host":              {w.plain, nil, get("other.test"), "[421]"},
		"another Host, second time": {w.plain, nil, "GET / HTTP/1.1\r\nHost: named.test\r\n\r\n" + get("other.test"), "[200 421]"},
		"another Host, after lines": {w.plain, nil, "\r\n\r\n" + get("other.test"), "[400]"},
		"no Host":                   {w.plain, nil, "GET / HTTP/1.0\r\n\r\n", "[421]"},
		"two Hosts":                 {w.plain, nil, "GET / HTTP/1.1\r\nHost: named.test\r\nHost: other.test\r\n\r\n", "[400]"},
		"another absolute target":   {w.plain, nil, "GET http://other.test/ HTTP/1.1\r\nHost: named.test\r\n\r\n", "[421]"},
		"HTTP/2 without TLS":        {w.plain, nil, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "[]"},
		"lower case version":        {w.plain, nil, "GET / http/1.1\r\nHost: other.test\r\n\r\n", "[400]"},
		"neither TLS nor HTTP":      {w.plain, nil, "\x00\x01\x02", "[]"},
		"HTTP/0.9":                  {w.plain, nil, "GET /\r\n", "[400]"},
	} {
		statuses, text := w.dialogue(t, "named.test:"+c.port, c.tls, c.send)
		if got := fmt.Sprint(statuses); got != c.want {
			t.Errorf("%s: got %s %q, want %s", name, got, text, c.want)
		}
	}
	for _, r := range w.requests() {
		if !strings.HasPrefix(r.host, "named.test") {
			t.Errorf("a request for %q went out, want only named.test", r.host)
		}
	}
	denied := 0
	for _, rec := range w.Records() {
		if rec.Verdict == Refused && strings.Contains(rec.Reason, "SNI") {
			denied++
		}
	}
	if denied != 3 {
		t.Errorf("got %d records of refused server names, want 3: %+v", denied, w.Records())
	}
}

// TestAllowedAddressNeedsNoName: an allowed address permits all names that it serves.
func TestAllowedAddressNeedsNoName(t *testing.T) {
	t.Parallel()
	w := listed(t, "127.0.0.1")
	for _, to := range []string{"named.test:", "127.0.0.1:"} {
		for _, name := range []string{"", "other.test"} {
			cfg := serverName(w, name)
			if name == "" {
				cfg.ServerName = "127.0.0.1" // an address is never sent as a server name
			}
			c := w.tunnel(t, to+w.secure)
			s := tls.Client(direct{c}, cfg)
			if err := s.Handshake(); name != "" && err != nil {
				t.Errorf("%s%s as %q: %v, want a handshake", to, w.secure, name, err)
			} else if err != nil && strings.Contains(err.Error(), "access denied") {
				t.Errorf("%s%s without a name: %v, want no refusal", to, w.secure, err)
			}
			s.Close()
		}
	}
}

// TestProtocolsWithoutNames: they pass if the server sends first, like SSH, or if a rule has
// the port.
func TestProtocolsWithoutNames(t *testing.T) {
	t.Parallel()
	first := serveFirst(t)
	echo := echoServer(t)
	w := listed(t)
	w.names["db.test"] = []string{"127.0.0.1"}
	if err := w.Set(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"named.test", "db.test:" + echo}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ to, send, want string }{
		"the server speaks first": {"named.test:" + first, "EHLO me\r\n", "220 ready\r\nEHLO me\r\nbye"},
		"SSH":                     {"named.test:" + first, "SSH-2.0-x\r\n", "220 ready\r\nSSH-2.0-x\r\nbye"},
		"SSH, by a rule":          {"db.test:" + echo, "SSH-2.0-x\r\n", "SSH-2.0-x\r\nbye"},
		"a rule with the port":    {"db.test:" + echo, "\x00\x00\x00\x08", "\x00\x00\x00\x08bye"},
		"a rule without the port": {"named.test:" + echo, "\x00\x00\x00\x08", ""},
		"an old SSL hello":        {"db.test:" + echo, "\x80\x2e\x01\x03\x01", ""},
	} {
		c2 := w.tunnel(t, c.to)
		c2.Conn.SetDeadline(time.Now().Add(time.Minute))
		if strings.HasPrefix(c.want, "220") && name != "SSH" { // whose clients do not wait
			c2.Peek(4)
		}
		io.WriteString(c2.Conn, c.send)
		c2.Conn.(*net.UnixConn).CloseWrite()
		if b, err := io.ReadAll(c2.Reader); string(b) != c.want && c.want != "" || c.want == "" && bytes.Contains(b, []byte(c.send)) {
			t.Errorf("%s: got %q, %v, want %q", name, b, err, c.want)
		}
	}
}

// serveFirst sends a greeting like a mail server, then echoes.
func serveFirst(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				io.WriteString(c, "220 ready\r\n")
				io.Copy(c, c)
				io.WriteString(c, "bye")
			})
		}
	})
	t.Cleanup(func() { l.Close(); work.Wait() })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// TestSecondHelloCannotChangeTheName: a server that requests a second ClientHello uses its name.
func TestSecondHelloCannotChangeTheName(t *testing.T) {
	t.Parallel()
	w := listed(t)
	heard := make(chan []byte, 1)
	retry := func() []byte {
		body := append([]byte{3, 3}, clienthello.Retry[:]...)
		body = append(body, 0, 0x13, 0x01, 0, 0, 0)
		message := append([]byte{clienthello.ServerMessage, 0, 0, byte(len(body))}, body...)
		return append([]byte{clienthello.Handshake, 3, 3, 0, byte(len(message))}, message...)
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, _, err := clienthello.Read(c); err != nil {
			return
		}
		c.Write(retry)
		b, _ := io.ReadAll(c)
		heard <- b
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	c := w.tunnel(t, "named.test:"+port)
	c.Conn.Write(hello("named.test"))
	if _, err := io.ReadFull(c.Reader, make([]byte, len(retry))); err != nil {
		t.Fatal(err)
	}
	c.Conn.Write([]byte{clienthello.ChangeCipher, 3, 3, 0, 1, 1, clienthello.Data, 3, 3, 0, 2, 9, 9})
	c.Conn.Write(hello("other.test"))
	select {
	case b := <-heard:
		if bytes.Contains(b, []byte("other.test")) {
			t.Errorf("the server got %q, want no second hello for another name", b)
		}
	case <-time.After(time.Minute):
		t.Fatal("the tunnel stays open, want it cut")
	}
}

// hello is a ClientHello for a name, or without one.
func hello(name string) []byte {
	var ext []byte
	if name != "" {
		ext = binary.BigEndian.AppendUint16(ext, uint16(len(name)+5))
		ext = binary.BigEndian.AppendUint16(ext, uint16(len(name)+3))
		ext = append(ext, 0)
		ext = binary.BigEndian.AppendUint16(ext, uint16(len(name)))
		ext = append(append([]byte{0, 0}, ext...), name...)
	}
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 0x01, 1, 0)
	body = binary.BigEndian.AppendUint16(body, uint16(len(ext)))
	body = append(body, ext...)
	message := append([]byte{clienthello.Message, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	return append([]byte{clienthello.Handshake, 3, 1, byte(len(message) >> 8), byte(len(message))}, message...)
}

// split puts every byte of a handshake into a separate record.
func splitHello(b []byte) (out []byte) {
	for _, c := range b[clienthello.RecordHeader:] {
		out = append(out, clienthello.Handshake, 3, 1, 0, 1, c)
	}
	return out
}

// TestReadHello: fragmented, slow, truncated and ambiguous hellos.
func TestReadHello(t *testing.T) {
	t.Parallel()
	whole := hello("named.test")
	twice := func() []byte {
		b := bytes.Clone(whole)
		ext := b[len(b)-len("named.test")-9:]
		b = append(b, ext...)
		n := len(ext)
		for _, at := range []int{3, 7, clienthello.RecordHeader + clienthello.HandshakeHeader + 2 + 32 + 7} {
			binary.BigEndian.PutUint16(b[at:], binary.BigEndian.Uint16(b[at:])+uint16(n))
		}
		return b
	}()
	trailing := append(bytes.Clone(whole), 1)
	binary.BigEndian.PutUint16(trailing[3:], uint16(len(trailing)-clienthello.RecordHeader))
	for _, c := range []struct {
		what string
		in   io.Reader
		name string
		ok   bool
	}{
		{"whole", bytes.NewReader(whole), "named.test", true},
		{"byte by byte", iotest.OneByteReader(bytes.NewReader(whole)), "named.test", true},
		{"a record for each byte", bytes.NewReader(splitHello(whole)), "named.test", true},
		{"no name", bytes.NewReader(hello("")), "", true},
		{"cut", bytes.NewReader(whole[:len(whole)-3]), "", false},
		{"two lists of names", bytes.NewReader(twice), "", false},
		{"more after it", bytes.NewReader(trailing), "", false},
		{"an empty record", bytes.NewReader([]byte{clienthello.Handshake, 3, 1, 0, 0}), "", false},
		{"an alert first", bytes.NewReader(append([]byte{21, 3, 1, 0, 2, 1, 0}, whole...)), "", false},
		{"endless", io.MultiReader(bytes.NewReader([]byte{clienthello.Handshake, 3, 1, 0, 4, clienthello.Message, 255, 255, 255}),
			endless{}), "", false},
	} {
		name, raw, err := clienthello.Read(c.in)
		if name != c.name || (err == nil) != c.ok {
			t.Errorf("%s: got %q, %v, want %q, ok %v", c.what, name, err, c.name, c.ok)
		}
		if len(raw) > 2*clienthello.MaxSize {
			t.Errorf("%s: kept %d bytes, want at most %d", c.what, len(raw), 2*clienthello.MaxSize)
		}
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = clienthello.Handshake
	}
	return len(b), nil
}

// TestRealHello reads the ClientHello of crypto/tls.
func TestRealHello(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		tls.Client(b, &tls.Config{ServerName: "named.test"}).Handshake()
		b.Close()
	}()
	if name, _, err := clienthello.Read(a); name != "named.test" || err != nil {
		t.Errorf("got %q, %v, want named.test", name, err)
	}
}

// TestInspectedTunnelsWork end to end, as clients use them: TLS, keep-alive, many at once.
func TestInspectedTunnelsWork(t *testing.T) {
	t.Parallel()
	w := listed(t)
	for _, scheme := range []string{"http", "socks5h"} {
		c := w.trusting(t, scheme, w.real)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 4 {
					if status, body, err := get(t, c, "https://named.test:"+w.secure+"/"); status != 200 || body != "fine" {
						t.Errorf("%s: got %d %q %v, want 200 fine", scheme, status, body, err)
					}
				}
			})
		}
		all.Wait()
	}
}

// TestUpgradeCannotCarryAnotherName: HTTP/2 without TLS is never negotiated.
func TestUpgradeCannotCarryAnotherName(t *testing.T) {
	t.Parallel()
	w := listed(t)
	for _, to := range []string{"tunnel", "proxy"} {
		send := "Host: named.test:" + w.plain +
			"\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
		if to == "tunnel" {
			w.dialogue(t, "named.test:"+w.plain, nil, "GET / HTTP/1.1\r\n"+send)
		} else {
			w.raw(t, "GET http://named.test:"+w.plain+"/ HTTP/1.1\r\n"+send)
		}
	}
	list := w.requests()
	if len(list) != 2 {
		t.Fatalf("got %d requests, want 2", len(list))
	}
	for _, r := range list {
		if r.header.Get("Upgrade")+r.header.Get("Http2-Settings") != "" {
			t.Errorf("got headers %v, want no upgrade to h2c", r.header)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(hello("named.test"))
	f.Add(splitHello(hello("named.test")))
	f.Add(hello(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, raw, err := clienthello.Read(bytes.NewReader(b))
		if !bytes.HasPrefix(b, raw) {
			t.Errorf("read %x, want a prefix of %x", raw, b)
		}
		if err != nil {
			return
		}
		single := len(raw) == clienthello.RecordHeader+int(binary.BigEndian.Uint16(b[3:]))
		if name != "" && !bytes.Contains(b, []byte(name)) && single {
			t.Errorf("got name %q, which is not in %x", name, b)
		}
	})
}

func FuzzClassify(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("\r\n\r\nPRI * HTTP/2.0\r\n\r\n"))
	f.Add([]byte("SSH-2.0-x\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		kind, err := classify(r)
		if err != nil {
			return
		}
		rest, _ := io.ReadAll(r)
		if !bytes.Equal(rest, b) {
			t.Errorf("classify consumed bytes: %q remain of %q", rest, b)
		}
		// What a server would read as a request is HTTP.
		if req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b))); err == nil && req.Host != "" && kind != openingHTTP {
			t.Errorf("%q is a request for %q, got kind %d", b, req.Host, kind)
		}
	})
}
