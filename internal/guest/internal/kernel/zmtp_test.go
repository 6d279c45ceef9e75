package kernel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var testKey = []byte("secret")

// wire encodes one message.
func wire(t testing.TB, key []byte, h head, content any, more ...[]byte) []byte {
	t.Helper()
	frames, err := encode(key, h, content)
	if err != nil {
		t.Fatal(err)
	}
	return pack(append(append([][]byte{[]byte("topic")}, frames...), more...)...)
}

func pack(frames ...[]byte) []byte {
	var b []byte
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrame(b, flags, f)
	}
	return b
}

// reading returns a socket that reads the bytes.
func reading(b []byte) *socket { return &socket{r: bufio.NewReader(bytes.NewReader(b))} }

func TestReceive(t *testing.T) {
	t.Parallel()
	h := head{ID: "1", Type: "stream"}
	good := wire(t, testKey, h, map[string]string{"text": "hi"})
	frames := func(change func([][]byte)) []byte {
		f, _ := encode(testKey, h, struct{}{})
		change(f)
		return pack(f...)
	}
	many := make([][]byte, 20)
	for name, c := range map[string]struct {
		bytes   []byte
		dropped bool
		fatal   bool
	}{
		"good":               {bytes: good},
		"binary buffers":     {bytes: wire(t, testKey, h, struct{}{}, make([]byte, 300), []byte("x"))},
		"command in between": {bytes: append(appendFrame(nil, flagCommand, command("PING")), good...)},
		"other key":          {bytes: wire(t, []byte("other"), h, struct{}{}), dropped: true},
		"no signature":       {bytes: frames(func(f [][]byte) { f[1] = nil }), dropped: true},
		"content changed":    {bytes: frames(func(f [][]byte) { f[5] = []byte("[]") }), dropped: true},
		"no delimiter":       {bytes: pack(many...), dropped: true},
		"one frame":          {bytes: pack([]byte(delimiter)), dropped: true},
		"too few frames":     {bytes: pack([]byte(delimiter), nil, nil, nil), dropped: true},
		"empty frame":        {bytes: pack(nil), dropped: true},
		"long identity":      {bytes: pack(make([]byte, 1<<20), []byte(delimiter)), dropped: true},
		"header is not JSON": {bytes: signed([]byte("x"), []byte("{}"), []byte("{}"), []byte("{}")), dropped: true},
		"header is a list":   {bytes: signed([]byte("[]"), []byte("{}"), []byte("{}"), []byte("{}")), dropped: true},
		"unknown flags":      {bytes: []byte{0x80, 0}, fatal: true},
		"command with more":  {bytes: []byte{flagCommand | flagMore, 0}, fatal: true},
		"negative size":      {bytes: append([]byte{flagLong}, bytes.Repeat([]byte{0xff}, 8)...), fatal: true},
		"size only":          {bytes: []byte{flagLong, 0, 0, 0, 0x7f, 0, 0, 0, 0}, fatal: true},
		"ends in a size":     {bytes: []byte{flagLong, 0, 0}, fatal: true},
		"ends in a body":     {bytes: good[:len(good)-3], fatal: true},
		"nothing":            {fatal: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := reading(append(c.bytes[:len(c.bytes):len(c.bytes)], good...))
			if c.fatal {
				s = reading(c.bytes)
			}
			m, err := s.receive(testKey)
			if errors.Is(err, errDropped) != c.dropped || (err != nil) != (c.dropped || c.fatal) {
				t.Fatalf("got %v, %v, want a dropped message: %v, a fatal error: %v", m, err, c.dropped, c.fatal)
			}
			if c.fatal {
				return
			}
			if next, err := s.receive(testKey); err != nil || next.head.Type != "stream" || string(next.content) != `{"text":"hi"}` {
				t.Errorf(`got next message %v, %v, want type "stream" and content {"text":"hi"}`, next, err)
			}
		})
	}
}

// signed packs a message with a valid signature.
func signed(parts ...[]byte) []byte {
	mac := newMAC(testKey)
	for _, p := range parts {
		mac.Write(p)
	}
	return pack(append([][]byte{[]byte(delimiter), hexSum(mac)}, parts...)...)
}

