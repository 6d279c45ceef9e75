package cdp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// fake is a fake browser on a pipe, for behavior that a real browser does not show on demand. It opens sessions S1, S2, …
// and sends other commands to the channel commands.
type fake struct {
	pipe     *Pipe
	in       *bufio.Reader
	out      *os.File
	commands chan received
}

// received is a command as the browser parses it.
type received struct {
	ID        int             `json:"id"`
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
	SessionID SessionID       `json:"sessionId"`
}

func newFake(t testing.TB) *fake {
	t.Helper()
	p, theirs, err := NewPipe()
	must(t, err)
	f := &fake{pipe: p, in: bufio.NewReader(theirs[0]), out: theirs[1], commands: make(chan received, 1024)}
	var serving sync.WaitGroup
	serving.Go(func() { f.serve(t) })
	t.Cleanup(func() {
		p.Close()
		serving.Wait()
		for _, file := range theirs {
			file.Close()
		}
	})
	return f
}

func (f *fake) serve(t testing.TB) {
	for sessions := 0; ; {
		msg, err := f.in.ReadBytes(0)
		if err != nil {
			return
		}
		var c received
		dec := json.NewDecoder(bytes.NewReader(msg[:len(msg)-1]))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&c); err != nil || c.ID < firstID || c.ID > lastID {
			t.Errorf("the browser received %q (%v), want a command with an id of the pipe", msg, err)
			continue
		}
		switch {
		case strings.HasPrefix(c.Method, "Target.attachTo") && c.SessionID == Browser:
			sessions++
			f.send(`{"method":"Target.attachedToTarget","params":{"sessionId":"S%d","targetInfo":{}}}`, sessions)
			f.send(`{"id":%d,"result":{"sessionId":"S%d"}}`, c.ID, sessions)
		default:
			f.commands <- c
		}
	}
}

func (f *fake) send(format string, args ...any) {
	_, _ = f.out.Write(append(fmt.Appendf(nil, format, args...), 0)) // the pipe may have been closed
}

func (f *fake) open(t testing.TB) *Conn {
	t.Helper()
	c, err := f.pipe.Open(testContext(t), "")
	must(t, err)
	return c
}

func read(t testing.TB, c *Conn) string {
	t.Helper()
	msg, err := c.Read(testContext(t))
	must(t, err)
	return string(msg)
}

// TestConnectionsShareAPipe checks that each connection has separate ids and sessions, and does not see its own session id.
func TestConnectionsShareAPipe(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	a, b := f.open(t), f.open(t)
	for _, c := range []*Conn{a, b} {
		must(t, c.Write(testContext(t), []byte(`{"id":7,"method":"X.y","params":{"a":"}\",\"sessionId\":\"S1"}}`)))
	}
	first, second := <-f.commands, <-f.commands
	if first.SessionID != "S1" || second.SessionID != "S2" || first.ID == second.ID {
		t.Fatalf("the browser received %+v and %+v, want sessions S1 and S2 with different ids", first, second)
	}
	f.send(`{"id":%d,"result":{"n":2},"sessionId":"S2"}`, second.ID)
	f.send(`{"method":"Target.attachedToTarget","params":{"sessionId":"P","targetInfo":{}},"sessionId":"S1"}`)
	f.send(`{"method":"A.b","params":{"n":1},"sessionId":"P"}`)
	f.send(`{"method":"A.b","params":{"n":2},"sessionId":"unknown"}`)
	f.send(`{"method":"A.b","params":{"n":3}}`)
	f.send(`{"id":%d,"error":{"code":1,"message":"no"},"sessionId":"S1"}`, first.ID)
	for _, want := range []string{
		`{"method":"Target.attachedToTarget","params":{"sessionId":"P","targetInfo":{}}}`,
		`{"method":"A.b","params":{"n":1},"sessionId":"P"}`,
		`{"id":7,"error":{"code":1,"message":"no"}}`,
	} {
		if got := read(t, a); got != want {
			t.Errorf("the first connection received %s, want %s", got, want)
		}
	}
	if got, want := read(t, b), `{"id":7,"result":{"n":2}}`; got != want {
		t.Errorf("the second connection received %s, want %s", got, want)
	}
	must(t, b.Write(testContext(t), []byte(`{"id":8,"method":"X.y","sessionId":"P"}`)))
	if got := read(t, b); !strings.Contains(got, `{"id":8,"error":{"code":-32001`) {
		t.Errorf("a command in a session of another connection: %s, want error -32001", got)
	}
	must(t, a.Write(testContext(t), []byte(`{"sessionId":"P","id":-2147483648,"method":"X.y"}`)))
	c := <-f.commands
	f.send(`{"id":%d,"result":{},"sessionId":"P"}`, c.ID)
	if got, want := read(t, a), `{"id":-2147483648,"result":{},"sessionId":"P"}`; c.SessionID != "P" || got != want {
		t.Errorf("a reply is %s, want %s", got, want)
	}
	a.Close()
	if c := <-f.commands; c.Method != "Target.detachFromTarget" || string(c.Params) != `{"sessionId":"S1"}` {
		t.Errorf("the browser received %+v, want the end of session S1", c)
	}
}

