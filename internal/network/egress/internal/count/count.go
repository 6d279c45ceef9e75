// Package count counts the bytes of requests, responses and connections that a proxy forwards.
package count

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// Body counts the bytes of a request body.
type Body struct {
	io.ReadCloser
	N atomic.Int64
}

func (c *Body) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.N.Add(int64(n))
	return n, err
}

// Response counts the bytes of a response.
type Response struct {
	http.ResponseWriter
	N atomic.Int64
}

func (c *Response) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.N.Add(int64(n))
	return n, err
}

// Conn is a client's connection of which a part was already read. It counts bytes.
type Conn struct {
	net.Conn
	Early    *bufio.Reader // on that connection
	Up, Down atomic.Int64
}

func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Early.Read(b)
	c.Up.Add(int64(n))
	return n, err
}

func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.Down.Add(int64(n))
	return n, err
}

func (c *Response) Unwrap() http.ResponseWriter { return c.ResponseWriter }
