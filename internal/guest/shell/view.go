package shell

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	// maxMessage is the maximum number of bytes of output in one message.
	maxMessage = 64 << 10
	// pingEvery is the interval of pings to a viewer.
	pingEvery = 30 * time.Second
	// viewPatience is how long a viewer may take to receive a message.
	viewPatience = time.Minute
	// typePatience is how long a program may take to read input of a viewer.
	typePatience = 2 * time.Second
	// paceLimit is how long the reading of output waits for a viewer that lags by half of the
	// kept output. It limits the delay that a slow viewer causes. A viewer that makes no
	// progress is not waited for again.
	paceLimit = 25 * time.Millisecond
)

// Close codes of a WebSocket.
const (
	closeNormal = 1000
	closeBusy   = 1013
)

// viewer is a client that watches a terminal and types. It stores only an offset into the
// kept output of the terminal.
type viewer struct {
	t       *terminal
	wakeup  chan struct{} // holds a token when there may be output to send
	moved   chan struct{} // holds a token when output was sent
	replies chan message  // replies to messages of the viewer
	call    *op.Call      // of the viewer's connection

	// Guarded by the session's lock.
	at      int64  // offset of the next byte to send
	stalled bool   // reading of output does not wait for it
	intro   []byte // sent before the byte at the offset
}

// AttachIn selects a session.
type AttachIn struct {
	SessionID *string `query:"session_id" doc:"Session to attach to; created if it does not exist. Default: a new session"`
}

// Attach serves one viewer.
func (s *Service) Attach(ctx context.Context, in AttachIn, conn op.Conn) error {
	ss, _, err := s.obtain(op.Value(in.SessionID), true)
	if err != nil {
		return err
	}
	t, err := ss.ensureShell(ctx)
	if err != nil {
		return err
	}
	v := t.attach()
	v.call = op.CallOf(ctx)
	defer t.detach(v)
	ctx, cancel := context.WithCancel(ctx)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer cancel()
		v.readMessages(ctx, conn)
	})
	defer reader.Wait()
	defer cancel()
	return v.sendMessages(ctx, conn)
}

// attach adds a viewer, which first receives the recent output.
func (t *terminal) attach() *viewer {
	v := &viewer{t: t, wakeup: make(chan struct{}, 1), moved: make(chan struct{}, 1), replies: make(chan message, 8)}
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.ss.Touch()
	t.display.viewers[v] = struct{}{}
	v.resync(0)
	return v
}

func (t *terminal) detach(v *viewer) {
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.ss.Touch()
	delete(t.display.viewers, v)
}

// resync moves a viewer that missed output to an offset where it can continue. If a
// full-screen program runs, it sends the current screen and makes the program redraw. The
// lock is held.
func (v *viewer) resync(missed int64) {
	t := v.t
	v.intro = nil
	if t.display.log.start == 0 {
		v.at = 0
		return
	}
	var b bytes.Buffer
	if missed > 0 {
		b.WriteString(cancel + "\x1b[!p")
	}
	if !t.display.screen.Alt() {
		if missed > 0 {
			fmt.Fprintf(&b, "\x1b[?1049l\r\n[... %d bytes of output were skipped ...]\r\n", missed)
		}
		v.at, v.intro = t.display.log.entry(), b.Bytes()
		return
	}
	b.WriteString("\x1b[?1049h\x1b[2J\x1b[H")
	b.WriteString(strings.TrimRight(strings.Join(t.display.screen.Screen(), "\r\n"), "\r\n"))
	at, _ := t.display.screen.Cursor()
	fmt.Fprintf(&b, "\x1b[%d;%dH", at.Row+1, at.Col+1)
	v.at, v.intro = t.display.log.end, b.Bytes()
	_, _ = t.signal(syscall.SIGWINCH)
}

// message is a WebSocket message. Clients of the public image read the session of ready and
// the time of ping outside of data.
type message struct {
	Type      string `json:"type"`
	Data      any    `json:"data"`
	SessionID string `json:"session_id,omitempty"`
	Timestamp int64  `json:"timestamp,omitempty"`
}

// heartbeat returns a ping or a pong.
func heartbeat(kind string, at time.Time) message {
	ms := at.UnixMilli()
	return message{Type: kind, Data: map[string]int64{"timestamp": ms}, Timestamp: ms}
}

