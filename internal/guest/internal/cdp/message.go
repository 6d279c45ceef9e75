package cdp

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// message is a message of the browser: a reply if it has an id, otherwise an event.
type message struct {
	ID        int64           `json:"id"`
	SessionID SessionID       `json:"sessionId"`
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
}

// Error is an error that the browser returned for a command.
type Error struct {
	Method  string `json:"-"`
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    string `json:"data"`
}

// sessionNotFound is the browser's error code for a session that has ended.
const sessionNotFound = -32001

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (code %d)", e.Method, e.Message, e.Code)
	if e.Data != "" {
		s += ": " + e.Data
	}
	return s
}

// Is makes commands to an ended session return the same error, whether it ended before or during the command.
func (e *Error) Is(target error) bool { return target == ErrDetached && e.Code == sessionNotFound }

// route delivers a message to its receiver. It drops messages without a receiver and invalid messages.
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
	e := Event{Session: m.SessionID, Method: m.Method, Params: m.Params}
	if c.cfg.Handle != nil {
		c.cfg.Handle(e)
	}
	c.publish(e, len(msg))
	if m.Method == "Target.detachedFromTarget" {
		c.detached(m.Params)
	}
}

// replyID parses only the id of a reply. The goroutine of the caller parses the rest, which may be megabytes.
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
	if wait == nil {
		return
	}
	if wait.handle != nil {
		var result json.RawMessage
		if decodeReply("", msg, &result) == nil { // an error is for the caller, who decodes the reply, too
			wait.handle(result)
		}
	}
	wait.reply <- msg
}

// detached fails the calls and subscriptions of a session that has ended: the browser does not reply to them.
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

// decodeReply decodes a reply in one pass, directly into result.
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
