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

	"github.com/cove-sandbox/cove/internal/op"
)

const (
	// maxMessage is how many bytes of output one message carries.
	maxMessage = 64 << 10
	// pingEvery is how often a viewer is asked whether it is still there.
	pingEvery = 30 * time.Second
	// viewPatience is how long a viewer may take to receive one message.
	viewPatience = time.Minute
	// typePatience is how long a program may take to read what a viewer types.
	typePatience = 2 * time.Second
	// paceLimit is how long the reading of output waits for a viewer that has
	// fallen behind by half of what is kept. It bounds what a slow viewer can cost
	// the program; a viewer that does not use it is not waited for.
	paceLimit = 25 * time.Millisecond
)

// Codes of a WebSocket's goodbye.
const (
	closeNormal = 1000
	closeBusy   = 1013
)

// viewer is one who watches a terminal and types. It holds no output of its own
// but a place in what the terminal keeps.
type viewer struct {
	t     *terminal
	bell  chan struct{} // holds a token when there may be something to send
	moved chan struct{} // holds a token when something was sent
	notes chan string   // complaints about what the viewer sent

	// Guarded by the session's lock.
	at      int64 // what was sent so far
	stalled bool  // it is not waited for
	intro   []byte
}

// TalkIn names the session.
type TalkIn struct {
	SessionID *string `query:"session_id" doc:"Session to attach to; one that does not exist is made, and a new one when missing"`
}

// Talk serves one viewer.
func (s *Service) Talk(ctx context.Context, in TalkIn, conn op.Conn) error {
	ss, _, err := s.obtain(value(in.SessionID), true)
	if err != nil {
		return err
	}
	t, err := ss.shell(ctx)
	if err != nil {
		return err
	}
	v := t.attach()
	defer t.detach(v)
	ctx, cancel := context.WithCancel(ctx)
	var listener sync.WaitGroup
	listener.Go(func() {
		defer cancel()
		v.listen(ctx, conn)
	})
	defer listener.Wait()
	defer cancel()
	return v.speak(ctx, conn)
}

// attach adds a viewer, who first gets what was printed recently.
func (t *terminal) attach() *viewer {
	v := &viewer{t: t, bell: make(chan struct{}, 1), moved: make(chan struct{}, 1), notes: make(chan string, 8)}
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.ss.used = time.Now()
	t.viewers[v] = struct{}{}
	v.resync(0)
	return v
}

func (t *terminal) detach(v *viewer) {
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.ss.used = time.Now()
	delete(t.viewers, v)
}

// resync puts a viewer that has missed something to where it can go on. Where a
// full-screen program has the screen, that is its present picture, which the
// program is asked to draw again. The lock is held.
func (v *viewer) resync(missed int64) {
	t := v.t
	v.intro = nil
	if t.log.start == 0 {
		v.at = 0
		return
	}
	var b bytes.Buffer
	if missed > 0 {
		b.WriteString(cancel + "\x1b[!p")
	}
	if !t.screen.Alt() {
		if missed > 0 {
			fmt.Fprintf(&b, "\x1b[?1049l\r\n[... %d bytes of output were skipped ...]\r\n", missed)
		}
		v.at, v.intro = t.log.entry(), b.Bytes()
		return
	}
	b.WriteString("\x1b[?1049h\x1b[2J\x1b[H")
	b.WriteString(strings.TrimRight(strings.Join(t.screen.Screen(), "\r\n"), "\r\n"))
	at, _ := t.screen.Cursor()
	fmt.Fprintf(&b, "\x1b[%d;%dH", at.Row+1, at.Col+1)
	v.at, v.intro = t.log.end, b.Bytes()
	t.signal(syscall.SIGWINCH)
}

// ring tells the viewers that there is something new. The lock is held.
func (t *terminal) ring() {
	for v := range t.viewers {
		poke(v.bell)
	}
}

