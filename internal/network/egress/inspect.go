package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress/internal/clienthello"
)

// opening is the protocol that the first bytes of a client indicate.
//
// A tunnel to an allowed name can carry a request for another name that the same
// address serves. So in mode allow the first bytes of the client must name the allowed
// host, unless the address itself is on the list:
//
//   - TLS: the server name of the ClientHello, and of a second one if the server
//     requests it.
//   - HTTP: the Host of every request.
//   - Protocols in which the server sends first have no such names. SSH is one of
//     them, but its clients do not wait.
//   - All other protocols require a rule with their port.
type opening int

const (
	openingTLS   opening = iota
	openingHTTP          // or input that a lenient server might accept as HTTP
	openingHTTP2         // without TLS: each of its streams can be for another host
	openingSSH
	openingOther
)

// maxLine bounds the first line that is read to classify it. A longer line is HTTP.
const maxLine = 4 << 10

// inspects reports whether tunnels to a name must prove that they are for that name: the list
// has the name, but not the address.
func (r *Rules) inspects(address string, port int) bool {
	return r.lists() && r.Allow(address, port) != nil
}

// namesPort reports whether a rule for this name has this port.
func (r *Rules) namesPort(host string, port int) bool {
	for _, n := range r.names {
		if n.port == port && !n.place.deny && n.matches(host) {
			return true
		}
	}
	return false
}

// mustInspect decides whether a tunnel is inspected. A change of the rules closes uninspected
// tunnels that must be inspected.
func (p *Proxy) mustInspect(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.inspected = l.mustProve()
	return l.inspected
}

// mustProve reports whether a tunnel must prove that it is for the name of its host.
func (l *link) mustProve() bool {
	rules := l.p.rules.Load()
	// The learning mode is as open as the mode open for hosts without a rule.
	return rules.inspects(l.address(), l.port) && !(l.p.Learner.Open() && rules.Allow(l.host, l.port) != nil)
}

// address returns the remote address without its port.
func (l *link) address() string {
	if a, err := netip.ParseAddrPort(l.Conn.RemoteAddr().String()); err == nil {
		return a.Addr().Unmap().WithZone("").String()
	}
	return ""
}

// classify peeks at the first bytes of a client.
func classify(r *bufio.Reader) (opening, error) {
	for n := 1; ; n++ {
		_, err := r.Peek(n)
		if errors.Is(err, bufio.ErrBufferFull) {
			return openingHTTP, nil
		}
		if err != nil {
			return openingOther, err
		}
		b, _ := r.Peek(r.Buffered())
		if kind, known := classifyBytes(b); known {
			return kind, nil
		}
		n = len(b)
	}
}

// classifyBytes returns the protocol that begins with these bytes; known is false if more bytes are
// needed. Everything that some server might accept as a request is HTTP: the broker parses it
// strictly and refuses malformed requests. Only bytes that no server accepts as HTTP are other protocols.
func classifyBytes(b []byte) (kind opening, known bool) {
	switch {
	case len(b) == 0:
		return openingOther, false
	case b[0] == clienthello.Handshake:
		return openingTLS, true
	case b[0] >= 0x80 && len(b) < 3:
		return openingOther, false
	case b[0] >= 0x80 && b[2] == clienthello.Message: // SSL 2.0: a length, then a ClientHello without a name
		return openingTLS, true
	}
	full := len(b) >= maxLine
	text := trimSpace(b) // a server may skip empty lines in front of a request
	method := 0
	for method < len(text) && isToken(text[method]) {
		method++
	}
	if method < len(text) && !isSpace(text[method]) {
		return openingOther, true
	}
	// LDAP begins with the digit 0 and a length, which may look like a space.
	if target := trimSpace(text[method:]); len(target) > 0 && target[0] < ' ' && len(bytes.Trim(text[:method], "0123456789")) == 0 {
		return openingOther, true
	}
	line, _, ended := bytes.Cut(text, []byte("\n"))
	if !ended {
		return openingHTTP, full
	}
	return classifyLine(string(line[:method]), string(line[method:])), true
}

// classifyLine classifies the first line of a text protocol.
func classifyLine(method, rest string) opening {
	target := string(trimSpace([]byte(rest)))
	switch {
	case method == "PRI":
		return openingHTTP2
	case strings.Contains(strings.ToUpper(method+rest), "HTTP/"):
		return openingHTTP
	case slices.Contains(httpMethods, strings.ToUpper(method)) && (strings.HasPrefix(target, "/") || strings.Contains(target, "://")):
		return openingHTTP // HTTP/0.9, which has no version
	case strings.HasPrefix(method, "SSH-"):
		return openingSSH
	}
	return openingOther
}

