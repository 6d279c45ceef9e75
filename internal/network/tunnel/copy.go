package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A copy is sent in frames: a length of four bytes, then as many bytes. An empty frame is the last one. A response
// follows: from the writer, whether the copy is complete; from the reader, whether it was restored.
const (
	maxFrame = 256 << 10
	// stallTime bounds the time without progress of a copy. An unreachable peer must not keep the
	// programs of a sandbox suspended.
	stallTime = 2 * time.Minute
)

// Save writes a copy of the sandbox's disk to w. If it returns nil, the copy is complete.
func (c *Client) Save(ctx context.Context, w io.Writer) error {
	conn, err := c.request(ctx, verbSave, 0, true)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.NetConn().Close() })
	defer stop()
	if _, err = io.Copy(w, &frameReader{conn: conn}); err == nil {
		err = readResponse(conn)
	}
	return causeOf(ctx, err)
}

// Fill sends the copy that the sandbox's disk is restored from, and returns when it is restored.
func (c *Client) Fill(ctx context.Context, r io.Reader) error {
	conn, err := c.request(ctx, verbFill, 0, true)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.NetConn().Close() })
	defer stop()
	out := &frameWriter{conn: conn}
	failed := &readFailure{r: r}
	if _, err = io.CopyBuffer(out, failed, make([]byte, maxFrame)); failed.err != nil {
		return causeOf(ctx, failed.err) // the sandbox detects the end of the connection
	}
	if err == nil {
		err = out.end()
	}
	// A sandbox that cannot restore the copy sends the reason, and reads no further.
	conn.SetReadDeadline(time.Now().Add(stallTime))
	if refused := readResponse(conn); refused != nil {
		err = errors.Join(refused, err)
	}
	return causeOf(ctx, err)
}

// causeOf prefers the cause of ctx to the error that its end has caused.
func causeOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// readFailure separates the errors of a reader from those of the writer in a copy.
type readFailure struct {
	r   io.Reader
	err error
}

func (f *readFailure) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}

// frameReader reads up to the last frame.
type frameReader struct {
	conn net.Conn
	left uint32
	over bool
}

func (f *frameReader) Read(b []byte) (int, error) {
	f.conn.SetReadDeadline(time.Now().Add(stallTime))
	for f.left == 0 {
		var head [4]byte
		if f.over {
			return 0, io.EOF
		}
		if _, err := io.ReadFull(f.conn, head[:]); err != nil {
			return 0, cut(err)
		}
		if f.left = binary.BigEndian.Uint32(head[:]); f.left > maxFrame {
			return 0, fmt.Errorf("read the copy of a disk: a frame has %d bytes", f.left)
		}
		f.over = f.left == 0
	}
	n, err := f.conn.Read(b[:min(len(b), int(f.left))])
	f.left -= uint32(n)
	return n, cut(err)
}

// cut distinguishes the end of a connection from the end of a copy.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// frameWriter writes frames.
type frameWriter struct{ conn net.Conn }

func (f *frameWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		some := b[:min(len(b), maxFrame)]
		f.conn.SetWriteDeadline(time.Now().Add(stallTime))
		if _, err := f.conn.Write(binary.BigEndian.AppendUint32(nil, uint32(len(some)))); err != nil {
			return n, err
		}
		written, err := f.conn.Write(some)
		if n += written; err != nil {
			return n, err
		}
		b = b[len(some):]
	}
	return n, nil
}

func (f *frameWriter) end() error {
	f.conn.SetWriteDeadline(time.Now().Add(stallTime))
	_, err := f.conn.Write(make([]byte, 4))
	return err
}

func (s *Server) save(c net.Conn) {
	if s.cfg.Save == nil {
		refuse(c, "this sandbox cannot copy its disk")
		return
	}
	if _, err := c.Write([]byte{granted}); err != nil {
		return
	}
	out := &frameWriter{conn: c}
	err := s.cfg.Save(out)
	if out.end() == nil {
		respond(c, err)
	}
}

func (s *Server) fill(c net.Conn) {
	if s.cfg.Fill == nil {
		refuse(c, "this sandbox does not expect a copy of a disk")
		return
	}
	if _, err := c.Write([]byte{granted}); err == nil {
		respond(c, s.cfg.Fill(&frameReader{conn: c}))
	}
}

func respond(c net.Conn, err error) {
	if err != nil {
		refuse(c, err.Error())
		return
	}
	c.SetDeadline(time.Now().Add(handshakeTime))
	_, _ = c.Write([]byte{granted})
}
