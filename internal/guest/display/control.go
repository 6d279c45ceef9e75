package display

import (
	"context"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// agentTime is how long after its last action an agent counts as active.
const agentTime = 30 * time.Second

// Holders of the mouse and keyboard.
const (
	Nobody = "nobody"
	Agent  = "agent"
	Person = "person"
)

// Control is the state of the mouse and keyboard of the display.
type Control struct {
	Holder  string    `json:"holder" enum:"nobody,agent,person" doc:"person: a viewer has taken over; agent: an agent acted within 30 s"`
	Viewer  string    `json:"viewer" doc:"Name of the viewer that has taken over, or empty"`
	Since   time.Time `json:"since" doc:"Time of the last change of the holder; for an agent, of its last action"`
	Viewers int       `json:"viewers" doc:"Number of connected viewers"`
}

// control tracks the viewers, the one that has taken over, and the last action of an agent. A takeover ends with the viewer's
// connection.
type control struct {
	mu      sync.Mutex
	viewers map[*viewer]bool
	holder  *viewer // the viewer that has taken over, or nil
	since   time.Time
	agent   time.Time     // last action of an agent
	changed chan struct{} // closed and replaced at each change
}

// viewer is a connection of a viewer.
type viewer struct {
	name    string
	watches bool   // its input is ignored
	forced  bool   // its input is ignored only because another viewer has taken over
	end     func() // disconnects it, so that it reconnects with other permissions
}

func newControl() *control {
	return &control{viewers: map[*viewer]bool{}, since: time.Now(), changed: make(chan struct{})}
}

// notify wakes the streams. The caller must hold the lock.
func (c *control) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// join adds a viewer. If it takes over, the input of all others is ignored.
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

// leave removes a viewer. If it had taken over, the input of the others is accepted again.
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

// act records an action of an agent, or refuses it if a person has taken over.
func (c *control) act() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder != nil {
		return op.Errorf(op.Conflict, "a person has taken over the mouse and keyboard; wait until they release them "+
			"(see GET /v1/display/control)")
	}
	now := time.Now()
	begins := now.Sub(c.agent) > agentTime
	c.agent = now
	if begins {
		c.notify()
	}
	return nil
}

// state returns the current holder, the time until it changes by itself (0 means never), and a channel that is closed at other
// changes.
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

// Control returns the holder of the mouse and keyboard. It does not start the display.
func (s *Service) Control(context.Context, op.None) (Control, error) {
	now, _, _ := s.control.state()
	return now, nil
}

// WatchControl sends the holder of the mouse and keyboard, and again after each change.
func (s *Service) WatchControl(ctx context.Context, _ op.None, send func(op.Event) error) error {
	for {
		now, rest, changed := s.control.state()
		if err := send(op.Event{Name: "control", Data: now}); err != nil {
			return err
		}
		if rest == 0 {
			rest = time.Hour // no change is due
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

// Gate makes an operation count as an action of an agent, and refuses it while a person has taken over.
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
