// Package outbound connects programs that do not use a proxy to the egress proxy of the hub.
//
// It owns both sides of the protocol between the first process of a sandbox and the proxy, the addresses that represent names
// inside, and the resolver that returns these addresses. It does not intercept programs, and it decides nothing: the egress
// proxy does, by name, as it does for CONNECT.
package outbound

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cove-sandbox/cove/internal/network/socks"
)

// Magic is the first byte of a request. No request of HTTP or SOCKS begins with it.
const Magic = 1

// Kind is the purpose of a request.
type Kind byte

const (
	// Lookup asks whether a name exists and may be used. The reply is one code.
	Lookup Kind = iota + 1
	// Connect opens a connection. The proxy replies with Admitted as soon as the rules allow it, and then with the result. If
	// that is socks.OK, the sender passes the program's connection; see Connection.Give.
	Connect
	// Stream opens a connection. The proxy replies as to Connect. Then the data of the connection follows.
	Stream
)

// Admitted is the reply before the result of Connect.
const Admitted = 0x80

// Request asks the proxy to look up a name or to connect to a host.
type Request struct {
	Kind Kind
	Host string // a name or an address
	Port int
	// Program is the name of the program. The program can choose it.
	Program string
}

var errRequest = errors.New("invalid request")

// maxText is the maximum length of a host and of a program.
const maxText = 255

// marshal encodes a request, with Magic.
func (r Request) marshal() ([]byte, error) {
	if r.Host == "" || len(r.Host) > maxText {
		return nil, errRequest
	}
	program := r.Program[:min(len(r.Program), maxText)]
	b := []byte{Magic, byte(r.Kind)}
	b = binary.BigEndian.AppendUint16(b, uint16(r.Port))
	b = append(append(b, byte(len(r.Host))), r.Host...)
	return append(append(b, byte(len(program))), program...), nil
}

// Read reads a request after Magic. It reads nothing beyond it.
func Read(c io.Reader) (r Request, err error) {
	var head [3]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return r, err
	}
	r.Kind, r.Port = Kind(head[0]), int(binary.BigEndian.Uint16(head[1:]))
	if r.Kind < Lookup || r.Kind > Stream {
		return r, errRequest
	}
	for _, text := range []*string{&r.Host, &r.Program} {
		var n [1]byte
		if _, err := io.ReadFull(c, n[:]); err != nil {
			return r, err
		}
		b := make([]byte, n[0])
		if _, err := io.ReadFull(c, b); err != nil {
			return r, err
		}
		*text = string(b)
	}
	if r.Host == "" {
		return r, errRequest
	}
	return r, nil
}

// RefusedError is a reply of the proxy other than socks.OK.
type RefusedError struct{ Code socks.Reply }

func (e *RefusedError) Error() string { return fmt.Sprintf("the egress proxy replied: %s", e.Code) }