// sendMessages sends messages until the shell has ended or the viewer has disconnected.
func (v *viewer) sendMessages(ctx context.Context, conn op.Conn) error {
	send := func(m message) error { return sendMessage(ctx, conn, m) }
	id := v.t.ss.ID
	err := errors.Join(send(message{Type: "session_id", Data: id}), send(message{Type: "ready", Data: "Terminal ready", SessionID: id}))
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	var buf []byte
	for err == nil {
		ended := false
		select {
		case <-v.t.done:
			ended = true
		default:
		}
		if buf = v.nextOutput(buf[:0], ended); len(buf) > 0 {
			err = send(message{Type: "output", Data: string(buf)})
			wake(v.moved)
			continue
		}
		if ended {
			v.sendExit(ctx, conn)
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.wakeup:
		case <-v.t.done:
		case now := <-ping.C:
			err = send(heartbeat("ping", now))
		case m := <-v.replies:
			err = send(m)
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		conn.Close(closeBusy, "the viewer did not read for one minute")
		return nil
	}
	return err
}

// nextOutput appends the next piece of output. Only at the end of the output it may contain
// an incomplete character.
func (v *viewer) nextOutput(buf []byte, last bool) []byte {
	t := v.t
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	if v.at < t.display.log.start {
		v.resync(t.display.log.start - v.at)
	}
	if len(v.intro) > 0 {
		buf, v.intro = append(buf, v.intro...), nil
		return buf
	}
	buf = t.display.log.read(buf, v.at, maxMessage)
	if n := completePrefix(buf); n < len(buf) && !(last && v.at+int64(len(buf)) == t.display.log.end) {
		buf = buf[:n]
	}
	v.at += int64(len(buf))
	return buf
}

// sendExit sends the exit code and closes the connection.
func (v *viewer) sendExit(ctx context.Context, conn op.Conn) {
	v.t.ss.mu.Lock()
	exit := v.t.exit
	v.t.ss.mu.Unlock()
	reason := fmt.Sprintf("the shell ended with code %d", exit.Code)
	// The viewer may have disconnected.
	_ = sendMessage(ctx, conn, message{Type: "exit", Data: map[string]any{"code": exit.Code, "reason": reason}})
	_ = conn.Close(closeNormal, reason)
}

// sendMessage sends a message within viewPatience.
func sendMessage(ctx context.Context, conn op.Conn, m message) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(m); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, viewPatience)
	defer cancel()
	if err := conn.Write(ctx, bytes.TrimSuffix(b.Bytes(), []byte("\n")), true); err != nil {
		return errors.Join(err, ctx.Err())
	}
	return nil
}

// readMessages handles messages of the viewer until it disconnects.
func (v *viewer) readMessages(ctx context.Context, conn op.Conn) {
	for {
		data, _, err := conn.Read(ctx)
		if err != nil {
			return
		}
		if err := v.handleMessage(data); err != nil {
			v.reply(message{Type: "error", Data: err.Error()})
		}
	}
}

// reply queues a message. It drops the message if the viewer does not read.
func (v *viewer) reply(m message) {
	select {
	case v.replies <- m:
	default:
	}
}

func (v *viewer) handleMessage(data []byte) error {
	var m struct {
		Type string          `json:"type"`
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return op.Errorf(op.Invalid, "invalid message; send JSON such as {\"type\":\"input\",\"data\":\"ls\\r\"}")
	}
	v.t.ss.Touch()
	switch m.Type {
	case "input":
		var keys string
		if err := json.Unmarshal(m.Data, &keys); err != nil {
			return op.Errorf(op.Invalid, "invalid input message: data must be a string")
		}
		if keys == "" {
			return nil
		}
		v.t.ss.mu.Lock()
		v.t.typist = v.call
		v.t.ss.mu.Unlock()
		return v.t.typeInput(keys, typePatience)
	case "resize":
		var size struct{ Cols, Rows int }
		if err := json.Unmarshal(m.Data, &size); err != nil {
			return op.Errorf(op.Invalid, "invalid resize message: data must be {\"cols\":…,\"rows\":…}")
		}
		return v.t.resize(size.Cols, size.Rows)
	case "ping":
		v.reply(heartbeat("pong", time.Now()))
		return nil
	case "pong":
		return nil
	}
	return op.Errorf(op.Invalid, "unknown message type %q; send input, resize, ping or pong", m.Type)
}
