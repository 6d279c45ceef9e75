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

func TestThrottleKeepsItsRate(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	th := throttle{rate: 1000}
	// After a pause a burst passes. Then each byte takes its time, for every caller.
	for i, c := range []struct {
		pass time.Duration
		n    int
		want time.Duration
	}{
		{time.Hour, 250, 0}, {0, 100, 100 * time.Millisecond}, {0, 100, 200 * time.Millisecond},
		{200 * time.Millisecond, 100, 100 * time.Millisecond}, {time.Hour, 1250, time.Second}, {0, 0, 0},
	} {
		now = now.Add(c.pass)
		if got := max(0, th.take(now, c.n)); got != c.want {
			t.Errorf("step %d: got a wait of %v, want %v", i, got, c.want)
		}
	}
	if got := len((&throttle{rate: 1 << 20}).cut(make([]byte, 1<<20))); got > 1<<20/10 {
		t.Errorf("got a piece of %d bytes, want at most a tenth of a second", got)
	}
	if got := len((&throttle{}).cut(make([]byte, 1<<20))); got != 1<<20 || (&throttle{}).take(now, 1<<30) != 0 {
		t.Errorf("without a rate: got a piece of %d bytes, want all at once", got)
	}
}

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
		if took, least := time.Since(begin), time.Duration(count*size)*time.Second/rate-burst; took < least {
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