// TestEndedSessionIsForgotten checks that child sessions and pending commands are removed with a session.
func TestEndedSessionIsForgotten(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	c := f.open(t)
	f.send(`{"method":"Target.attachedToTarget","params":{"sessionId":"P"},"sessionId":"S1"}`)
	f.send(`{"method":"Target.attachedToTarget","params":{"sessionId":"Q"},"sessionId":"P"}`)
	read(t, c)
	read(t, c)
	must(t, c.Write(testContext(t), []byte(`{"id":1,"method":"X.y","sessionId":"Q"}`)))
	<-f.commands
	f.send(`{"method":"Target.detachedFromTarget","params":{"sessionId":"P"},"sessionId":"S1"}`)
	read(t, c)
	f.pipe.mu.Lock()
	if len(f.pipe.sessions) != 1 || len(f.pipe.commands) != 0 || c.waiting != 0 {
		t.Errorf("remaining: sessions %v and %d commands, want only session S1", f.pipe.sessions, len(f.pipe.commands))
	}
	f.pipe.mu.Unlock()
	f.send(`{"method":"Target.detachedFromTarget","params":{"sessionId":"S1"}}`)
	if got := read(t, c); !strings.Contains(got, "target_closed") {
		t.Errorf("the last message is %s, want that the target was closed", got)
	}
	if _, err := c.Read(testContext(t)); !errors.Is(err, errTargetClosed) {
		t.Errorf("the connection ended with %v, want %v", err, errTargetClosed)
	}
}

// TestSlowConnectionEnds checks that only the connection whose client does not read ends.
func TestSlowConnectionEnds(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	const size, room = 1 << 10, 1 << 20
	f.pipe.queue = room
	slow, other := f.open(t), f.open(t)
	event := fmt.Sprintf(`{"method":"A.b","params":{"x":%q},"sessionId":"S1"}`, strings.Repeat("x", size))
	for range room/size + 1 {
		f.send("%s", event)
	}
	f.send(`{"method":"A.b","params":{},"sessionId":"S2"}`)
	read(t, other)
	if _, err := slow.Read(testContext(t)); !errors.Is(err, errTooSlow) {
		t.Errorf("the connection ended with %v, want %v", err, errTooSlow)
	}
	slow.Close()
	// A single message larger than the queue is accepted.
	f.send(`{"method":"A.b","params":{"x":%q},"sessionId":"S2"}`, strings.Repeat("x", room+1))
	if got := read(t, other); len(got) < room {
		t.Errorf("received %d bytes, want more than %d", len(got), room)
	}
}

// TestOversizedMessageEndsItsConnection checks that only the receiver of the message ends, and that it is not kept in memory.
func TestOversizedMessageEndsItsConnection(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 10_000)
	for text, want := range map[string]string{
		`{"id":1000000001,"result":"` + long + `","sessionId":"S1"}`:           "S1 1000000001",
		`{"method":"A.b","params":{"x":"` + long + `"},"sessionId":"S2"}`:      "S2 0",
		`{"method":"A.b","params":{"sessionId":"S3","x":"` + long + `"}}`:      " 0",
		`{"id":1000000002,"result":{"a":"` + long + `","sessionId":"no"}}`:     " 1000000002",
		`{"method":"A.b","params":"` + long + `,\"sessionId\":\"S4\"}"}`:       " 0",
		`{"method":"A.b","params":["` + long + `",{"b":",\"sessionId\":\""}]}`: " 0",
	} {
		r := bufio.NewReaderSize(strings.NewReader(text+"\x00{}\x00"), 16)
		msg, whole, err := readMessage(r, 1000)
		if err != nil || whole || len(msg) > 1000 {
			t.Errorf("%d bytes were kept, whole %v, %v, want only the ends", len(msg), whole, err)
		}
		session, _ := sessionOf(msg)
		id, _ := replyID(msg)
		if got := fmt.Sprintf("%s %d", session, id); got != want {
			t.Errorf("%.30s… is of %q, want %q", text, got, want)
		}
		if next, whole, err := readMessage(r, 1000); string(next) != "{}" || !whole || err != nil {
			t.Errorf("the next message is %q, %v, want {}", next, err)
		}
	}
	f := newFake(t)
	a, b := f.open(t), f.open(t)
	f.pipe.refuse([]byte(`{"method":"A.b","params":{},"sessionId":"S1"}`))
	if _, err := a.Read(testContext(t)); !errors.Is(err, errTooLarge) {
		t.Errorf("the connection ended with %v, want %v", err, errTooLarge)
	}
	f.send(`{"method":"A.b","params":{},"sessionId":"S2"}`)
	read(t, b)
}

