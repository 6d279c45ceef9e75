package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/coder/websocket"
)

// Port forwarding over WebSockets: each message starts with the number of its channel. The first message of each
// channel contains the port.
const (
	forwardProtocol = "v4.channel.k8s.io"
	dataChannel     = 0
	errorChannel    = 1
)

// maxMessage bounds a message of the API server.
const maxMessage = 1 << 20

// Forward connects to a port of a Pod through the API server and the kubelet. The address is the URL of the Pod's
// subresource, with the port.
func (c *Conn) Forward(ctx context.Context, address string) (net.Conn, error) {
	header := http.Header{}
	if err := c.Authorize(header); err != nil {
		return nil, err
	}
	ws, resp, err := websocket.Dial(ctx, address,
		&websocket.DialOptions{HTTPClient: c.upgrade, HTTPHeader: header, Subprotocols: []string{forwardProtocol}})
	if resp != nil && resp.Body != nil {
		defer resp.Body.Close() // of an error response
	}
	if err != nil {
		return nil, fmt.Errorf("forward a port of a Pod (requires get and create on pods/portforward): %w", err)
	}
	ws.SetReadLimit(maxMessage)
	near, far := net.Pipe()
	f := &forwarded{Conn: near}
	life, end := context.WithCancel(context.Background())
	go func() { // ends when either end is closed
		defer ws.CloseNow()
		defer end()
		_, _ = io.Copy(messages{life, ws}, far) // the reader reports what failed
	}()
	go func() {
		defer far.Close()
		defer end()
		if err := receive(life, ws, far); err != nil {
			f.fault.Store(&err)
		}
	}()
	return f, nil
}

// forwarded is the near end of a forwarded port.
type forwarded struct {
	net.Conn
	fault atomic.Pointer[error]
}

func (f *forwarded) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if fault := f.fault.Load(); errors.Is(err, io.EOF) && fault != nil {
		err = *fault
	}
	return n, err
}

// messages is a writer that sends WebSocket messages.
type messages struct {
	ctx context.Context
	ws  *websocket.Conn
}

func (m messages) Write(p []byte) (int, error) {
	if err := m.ws.Write(m.ctx, websocket.MessageBinary, append([]byte{dataChannel}, p...)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// receive writes the data from the Pod until either end is closed.
func receive(ctx context.Context, ws *websocket.Conn, to io.Writer) error {
	var opened [2]bool
	for {
		_, m, err := ws.Read(ctx)
		if websocket.CloseStatus(err) == websocket.StatusNormalClosure || ctx.Err() != nil {
			return nil //nolint:nilerr // either end was closed
		}
		if err != nil {
			return err
		}
		if len(m) == 0 || m[0] > errorChannel {
			return fmt.Errorf("%w: unexpected message", errForward)
		}
		channel, m := m[0], m[1:]
		if !opened[channel] {
			if opened[channel] = true; len(m) != 2 {
				return fmt.Errorf("%w: unexpected first message", errForward)
			}
			continue
		}
		if channel == errorChannel {
			return fmt.Errorf("%w: %.200s", errForward, m)
		}
		if _, err := to.Write(m); err != nil {
			return nil //nolint:nilerr // the near end was closed
		}
	}
}

var errForward = errors.New("port forwarding failed")
