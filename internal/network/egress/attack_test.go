package egress

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

// foreign is the end of a request for a host that is not on the list.
const foreign = "\r\nHost: other.test\r\nConnection: close\r\n\r\n"

// openings are first bytes that some server parses as a request for other.test.
var openings = map[string]string{
	"plain":                        "GET / HTTP/1.1" + foreign,
	"method SSH-":                  "SSH- / HTTP/1.1" + foreign,
	"method SSH-2.0":               "SSH-2.0 / HTTP/1.1" + foreign,
	"method like an SSH client":    "SSH-2.0-OpenSSH_9.2 /x HTTP/1.1" + foreign,
	"method ssh-":                  "ssh-2.0-x / http/1.1" + foreign,
	"lower case":                   "get / http/1.1" + foreign,
	"unknown method":               "BREW /pot HTTP/1.1" + foreign,
	"long method":                  strings.Repeat("A", 2*maxLine) + " / HTTP/1.1" + foreign,
	"long URL":                     "GET /" + strings.Repeat("a", 2*maxLine) + " HTTP/1.1" + foreign,
	"very long URL":                "GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1" + foreign,
	"URL of exactly one buffer":    "GET /" + strings.Repeat("a", maxLine-len("GET /")) + " HTTP/1.1" + foreign,
	"many spaces":                  "GET" + strings.Repeat(" ", 2*maxLine) + "/ HTTP/1.1" + foreign,
	"many empty lines":             strings.Repeat("\r\n", maxLine) + "GET / HTTP/1.1" + foreign,
	"an empty line":                "\r\nGET / HTTP/1.1" + foreign,
	"leading line feeds":           "\n\n\nGET / HTTP/1.1" + foreign,
	"leading spaces":               "  \tGET / HTTP/1.1" + foreign,
	"leading vertical tab":         "\v\fGET / HTTP/1.1" + foreign,
	"leading separators":           "\x1c\x1d\x1e\x1fGET / HTTP/1.1" + foreign,
	"leading Latin-1 spaces":       "\x85\xa0GET / HTTP/1.1" + foreign,
	"tabs between words":           "GET\t/\tHTTP/1.1" + foreign,
	"vertical tabs between words":  "GET\v/\vHTTP/1.1" + foreign,
	"Latin-1 spaces between words": "GET\xa0/\xa0HTTP/1.1" + foreign,
	"UTF-8 in the URL":             "GET /\xc3\xa9 HTTP/1.1" + foreign,
	"control character in the URL": "GET /\x01\x7f HTTP/1.1" + foreign,
	"NUL in the URL":               "GET /\x00 HTTP/1.1" + foreign,
	"bare line feeds":              "GET / HTTP/1.1\nHost: other.test\n\n",
	"bare carriage returns":        "GET / HTTP/1.1\rHost: other.test\r\r\n",
	"version HTTP/1.0":             "GET / HTTP/1.0" + foreign,
	"version HTTP/9.9":             "GET / HTTP/9.9" + foreign,
	"no version":                   "GET /other.test\r\n",
	"no version, lower case":       "get /other.test\n",
	"no version, absolute":         "GET http://other.test/\r\n",
	"absolute form":                "GET http://other.test/ HTTP/1.1\r\nHost: named.test\r\n\r\n",
	"absolute form, upper case":    "GET HTTP://OTHER.test/ HTTP/1.1\r\nHost: named.test\r\n\r\n",
	"authority form":               "CONNECT other.test:80 HTTP/1.1\r\nHost: other.test:80\r\n\r\n",
	"user in the URL":              "GET http://named.test@other.test/ HTTP/1.1\r\nHost: named.test\r\n\r\n",
	"two hosts":                    "GET / HTTP/1.1\r\nHost: named.test\r\nHost: other.test\r\n\r\n",
	"folded host":                  "GET / HTTP/1.1\r\nHost:\r\n other.test\r\n\r\n",
	"folded second host":           "GET / HTTP/1.1\r\nHost: named.test\r\n other.test\r\n\r\n",
	"space before the colon":       "GET / HTTP/1.1\r\nHost : other.test\r\nHost: named.test\r\n\r\n",
	"space before the name":        "GET / HTTP/1.1\r\n Host: other.test\r\nHost: named.test\r\n\r\n",
	"host with a path":             "GET / HTTP/1.1\r\nHost: other.test/named.test\r\n\r\n",
	"host with a user":             "GET / HTTP/1.1\r\nHost: named.test@other.test\r\n\r\n",
	"host with a port":             "GET / HTTP/1.1\r\nHost: other.test:80\r\n\r\n",
	"large header":                 "GET / HTTP/1.1\r\nX: " + strings.Repeat("x", 2<<20) + foreign,
	"second request":               "GET / HTTP/1.1\r\nHost: named.test\r\n\r\nGET / HTTP/1.1" + foreign,
	"second request after a body":  "POST / HTTP/1.1\r\nHost: named.test\r\nContent-Length: 2\r\n\r\nxxSSH- / HTTP/1.1" + foreign,
	"two lengths": "POST / HTTP/1.1\r\nHost: named.test\r\nContent-Length: 0\r\nContent-Length: " +
		"45\r\n\r\nGET / HTTP/1.1" + foreign,
	"length and chunks": "POST / HTTP/1.1\r\nHost: named.test\r\nContent-Length: " +
		"4\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1" + foreign,
	"HTTP/2 preface":                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00other.test",
	"HTTP/2 preface after a line":    "\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\nother.test",
	"TLS for another host":           string(hello("other.test")),
	"TLS in records of one byte":     string(splitHello(hello("other.test"))),
	"TLS without a name":             string(hello("")) + "other.test",
	"TLS record cut":                 "\x16\x03\x01\x00\x02\x01\x00other.test",
	"SSL 2.0 hello":                  "\x80\x2e\x01\x03\x01\x00\x00\x00\x00\x00\x00other.test",
	"TLS after empty handshake":      "\x16\x03\x01\x00\x00" + string(hello("other.test")),
	"TLS alert before the handshake": "\x15\x03\x01\x00\x02\x01\x00" + string(hello("other.test")),
}

