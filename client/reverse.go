package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"

	"github.com/coder/websocket"
)

// maxReverse is the maximum number of concurrent connections of one call of Reverse. More are refused.
const maxReverse = 1024

// Reverse listens on a TCP port in the sandbox, on its loopback address, and connects each connection of a program there with one
// that dial opens. It calls listening as soon as programs can connect. It returns when ctx is done, or when the connection to
// the sandbox is lost, and then closes all connections.
//
// Every program in the sandbox can use the port, so dial must not connect to an address that the sandbox chooses.
func (g *Guest) Reverse(ctx context.Context, port int, dial func(context.Context) (net.Conn, error), listening func()) error {
	if err := g.awake(ctx); err != nil {
		return err
	}
	address := g.base + "/v1/sandbox/ports/" + strconv.Itoa(port)
	ws, err := g.upgrade(ctx, address+"/listen")
	if err != nil {
		return fmt.Errorf("listen on port %d: %w", port, err)
	}
	defer ws.CloseNow()
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	r := reverse{guest: g, accept: address + "/accept?id=", dial: dial, listen: ws, room: make(chan struct{}, maxReverse)}
	for {
		_, b, err := ws.Read(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if err = closeReason(err); err == nil {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("listen on port %d: %w", port, err)
		}
		var a struct {
			Port int    `json:"port"`
			ID   string `json:"id"`
		}
		if err := json.Unmarshal(b, &a); err != nil {
			return fmt.Errorf("listen on port %d: %w", port, err)
		}
		switch {
		case a.ID == "":
			listening()
		case !r.begin():
			r.refuse(ctx, a.ID)
		default:
			work.Go(func() {
				defer r.end()
				r.connect(ctx, a.ID)
			})
		}
	}
}

// reverse connects programs in a sandbox with this side.
type reverse struct {
	guest  *Guest
	accept string
	dial   func(context.Context) (net.Conn, error)
	room   chan struct{}

	mu     sync.Mutex // held while a message is sent
	listen *websocket.Conn
}

func (r *reverse) begin() bool {
	select {
	case r.room <- struct{}{}:
		return true
	default:
		return false
	}
}

func (r *reverse) end() { <-r.room }

// connect connects one program. Its failure is the program's, which sees that its connection is reset.
func (r *reverse) connect(ctx context.Context, id string) {
	c, err := r.dial(ctx)
	if err != nil {
		r.refuse(ctx, id)
		return
	}
	defer c.Close()
	ws, err := r.guest.upgrade(ctx, r.accept+url.QueryEscape(id))
	if err != nil {
		r.refuse(ctx, id)
		return
	}
	_ = join(ctx, ws, c) // both sides see its end themselves
}

// refuse resets the connection of a program.
func (r *reverse) refuse(ctx context.Context, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.listen.Write(ctx, websocket.MessageText, []byte(id)) // if it fails, the listener ends
}
