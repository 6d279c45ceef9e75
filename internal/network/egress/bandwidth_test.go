package egress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestBandwidthHolds: for all connections together, in both directions, with every protocol, also with
// credentials. A slow machine only makes it slower.
func TestBandwidthHolds(t *testing.T) {
	t.Parallel()
	const rate, size = 512 << 10, 128 << 10
	w := newWorld(t, func(c *Config) { c.Bandwidth = rate })
	data := strings.Repeat("x", size)
	w.answer = func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			io.WriteString(rw, data)
		}
	}
	for method, body := range map[string]string{http.MethodGet: "", http.MethodPost: data} {
		var all sync.WaitGroup
		begin, count := time.Now(), 0
		for _, scheme := range []string{"http", "socks5h"} {
			for _, url := range []string{"https://named.test:" + w.secure, "https://other.test:" + w.secure, "http://other.test:" + w.plain} {
				count++
				all.Go(func() {
					req, _ := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
					res, err := w.trusting(t, scheme, w.ours, w.real).Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					defer res.Body.Close()
					if n, err := io.Copy(io.Discard, res.Body); err != nil || method == http.MethodGet && n != size {
						t.Errorf("%s %s: got %d bytes, %v, want %d", scheme, url, n, err, size)
					}
				})
			}
		}
		all.Wait()
		if took, least := time.Since(begin), time.Duration(count*size)*time.Second/rate-250*time.Millisecond; took < least {
			t.Errorf("%s: %d × %d bytes took %v, want at least %v", method, count, size, took, least)
		}
	}
}

// TestThrottledTunnelsEnd: one direction, or both when the proxy is closed; each byte is counted once.
func TestThrottledTunnelsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Network: open, Private: loopback, Bandwidth: 4 << 10})
	c := r.tunnel(t, "127.0.0.1:"+echoServer(t))
	fmt.Fprint(c, "hello ")
	c.Flush()
	c.Conn.(*net.UnixConn).CloseWrite()
	if b, err := io.ReadAll(c.Reader); string(b) != "hello bye" {
		t.Errorf("%q %v, want \"hello bye\"", b, err)
	}
	testenv.Poll(t, "the record ends", func() bool { return r.Records()[0].Ended })
	if rec, s := r.Records()[0], r.Stats(); rec.Up != 6 || rec.Down != 9 || s.Sent != 6 || s.Received != 9 {
		t.Errorf("%+v, %+v, want 6 bytes up and 9 down", rec, s)
	}
	slow := r.tunnel(t, "127.0.0.1:"+echoServer(t))
	go func() {
		io.Copy(slow.Conn, strings.NewReader(strings.Repeat("x", 1<<20)))
	}()
	io.ReadFull(slow.Reader, make([]byte, 1))
	r.Close() // returns though minutes are to be paid
}
