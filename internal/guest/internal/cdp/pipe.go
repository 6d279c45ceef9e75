package cdp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// writeTime is how long the browser may take to accept a message.
	writeTime = 30 * time.Second
	// detachTime is how long the browser may take to end the sessions of a connection.
	detachTime = 2 * time.Second
	// maxMessage is the maximum size of a message of the browser; a larger one ends its connection.
	maxMessage = 256 << 20
	// maxSend is the maximum size of a message to the browser. Chromium exits after a message of 100 MiB.
	maxSend = 96 << 20
	// maxConns is the maximum number of connections, maxWaiting that of pending commands of one connection.
	maxConns, maxWaiting = 256, 1 << 16
	// pipeSize is the size of the kernel buffer for messages of the browser.
	pipeSize = 1 << 20
)

// All ids of commands have the same length, so that a shorter id of the client can replace them in place.
const firstID, lastID = 1_000_000_000, 2_147_483_647

// Pipe is the debugging pipe of a browser. No other process can access it, and no port is open. Its connections are
// isolated: each has its own session with the browser and its own command ids, and receives only replies to its commands
// and events of its sessions.
type Pipe struct {
	in    *os.File      // messages of the browser
	out   *os.File      // messages to it
	turn  chan struct{} // held while a message is written
	queue int           // maximum size of the queue of each connection
	loops sync.WaitGroup

	done    chan struct{}
	err     error // set before done is closed; wraps ErrClosed
	endOnce sync.Once

	mu       sync.Mutex
	last     int
	commands map[int]*command
	sessions map[SessionID]owner
	conns    map[*Conn]struct{}
}

// command waits for a reply of the browser.
type command struct {
	conn    *Conn
	session SessionID
	id      int                // of the client
	handle  func(reply []byte) // instead of a reply to the client; runs on the reading goroutine and must not block
}

// owner is the connection of a session, and the session in which it was opened.
type owner struct {
	conn   *Conn
	parent SessionID
}

// NewPipe returns a pipe, and the files that the browser inherits as descriptors 3 and 4. The caller closes them when the
// browser has started: the pipe ends with the last process that has them.
func NewPipe() (p *Pipe, theirs []*os.File, err error) {
	read, out, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("open the browser's pipe: %w", err)
	}
	in, write, err := os.Pipe()
	if err != nil {
		read.Close()
		out.Close()
		return nil, nil, fmt.Errorf("open the browser's pipe: %w", err)
	}
	// Best effort: a small buffer is only slower.
	_, _ = unix.FcntlInt(write.Fd(), unix.F_SETPIPE_SZ, pipeSize)
	p = &Pipe{
		in: in, out: out, turn: make(chan struct{}, 1), queue: maxQueue, done: make(chan struct{}), last: firstID,
		commands: map[int]*command{}, sessions: map[SessionID]owner{}, conns: map[*Conn]struct{}{},
	}
	p.loops.Go(p.read)
	return p, []*os.File{read, write}, nil
}

// Done is closed when the browser has ended or closed the pipe.
func (p *Pipe) Done() <-chan struct{} { return p.done }

// Close ends all connections. The browser exits when its pipe is closed.
func (p *Pipe) Close() {
	p.end(errors.New("closed"))
	p.in.Close()
	p.out.Close()
	p.loops.Wait()
}

func (p *Pipe) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *Pipe) end(why error) {
	p.endOnce.Do(func() {
		p.err = fmt.Errorf("%w (%w)", ErrClosed, why)
		close(p.done)
		p.mu.Lock()
		defer p.mu.Unlock()
		for c := range p.conns {
			c.end(why, false)
		}
		clear(p.conns)
		clear(p.commands)
		clear(p.sessions)
	})
}

// read routes the messages of the browser. It never blocks on a connection.
func (p *Pipe) read() {
	r := bufio.NewReaderSize(p.in, 64<<10)
	for {
		msg, whole, err := readMessage(r, maxMessage)
		switch {
		case err != nil:
			p.end(fmt.Errorf("the browser closed it: %w", err))
			return
		case whole:
			p.route(msg)
		default:
			p.refuse(msg)
		}
	}
}

// send writes one message, which ends with a zero byte.
func (p *Pipe) send(ctx context.Context, msg []byte) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
	err := p.out.SetWriteDeadline(time.Now().Add(writeTime))
	if err == nil {
		_, err = p.out.Write(msg)
	}
	if err != nil {
		// The browser may have received a part of it, so nothing can follow.
		p.end(fmt.Errorf("send: %w", err))
	}
	return err
}

// begin sends a command in a session of the browser.
func (p *Pipe) begin(ctx context.Context, c *command, method string, params json.RawMessage) error {
	p.mu.Lock()
	id := p.add(c)
	p.mu.Unlock()
	msg, err := encodeCommand(id, c.session, method, params)
	if err == nil {
		err = p.send(ctx, msg)
	}
	if err != nil {
		p.mu.Lock()
		p.remove(id)
		p.mu.Unlock()
	}
	return err
}

// add gives a command its id. p.mu is held.
func (p *Pipe) add(c *command) int {
	for {
		if p.last++; p.last > lastID {
			p.last = firstID
		}
		if p.commands[p.last] == nil {
			break
		}
	}
	p.commands[p.last] = c
	if c.conn != nil {
		c.conn.waiting++
	}
	return p.last
}

// remove removes a command. p.mu is held.
func (p *Pipe) remove(id int) *command {
	c := p.commands[id]
	delete(p.commands, id)
	if c != nil && c.conn != nil {
		c.conn.waiting--
	}
	return c
}

// encodeCommand writes a message to the browser. params is valid JSON or empty, so it cannot reach beyond its place.
func encodeCommand(id int, session SessionID, method string, params json.RawMessage) ([]byte, error) {
	name, err := json.Marshal(method)
	if err != nil {
		return nil, err
	}
	msg := make([]byte, 0, len(params)+len(name)+len(session)+64)
	msg = append(strconv.AppendInt(append(msg, `{"id":`...), int64(id), 10), `,"method":`...)
	msg = append(msg, name...)
	if len(params) > 0 {
		msg = append(append(msg, `,"params":`...), params...)
	}
	if session != Browser {
		msg = append(append(append(msg, `,"sessionId":"`...), session...), '"')
	}
	return append(msg, '}', 0), nil
}
