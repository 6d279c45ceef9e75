package cdp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
)

// headSize and tailSize are the sizes of both ends of a message, which identify its owner: the id is first, the session last.
const headSize, tailSize = 64, 128

var errTooLarge = errors.New("a message of the browser is larger than 256 MiB")

// readMessage reads a message up to its zero byte. For a message above the limit it returns only both ends, and false.
func readMessage(r *bufio.Reader, limit int) (msg []byte, whole bool, err error) {
	whole = true
	for {
		part, err := r.ReadSlice(0)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, false, err
		}
		if len(msg)+len(part) > cap(msg) && len(msg) > 0 {
			msg = slices.Grow(msg, len(msg)+len(part)) // doubles: append alone would copy a large message many times
		}
		msg = append(msg, part...)
		if len(msg) > limit {
			whole = false
			msg = append(slices.Clone(msg[:headSize]), msg[len(msg)-tailSize:]...)
		}
		if err == nil {
			return msg[:len(msg)-1], whole, nil
		}
		if !whole && len(msg) > headSize+tailSize {
			msg = slices.Delete(msg, headSize, len(msg)-tailSize)
		}
	}
}

// sessionOf returns the session of a message and its position. The browser writes it last, and omits it for the browser
// itself.
func sessionOf(msg []byte) (session SessionID, at int) {
	const key = `,"sessionId":"`
	start := max(0, len(msg)-tailSize)
	i := bytes.LastIndex(msg[start:], []byte(key))
	if i < 0 {
		return Browser, len(msg)
	}
	name, ended := bytes.CutSuffix(msg[start+i+len(key):], []byte(`"}`))
	if !ended || bytes.ContainsAny(name, `"\\`) {
		return Browser, len(msg)
	}
	return SessionID(name), start + i
}

// cutSession removes the session of a connection from a message in place, because the client does not know it.
func cutSession(msg []byte, own SessionID) []byte {
	session, at := sessionOf(msg)
	if session == Browser || session != own {
		return msg
	}
	msg[at] = '}'
	return msg[:at+1]
}

// withID replaces the id of a reply in place. The reply begins with an id that is at least as long.
func withID(reply []byte, id int) []byte {
	const key = `{"id":`
	end := len(key) + bytes.IndexAny(reply[len(key):], ",}")
	text := strconv.Itoa(id)
	begin := end - len(text) - len(key)
	if begin < 0 { // a negative id
		return slices.Concat([]byte(key), []byte(text), reply[end:])
	}
	copy(reply[begin:], key)
	copy(reply[begin+len(key):], text)
	return reply[begin:]
}

// route delivers a message to its connection, and drops it if the connection is closed.
func (p *Pipe) route(msg []byte) {
	if id, ok := replyID(msg); ok {
		p.reply(int(id), msg)
		return
	}
	attached, detached := parseLifetime(msg)
	session, _ := sessionOf(msg)
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.sessions[session].conn; c != nil {
		if attached != Browser {
			p.sessions[attached] = owner{c, session}
		}
		c.push(cutSession(msg, c.session))
	}
	if detached != Browser {
		p.forget(detached)
	}
}

// parseLifetime returns the session that was opened or closed according to an event.
func parseLifetime(msg []byte) (attached, detached SessionID) {
	opened := bytes.HasPrefix(msg, []byte(`{"method":"Target.attachedToTarget"`))
	closed := bytes.HasPrefix(msg, []byte(`{"method":"Target.detachedFromTarget"`))
	if !opened && !closed {
		return Browser, Browser
	}
	var event struct {
		Params struct {
			SessionID SessionID `json:"sessionId"`
		} `json:"params"`
	}
	if json.Unmarshal(msg, &event) != nil {
		return Browser, Browser
	}
	if opened {
		return event.Params.SessionID, Browser
	}
	return Browser, event.Params.SessionID
}

func (p *Pipe) reply(id int, msg []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.remove(id)
	switch {
	case c == nil:
	case c.handle != nil:
		c.handle(msg)
	default:
		c.conn.push(withID(cutSession(msg, c.conn.session), c.id))
	}
}

// refuse ends the connection of a message that is too large. Only the ends of the message are left.
func (p *Pipe) refuse(msg []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	session, _ := sessionOf(msg)
	c := p.sessions[session].conn
	if id, ok := replyID(msg); ok && p.commands[int(id)] != nil {
		c = p.commands[int(id)].conn
	}
	if c != nil {
		c.end(errTooLarge, true)
	}
}

// forget removes a session that has ended, the sessions that were opened in it, and their commands, to which the browser does
// not reply. p.mu is held.
func (p *Pipe) forget(s SessionID) {
	ended := p.sessions[s]
	delete(p.sessions, s)
	for id, c := range p.commands {
		if c.session == s {
			p.remove(id)
		}
	}
	for child, o := range p.sessions {
		if o.parent == s {
			p.forget(child)
		}
	}
	if ended.conn != nil && ended.conn.session == s {
		ended.conn.push([]byte(`{"method":"Inspector.detached","params":{"reason":"target_closed"}}`))
		ended.conn.end(errTargetClosed, false)
	}
}
