package cdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"unicode/utf8"
)

// maxQueue is the maximum size of the queue of a slow client. Above it the connection ends, so that neither the browser nor
// other clients have to wait. A larger message is accepted by an empty queue.
const maxQueue = 128 << 20

// overhead is the memory of a message in a queue in addition to its bytes.
const overhead = 64

var (
	errTargetClosed = errors.New("the target was closed")
	errTooSlow      = errors.New("the client reads too slowly: its queue exceeds 128 MiB")
	errTooMany      = fmt.Errorf("limit of %d connections to the browser reached; close one", maxConns)
)

// Conn is the connection of one client on a Pipe. Like a WebSocket of the browser, it has separate ids, sessions and
// settings, which end when it is closed.
type Conn struct {
	pipe    *Pipe
	session SessionID // with its target; set before Open returns
	waiting int       // commands without a reply; guarded by pipe.mu
	closed  bool      // guarded by pipe.mu

	mu    sync.Mutex
	queue [][]byte
	bytes int
	err   error
	ready chan struct{} // has a token when the queue or err may have something new
	done  chan struct{} // closed when err is set
	drops bool          // it ended and dropped its queue
}

// Open opens a connection to the browser itself, or to the target with an id.
func (p *Pipe) Open(ctx context.Context, target string) (*Conn, error) {
	c := &Conn{pipe: p, ready: make(chan struct{}, 1), done: make(chan struct{})}
	method, params := "Target.attachToBrowserTarget", json.RawMessage(nil)
	if target != "" {
		method = "Target.attachToTarget"
		params, _ = json.Marshal(attachParams{targetRef{target}, true}) // a string and a bool can always be encoded
	}
	p.mu.Lock()
	full := len(p.conns) >= maxConns
	if !full {
		p.conns[c] = struct{}{}
	}
	p.mu.Unlock()
	if full {
		return nil, errTooMany
	}
	opened := make(chan error, 1)
	err := p.begin(ctx, &command{handle: func(reply []byte) { opened <- c.opened(method, reply) }}, method, params)
	if err == nil {
		select {
		case err = <-opened:
		case <-p.done:
			err = p.err
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// opened records the session that the browser opened. p.mu is held.
func (c *Conn) opened(method string, reply []byte) error {
	var r struct {
		SessionID SessionID `json:"sessionId"`
	}
	if err := decodeReply(method, reply, &r); err != nil {
		return err
	}
	if r.SessionID == Browser {
		return fmt.Errorf("%s: the browser returned no session", method)
	}
	c.session = r.SessionID
	if c.closed { // the caller closed it meanwhile
		c.pipe.loops.Go(c.detach)
		return nil
	}
	c.pipe.sessions[c.session] = owner{c, Browser}
	return nil
}

// Close ends the connection and all its sessions. It may be called more than once.
func (c *Conn) Close() {
	p := c.pipe
	p.mu.Lock()
	attached := !c.closed && p.sessions[c.session].conn == c
	c.closed = true
	delete(p.conns, c)
	for s, o := range p.sessions {
		if o.conn == c {
			delete(p.sessions, s)
		}
	}
	for id, command := range p.commands {
		if command.conn == c {
			p.remove(id)
		}
	}
	p.mu.Unlock()
	c.end(errors.New("closed"), true)
	if attached {
		c.detach()
	}
}

// CloseNow implements transport.
func (c *Conn) CloseNow() error {
	c.Close()
	return nil
}

// detach ends the session with the target and all sessions that were opened in it.
func (c *Conn) detach() {
	ctx, cancel := context.WithTimeout(context.Background(), detachTime)
	defer cancel()
	params, err := json.Marshal(map[string]SessionID{"sessionId": c.session})
	if err == nil {
		// It fails only if the browser has ended or does not respond.
		_ = c.pipe.begin(ctx, &command{handle: func([]byte) {}}, "Target.detachFromTarget", params)
	}
}

// Write sends a command to the browser. The reply to an invalid command is an error.
func (c *Conn) Write(ctx context.Context, msg []byte) error {
	if len(msg) > maxSend {
		return fmt.Errorf("message of %d bytes (limit %d); send it in parts", len(msg), maxSend)
	}
	in, refused := parseCommand(msg)
	if refused != nil {
		c.push(refused)
		return nil
	}
	p := c.pipe
	session := in.SessionID
	if session == Browser {
		session = c.session
	}
	p.mu.Lock()
	owned, waiting, closed := p.sessions[session].conn == c, c.waiting, c.closed || p.hasEnded()
	p.mu.Unlock()
	switch {
	case closed:
		return c.failure()
	case !owned:
		c.push(refusal(in.ID, sessionNotFound, "Session with given id not found."))
	case waiting >= maxWaiting:
		c.push(refusal(in.ID, serverError, fmt.Sprintf("%d commands wait for a reply (limit %d)", waiting, maxWaiting)))
	default:
		return p.begin(ctx, &command{conn: c, session: session, id: *in.ID}, *in.Method, in.Params)
	}
	return nil
}

// incoming is a command of a client.
type incoming struct {
	ID        *int            `json:"id"`
	Method    *string         `json:"method"`
	Params    json.RawMessage `json:"params"`
	SessionID SessionID       `json:"sessionId"`
}

// Error codes of JSON-RPC, with the texts of the browser.
const (
	parseError     = -32700
	invalidRequest = -32600
	serverError    = -32000
)

// parseCommand validates a command. A reply of the browser to an invalid command has no id and could not be routed.
func parseCommand(msg []byte) (in incoming, refused []byte) {
	wrong := json.Unmarshal(msg, &in) // fields of a wrong type are omitted
	_, invalid := errors.AsType[*json.SyntaxError](wrong)
	switch {
	case invalid || !utf8.Valid(msg):
		return in, refusal(nil, parseError, "JSON: invalid message")
	case in.ID == nil || *in.ID < math.MinInt32 || *in.ID > math.MaxInt32:
		return in, refusal(nil, invalidRequest, "Message must have integer 'id' property")
	case in.Method == nil:
		return in, refusal(in.ID, invalidRequest, "Message must have string 'method' property")
	case wrong != nil:
		return in, refusal(in.ID, invalidRequest, "Message must have string 'sessionId' property")
	}
	return in, nil
}

// refusal is the reply to a command that does not reach the browser.
func refusal(id *int, code int, text string) []byte {
	type fault struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	reply, _ := json.Marshal(struct { // numbers and strings can always be encoded
		ID    *int  `json:"id,omitempty"`
		Error fault `json:"error"`
	}{id, fault{code, text}})
	return reply
}

// Read returns the next message of the browser. Messages that arrived before the end of the connection precede its error.
func (c *Conn) Read(ctx context.Context) ([]byte, error) {
	for {
		c.mu.Lock()
		if len(c.queue) > 0 {
			msg := c.queue[0]
			c.queue[0] = nil
			c.queue = c.queue[1:]
			c.bytes -= len(msg) + overhead
			c.mu.Unlock()
			return msg, nil
		}
		err := c.err
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// push adds a message to the queue. It never blocks.
func (c *Conn) push(msg []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	if len(c.queue) > 0 && c.bytes+len(msg)+overhead > c.pipe.queue {
		c.endLocked(errTooSlow, true)
		return
	}
	c.queue = append(c.queue, msg)
	c.bytes += len(msg) + overhead
	c.wake()
}

// end ends the connection; drop discards the queue.
func (c *Conn) end(why error, drop bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(why, drop)
}

func (c *Conn) endLocked(why error, drop bool) {
	if c.err != nil {
		return
	}
	c.err, c.drops = why, drop
	if drop {
		c.queue, c.bytes = nil, 0
	}
	close(c.done)
	c.wake()
}

func (c *Conn) hasDropped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drops
}

func (c *Conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Conn) wake() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}
