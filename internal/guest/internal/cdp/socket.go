package cdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// drainTime is how long a client may take to read the last messages of a connection that has ended.
const drainTime = 5 * time.Second

// ServeSocket connects a WebSocket client to the browser, or to the target with an id, and returns when either has ended.
// The caller has authenticated the client and checked its origin. An error means that nothing was written to w.
func (p *Pipe) ServeSocket(w http.ResponseWriter, r *http.Request, target string) error {
	conn, err := p.Open(r.Context(), target)
	if err != nil {
		return err
	}
	defer conn.Close()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil // Accept has written the error
	}
	defer ws.CloseNow()
	ws.SetReadLimit(maxSend)
	ctx, cancel := context.WithCancel(r.Context())
	var loops sync.WaitGroup
	defer loops.Wait()
	defer cancel()
	loops.Go(func() {
		defer cancel()
		receive(ctx, ws, conn)
	})
	loops.Go(func() {
		defer cancel()
		conn.awaitDrained(ctx)
	})
	for {
		msg, err := conn.Read(ctx)
		if err == nil {
			err = ws.Write(ctx, websocket.MessageText, msg)
		}
		if err != nil {
			break
		}
	}
	if ctx.Err() == nil {
		_ = ws.Close(websocket.StatusGoingAway, "the browser or the page was closed") // the client may have disconnected
	}
	return nil
}

// receive forwards the commands of a client until it disconnects.
func receive(ctx context.Context, ws *websocket.Conn, conn *Conn) {
	for {
		_, msg, err := ws.Read(ctx)
		if err == nil {
			err = conn.Write(ctx, msg)
		}
		if err != nil {
			return
		}
	}
}

// awaitDrained returns when the connection has ended and its client had time to read the remaining messages. A client that
// reads too slowly receives none.
func (c *Conn) awaitDrained(ctx context.Context) {
	select {
	case <-c.done:
	case <-ctx.Done():
		return
	}
	if c.hasDropped() {
		return
	}
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Dial connects a client to the WebSocket of a browser. ctx limits only the dialing. Proxies from the environment are not used.
func Dial(ctx context.Context, url string, cfg Config) (*Client, error) {
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = maxMessage
	}
	transport := &http.Transport{DialContext: new(net.Dialer).DialContext, DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	ws, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		if resp != nil {
			err = fmt.Errorf("%w (http status %d)", err, resp.StatusCode)
			if resp.Body != nil {
				resp.Body.Close()
			}
		}
		return nil, fmt.Errorf("connect to browser: %w", err)
	}
	ws.SetReadLimit(cfg.MaxMessage)
	return newClient(socket{ws}, cfg), nil
}

// socket is a WebSocket as a transport.
type socket struct{ *websocket.Conn }

// Read implements transport.
func (s socket) Read(ctx context.Context) ([]byte, error) {
	_, msg, err := s.Conn.Read(ctx)
	if err != nil && !errors.Is(err, websocket.ErrMessageTooBig) {
		err = fmt.Errorf("the browser closed it: %w", err)
	}
	return msg, err
}

// Write implements transport.
func (s socket) Write(ctx context.Context, msg []byte) error {
	return s.Conn.Write(ctx, websocket.MessageText, msg)
}
