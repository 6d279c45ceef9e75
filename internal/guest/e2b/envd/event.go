package envd

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
)

func itoa(n int) string { return strconv.Itoa(n) }

// event is an event of a process. One field is set.
type event struct {
	Start     *started   `json:"start,omitempty"`
	Data      *data      `json:"data,omitempty"`
	End       *ended     `json:"end,omitempty"`
	KeepAlive *keepalive `json:"keepalive,omitempty"`
}

type started struct {
	PID int `json:"pid"`
}

// data is output of a process. One field is set.
type data struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Pty    []byte `json:"pty,omitempty"`
}

func (d *data) size() int {
	if d == nil {
		return 0
	}
	return len(d.Stdout) + len(d.Stderr) + len(d.Pty)
}

type ended struct {
	ExitCode int     `json:"exitCode,omitempty"`
	Exited   bool    `json:"exited,omitempty"`
	Status   string  `json:"status,omitempty"`
	Error    *string `json:"error,omitempty"`
}

type keepalive struct{}

// eventOut is a message with an event.
type eventOut struct {
	Event event `json:"event"`
}

const (
	// queueSize is how much output is queued for a subscriber before the process waits.
	queueSize = 1 << 20
	// queueWait is how long a process waits for a subscriber. It must be shorter than the timeout of proc for a blocked writer;
	// otherwise output could follow the end event.
	queueWait = 1500 * time.Millisecond
	// maxQueue is how much output is queued for a subscriber that does not read, before it is disconnected.
	maxQueue = 64 << 20
)

// topic distributes the events of a process to its subscribers. The zero value is ready.
type topic struct {
	mu   sync.Mutex
	subs map[*subscriber]struct{}
	end  *event // the last event
}

// subscriber is a queue of events for one client.
type subscriber struct {
	topic *topic
	mu    sync.Mutex
	queue []event
	bytes int
	left  bool          // it has unsubscribed
	lost  bool          // it was too slow
	ready chan struct{} // signals that the queue has an element
	taken chan struct{} // signals that the queue may have room

	expired atomic.Bool // its process was killed by a timeout
}

func (t *topic) subscribe() *subscriber {
	s := &subscriber{topic: t, ready: make(chan struct{}, 1), taken: make(chan struct{}, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end != nil {
		s.push(*t.end)
		return s
	}
	if t.subs == nil {
		t.subs = map[*subscriber]struct{}{}
	}
	t.subs[s] = struct{}{}
	return s
}

func (t *topic) hasEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end != nil
}

func (t *topic) current() []*subscriber {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*subscriber, 0, len(t.subs))
	for s := range t.subs {
		list = append(list, s)
	}
	return list
}

// publish sends an event to all subscribers. It waits a short time for slow ones.
func (t *topic) publish(e event) {
	for _, s := range t.current() {
		s.await()
		s.push(e)
	}
}

// finish publishes the last event.
func (t *topic) finish(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = &e
	for s := range t.subs {
		s.push(e)
	}
	t.subs = nil
}

// await waits until the queue has room, at most queueWait.
func (s *subscriber) await() {
	var timer *time.Timer
	for {
		s.mu.Lock()
		full := s.bytes >= queueSize && !s.left && !s.lost
		s.mu.Unlock()
		if !full {
			return
		}
		if timer == nil {
			timer = time.NewTimer(queueWait)
			defer timer.Stop()
		}
		select {
		case <-s.taken:
		case <-timer.C:
			return
		}
	}
}

func (s *subscriber) push(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.left || s.lost:
		return
	case s.bytes+e.Data.size() > maxQueue:
		s.lost, s.queue = true, nil
	default:
		s.queue = append(s.queue, e)
		s.bytes += e.Data.size()
	}
	signal(s.ready)
}

// next waits for the next event.
func (s *subscriber) next(ctx context.Context, silence <-chan time.Time) (event, error) {
	for {
		s.mu.Lock()
		if s.lost {
			s.mu.Unlock()
			return event{}, connect.Errorf(connect.ResourceExhausted,
				"the output was not read in time; reconnect to the process to read further output")
		}
		if len(s.queue) > 0 {
			e := s.queue[0]
			s.queue[0] = event{}
			s.queue = s.queue[1:]
			s.bytes -= e.Data.size()
			s.mu.Unlock()
			signal(s.taken)
			return e, nil
		}
		s.mu.Unlock()
		select {
		case <-s.ready:
		case <-silence:
			return event{KeepAlive: &keepalive{}}, nil
		case <-ctx.Done():
			return event{}, context.Cause(ctx)
		}
	}
}

func (s *subscriber) leave() {
	s.topic.mu.Lock()
	delete(s.topic.subs, s)
	s.topic.mu.Unlock()
	s.mu.Lock()
	s.left, s.queue = true, nil
	s.mu.Unlock()
	signal(s.taken)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// outputKind is a stream of output.
type outputKind int

const (
	stdoutKind outputKind = iota
	stderrKind
	ptyKind
)

// writer publishes its input as events.
type writer struct {
	topic *topic
	kind  outputKind
}

func (w *writer) Write(b []byte) (int, error) {
	copied := append([]byte(nil), b...)
	d := &data{}
	switch w.kind {
	case stdoutKind:
		d.Stdout = copied
	case stderrKind:
		d.Stderr = copied
	case ptyKind:
		d.Pty = copied
	}
	w.topic.publish(event{Data: d})
	return len(b), nil
}

// keepAlive returns the interval of keep-alive messages that the caller requests.
func keepAlive(c connect.Caller) time.Duration {
	if n, err := strconv.Atoi(c.Header.Get("Keepalive-Ping-Interval")); err == nil && n > 0 && n <= 3600 {
		return time.Duration(n) * time.Second
	}
	return 90 * time.Second
}

// follow sends the events of a process until it ends. The first event is its start, even if the process already wrote output.
func (s *Service) follow(ctx context.Context, c connect.Caller, p *process, sub *subscriber, out *connect.Stream) error {
	defer sub.leave()
	if err := out.Send(eventOut{event{Start: &started{p.p.PID()}}}); err != nil {
		return err
	}
	interval := keepAlive(c)
	silence := time.NewTimer(interval)
	defer silence.Stop()
	for {
		e, err := sub.next(ctx, silence.C)
		if err != nil {
			return err
		}
		if e.End != nil && sub.expired.Load() {
			return context.DeadlineExceeded // the client must distinguish it from a regular exit
		}
		if err := out.Send(eventOut{e}); err != nil {
			return err
		}
		if e.End != nil {
			return nil
		}
		silence.Reset(interval)
	}
}

// attachIn identifies the process to follow.
type attachIn struct {
	Process selector `json:"process"`
}

// attach follows a process that another call has started.
func (s *Service) attach(ctx context.Context, c connect.Caller, in attachIn, out *connect.Stream) error {
	p, err := s.procs.find(in.Process)
	if err != nil {
		return err
	}
	return s.follow(ctx, c, p, p.topic.subscribe(), out)
}
