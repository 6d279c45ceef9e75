package hub

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// maxHistory is how many events are kept for readers that come back.
const maxHistory = 2048

// Event is one thing that happened.
type Event struct {
	Type    string    `json:"type" doc:"existing, created, changed, deleted, exceeded (a limit was hit), idle, expired, or missed: events were lost, and what follows is how things stand"`
	Time    time.Time `json:"time"`
	Sandbox *Object   `json:"sandbox,omitempty" doc:"As it was right after, without its environment and arguments"`
	Message string    `json:"message,omitempty"`
}

// moment is an event as the hub keeps it.
type moment struct {
	seq  int64
	kind string
	time time.Time
	sb   sandbox.Sandbox
	text string
}

// history numbers events and keeps the latest. Its numbers mean something only
// together with its epoch: another hub counts anew.
type history struct {
	epoch string

	mu     sync.Mutex
	closed bool
	last   int64         // number of the latest; the first is 1
	kept   []moment      // a ring once it is full: number n stands at (n-1) % maxHistory
	bell   chan struct{} // closed and replaced when something happens
}

func newHistory() *history {
	return &history{epoch: strings.ToLower(rand.Text()[:8]), bell: make(chan struct{})}
}

func (p *history) add(kind string, at time.Time, sb sandbox.Sandbox, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	// What is large and may hold secrets is not repeated to every reader.
	sb.Spec.Env, sb.Spec.Args, sb.Spec.Command = nil, nil, nil
	p.last++
	m := moment{p.last, kind, at, sb, text}
	if len(p.kept) < maxHistory {
		p.kept = append(p.kept, m)
	} else {
		p.kept[(p.last-1)%maxHistory] = m
	}
	close(p.bell)
	p.bell = make(chan struct{})
}

// behind returns what came after seq; lost says that some of it is gone.
func (p *history) behind(seq int64) (list []moment, last int64, lost, closed bool, bell <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq > p.last || p.last-seq > maxHistory {
		return nil, p.last, true, p.closed, p.bell
	}
	for n := seq + 1; n <= p.last; n++ {
		list = append(list, p.kept[(n-1)%maxHistory])
	}
	return list, p.last, false, p.closed, p.bell
}

// latest is the number of the latest event.
func (p *history) latest() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

func (p *history) id(seq int64) string { return p.epoch + "-" + strconv.FormatInt(seq, 10) }

// place finds where a reader has been; false when that is not known here.
func (p *history) place(id string) (int64, bool) {
	epoch, n, ok := strings.Cut(id, "-")
	seq, err := strconv.ParseInt(n, 10, 64)
	return seq, ok && err == nil && epoch == p.epoch && seq >= 0
}

// close ends all readers.
func (p *history) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		close(p.bell)
		p.bell = make(chan struct{})
	}
}

// EventsIn asks for the events of a sandbox.
type EventsIn struct {
	Name  string `path:"name" doc:"Name of the sandbox"`
	After string `query:"after" default:"" doc:"Id of the last event that was seen; Last-Event-ID says the same"`
}

// AllEventsIn asks for all events.
type AllEventsIn struct {
	User  string `query:"user" default:"" doc:"For admins: the sandboxes of this tenant, * for all"`
	After string `query:"after" default:"" doc:"Id of the last event that was seen; Last-Event-ID says the same"`
}

// Events follows a sandbox until it is gone.
func (h *Hub) Events(ctx context.Context, in EventsIn, send func(op.Event) error) error {
	who := owner(ctx)
	sb, err := h.find(ctx, in.Name)
	match := func(m moment) bool { return m.sb.ID == sb.ID }
	if err != nil {
		// It may have been deleted while the reader was away.
		seq, ok := h.past.place(resumed(ctx, in.After))
		list, _, lost, _, _ := h.past.behind(seq)
		call := op.CallOf(ctx)
		match = func(m moment) bool {
			return m.sb.Spec.Owner == who && m.sb.Spec.Name == in.Name || m.sb.ID == in.Name && (m.sb.Spec.Owner == who || governs(call))
		}
		seen := false
		for _, m := range list {
			seen = seen || match(m)
		}
		if !ok || lost || !seen {
			return err
		}
	}
	current := func() ([]sandbox.Sandbox, error) {
		sb, err := h.find(ctx, in.Name)
		if err != nil {
			return nil, err
		}
		return []sandbox.Sandbox{sb}, nil
	}
	return h.follow(ctx, in.After, send, current, match, true)
}

// AllEvents follows all sandboxes of the caller.
func (h *Hub) AllEvents(ctx context.Context, in AllEventsIn, send func(op.Event) error) error {
	who, all := owner(ctx), false
	if in.User != "" && governs(op.CallOf(ctx)) {
		who, all = in.User, in.User == "*"
	}
	current := func() ([]sandbox.Sandbox, error) { return h.list(ctx, ListIn{User: in.User}) }
	match := func(m moment) bool { return all || m.sb.Spec.Owner == who }
	if in.User != "" && in.User != who && !all {
		match = func(moment) bool { return false }
	}
	return h.follow(ctx, in.After, send, current, match, false)
}

func resumed(ctx context.Context, after string) string {
	if id := op.CallOf(ctx).LastEventID; id != "" {
		return id
	}
	return after
}

// follow sends how things stand, then what happens. A reader that comes back in
// time gets only what it has missed.
func (h *Hub) follow(ctx context.Context, after string, send func(op.Event) error,
	current func() ([]sandbox.Sandbox, error), match func(moment) bool, untilGone bool) error {
	id := resumed(ctx, after)
	seq, known := h.past.place(id)
	_, last, lost, _, _ := h.past.behind(seq)
	if !known || lost {
		if id != "" {
			if err := h.tell(ctx, send, last, Event{Type: "missed", Time: time.Now().UTC(), Message: "events were lost; what follows is how things stand"}, nil); err != nil {
				return err
			}
		}
		var err error
		if seq, err = h.stand(ctx, send, current); err != nil {
			return err
		}
	}
	for {
		list, last, lost, closed, bell := h.past.behind(seq)
		if lost {
			if err := h.tell(ctx, send, last, Event{Type: "missed", Time: time.Now().UTC(), Message: "this reader was too slow; what follows is how things stand"}, nil); err != nil {
				return err
			}
			var err error
			if seq, err = h.stand(ctx, send, current); err != nil {
				return err
			}
			continue
		}
		for _, m := range list {
			seq = m.seq
			if !match(m) {
				continue
			}
			if err := h.tell(ctx, send, m.seq, Event{Type: m.kind, Time: m.time.UTC(), Message: m.text}, &m.sb); err != nil {
				return err
			}
			if untilGone && m.kind == string(sandbox.Deleted) {
				return nil
			}
		}
		if closed {
			return nil
		}
		select {
		case <-bell:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stand sends how things stand and returns from where to go on. What happens
// meanwhile is told again, never left out.
func (h *Hub) stand(ctx context.Context, send func(op.Event) error, current func() ([]sandbox.Sandbox, error)) (int64, error) {
	seq := h.past.latest()
	list, err := current()
	if err != nil {
		return 0, err
	}
	for _, sb := range list {
		if err := h.tell(ctx, send, seq, Event{Type: string(sandbox.Existing), Time: time.Now().UTC()}, &sb); err != nil {
			return 0, err
		}
	}
	return seq, nil
}

func (h *Hub) tell(ctx context.Context, send func(op.Event) error, seq int64, e Event, sb *sandbox.Sandbox) error {
	if sb != nil {
		o := h.object(ctx, *sb)
		e.Sandbox = &o
	}
	return send(op.Event{ID: h.past.id(seq), Name: e.Type, Data: e})
}
