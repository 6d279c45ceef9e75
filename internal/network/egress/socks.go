package egress

import (
	"bufio"
	"context"
	"errors"
	"strconv"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/network/socks"
)

// serveSOCKS serves a client whose first byte, the version, has been read. The caller
// closes the connection.
func (p *Proxy) serveSOCKS(c *tracked) {
	target, port, err := socks.Accept(c.Conn)
	if err != nil {
		return
	}
	c.SetDeadline(time.Time{}) // it may wait for approval
	rec := &Record{Time: time.Now(), Protocol: "socks5", Host: printable(target), Port: port}
	remote, err := p.open(p.life, target, strconv.Itoa(port), rec)
	p.record(rec, err)
	if err != nil {
		socks.Answer(c.Conn, socksCode(err))
		return
	}
	if socks.Answer(c.Conn, socks.OK) != nil {
		remote.Close()
		p.ring.end(rec, 0, 0)
		return
	}
	c.SetDeadline(time.Time{})
	p.relay(c, bufio.NewReader(c), remote, rec)
}

func socksCode(err error) socks.Reply {
	switch {
	case Denied(err):
		return socks.Denied
	case errors.Is(err, syscall.ECONNREFUSED):
		return socks.Refused
	case errors.Is(err, syscall.ENETUNREACH):
		return socks.NetworkUnreachable
	case errors.Is(err, context.DeadlineExceeded):
		return socks.TTLExpired
	}
	return socks.HostUnreachable
}
