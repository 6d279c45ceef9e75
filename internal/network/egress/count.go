package egress

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// counter counts the bytes of a request body.
type counter struct {
	io.ReadCloser
	n atomic.Int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// counting counts the bytes of a response.
type counting struct {
	http.ResponseWriter
	n atomic.Int64
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// metered is a client's connection of which a part was already read. It counts
// bytes.
type metered struct {
	net.Conn
	early    *bufio.Reader // on that connection
	up, down atomic.Int64
}

func (c *metered) Read(b []byte) (int, error) {
	n, err := c.early.Read(b)
	c.up.Add(int64(n))
	return n, err
}

func (c *metered) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.down.Add(int64(n))
	return n, err
}

func (c *counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }
