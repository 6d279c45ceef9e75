package egress

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

// Of RFC 1928.
const (
	socksVersion = 5

	methodNone    = 0x00
	methodNothing = 0xff

	commandConnect = 1

	addressV4   = 1
	addressName = 3
	addressV6   = 4
)

// Replies of RFC 1928.
const (
	replyOK = iota
	replyFailure
	replyDenied
	replyNetwork
	replyHost
	replyRefused
	replyTTL
	replyCommand
	replyAddress
)

var errSocks = errors.New("not SOCKS5")

// socks serves a client whose first byte, the version, was read. The caller
// closes the connection.
func (p *Proxy) socks(c *tracked) {
	if err := socksHello(c.Conn); err != nil {
		return
	}
	target, port, code, err := socksRequest(c.Conn)
	if err != nil {
		socksReply(c.Conn, code)
		return
	}
	rec := &Record{Time: time.Now(), Protocol: "socks5", Host: short(target), Port: port}
	far, err := p.open(p.life, target, strconv.Itoa(port), rec)
	p.judge(rec, err)
	if err != nil {
		socksReply(c.Conn, socksCode(err))
		return
	}
	if socksReply(c.Conn, replyOK) != nil {
		far.Close()
		p.ring.end(rec, 0, 0)
		return
	}
	c.SetDeadline(time.Time{})
	p.pass(c, bufio.NewReader(c), far, rec)
}

// socksHello agrees on no authentication: whoever reaches this listener sits in
// the sandbox.
func socksHello(c io.ReadWriter) error {
	var n [1]byte
	if _, err := io.ReadFull(c, n[:]); err != nil {
		return err
	}
	methods := make([]byte, n[0])
	if _, err := io.ReadFull(c, methods); err != nil {
		return err
	}
	for _, m := range methods {
		if m == methodNone {
			_, err := c.Write([]byte{socksVersion, methodNone})
			return err
		}
	}
	c.Write([]byte{socksVersion, methodNothing})
	return errSocks
}

// socksRequest reads where the client wants to go.
func socksRequest(r io.Reader) (target string, port int, code byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", 0, replyFailure, err
	}
	if head[0] != socksVersion || head[2] != 0 {
		return "", 0, replyFailure, errSocks
	}
	var size int
	switch head[3] {
	case addressV4:
		size = 4
	case addressV6:
		size = 16
	case addressName:
		var n [1]byte
		if _, err := io.ReadFull(r, n[:]); err != nil {
			return "", 0, replyFailure, err
		}
		size = int(n[0])
	default:
		return "", 0, replyAddress, errSocks
	}
	rest := make([]byte, size+2)
	if _, err := io.ReadFull(r, rest); err != nil {
		return "", 0, replyFailure, err
	}
	if head[1] != commandConnect {
		return "", 0, replyCommand, errSocks
	}
	port = int(binary.BigEndian.Uint16(rest[size:]))
	if head[3] == addressName {
		return string(rest[:size]), port, 0, nil
	}
	ip, _ := netip.AddrFromSlice(rest[:size])
	return ip.String(), port, 0, nil
}

func socksReply(w io.Writer, code byte) error {
	_, err := w.Write([]byte{socksVersion, code, 0, addressV4, 0, 0, 0, 0, 0, 0})
	return err
}

func socksCode(err error) byte {
	switch {
	case Denied(err):
		return replyDenied
	case errors.Is(err, syscall.ECONNREFUSED):
		return replyRefused
	case errors.Is(err, syscall.ENETUNREACH):
		return replyNetwork
	case errors.Is(err, context.DeadlineExceeded):
		return replyTTL
	}
	return replyHost
}
