package egress

import (
	"encoding/binary"
	"errors"
	"io"
)

// Bytes of TLS (RFC 8446).
const (
	recordChangeCipher = 20
	recordHandshake    = 22
	recordData         = 23
	clientHello        = 1
	serverHello        = 2
	extensionName      = 0 // server_name, RFC 6066

	recordHeader    = 5
	handshakeHeader = 4
	maxRecord       = 1<<14 + 256
	maxHello        = 64 << 10
	// maxSkipped bounds what a client sends before its second ClientHello.
	maxSkipped = 1 << 20
)

var errHello = errors.New("invalid TLS ClientHello")

// helloRetry is the random of a ServerHello that requests a second ClientHello.
var helloRetry = [32]byte{
	0xCF, 0x21, 0xAD, 0x74, 0xE5, 0x9A, 0x61, 0x11, 0xBE, 0x1D, 0x8C, 0x02, 0x1E, 0x65, 0xB8, 0x91,
	0xC2, 0xA2, 0x11, 0x16, 0x7A, 0xBB, 0x8C, 0x5E, 0x07, 0x9E, 0x09, 0xE2, 0xC8, 0xA8, 0x33, 0x9C,
}

// ReadHello reads a TLS ClientHello, which may span records, and returns its server name
// and the bytes read. The name is empty if there is none. It reads no further than
// the record in which the ClientHello ends.
func ReadHello(r io.Reader) (name string, raw []byte, err error) {
	var message []byte
	for {
		kind, record, err := readRecord(r)
		raw = append(raw, record...)
		if err != nil {
			return "", raw, err
		}
		if kind != recordHandshake || len(record) == recordHeader {
			return "", raw, errHello
		}
		message = append(message, record[recordHeader:]...)
		if message[0] != clientHello || len(message) > maxHello {
			return "", raw, errHello
		}
		if len(message) < handshakeHeader {
			continue
		}
		size := handshakeHeader + (int(message[1])<<16 | int(message[2])<<8 | int(message[3]))
		switch {
		case size > maxHello || len(message) > size:
			return "", raw, errHello
		case len(message) == size:
			name, err := parseHello(message[handshakeHeader:])
			return name, raw, err
		}
	}
}

// readRecord reads one TLS record, header included.
func readRecord(r io.Reader) (kind byte, record []byte, err error) {
	record = make([]byte, recordHeader, 512)
	if n, err := io.ReadFull(r, record); err != nil {
		return 0, record[:n], err
	}
	size := int(binary.BigEndian.Uint16(record[3:]))
	if record[1] != 3 || size > maxRecord {
		return 0, record, errHello
	}
	record = append(record, make([]byte, size)...)
	n, err := io.ReadFull(r, record[recordHeader:])
	return record[0], record[:recordHeader+n], err
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
		return "", errHello
	}
	if len(f.rest) == 0 {
		return "", nil
	}
	extensions := &fields{rest: f.vector(2)}
	if f.bad || len(f.rest) > 0 {
		return "", errHello
	}
	found := false
	for len(extensions.rest) > 0 {
		kind, body := extensions.number(), extensions.vector(2)
		if extensions.bad {
			return "", errHello
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

// retryPrefix is the number of bytes that isHelloRetry needs.
const retryPrefix = recordHeader + handshakeHeader + 2 + 32

// isHelloRetry reports whether the first bytes of a server's response request a second
// ClientHello, which exists only in TLS 1.3.
func isHelloRetry(first []byte) bool {
	return len(first) >= retryPrefix && first[0] == recordHandshake && first[recordHeader] == serverHello &&
		[32]byte(first[retryPrefix-32:retryPrefix]) == helloRetry
}
