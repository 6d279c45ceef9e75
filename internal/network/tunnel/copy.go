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

// A copy travels in frames: the length in four bytes, then so many bytes. A frame without bytes is the last one; the
// answer follows it: of the writer, whether the copy is complete; of the reader, whether it has taken it.
const (
	maxFrame = 256 << 10
	// stallTime is how long either end may do nothing while a copy is under way. An end that has vanished must
	// not keep the programs of a sandbox stopped.
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
		err = readAnswer(conn)
	}
	return causeOf(ctx, err)
}

// Fill sends the sandbox the copy that its disk begins with, and returns when it has taken it.
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
		return causeOf(ctx, failed.err) // the end of the connection tells the sandbox
	}
	if err == nil {
		err = out.end()
	}
	// A sandbox that cannot take it says why, and reads no further.
	conn.SetReadDeadline(time.Now().Add(stallTime))
	if said := readAnswer(conn); said != nil {
		err = errors.Join(said, err)
	}
	return causeOf(ctx, err)
}

// causeOf prefers why ctx has ended over what that has caused.
func causeOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// readFailure keeps the error of a reader apart from that of whom its bytes are written to.
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
			return 0, fmt.Errorf("a frame of %d bytes in the copy of a disk", f.left)
		}
		f.over = f.left == 0
	}
	n, err := f.conn.Read(b[:min(len(b), int(f.left))])
	f.left -= uint32(n)
	return n, cut(err)
}

// cut makes the end of a connection differ from the end of a copy.
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
		answerWith(c, err)
	}
}

func (s *Server) fill(c net.Conn) {
	if s.cfg.Fill == nil {
		refuse(c, "this sandbox does not begin with a copy")
		return
	}
	if _, err := c.Write([]byte{granted}); err == nil {
		answerWith(c, s.cfg.Fill(&frameReader{conn: c}))
	}
}

func answerWith(c net.Conn, err error) {
	if err != nil {
		refuse(c, err.Error())
		return
	}
	c.SetDeadline(time.Now().Add(handshakeTime))
	c.Write([]byte{granted})
}