// TestAbandonedOpenIsDetached checks that a session is closed if its caller canceled while the browser opened it.
func TestAbandonedOpenIsDetached(t *testing.T) {
	t.Parallel()
	p, theirs, err := NewPipe()
	must(t, err)
	defer theirs[1].Close()
	defer theirs[0].Close()
	defer p.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	left := make(chan error, 1)
	go func() {
		_, err := p.Open(ctx, "")
		left <- err
	}()
	in := bufio.NewReader(theirs[0])
	msg, err := in.ReadBytes(0)
	must(t, err)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller returned with %v, want context.Canceled", err)
	}
	var c received
	must(t, json.Unmarshal(msg[:len(msg)-1], &c))
	_, err = theirs[1].Write(fmt.Appendf(nil, `{"id":%d,"result":{"sessionId":"S"}}`+"\x00", c.ID))
	must(t, err)
	msg, err = in.ReadBytes(0)
	if err != nil || !bytes.Contains(msg, []byte(`"Target.detachFromTarget","params":{"sessionId":"S"}`)) {
		t.Errorf("the browser received %q, %v, want the end of the session", msg, err)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	var last *Conn
	for range maxConns {
		last = f.open(t)
	}
	if _, err := f.pipe.Open(testContext(t), ""); !errors.Is(err, errTooMany) {
		t.Errorf("one more connection: %v, want %v", err, errTooMany)
	}
	last.Close()
	f.open(t)
}

// FuzzWrite checks that each message of a client causes at most one command, in a session of that client.
func FuzzWrite(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"method":"X.y"}`, `{"id":1,"method":"X.y","sessionId":"S2"}`, `{"id":1,"method":"X.y","sessionId":"S1","sessionId":"S2"}`,
		"{\"id\":1,\"method\":\"X.y\"}\x00{\"id\":2,\"method\":\"X.z\",\"sessionId\":\"S2\"}", "{\"id\":1,\"method\":\"X\x00y\"}",
		`{"id":1,"method":"X.y","params":{}},"sessionId":"S2"}`, `{"id":1,"method":"X\",\"sessionId\":\"S2\",\"a\":\"","params":null}`,
		`{"id":1e9,"method":"X.y"}`, `{"id":"1","method":5}`, `{"ID":1,"METHOD":"X.y","SESSIONID":"S2"}`, "[]", "", "\xff",
	} {
		f.Add([]byte(seed))
	}
	fake := newFake(f)
	own, other := fake.open(f), fake.open(f)
	f.Fuzz(func(t *testing.T, msg []byte) {
		must(t, own.Write(testContext(t), msg))
		must(t, other.Write(testContext(t), []byte(`{"id":5,"method":"Last.command"}`)))
		for n := 0; ; n++ {
			c := <-fake.commands
			fake.send(`{"id":%d,"result":{},"sessionId":%q}`, c.ID, c.SessionID)
			if c.SessionID == "S2" && c.Method == "Last.command" {
				if n > 1 {
					t.Errorf("%q reached the browser as %d commands, want at most 1", msg, n)
				}
				break
			}
			if c.SessionID != "S1" {
				t.Errorf("%q reached session %q, want S1", msg, c.SessionID)
			}
		}
		if got := read(t, other); got != `{"id":5,"result":{}}` {
			t.Errorf("the other connection received %s, want only its reply", got)
		}
		read(t, own)
	})
}

// FuzzReadMessage checks that any message is routed without a panic, and only to the owner of its session.
func FuzzReadMessage(f *testing.F) {
	for _, seed := range []string{
		`{"id":1000000001,"result":{},"sessionId":"S1"}`, `{"method":"A.b","sessionId":"S1"}`, `{"method":"A.b","sessionId":"S2"}`,
		`"sessionId":"`, `{"method":"Target.attachedToTarget","params":{"sessionId":"P"},"sessionId":"S1"}`,
		`,"sessionId":"S1"}`, `{"id":1000000001`, "\x00\x00", "",
	} {
		f.Add([]byte(seed), 100)
	}
	f.Fuzz(func(t *testing.T, stream []byte, limit int) {
		p := &Pipe{queue: maxQueue, commands: map[int]*command{}, sessions: map[SessionID]owner{}, conns: map[*Conn]struct{}{}}
		c := &Conn{pipe: p, session: "S1", ready: make(chan struct{}, 1), done: make(chan struct{})}
		p.sessions["S1"] = owner{c, Browser}
		p.commands[firstID+1] = &command{conn: c, session: "S1", id: 1}
		r := bufio.NewReaderSize(bytes.NewReader(stream), 16)
		for {
			msg, whole, err := readMessage(r, max(limit, headSize+tailSize))
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Error(err)
				}
				return
			}
			if !whole {
				p.refuse(msg)
				continue
			}
			p.route(msg)
		}
	})
}