func poke(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// pace waits a moment for viewers that keep up but are about to lose something.
func (t *terminal) pace() {
	for {
		t.ss.mu.Lock()
		var slow *viewer
		for v := range t.viewers {
			switch lag := t.log.end - v.at; {
			case lag < ringSize/8:
				v.stalled = false
			case lag > ringSize/2 && !v.stalled:
				slow = v
			}
		}
		t.ss.mu.Unlock()
		if slow == nil {
			return
		}
		timer := time.NewTimer(paceLimit)
		select {
		case <-slow.moved:
			timer.Stop()
		case <-timer.C:
			t.ss.mu.Lock()
			slow.stalled = true
			t.ss.mu.Unlock()
		}
	}
}

// message is what goes over the wire.
type message struct {
	Type string `json:"type"`
	Data any    `json:"data"`
}

// speak sends messages until the shell has ended or the viewer is gone.
func (v *viewer) speak(ctx context.Context, conn op.Conn) error {
	send := func(kind string, data any) error { return transmit(ctx, conn, message{kind, data}) }
	err := errors.Join(send("session_id", v.t.ss.id), send("ready", map[string]string{"session_id": v.t.ss.id}))
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
		if buf = v.take(buf[:0], ended); len(buf) > 0 {
			err = send("output", string(buf))
			poke(v.moved)
			continue
		}
		if ended {
			v.goodbye(ctx, conn)
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.bell:
		case <-v.t.done:
		case now := <-ping.C:
			err = send("ping", map[string]int64{"timestamp": now.UnixMilli()})
		case note := <-v.notes:
			err = send("error", note)
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		conn.Close(closeBusy, "the viewer did not read for a minute")
		return nil
	}
	return err
}

// take appends the next piece of output, whole characters only unless it is the last.
func (v *viewer) take(buf []byte, last bool) []byte {
	t := v.t
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	if v.at < t.log.start {
		v.resync(t.log.start - v.at)
	}
	if len(v.intro) > 0 {
		buf, v.intro = append(buf, v.intro...), nil
		return buf
	}
	buf = t.log.read(buf, v.at, maxMessage)
	if n := whole(buf); n < len(buf) && !(last && v.at+int64(len(buf)) == t.log.end) {
		buf = buf[:n]
	}
	v.at += int64(len(buf))
	return buf
}

// goodbye tells the exit code.
func (v *viewer) goodbye(ctx context.Context, conn op.Conn) {
	v.t.ss.mu.Lock()
	exit := v.t.exit
	v.t.ss.mu.Unlock()
	reason := fmt.Sprintf("the shell ended with code %d", exit.Code)
	// A viewer that is gone by now misses nothing.
	_ = transmit(ctx, conn, message{"exit", map[string]any{"code": exit.Code, "reason": reason}})
	_ = conn.Close(closeNormal, reason)
}

// transmit sends one message, within the time that a viewer has for it.
func transmit(ctx context.Context, conn op.Conn, m message) error {
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

// listen obeys what the viewer sends until it is gone.
func (v *viewer) listen(ctx context.Context, conn op.Conn) {
	for {
		data, _, err := conn.Read(ctx)
		if err != nil {
			return
		}
		if err := v.obey(data); err != nil {
			select {
			case v.notes <- err.Error():
			default:
			}
		}
	}
}

func (v *viewer) obey(data []byte) error {
	var m struct {
		Type string          `json:"type"`
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return op.Errorf(op.Invalid, "this is no message: send JSON such as {\"type\":\"input\",\"data\":\"ls\\r\"}")
	}
	v.t.ss.touch()
	switch m.Type {
	case "input":
		var keys string
		if err := json.Unmarshal(m.Data, &keys); err != nil {
			return op.Errorf(op.Invalid, "the data of input must be a string")
		}
		if keys == "" {
			return nil
		}
		return v.t.enter(keys, typePatience)
	case "resize":
		var size struct{ Cols, Rows int }
		if err := json.Unmarshal(m.Data, &size); err != nil {
			return op.Errorf(op.Invalid, "the data of resize must be {\"cols\":…,\"rows\":…}")
		}
		return v.t.resize(size.Cols, size.Rows)
	case "pong":
		return nil
	}
	return op.Errorf(op.Invalid, "there is no message of type %q; send input, resize or pong", m.Type)
}
