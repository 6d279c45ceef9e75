// Package socks implements SOCKS5 (RFC 1928), as a server and as a client. It supports the command
// CONNECT and, as a client, authentication with a password (RFC 1929). It opens no connections.
package socks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// Version is the first byte that a client sends.
const Version = 5

const (
	methodNone     = 0x00
	methodPassword = 0x02
	methodNothing  = 0xff
	passwordV1     = 1

	commandConnect = 1

	addressV4   = 1
	addressName = 3
	addressV6   = 4
)

// Reply is the result of a request.
type Reply byte

// The replies of RFC 1928.
const (
	OK Reply = iota
	Failure
	Denied
	NetworkUnreachable
	HostUnreachable
	Refused
	TTLExpired
	UnknownCommand
	UnknownAddress
)

var errProtocol = errors.New("not SOCKS5")

// Accept completes the greeting of a client whose first byte, Version, has been read, and
// reads its request. If the request cannot be served, it sends the reply itself.
func Accept(c io.ReadWriter) (target string, port int, err error) {
	if err := greet(c); err != nil {
		return "", 0, err
	}
	target, port, code, err := readRequest(c)
	if err != nil {
		_ = Answer(c, code)
	}
	return target, port, err
}

func greet(c io.ReadWriter) error {
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
			_, err := c.Write([]byte{Version, methodNone})
			return err
		}
	}
	_, _ = c.Write([]byte{Version, methodNothing})
	return errProtocol
}

func readRequest(r io.Reader) (target string, port int, code Reply, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", 0, Failure, err
	}
	if head[0] != Version || head[2] != 0 {
		return "", 0, Failure, errProtocol
	}
	size, err := addressSize(r, head[3])
	if err != nil {
		return "", 0, UnknownAddress, err
	}
	rest := make([]byte, size+2)
	if _, err := io.ReadFull(r, rest); err != nil {
		return "", 0, Failure, err
	}
	if head[1] != commandConnect {
		return "", 0, UnknownCommand, errProtocol
	}
	port = int(binary.BigEndian.Uint16(rest[size:]))
	if head[3] == addressName {
		return string(rest[:size]), port, OK, nil
	}
	ip, _ := netip.AddrFromSlice(rest[:size])
	return ip.String(), port, OK, nil
}

// addressSize returns the length of an address of the given kind.
func addressSize(r io.Reader, kind byte) (int, error) {
	switch kind {
	case addressV4:
		return 4, nil
	case addressV6:
		return 16, nil
	case addressName:
		var n [1]byte
		_, err := io.ReadFull(r, n[:])
		return int(n[0]), err
	}
	return 0, errProtocol
}

// Answer sends the reply to a request.
func Answer(w io.Writer, code Reply) error {
	_, err := w.Write([]byte{Version, byte(code), 0, addressV4, 0, 0, 0, 0, 0, 0})
	return err
}

// Connect requests a connection to a host, whose name the server resolves.
func Connect(c io.ReadWriter, host string, port int, user, password string) error {
	methods := []byte{Version, 1, methodNone}
	if user != "" {
		methods = []byte{Version, 2, methodNone, methodPassword}
	}
	if _, err := c.Write(methods); err != nil {
		return err
	}
	var chosen [2]byte
	if _, err := io.ReadFull(c, chosen[:]); err != nil {
		return err
	}
	switch {
	case chosen[0] != Version:
		return errProtocol
	case chosen[1] == methodPassword && user != "":
		if err := signIn(c, user, password); err != nil {
			return err
		}
	case chosen[1] != methodNone:
		return errors.New("the SOCKS server requires another authentication method")
	}
	if _, err := c.Write(request(host, port)); err != nil {
		return err
	}
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	if head[0] != Version {
		return errProtocol
	}
	if code := Reply(head[1]); code != OK {
		return fmt.Errorf("the SOCKS server refused the connection: %s", code)
	}
	size, err := addressSize(c, head[3])
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, size+2))
	}
	return err
}

func signIn(c io.ReadWriter, user, password string) error {
	if len(user) > 255 || len(password) > 255 {
		return errors.New("user and password must have at most 255 bytes each for SOCKS")
	}
	b := append([]byte{passwordV1, byte(len(user))}, user...)
	b = append(append(b, byte(len(password))), password...)
	if _, err := c.Write(b); err != nil {
		return err
	}
	var reply [2]byte
	if _, err := io.ReadFull(c, reply[:]); err != nil {
		return err
	}
	if reply[1] != 0 {
		return errors.New("the SOCKS server rejected user and password")
	}
	return nil
}

func request(host string, port int) []byte {
	b := []byte{Version, commandConnect, 0}
	if ip, err := netip.ParseAddr(host); err == nil {
		kind := byte(addressV4)
		if ip = ip.Unmap(); ip.Is6() {
			kind = addressV6
		}
		b = append(append(b, kind), ip.AsSlice()...)
	} else {
		b = append(append(b, addressName, byte(min(len(host), 255))), host[:min(len(host), 255)]...)
	}
	return binary.BigEndian.AppendUint16(b, uint16(port))
}

func (r Reply) String() string {
	names := []string{"ok", "general failure", "not allowed", "network unreachable", "host unreachable",
		"connection refused", "TTL expired", "unknown command", "unknown address type"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("code %d", byte(r))
}
