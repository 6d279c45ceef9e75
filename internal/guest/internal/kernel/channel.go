package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// read calls handle for each message of a channel until the channel ends.
func (k *Kernel) read(name string, s *socket, handle func(*message)) {
	k.readers.Go(func() {
		var err error
		for {
			var m *message
			if m, err = s.receive(k.conn.key); err == nil {
				handle(m)
				continue
			}
			if !errors.Is(err, errDropped) {
				break
			}
			k.log.Debug("kernel message dropped", "channel", name, "error", err)
		}
		if s == k.iopub {
			close(k.drained)
		}
		k.connectionEnded(name, err)
	})
}

// connectionEnded reports the end of a channel to watch.
func (k *Kernel) connectionEnded(name string, err error) {
	k.log.Debug("kernel channel ended", "channel", name, "error", err)
	select {
	case k.broken <- struct{}{}:
	default:
	}
}

// pending is a request without a complete reply.
type pending struct {
	id     string
	sink   *sink         // nil: its output is ignored
	silent bool          // it is not announced with execute_input
	reply  chan *message // capacity 1
	began  chan struct{} // closed when the kernel has started it
	idle   chan struct{} // closed when the kernel has finished it

	beginOnce, endOnce sync.Once
}

// expect registers a request before it is sent.
func (k *Kernel) expect(s *sink, silent bool) (p *pending, forget func()) {
	p = &pending{
		id:   k.session + "_" + strconv.FormatUint(k.count.Add(1), 10),
		sink: s, silent: silent,
		reply: make(chan *message, 1), began: make(chan struct{}), idle: make(chan struct{}),
	}
	k.mu.Lock()
	k.pending[p.id] = p
	k.mu.Unlock()
	return p, func() {
		k.mu.Lock()
		delete(k.pending, p.id)
		k.mu.Unlock()
	}
}

func (p *pending) begin() { p.beginOnce.Do(func() { close(p.began) }) }
func (p *pending) end()   { p.endOnce.Do(func() { close(p.idle) }) }

func (k *Kernel) find(id string) *pending {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pending[id]
}

// send sends the request of p. If it fails, the kernel has ended.
func (k *Kernel) send(s *socket, p *pending, kind string, content any) error {
	frames, err := encode(k.conn.key, head{ID: p.id, Type: kind, Session: k.session}, content)
	if err != nil {
		return err
	}
	if err := s.send(frames...); err != nil {
		<-k.dead // a connection that breaks ends the kernel
		return k.err
	}
	return nil
}

// request sends a request and waits for its reply.
func (k *Kernel) request(ctx context.Context, s *socket, kind string, content any) (*message, error) {
	p, forget := k.expect(nil, true)
	defer forget()
	if err := k.send(s, p, kind, content); err != nil {
		return nil, err
	}
	select {
	case m := <-p.reply:
		return m, nil
	case <-k.dead:
		return nil, k.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the reply to %s: %w", kind, context.Cause(ctx))
	}
}

func (k *Kernel) onReply(m *message) {
	if p := k.find(m.parent); p != nil {
		select {
		case p.reply <- m:
		default: // a second reply
		}
	}
}

func (k *Kernel) onOutput(m *message) {
	k.subscribeOnce.Do(func() { close(k.subscribed) })
	p := k.find(m.parent)
	if p == nil {
		if m.parent != "" && !strings.HasPrefix(m.parent, k.session) { // neither unsolicited nor a late reply to us
			k.shared.Store(time.Now().UnixNano())
		}
		return
	}
	switch m.head.Type {
	case "status":
		var c struct {
			State string `json:"execution_state"`
		}
		if json.Unmarshal(m.content, &c) != nil {
			return
		}
		if c.State == "idle" {
			p.end()
		}
		if c.State == "idle" || p.silent {
			p.begin()
		}
	case "execute_input":
		// Only now, later than "busy", does the kernel handle an interrupt.
		p.begin()
	default:
		if o, ok := decodeOutput(m); ok && p.sink != nil {
			p.sink.add(o, m.size)
		}
	}
}

// onInput rejects a request for input. The protocol has no negative reply, so the cell is
// interrupted.
func (k *Kernel) onInput(m *message) {
	p := k.find(m.parent)
	if m.head.Type != "input_request" || p == nil || p.sink == nil {
		return
	}
	p.sink.add(Output{Type: Error, EName: "StdinNotImplementedError", EValue: noInput, Traceback: []string{noInput}}, int64(len(noInput)))
	if err := k.Interrupt(); err != nil {
		k.log.Debug("cannot interrupt a cell that requests input", "error", err)
	}
}
