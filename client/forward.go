package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/coder/websocket"
)

// maxChunk is the size of the pieces in which a connection is forwarded.
const maxChunk = 32 << 10

// endOfInput is the text message that ends one direction of a forwarded connection.
const endOfInput = "end"

// Forward connects c with a TCP port in the sandbox until either side closes, and closes c.
// Any protocol works. Half-closed connections are supported.
func (g *Guest) Forward(ctx context.Context, port int, c net.Conn) error {
	defer c.Close()
	if err := g.awake(ctx); err != nil {
		return err
	}
	ws, err := g.upgrade(ctx, g.base+"/v1/sandbox/ports/"+strconv.Itoa(port)+"/tunnel")
	if err != nil {
		return fmt.Errorf("forward port %d: %w", port, err)
	}
	if err := join(ctx, ws, c); err != nil {
		return fmt.Errorf("forward port %d: %w", port, err)
	}
	return nil
}

// join connects a WebSocket with a connection until either side closes, and closes both.
func join(ctx context.Context, ws *websocket.Conn, c net.Conn) error {
	defer ws.CloseNow()
	ws.SetReadLimit(maxEvent)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	sent := make(chan error, 1)
	go func() {
		err := sendConn(ctx, ws, c)
		if err != nil {
			cancel()
		}
		sent <- err
	}()
	err := closeReason(receiveConn(ctx, ws, c))
	cancel()
	c.Close()
	<-sent
	return err
}

// closeReason returns the reason for which the server closed a WebSocket; nil if it closed it normally.
func closeReason(err error) error {
	var closed websocket.CloseError
	if !errors.As(err, &closed) {
		return err
	}
	if closed.Code != websocket.StatusNormalClosure && closed.Reason != "" {
		return errors.New(closed.Reason)
	}
	return nil
}

// sendConn forwards data from c, and its end.
func sendConn(ctx context.Context, ws *websocket.Conn, c net.Conn) error {
	buf := make([]byte, maxChunk)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if err := ws.Write(ctx, websocket.MessageBinary, buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return ws.Write(ctx, websocket.MessageText, []byte(endOfInput))
		}
		if err != nil {
			return err
		}
	}
}

// receiveConn writes received data to c, and ends that direction.
func receiveConn(ctx context.Context, ws *websocket.Conn, c net.Conn) error {
	for {
		kind, b, err := ws.Read(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageText {
			if half, ok := c.(interface{ CloseWrite() error }); ok {
				if err := half.CloseWrite(); err != nil {
					return err
				}
			}
			continue
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
}
