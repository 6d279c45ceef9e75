package kernel

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"time"
)

// ZMTP frame flags.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

const (
	// handshakeTimeout limits the handshake. A socket that accepts a connection but does not
	// respond is tried again.
	handshakeTimeout = 5 * time.Second
	// sendTimeout limits one write. libzmq reads in a separate thread, so only a stopped
	// process exceeds it.
	sendTimeout = 10 * time.Second
	// maxCommand limits the size of a handshake command.
	maxCommand = 64 << 10
)

var errMalformed = errors.New("malformed ZMTP frame")

// socket is a ZMTP 3.0 connection with the NULL mechanism to one peer. A DEALER, SUB or REQ
// with a single peer needs no routing. send may be called concurrently, next may not.
type socket struct {
	conn net.Conn
	r    *bufio.Reader
	w    sync.Mutex
}

// dial connects to the unix socket at path as the given socket type.
func dial(ctx context.Context, path, kind, identity string) (*socket, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	s := &socket{conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	err = s.handshake(kind, identity)
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("handshake on %s: %w", path, err)
	}
	conn.SetDeadline(time.Time{})
	return s, nil
}

func (s *socket) handshake(kind, identity string) error {
	greeting := [64]byte{0: 0xff, 9: 0x7f, 10: 3}
	copy(greeting[12:], "NULL")
	if _, err := s.conn.Write(greeting[:]); err != nil {
		return err
	}
	var peer [64]byte
	if _, err := io.ReadFull(s.r, peer[:]); err != nil {
		return err
	}
	if peer[0] != 0xff || peer[9]&1 == 0 || peer[10] < 3 || string(peer[12:17]) != "NULL\x00" {
		return errors.New("the peer does not speak ZMTP 3 without encryption")
	}
	ready := command("READY", "Socket-Type", kind, "Identity", identity)
	if _, err := s.conn.Write(appendFrame(nil, flagCommand, ready)); err != nil {
		return err
	}
	if err := s.awaitReady(); err != nil {
		return err
	}
	if kind == "SUB" {
		return s.send([]byte{1}) // subscribe to everything
	}
	return nil
}

func (s *socket) awaitReady() error {
	flags, size, err := s.header()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxCommand {
		return errMalformed
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(s.r, body); err != nil {
		return err
	}
	if len(body) < 6 || string(body[:6]) != "\x05READY" {
		return fmt.Errorf("the peer refused the connection: %q", body)
	}
	return nil
}

// command builds the body of a command frame from its name and properties.
func command(name string, properties ...string) []byte {
	body := append([]byte{byte(len(name))}, name...)
	for i := 0; i < len(properties); i += 2 {
		body = append(body, byte(len(properties[i])))
		body = append(body, properties[i]...)
		body = binary.BigEndian.AppendUint32(body, uint32(len(properties[i+1])))
		body = append(body, properties[i+1]...)
	}
	return body
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > math.MaxUint8 {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// send writes one message of several frames.
func (s *socket) send(frames ...[]byte) error {
	var b []byte
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrame(b, flags, f)
	}
	s.w.Lock()
	defer s.w.Unlock()
	s.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err := s.conn.Write(b)
	if err != nil {
		// A part of the message may have been sent, so the peer cannot parse what follows.
		s.conn.Close()
	}
	return err
}

// frame is a frame of a message whose body is not read yet.
type frame struct {
	body io.Reader // ends after size bytes
	size int64
	more bool
}

// next reads the header of the next message frame. The body of the previous frame must have
// been read completely.
func (s *socket) next() (frame, error) {
	for {
		flags, size, err := s.header()
		if err != nil {
			return frame{}, err
		}
		body := &exactReader{r: s.r, left: size}
		if flags&flagCommand == 0 {
			return frame{body: body, size: size, more: flags&flagMore != 0}, nil
		}
		// In ZMTP 3.0 no command after READY needs a reply.
		if _, err := io.Copy(io.Discard, body); err != nil {
			return frame{}, err
		}
	}
}

func (s *socket) header() (flags byte, size int64, err error) {
	if flags, err = s.r.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags > flagMore|flagLong|flagCommand || flags&(flagCommand|flagMore) == flagCommand|flagMore {
		return 0, 0, errMalformed
	}
	n := make([]byte, 8)
	if flags&flagLong == 0 {
		_, err = io.ReadFull(s.r, n[7:])
	} else {
		_, err = io.ReadFull(s.r, n)
	}
	if err != nil {
		return 0, 0, unexpected(err)
	}
	long := binary.BigEndian.Uint64(n)
	if long > math.MaxInt64 {
		return 0, 0, errMalformed
	}
	return flags, int64(long), nil
}

func (s *socket) close() { s.conn.Close() }

// exactReader ends after left bytes. Unlike io.LimitedReader it reports an earlier end as
// an error.
type exactReader struct {
	r    io.Reader
	left int64
}

func (e *exactReader) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > e.left {
		p = p[:e.left]
	}
	n, err := e.r.Read(p)
	e.left -= int64(n)
	return n, unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
