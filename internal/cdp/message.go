package cdp

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// message is what the browser sends: a reply if it has an id, else an event.
type message struct {
	ID        int64           `json:"id"`
	SessionID SessionID       `json:"sessionId"`
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
}

// Error is a command that the browser refused.
type Error struct {
	Method  string `json:"-"`
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    string `json:"data"`
}

// sessionNotFound is the browser's code for commands to a session that is no more.
const sessionNotFound = -32001

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (code %d)", e.Method, e.Message, e.Code)
	if e.Data != "" {
		s += ": " + e.Data
	}
	return s
}

// Is makes a command to a session that has ended look the same, whether it ended before or during the command.
func (e *Error) Is(target error) bool { return target == ErrDetached && e.Code == sessionNotFound }

// route hands a message to whom it is for. What nobody waits for is dropped, and so is what is not understood.
func (c *Client) route(msg []byte) {
	if id, ok := replyID(msg); ok {
		c.deliver(id, msg)
		return
	}
	var m message
	if json.Unmarshal(msg, &m) != nil {
		return
	}
	if m.ID != 0 {
		c.deliver(m.ID, msg)
		return
	}
	c.publish(Event{Session: m.SessionID, Method: m.Method, Params: m.Params}, len(msg))
	if m.Method == "Target.detachedFromTarget" {
		c.detached(m.Params)
	}
}

// replyID reads the id of a reply without looking at the rest, which may be megabytes that the caller's goroutine has to
// look at anyway.
func replyID(msg []byte) (int64, bool) {
	rest, ok := bytes.CutPrefix(msg, []byte(`{"id":`))
	if !ok {
		return 0, false
	}
	var id int64
	for i, b := range rest {
		switch {
		case b >= '0' && b <= '9' && i < 18:
			id = id*10 + int64(b-'0')
		case (b == ',' || b == '}') && id > 0:
			return id, true
		default:
			return 0, false
		}
	}
	return 0, false
}

func (c *Client) deliver(id int64, msg []byte) {
	c.mu.Lock()
	wait := c.pending[id]
	delete(c.pending, id)
	c.mu.Unlock()
	if wait != nil {
		wait.reply <- msg
	}
}

// detached ends the calls and subscriptions of a session that is no more: the browser will answer none of them.
func (c *Client) detached(params json.RawMessage) {
	var p struct {
		SessionID SessionID `json:"sessionId"`
	}
	if json.Unmarshal(params, &p) != nil || p.SessionID == Browser {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, wait := range c.pending {
		if wait.session == p.SessionID {
			delete(c.pending, id)
			wait.failed <- ErrDetached
		}
	}
	for s := range c.subs {
		if !s.filter.AllSessions && s.filter.Session == p.SessionID {
			s.end(ErrDetached)
			delete(c.subs, s)
		}
	}
}

// decodeReply reads a reply in one pass, straight into result.
func decodeReply(method string, raw []byte, result any) error {
	if result == nil {
		result = new(json.RawMessage)
	}
	reply := struct {
		Result any    `json:"result"`
		Error  *Error `json:"error"`
	}{Result: result}
	if err := json.Unmarshal(raw, &reply); err != nil {
		return fmt.Errorf("%s: decode result: %w", method, err)
	}
	if reply.Error != nil {
		reply.Error.Method = method
		return reply.Error
	}
	return nil
}
