package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

const wideDomain = "cove.localhost"

// secureHub is a hub with tenants and HTTPS, and the CA that its clients trust.
type secureHub struct {
	*hub
	at    string // host:port
	roots *x509.CertPool
}

func serveSecure(t *testing.T, args ...string) *secureHub {
	t.Helper()
	testenv.NeedRoot(t)
	h := &secureHub{hub: &hub{State: t.TempDir()}, roots: x509.NewCertPool()}
	dir := filepath.Join(t.TempDir(), "tls")
	h.must(t, "tls", "init", "--dir", dir)
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil || !h.roots.AppendCertsFromPEM(ca) {
		t.Fatalf("read the authority: %v", err)
	}
	h.beginOwn(t, append([]string{"--tenants", "--domains", wideDomain,
		"--tls-cert", filepath.Join(dir, "cert.pem"), "--tls-key", filepath.Join(dir, "key.pem")}, args...)...)
	h.at = strings.TrimPrefix(h.URL, "https://")
	return h
}

// dial connects with a server name and offers the protocols.
func (h *secureHub) dial(t *testing.T, name string, protos ...string) *tls.Conn {
	t.Helper()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", h.at,
		&tls.Config{RootCAs: h.roots, ServerName: name, NextProtos: protos})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// frames is an HTTP/2 connection that can send arbitrary frames.
type frames struct {
	*http2.Framer
	conn *tls.Conn
	text bytes.Buffer
	enc  *hpack.Encoder
	dec  *hpack.Decoder
}

func (h *secureHub) frames(t *testing.T, name string) *frames {
	t.Helper()
	c := h.dial(t, name, "h2")
	if c.ConnectionState().NegotiatedProtocol != "h2" {
		t.Fatalf("got protocol %q, want h2", c.ConnectionState().NegotiatedProtocol)
	}
	f := &frames{Framer: http2.NewFramer(c, c), conn: c, dec: hpack.NewDecoder(4096, nil)}
	f.AllowIllegalWrites = true
	f.enc = hpack.NewEncoder(&f.text)
	io.WriteString(c, http2.ClientPreface)
	f.WriteSettings()
	return f
}

// block encodes header fields, given as alternating names and values.
func (f *frames) block(fields ...string) []byte {
	f.text.Reset()
	for i := 0; i < len(fields); i += 2 {
		f.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(f.text.Bytes())
}

// ask sends a request and returns the status and body of its response; "" if the stream or connection ends without one.
func (f *frames) ask(stream uint32, body string, fields ...string) (status, text string) {
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.block(fields...), EndHeaders: true, EndStream: body == ""})
	if body != "" {
		f.WriteData(stream, true, []byte(body))
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return status, text
		}
		switch frame := frame.(type) {
		case *http2.HeadersFrame:
			found, _ := f.dec.DecodeFull(frame.HeaderBlockFragment())
			for _, field := range found {
				if field.Name == ":status" && frame.StreamID == stream {
					status = field.Value
				}
			}
		case *http2.DataFrame:
			if frame.StreamID == stream {
				text += string(frame.Data())
			}
		case *http2.RSTStreamFrame:
			if frame.StreamID == stream {
				return status, text
			}
		case *http2.GoAwayFrame:
			return status, text
		}
		if frame.Header().StreamID == stream && frame.Header().Flags.Has(http2.FlagDataEndStream) {
			return status, text
		}
	}
}

// alive checks that another client gets a response.
func (h *secureHub) alive(t *testing.T, after string) {
	t.Helper()
	f := h.frames(t, wideDomain)
	defer f.conn.Close()
	if status, _ := f.ask(1, "", ":method", "GET", ":scheme", "https", ":authority", wideDomain, ":path", "/healthz"); status != "200" {
		t.Errorf("after %s, another client: got status %q, want 200", after, status)
	}
}

var plainFields = []string{":method", "GET", ":scheme", "https", ":authority", wideDomain, ":path", "/v1/sandboxes"}

// A client without credentials cannot block other clients or exhaust memory, no matter what it sends.
func TestWideFloodsOverTLS(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := serveSecure(t)
	h.alive(t, "the start")
	before := rss(t, h.server)
	for name, attack := range map[string]func(t *testing.T){
		"rapid reset":        h.resetRapidly,
		"continuation flood": h.floodContinuation,
		"header bomb":        h.bombHeaders,
		"settings flood":     h.floodSettings,
		"empty frames":       h.floodEmptyFrames,
		"open streams":       h.openStreams,
		"silence":            h.staySilent,
	} {
		t.Run(name, func(t *testing.T) {
			attack(t)
			h.alive(t, name)
		})
	}
	const most = 128 << 10 // KiB
	if after := rss(t, h.server); after > before+most {
		t.Errorf("memory: got %d KiB after %d, want at most %d more", after, before, most)
	}
	for _, bad := range []string{"panic", "goroutine "} {
		if strings.Contains(h.log.String(), bad) {
			t.Errorf("the log has %q: %s", bad, h.log)
		}
	}
}

// resetRapidly starts requests and cancels each immediately (CVE-2023-44487).
func (h *secureHub) resetRapidly(t *testing.T) {
	f := h.frames(t, wideDomain)
	go io.Copy(io.Discard, f.conn)
	for i := range 50_000 {
		id := uint32(2*i + 1)
		if f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block(plainFields...),
			EndHeaders: true, EndStream: true}) != nil {
			return // the hub has closed it
		}
		if f.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			return
		}
	}
}

