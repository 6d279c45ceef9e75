package shell

import (
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/vt"
)

// display is what a terminal shows: its screen, its recent output, and the viewers and
// followers that receive it.
type display struct {
	mu *sync.Mutex // the session's lock, which guards what follows

	screen  *vt.Terminal
	log     ring
	viewers map[*viewer]struct{}
	bells   map[chan struct{}]struct{} // of followers; each holds a token when there is output
}

// show writes to the screen and to the viewers. The lock is held.
func (d *display) show(b []byte) {
	_, _ = d.screen.Write(b) // never fails
	d.log.write(b)
}

// wakeViewers wakes the viewers and followers. The lock is held.
func (d *display) wakeViewers() {
	for v := range d.viewers {
		wake(v.wakeup)
	}
	for bell := range d.bells {
		wake(bell)
	}
}

// wake puts a token into a channel of capacity 1.
func wake(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// pace waits briefly for viewers that read but are about to lose output.
func (d *display) pace() {
	for {
		d.mu.Lock()
		var slow *viewer
		for v := range d.viewers {
			switch lag := d.log.end - v.at; {
			case lag < ringSize/8:
				v.stalled = false
			case lag > ringSize/2 && !v.stalled:
				slow = v
			}
		}
		d.mu.Unlock()
		if slow == nil {
			return
		}
		timer := time.NewTimer(paceLimit)
		select {
		case <-slow.moved:
			timer.Stop()
		case <-timer.C:
			d.mu.Lock()
			slow.stalled = true
			d.mu.Unlock()
		}
	}
}

// visibleOutput returns the output of a running command so far, or the screen of a
// full-screen program. The lock is held.
func (d *display) visibleOutput(c *command) string {
	switch {
	case d.screen.Alt():
		return strings.TrimRight(strings.Join(d.screen.Screen(), "\n"), "\n")
	case !c.hasStarted():
		return ""
	case c.full:
		return trimText(d.screen.Text())
	}
	return shorten(d.screen.Text(), maxOutput)
}
