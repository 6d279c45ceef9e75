// Package clienthello reads the ClientHello of TLS connections: its server name, and whether the server
// requests a second one.
package clienthello

import (
	"encoding/binary"
	"errors"
	"io"
)

// Bytes of TLS (RFC 8446).
const (
	ChangeCipher  = 20
	Handshake     = 22
	Data          = 23
	Message       = 1
	ServerMessage = 2
	extensionName = 0 // server_name, RFC 6066

	RecordHeader    = 5
	HandshakeHeader = 4
	maxRecord       = 1<<14 + 256
	MaxSize         = 64 << 10
	// MaxSkipped bounds what a client sends before its second ClientHello.
	MaxSkipped = 1 << 20
)

var ErrInvalid = errors.New("invalid TLS ClientHello")

// Retry is the random of a ServerHello that requests a second ClientHello.
var Retry = [32]byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// Read reads a TLS ClientHello, which may span records, and returns its server name
// and the bytes read. The name is empty if there is none. It reads no further than
// the record in which the ClientHello ends.
func Read(r io.Reader) (name string, raw []byte, err error) {
	var message []byte
	for {
		kind, record, err := ReadRecord(r)
		raw = append(raw, record...)
		if err != nil {
			return "", raw, err
		}
		if kind != Handshake || len(record) == RecordHeader {
			return "", raw, ErrInvalid
		}
		message = append(message, record[RecordHeader:]...)
		if message[0] != Message || len(message) > MaxSize {
			return "", raw, ErrInvalid
		}
		if len(message) < HandshakeHeader {
			continue
		}
		size := HandshakeHeader + (int(message[1])<<16 | int(message[2])<<8 | int(message[3]))
		switch {
		case size > MaxSize || len(message) > size:
			return "", raw, ErrInvalid
		case len(message) == size:
			name, err := parseHello(message[HandshakeHeader:])
			return name, raw, err
		}
	}
}

// ReadRecord reads one TLS record, header included.
func ReadRecord(r io.Reader) (kind byte, record []byte, err error) {
	record = make([]byte, RecordHeader, 512)
	if n, err := io.ReadFull(r, record); err != nil {
		return 0, record[:n], err
	}
	size := int(binary.BigEndian.Uint16(record[3:]))
	if record[1] != 3 || size > maxRecord {
		return 0, record, ErrInvalid
	}
	record = append(record, make([]byte, size)...)
	n, err := io.ReadFull(r, record[RecordHeader:])
	return record[0], record[:RecordHeader+n], err
}

// fields reads the fields of a message. After an error all are empty.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) take(n int) []byte {
	if f.bad || n > len(f.rest) {
		f.bad, f.rest = true, nil
		return nil
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

// vector reads a field that begins with its length, a number of width bytes.
func (f *fields) vector(width int) []byte {
	n := 0
	for _, b := range f.take(width) {
		n = n<<8 | int(b)
	}
	return f.take(n)
}

func (f *fields) number() int {
	b := f.take(2)
	if b == nil {
		return -1
	}
	return int(binary.BigEndian.Uint16(b))
}

// parseHello returns the server name of a ClientHello. Ambiguous input is an error.
func parseHello(b []byte) (name string, err error) {
	f := &fields{rest: b}
	f.take(2 + 32) // version and random
	f.vector(1)    // session
	f.vector(2)    // cipher suites
	f.vector(1)    // compression methods
	if f.bad {
		return "", ErrInvalid
	}
	if len(f.rest) == 0 {
		return "", nil
	}
	extensions := &fields{rest: f.vector(2)}
	if f.bad || len(f.rest) > 0 {
		return "", ErrInvalid
	}
	found := false
	for len(extensions.rest) > 0 {
		kind, body := extensions.number(), extensions.vector(2)
		if extensions.bad {
			return "", ErrInvalid
		}
		if kind != extensionName {
			continue
		}
		if found {
			return "", errors.New("TLS ClientHello with two lists of server names")
		}
		found = true
		if name, err = parseNames(body); err != nil {
			return "", err
		}
	}
	return name, nil
}

// parseNames returns the only name in a list of server names.
func parseNames(b []byte) (string, error) {
	outer := &fields{rest: b}
	list := &fields{rest: outer.vector(2)}
	kind := list.take(1)
	name := list.vector(2)
	if outer.bad || list.bad || len(outer.rest) > 0 || len(list.rest) > 0 || kind[0] != 0 || len(name) == 0 {
		return "", errors.New("TLS ClientHello without exactly one server name")
	}
	return string(name), nil
}

// RetryPrefix is the number of bytes that IsRetry needs.
const RetryPrefix = RecordHeader + HandshakeHeader + 2 + 32

// IsRetry reports whether the first bytes of a server's response request a second
// ClientHello, which exists only in TLS 1.3.
func IsRetry(first []byte) bool {
	return len(first) >= RetryPrefix && first[0] == Handshake && first[RecordHeader] == ServerMessage &&
		[32]byte(first[RetryPrefix-32:RetryPrefix]) == Retry
}