// TestOpeningsForAnotherHost: no first bytes carry a request for a host that is not on the
// list, neither with a rule for the name nor with one for its port.
func TestOpeningsForAnotherHost(t *testing.T) {
	t.Parallel()
	for _, withPort := range []bool{false, true} {
		w := listed(t)
		web := lenientServer(t)
		if withPort {
			w = listed(t, "named.test:"+web.port)
		}
		for name, send := range openings {
			if withPort && strings.HasPrefix(send, "\x15") {
				continue // no server reads a ClientHello after an alert, and the rule allows any other protocol
			}
			c := w.tunnel(t, "named.test:"+web.port)
			c.Conn.SetDeadline(time.Now().Add(time.Minute))
			go func() {
				io.WriteString(c.Conn, send)
				c.Conn.(*net.UnixConn).CloseWrite()
			}()
			io.Copy(io.Discard, c.Reader)
			c.Conn.Close()
			if got := web.heard(); bytes.Contains(bytes.ToLower(got), []byte("other.test")) {
				t.Errorf("%s, rule with the port %v: the server got %.200q, want nothing for other.test", name, withPort, got)
			}
		}
	}
}

// TestOpeningsInPieces: input that arrives byte by byte is classified like input that arrives at once.
func TestOpeningsInPieces(t *testing.T) {
	t.Parallel()
	for name, send := range openings {
		if strings.HasPrefix(send, "\x15") {
			continue
		}
		whole, err1 := classify(bufio.NewReader(strings.NewReader(send)))
		pieces, err2 := classify(bufio.NewReader(iotest.OneByteReader(strings.NewReader(send))))
		if err1 != nil || err2 != nil || whole != pieces || whole == openingOther || whole == openingSSH {
			t.Errorf("%s: got kind %d, %v, and in pieces %d, %v; want TLS or HTTP", name, whole, err1, pieces, err2)
		}
	}
}

// TestOtherProtocolsWithARule: a rule with the port permits protocols that are neither TLS nor
// HTTP as soon as their first bytes have been classified.
func TestOtherProtocolsWithARule(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]string{
		"PostgreSQL":       "\x00\x00\x00\x08\x04\xd2\x16\x2f",
		"MongoDB":          "A\x00\x00\x00\x01\x00\x00\x00",
		"Redis":            "*1\r\n$4\r\nPING\r\n",
		"Redis, one line":  "GET key\r\n",
		"Memcached":        "get key\r\n",
		"AMQP":             "AMQP\x00\x00\x09\x01",
		"LDAP":             "0\x0c\x02\x01\x01",
		"LDAP, longer":     "0 \x02\x01\x01",
		"MQTT":             "\x10\x0c\x00\x04MQTT",
		"STOMP":            "CONNECT\naccept-version:1.2\n\n\x00",
		"XMPP":             "<?xml version='1.0'?>",
		"JSON":             "{\"id\":1}",
		"Kafka":            "\x00\x00\x00\x23\x00\x12",
		"a length of 0xc8": "\xc8\x00\x00\x00",
	} {
		if kind, err := classify(bufio.NewReader(iotest.OneByteReader(strings.NewReader(send)))); kind != openingOther || err != nil {
			t.Errorf("%s: got kind %d, %v, want another protocol", name, kind, err)
		}
	}
}

// TestSSHNeedsAnSSHServer: a client that begins like SSH reaches only a server that sends
// first, as SSH servers do. A web server waits for a request and gets none.
func TestSSHNeedsAnSSHServer(t *testing.T) {
	t.Parallel()
	w := listed(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan []byte, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(2 * time.Second))
		b := make([]byte, 512)
		n, err := c.Read(b)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v, want bytes or none", err)
		}
		heard <- b[:n]
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	c := w.tunnel(t, "named.test:"+port)
	c.Conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(c.Conn, "SSH-2.0-x /\r\nHost: other.test\r\n\r\n")
	if got := <-heard; len(got) > 0 {
		t.Errorf("the server got %q, want nothing before it has spoken", got)
	}
	io.Copy(io.Discard, c.Reader)
}

// lenient is a web server that accepts and records any input.
type lenient struct {
	port  string
	conns chan []byte
}

// heard returns the input of the last connection.
func (l lenient) heard() []byte { return <-l.conns }

func lenientServer(t *testing.T) lenient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := lenient{conns: make(chan []byte, 1)}
	_, s.port, _ = net.SplitHostPort(l.Addr().String())
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var all bytes.Buffer
			b := make([]byte, 64<<10)
			for {
				n, err := c.Read(b)
				if all.Write(b[:n]); err != nil {
					break
				}
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
			c.Close()
			s.conns <- all.Bytes()
		}
	})
	t.Cleanup(func() { l.Close(); work.Wait() })
	return s
}
