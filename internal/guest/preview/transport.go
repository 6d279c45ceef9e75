package preview

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"syscall"
	"time"
)

const (
	maxHeader    = 256 << 10 // of a response
	maxIdle      = 16        // connections to a port
	maxEarly     = 5         // responses before the final one
	readerSize   = 4 << 10
	writerSize   = 4 << 10
	maxIdlePorts = 64
)

// transport sends requests to services. Most requests only read. For them it does the same as http.Transport, but in the
// goroutine of the caller, because switching between goroutines takes most of the time. Other requests use http.Transport.
type transport struct {
	general *http.Transport

	mu     sync.Mutex
	idle   map[string][]*link // by address, the most recently used at the end
	sweep  *time.Timer        // runs while a connection is idle
	closed bool
}

// link is a connection to a service. It belongs to one exchange, or is idle.
type link struct {
	net.Conn
	r     *bufio.Reader
	w     *bufio.Writer
	left  int64 // maximum number of bytes that may still be read
	got   bool  // whether something was read in this exchange
	since time.Time
}

var errHeader = fmt.Errorf("response header exceeds %d bytes", maxHeader)

// Read reads at most left bytes.
func (l *link) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errHeader
	}
	n, err := l.Conn.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	l.got = l.got || n > 0
	return n, err
}

func newTransport() *transport {
	return &transport{idle: map[string][]*link{}, general: &http.Transport{
		DialContext:            dial,
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
	}}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	onlyReads := (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) &&
		(r.Body == nil || r.Body == http.NoBody)
	if !onlyReads || r.Header.Get("Upgrade") != "" || r.Header.Get("Expect") != "" {
		return t.general.RoundTrip(r)
	}
	for {
		l := t.take(r.URL.Host)
		reused := l != nil
		if !reused {
			c, err := dial(r.Context(), "tcp", r.URL.Host)
			if err != nil {
				return nil, err
			}
			l = &link{Conn: c}
			l.r, l.w = bufio.NewReaderSize(l, readerSize), bufio.NewWriterSize(c, writerSize)
		}
		res, err := t.exchange(l, r)
		if err == nil || !reused || l.got || r.Context().Err() != nil {
			return res, err
		}
		// The service has closed the idle connection. The request only reads, so it may be sent again.
	}
}

// exchange sends a request and returns its response. At the end of its body, the connection becomes idle again.
func (t *transport) exchange(l *link, r *http.Request) (*http.Response, error) {
	l.left, l.got = maxHeader, false
	b := &body{t: t, l: l, addr: r.URL.Host, unbind: context.AfterFunc(r.Context(), func() { l.Close() })}
	res, err := l.send(r)
	if err != nil {
		b.end(false)
		if r.Context().Err() != nil {
			err = context.Cause(r.Context())
		}
		return nil, err
	}
	b.keep = !res.Close && !r.Close
	if res.Body == http.NoBody {
		b.end(b.keep)
		return res, nil
	}
	l.left = math.MaxInt64
	b.ReadCloser, res.Body = res.Body, b
	return res, nil
}

func (l *link) send(r *http.Request) (*http.Response, error) {
	if err := r.Write(l.w); err != nil {
		return nil, err
	}
	if err := l.w.Flush(); err != nil {
		return nil, err
	}
	for range maxEarly {
		res, err := http.ReadResponse(l.r, r)
		switch {
		case err != nil:
			return nil, err
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("unexpected switch of protocols")
		case res.StatusCode >= 200:
			return res, nil
		}
		if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
		}
	}
	return nil, errors.New("too many informational responses")
}

// body is the body of a response.
type body struct {
	io.ReadCloser
	t      *transport
	l      *link // nil after the end
	addr   string
	unbind func() bool
	keep   bool // the service keeps the connection open after the response
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end(b.keep && errors.Is(err, io.EOF))
	}
	return n, err
}

func (b *body) Close() error {
	b.end(false)
	return nil
}

// end ends the exchange, and keeps the connection if it can be reused.
func (b *body) end(keep bool) {
	l := b.l
	if l == nil {
		return
	}
	b.l = nil
	if !b.unbind() || !keep || l.r.Buffered() > 0 || !b.t.put(b.addr, l) {
		l.Close()
	}
}

// take returns an idle connection that can still be used, or nil.
func (t *transport) take(addr string) *link {
	for {
		t.mu.Lock()
		all := t.idle[addr]
		if len(all) == 0 {
			t.mu.Unlock()
			return nil
		}
		l := all[len(all)-1]
		all[len(all)-1] = nil
		t.idle[addr] = all[:len(all)-1]
		t.mu.Unlock()
		if l.quiet() {
			return l
		}
		l.Close()
	}
}

// quiet reports whether the service has neither closed the connection nor sent unexpected bytes, which would be parsed as the
// next response.
func (l *link) quiet() bool {
	c, ok := l.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, failed = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	})
	return err == nil && errors.Is(failed, syscall.EAGAIN)
}

// put keeps a connection for the next request. It returns false if the limit is reached.
func (t *transport) put(addr string, l *link) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all, known := t.idle[addr]
	if t.closed || len(all) == maxIdle || !known && len(t.idle) == maxIdlePorts {
		return false
	}
	l.since = time.Now()
	t.idle[addr] = append(all, l)
	if t.sweep == nil {
		t.sweep = time.AfterFunc(idleTime, t.closeOld)
	}
	return true
}

// closeOld closes connections that were idle for too long.
func (t *transport) closeOld() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for addr, all := range t.idle {
		old := 0
		for old < len(all) && (t.closed || time.Since(all[old].since) >= idleTime) {
			all[old].Close()
			old++
		}
		if t.idle[addr] = append([]*link(nil), all[old:]...); old == len(all) {
			delete(t.idle, addr)
		}
	}
	t.sweep = nil
	if len(t.idle) > 0 {
		t.sweep = time.AfterFunc(idleTime/2, t.closeOld)
	}
}

// close closes all idle connections. No connection is kept after that.
func (t *transport) close() {
	t.mu.Lock()
	t.closed = true
	if t.sweep != nil {
		t.sweep.Stop()
	}
	t.mu.Unlock()
	t.closeOld()
	t.general.CloseIdleConnections()
}