// floodContinuation never ends the headers of one request (CVE-2023-45288).
func (h *secureHub) floodContinuation(t *testing.T) {
	f := h.frames(t, wideDomain)
	go io.Copy(io.Discard, f.conn)
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(plainFields...)})
	more := f.block("x-more", strings.Repeat("a", 8000))
	for range 100_000 {
		if f.WriteContinuation(1, false, more) != nil {
			return
		}
	}
	t.Error("got 800 MB of headers accepted, want a closed connection")
}

// bombHeaders sends few bytes that decode to many: references to a large entry of the header table.
func (h *secureHub) bombHeaders(t *testing.T) {
	f := h.frames(t, wideDomain)
	block := f.block(append([]string{}, plainFields...)...)
	block = append(block, f.block("x-bomb", strings.Repeat("a", 3900))...)
	again := f.block("x-bomb", strings.Repeat("a", 3900)) // now one byte
	block = append(block, bytes.Repeat(again, 15_000)...)
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16_000], EndStream: true})
	f.WriteContinuation(1, true, block[16_000:])
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		if headers, ok := frame.(*http2.HeadersFrame); ok {
			found, _ := f.dec.DecodeFull(headers.HeaderBlockFragment())
			if len(found) == 0 || found[0].Value != "431" {
				t.Errorf("got %v, want status 431", found)
			}
			return
		}
	}
}

// floodSettings requests replies that it never reads.
func (h *secureHub) floodSettings(t *testing.T) {
	f := h.frames(t, wideDomain)
	for range 2_000_000 {
		if f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535}) != nil || f.WritePing(false, [8]byte{1}) != nil {
			return
		}
		f.conn.SetWriteDeadline(time.Now().Add(5 * time.Second)) // its buffers are full: only this client blocks
	}
}

// floodEmptyFrames sends frames without payload.
func (h *secureHub) floodEmptyFrames(t *testing.T) {
	f := h.frames(t, wideDomain)
	go io.Copy(io.Discard, f.conn)
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block(":method", "POST", ":scheme", "https",
		":authority", wideDomain, ":path", "/v1/sandboxes"), EndHeaders: true})
	for range 100_000 {
		if f.WriteData(1, false, nil) != nil {
			return
		}
	}
}

// openStreams starts more concurrent requests than allowed, and finishes none.
func (h *secureHub) openStreams(t *testing.T) {
	f := h.frames(t, wideDomain)
	fields := []string{":method", "POST", ":scheme", "https", ":authority", wideDomain, ":path", "/sandbox/a/v1/file/write"}
	refused := make(chan bool, 1)
	go func() {
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				break
			}
			if reset, ok := frame.(*http2.RSTStreamFrame); ok && reset.ErrCode == http2.ErrCodeRefusedStream {
				break
			}
			if _, ok := frame.(*http2.GoAwayFrame); ok {
				break
			}
			if _, ok := frame.(*http2.HeadersFrame); ok {
				break // response received, except its body
			}
		}
		refused <- true
	}()
	for i := range 2000 {
		if f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: f.block(fields...), EndHeaders: true}) != nil {
			break
		}
	}
	if !<-refused {
		t.Error("got 2,000 streams accepted, want them refused")
	}
}

// staySilent stops sending at each step of a connection or request.
func (h *secureHub) staySilent(t *testing.T) {
	connect := func() net.Conn {
		c, err := net.DialTimeout("tcp", h.at, patience)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		return c
	}
	half := connect()
	io.WriteString(half, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
	conns := map[string]net.Conn{"nothing": connect(), "half a handshake": half,
		"no preface": h.dial(t, wideDomain, "h2"), "no request": h.dial(t, wideDomain, "http/1.1")}
	slow := h.dial(t, wideDomain, "http/1.1")
	io.WriteString(slow, "GET / HTTP/1.1\r\nHost: "+wideDomain+"\r\nX-A: ")
	conns["half a request"] = slow
	body := h.dial(t, wideDomain, "http/1.1")
	io.WriteString(body, "POST /v1/sandboxes HTTP/1.1\r\nHost: "+wideDomain+"\r\nContent-Length: 1000\r\n\r\n")
	conns["no body"] = body
	for name, c := range conns {
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got an open connection after %v, want it closed", name, patience)
		}
		c.Close()
	}
}

// TestWideConnectionFlood: one address that opens as many connections as possible exhausts neither the connection limit nor the
// file descriptors that the hub needs for other clients.
func TestWideConnectionFlood(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.NeedRoot(t)
	const files = 1000
	h := &hub{State: t.TempDir()}
	args := append([]string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, files), cove}, h.flags([]string{"--tenants"})...)
	h.server = launch(t, "sh", args, os.Getenv("HOME"), nil)
	t.Cleanup(func() { h.stop(t) })
	served := 0
	for range files {
		if !h.holdFrom(t, "127.0.0.1") {
			break
		}
		served++
	}
	if served < 100 || served > files/2 {
		t.Errorf("connections of one address: got %d served, want at most half of the %d files", served, files)
	}
	if !h.holdFrom(t, "127.0.0.2") {
		t.Error("a client of another address: got no reply, want one")
	}
	if strings.Contains(h.log.String(), "too many open files") {
		t.Errorf("got log %s, want file descriptors left for the hub itself", h.log)
	}
	if !strings.Contains(h.log.String(), "connections rejected") {
		t.Errorf("got log %s, want a line about the limit", h.log)
	}
}

// holdFrom sends a request from an address, keeps the connection open, and reports whether it got a response.
func (h *hub) holdFrom(t *testing.T, address string) bool {
	t.Helper()
	d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := d.Dial("tcp", h.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience / 4))
	io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}
