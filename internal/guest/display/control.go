package display

import (
	"context"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// agentTime is how long after its last action an agent counts as at work.
const agentTime = 30 * time.Second

// Who uses the mouse and keyboard.
const (
	Nobody = "nobody"
	Agent  = "agent"
	Person = "person"
)

// Control says who uses the mouse and keyboard of the display.
type Control struct {
	Holder  string    `json:"holder" enum:"nobody,agent,person" doc:"person while a viewer has taken over: actions of agents are refused then; agent for 30 s after an action"`
	Viewer  string    `json:"viewer" doc:"Name of the viewer that has taken over; empty if none has"`
	Since   time.Time `json:"since" doc:"When the holder last changed; for an agent, its last action"`
	Viewers int       `json:"viewers" doc:"Number of connected viewers"`
}

// control knows the viewers, which of them has taken over, and when an agent last acted.
// Taking over ends with the viewer's connection, so that nobody can hold it and be gone.
type control struct {
	mu      sync.Mutex
	viewers map[*viewer]bool
	holder  *viewer // nil: nobody has taken over
	since   time.Time
	agent   time.Time     // of its last action
	changed chan struct{} // closed and replaced at each change
}

// viewer is one connection.
type viewer struct {
	name    string
	watches bool   // its input is ignored
	forced  bool   // only because another viewer has taken over
	end     func() // it connects again, with other permissions
}

func newControl() *control {
	return &control{viewers: map[*viewer]bool{}, since: time.Now(), changed: make(chan struct{})}
}

// notify wakes the streams. The lock is held.
func (c *control) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// join adds a viewer. One that takes over makes all others watch.
func (c *control) join(in ViewIn, end func()) *viewer {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := &viewer{name: in.TakeOver, watches: in.ViewOnly, end: end}
	if v.name != "" && !v.watches {
		c.holder, c.since = v, time.Now()
		for other := range c.viewers {
			if !other.watches {
				other.end()
			}
		}
	} else if c.holder != nil && !v.watches {
		v.watches, v.forced = true, true
	}
	c.viewers[v] = true
	c.notify()
	return v
}

// leave removes a viewer. If it had taken over, the others may act again.
func (c *control) leave(v *viewer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.viewers, v)
	if c.holder == v {
		c.holder, c.since = nil, time.Now()
		for other := range c.viewers {
			if other.forced {
				other.end()
			}
		}
	}
	c.notify()
}

// act notes an action of an agent, or refuses it because a person has taken over.
func (c *control) act() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder != nil {
		return op.Errorf(op.Conflict, "a person has taken over the mouse and keyboard; wait until they hand them "+
			"back: GET /v1/display/control tells")
	}
	now := time.Now()
	begins := now.Sub(c.agent) > agentTime
	c.agent = now
	if begins {
		c.notify()
	}
	return nil
}

// state returns who holds the display, when that changes by itself (0: never), and what tells of other changes.
func (c *control) state() (Control, time.Duration, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Control{Holder: Nobody, Since: c.since, Viewers: len(c.viewers)}
	var rest time.Duration
	if c.holder != nil {
		out.Holder, out.Viewer = Person, c.holder.name
	} else if rest = agentTime - time.Since(c.agent); rest > 0 {
		out.Holder, out.Since = Agent, c.agent
	} else {
		rest = 0
	}
	return out, rest, c.changed
}

// Control reports who uses the mouse and keyboard. It does not start the display.
func (s *Service) Control(context.Context, op.None) (Control, error) {
	now, _, _ := s.control.state()
	return now, nil
}

// WatchControl sends who uses the mouse and keyboard, now and after each change.
func (s *Service) WatchControl(ctx context.Context, _ op.None, send func(op.Event) error) error {
	for {
		now, rest, changed := s.control.state()
		if err := send(op.Event{Name: "control", Data: now}); err != nil {
			return err
		}
		if rest == 0 {
			rest = time.Hour // nothing changes by itself
		}
		timer := time.NewTimer(rest)
		over := false
		select {
		case <-ctx.Done():
			over = true
		case <-s.life.Done():
			over = true
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
		if over {
			return nil
		}
	}
}

// Gate returns the operation so that it counts as an action of an agent, and is refused while a person has taken over.
func (s *Service) Gate(o op.Op) op.Op {
	if o.ReadOnly || o.Call == nil {
		return o
	}
	call := o.Call
	o.Call = func(ctx context.Context, in any) (any, error) {
		if err := s.control.act(); err != nil {
			return nil, err
		}
		return call(ctx, in)
	}
	return o
}
