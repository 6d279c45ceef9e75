package cdp

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
)

// Event is an event of the browser.
type Event struct {
	Session SessionID
	Method  string
	Params  json.RawMessage
}

// Decode decodes the event's parameters.
func (e Event) Decode(v any) error { return json.Unmarshal(e.Params, v) }

// Filter selects the events of a subscription and limits its queue.
type Filter struct {
	// Session selects the events of one session, AllSessions those of all sessions.
	Session     SessionID
	AllSessions bool
	// Methods are the names of the events. None means all.
	Methods []string
	// MaxEvents and MaxBytes limit the queue; a full queue drops its oldest events. Zero means 1024 and 64 MiB.
	MaxEvents int
	MaxBytes  int
}

// Subscription is a queue of events.
type Subscription struct {
	client *Client
	filter Filter

	mu      sync.Mutex
	queue   []queued
	bytes   int
	dropped uint64
	err     error
	ready   chan struct{} // has a token when the queue or err may have something new
}

type queued struct {
	event Event
	size  int
}

var errUnsubscribed = errors.New("cdp: subscription was closed")

// Subscribe subscribes to later events. The caller must call Close.
func (c *Client) Subscribe(f Filter) *Subscription {
	if f.MaxEvents == 0 {
		f.MaxEvents = 1024
	}
	if f.MaxBytes == 0 {
		f.MaxBytes = 64 << 20
	}
	f.Methods = slices.Clone(f.Methods)
	s := &Subscription{client: c, filter: f, ready: make(chan struct{}, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Err(); err != nil {
		s.end(err)
	} else {
		c.subs[s] = struct{}{}
	}
	return s
}

// Next returns the oldest event in the queue, or waits for one. Events that arrived before the end of the session or
// connection precede its error.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			q := s.queue[0]
			s.queue[0] = queued{}
			s.queue = s.queue[1:]
			s.bytes -= q.size
			s.mu.Unlock()
			return q.event, nil
		}
		err := s.err
		s.mu.Unlock()
		if err != nil {
			s.wake() // for other goroutines that wait
			return Event{}, err
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// Dropped is the number of events that the full queue dropped.
func (s *Subscription) Dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// Close ends the subscription and clears its queue.
func (s *Subscription) Close() {
	s.client.mu.Lock()
	delete(s.client.subs, s)
	s.client.mu.Unlock()
	s.mu.Lock()
	s.queue, s.bytes, s.err = nil, 0, errUnsubscribed
	s.mu.Unlock()
	s.wake()
}

// publish sends an event to all subscribers. size is its size in memory.
func (c *Client) publish(e Event, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.subs {
		if s.filter.wants(e) {
			s.push(e, size)
		}
	}
}

func (f *Filter) wants(e Event) bool {
	return (f.AllSessions || f.Session == e.Session) && (len(f.Methods) == 0 || slices.Contains(f.Methods, e.Method))
}

func (s *Subscription) push(e Event, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.queue = append(s.queue, queued{e, size})
	s.bytes += size
	for len(s.queue) > s.filter.MaxEvents || s.bytes > s.filter.MaxBytes {
		s.bytes -= s.queue[0].size
		s.queue[0] = queued{}
		s.queue = s.queue[1:]
		s.dropped++
	}
	s.wake()
}

func (s *Subscription) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.wake()
}

func (s *Subscription) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}