func TestReceiveKeepsTheEndsOfALongFrame(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		strings.Repeat("0123456789 äö\\\"€\u0001\n", 600<<10),
		strings.Repeat(`\`, 9<<20),
	} {
		b, err := json.Marshal(map[string]string{"name": "stderr", "text": text})
		if err != nil {
			t.Fatal(err)
		}
		s := reading(signed([]byte(`{"msg_type":"stream"}`), []byte(`{"msg_id":"p"}`), []byte("{}"), b))
		m, err := s.receive(testKey)
		if err != nil {
			t.Fatal(err)
		}
		if m.parent != "p" || m.size != int64(len(b)) || !bytes.HasPrefix(b, m.content) || !bytes.HasSuffix(b, m.cut) ||
			len(m.content) != keepFrame || len(m.cut) != keepFrame {
			t.Fatalf("got %d and %d bytes of %d for %q, want the first and the last %d of %d bytes for \"p\"",
				len(m.content), len(m.cut), m.size, m.parent, keepFrame, len(b))
		}
		o, ok := decodeOutput(m)
		first, last, cut := strings.Cut(o.Text, "\n[… ")
		_, last, _ = strings.Cut(last, " omitted …]\n")
		if !ok || o.Name != "stderr" || !cut || len(first) < keepFrame/8 || !strings.HasPrefix(text, first) {
			t.Errorf("got %d bytes of %+v, cut %v, want at least %d of the text of stderr, cut", len(first), o.Name, cut, keepFrame/8)
		}
		// In a text of backslashes no place is certainly the start of a character.
		if strings.Trim(text, `\`) != "" && (len(last) < keepFrame/8 || !strings.HasSuffix(text, last)) {
			t.Errorf("got %d bytes at the end, want those of the text", len(last))
		}
	}
}

// listen serves one connection at a time on a unix socket.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			serve(c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return path
}

func TestDial(t *testing.T) {
	t.Parallel()
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	curve := bytes.Replace(greeting, []byte("NULL"), []byte("CURV"), 1)
	old := bytes.Clone(greeting)
	old[10] = 2
	ready := appendFrame(nil, flagCommand, command("READY", "Socket-Type", "ROUTER"))
	for name, c := range map[string]struct {
		says string
		want string // part of the error; empty: none
	}{
		"valid":            {string(greeting) + string(ready), ""},
		"not ZMTP":         {"HTTP/1.1 400 Bad Request\r\n" + strings.Repeat("x", 64), "does not speak ZMTP 3"},
		"old ZMTP":         {string(old), "does not speak ZMTP 3"},
		"encrypted":        {string(curve), "does not speak ZMTP 3"},
		"refused":          {string(greeting) + string(appendFrame(nil, flagCommand, []byte("\x05ERROR\x03bad"))), "refused the connection"},
		"long command":     {string(greeting) + string([]byte{flagCommand | flagLong, 1, 0, 0, 0, 0, 0, 0, 0}), "malformed"},
		"message first":    {string(greeting) + "\x00\x01x", "malformed"},
		"ends in greeting": {string(greeting[:20]), "EOF"},
		"ends after":       {string(greeting), "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := listen(t, func(conn net.Conn) {
				io.WriteString(conn, c.says)
				conn.(*net.UnixConn).CloseWrite()
				io.Copy(io.Discard, conn) // until the other side closes
			})
			s, err := dial(t.Context(), path, "DEALER", "me")
			if err == nil {
				s.close()
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	path := listen(t, func(c net.Conn) {
		cancel()
		io.Copy(io.Discard, c)
	})
	if _, err := dial(ctx, path, "DEALER", "me"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func FuzzReceive(f *testing.F) {
	good := wire(f, testKey, head{ID: "1", Type: "display_data"}, map[string]any{"data": map[string]any{"text/plain": "x"}}, []byte("buffer"))
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(wire(f, nil, head{Type: "error"}, map[string]any{"ename": "E", "traceback": []string{"\x1b[0m"}}))
	f.Add(signed([]byte(`{"msg_type":"stream"}`), []byte("{}"), []byte("{}"), []byte(`{"name":"stdout","text":"a"}`)))
	f.Add([]byte{flagLong, 0, 0, 0, 0, 0, 0, 1, 0, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := reading(b)
		for {
			m, err := s.receive(testKey)
			if err == nil {
				decodeOutput(m)
			} else if !errors.Is(err, errDropped) {
				return
			}
		}
	})
}

func FuzzDecodeOutput(f *testing.F) {
	for _, seed := range []string{
		`{"name":"stdout","text":"a\u00e9\n"}`, `{"data":{"text/plain":"x","application/json":{"a":1e400}},"transient":{"display_id":"d"}}`,
		`{"ename":"StdinNotImplementedError","evalue":"x","traceback":["x","raise StdinNotImplementedError"]}`, `{"text":"`, `[]`, `null`, ``,
	} {
		for _, kind := range []string{Stream, DisplayData, Error} {
			f.Add(kind, []byte(seed), []byte(`\\\u00`))
		}
	}
	f.Fuzz(func(t *testing.T, kind string, content, cut []byte) {
		decodeOutput(&message{head: head{Type: kind}, content: content})
		o, ok := decodeOutput(&message{head: head{Type: kind}, content: content, cut: cut, size: 1 << 30})
		if ok {
			Fold([]Output{o, o})
		}
	})
}