// httpMethods lists the methods that a server might accept in a request without a version. Other
// protocols have some of these words, but no path after them.
var httpMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}

// isToken reports whether a method may contain this byte (RFC 9110, section 5.6.2).
func isToken(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// isSpace reports whether some server treats this byte as a space: those of RFC 9112, and those
// of Latin-1 and Unicode, at which Python's servers split.
func isSpace(c byte) bool {
	return c >= '\t' && c <= '\r' || c >= 0x1c && c <= ' ' || c == 0x85 || c == 0xa0
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	return b
}

// relayInspected relays like join, but sends no data of the client before its first
// bytes have proven that they are for the host of the link.
func (p *Proxy) relayInspected(client net.Conn, early *bufio.Reader, remote *link, rec *Record) {
	var up int64
	down := startDown(client, remote)
	kind := openingOther
	err := func() (err error) {
		if _, err := early.Peek(1); err != nil {
			return err
		}
		// The client may stay idle, but its opening must arrive in time once it has begun.
		client.SetReadDeadline(time.Now().Add(helloTimeout))
		if kind, err = classify(early); err != nil {
			return err
		}
		if kind == openingHTTP {
			return errAsHTTP
		}
		n, err := p.sendOpening(kind, early, remote, down)
		up += n
		if err != nil {
			return err
		}
		client.SetReadDeadline(time.Time{})
		n, err = copyUp(client, early, remote)
		up += n
		return err
	}()
	switch {
	case errors.Is(err, errAsHTTP) && down.stop():
		client.SetReadDeadline(time.Time{})
		p.setRaw(remote, false)
		p.broker(client, early, remote, &flow{host: remote.host, port: remote.port, cut: func() { client.Close() }}, rec)
		return
	case errors.Is(err, errAsHTTP):
		err = deny("the server sent data before the HTTP request")
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = deny("the client did not show within %v which host its connection is for", helloTimeout)
	case errors.Is(err, clienthello.ErrInvalid):
		err = deny("%v", err)
	}
	if Denied(err) {
		if kind == openingTLS {
			client.SetWriteDeadline(time.Now().Add(time.Second))
			client.Write([]byte{21, 3, 3, 0, 2, 2, 49}) // the fatal alert access_denied, which clients show
		}
		p.refuseTunnel(rec, err)
	}
	finish(client, remote, ignoreEOF(err))
	received := down.wait()
	client.Close()
	remote.Close()
	p.sent.Add(up)
	p.received.Add(received)
	p.ring.end(rec, up, received)
}

var errAsHTTP = errors.New("the client speaks HTTP")

// ignoreEOF removes io.EOF, which is the regular end of a direction.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// refuseTunnel records that a tunnel was refused after it was opened.
func (p *Proxy) refuseTunnel(rec *Record, err error) {
	p.ring.change(rec, func() { rec.deny(err) })
	p.verdicts[1].Add(1)
	if p.cfg.Observe != nil {
		seen := *rec
		p.cfg.Observe(seen)
	}
}

// sendOpening checks the first bytes and sends them.
func (p *Proxy) sendOpening(kind opening, early *bufio.Reader, remote *link, down *down) (sent int64, err error) {
	switch kind {
	case openingTLS:
		return p.sendHello(early, remote, down)
	case openingHTTP2:
		return 0, deny("the connection to %s is HTTP/2 without TLS; use TLS or HTTP/1.1, or allow the address", remote.host)
	case openingSSH, openingOther:
		byRule := p.rules.Load().namesPort(remote.host, remote.port) || p.Approvals.wasApproved(remote.host, remote.port)
		if kind == openingSSH && !byRule {
			down.awaitFirst()
		}
		if !down.hasSent() && !byRule {
			return 0, &deniedError{
				why: fmt.Sprintf("the connection to %s does not show which host it is for, and protocols other than TLS and HTTP "+
					"require a rule with the port, or for the address", remote.host),
				fix: fmt.Sprintf("its owner can allow it with cove egress allow NAME %s:%d", remote.host, remote.port),
			}
		}
	}
	return 0, nil
}

// sendHello checks and sends a ClientHello, and a second one if the server requests it.
func (p *Proxy) sendHello(early *bufio.Reader, remote *link, down *down) (sent int64, err error) {
	send := func(b []byte) error {
		n, err := bare(remote).Write(b)
		sent += int64(n)
		return err
	}
	hello, err := checkedHello(early, remote)
	if err == nil {
		err = send(hello)
	}
	if err != nil {
		return sent, err
	}
	select {
	case <-down.known:
	case <-time.After(helloTimeout):
		return sent, errors.New("the server did not respond to the TLS ClientHello")
	}
	if !clienthello.IsRetry(down.first()) {
		return sent, nil
	}
	for skipped := 0; skipped < clienthello.MaxSkipped; {
		b, err := early.Peek(1)
		if err != nil {
			return sent, err
		}
		if b[0] == clienthello.Handshake {
			if hello, err = checkedHello(early, remote); err != nil {
				return sent, err
			}
			return sent, send(hello)
		}
		// Early data, and a message for compatibility with middleboxes.
		kind, record, err := clienthello.ReadRecord(early)
		if err == nil && kind != clienthello.Data && kind != clienthello.ChangeCipher {
			err = clienthello.ErrInvalid
		}
		if err != nil {
			return sent, err
		}
		skipped += len(record)
		if err := send(record); err != nil {
			return sent, err
		}
	}
	return sent, clienthello.ErrInvalid
}

// checkedHello reads a ClientHello for the host of a link.
func checkedHello(early *bufio.Reader, remote *link) ([]byte, error) {
	name, raw, err := clienthello.Read(early)
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
		return nil, deny("%v", err)
	}
	if name == "" {
		return nil, deny("the TLS connection to %s has no server name (SNI); send it, or allow the address", remote.host)
	}
	if clean, err := CleanName(name); err != nil || clean != remote.host {
		return nil, deny("the tunnel is to %s but its TLS server name (SNI) is %.80q", remote.host, name)
	}
	return raw, nil
}

// copyUp copies from a client until its direction ends.
func copyUp(client net.Conn, early *bufio.Reader, remote net.Conn) (up int64, err error) {
	if early != nil && early.Buffered() > 0 {
		if up, err = io.CopyN(bare(remote), early, int64(early.Buffered())); err != nil {
			return up, err
		}
	}
	n, err := io.Copy(bare(remote), bare(client))
	return up + n, err
}

// down is the direction from a server to a client, which is copied from the start.
type down struct {
	client net.Conn
	remote *link
	began  chan struct{} // closed when the server has sent data, or the direction has ended
	known  chan struct{} // closed when begin is complete
	over   chan struct{} // closed when the direction has ended

	mu    sync.Mutex
	begin []byte // up to clienthello.RetryPrefix bytes
	n     int64
	err   error
}

func startDown(client net.Conn, remote *link) *down {
	d := &down{client: client, remote: remote, began: make(chan struct{}), known: make(chan struct{}), over: make(chan struct{})}
	go d.run()
	return d
}

func (d *down) run() {
	defer close(d.over)
	err := d.readBegin()
	close(d.known)
	if err == nil {
		var n int64
		n, err = io.Copy(bare(d.client), bare(d.remote))
		d.mu.Lock()
		d.n += n
		d.mu.Unlock()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		d.mu.Lock()
		d.err = err
		d.mu.Unlock()
		return // stopped
	}
	finish(d.remote, d.client, ignoreEOF(err))
}

// readBegin forwards the first bytes and keeps a copy.
func (d *down) readBegin() error {
	b := make([]byte, 4<<10)
	begin := sync.OnceFunc(func() { close(d.began) })
	defer begin()
	for {
		n, err := bare(d.remote).Read(b)
		if n > 0 {
			d.mu.Lock()
			d.begin = append(d.begin, b[:min(n, clienthello.RetryPrefix-len(d.begin))]...)
			d.n += int64(n)
			whole := len(d.begin) == clienthello.RetryPrefix
			d.mu.Unlock()
			begin()
			if _, err := bare(d.client).Write(b[:n]); err != nil {
				return err
			}
			if whole && err == nil {
				return nil
			}
		}
		if err != nil {
			return err
		}
	}
}

// first returns the first bytes of the server.
func (d *down) first() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.begin
}

// hasSent reports whether the server has sent data.
func (d *down) hasSent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n > 0
}

// awaitFirst waits until the server has sent data, up to a timeout.
func (d *down) awaitFirst() {
	limit := time.NewTimer(helloTimeout)
	defer limit.Stop()
	select {
	case <-d.began:
	case <-limit.C:
	}
}

// stop ends the direction if the server has not sent data. It reports whether it did.
func (d *down) stop() bool {
	d.remote.SetReadDeadline(time.Unix(1, 0))
	<-d.over
	d.remote.SetReadDeadline(time.Time{})
	return d.err != nil && d.n == 0
}

// wait waits for the end of the direction and returns the number of bytes received.
func (d *down) wait() int64 {
	<-d.over
	return d.n
}
