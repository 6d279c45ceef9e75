package local

import (
	"context"
	"sync"

	"github.com/cove-sandbox/cove/internal/isolate"
)

// spares are inits that were started ahead, so that a create need not wait for
// one. They are no sandboxes: nothing is on record of them, and they end with us.
type spares struct {
	mu     sync.Mutex
	list   []spare
	closed bool
	making bool
}

// spare is an init and the range of user IDs it has.
type spare struct {
	*isolate.Spare
	slot uint32
}

// place returns a range of user IDs for a new sandbox and, if there is one, an
// init that has it already.
func (p *Provider) place() (uint32, *isolate.Spare, error) {
	s := &p.spares
	s.mu.Lock()
	if n := len(s.list); n > 0 {
		got := s.list[n-1]
		s.list = s.list[:n-1]
		s.mu.Unlock()
		return got.slot, got.Spare, nil
	}
	s.mu.Unlock()
	slot, err := p.slot()
	return slot, nil, err
}

// refill prepares as many as there should be, in the background: who is being
// served goes first.
func (p *Provider) refill() {
	s := &p.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.making || len(s.list) >= p.cfg.Spares || rootless() {
		return
	}
	s.making = true
	p.table.Go(func(ctx context.Context) {
		for ctx.Err() == nil && p.prepare() {
			continue
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.making = false
	})
}

// prepare makes one more; false: that was the last, or it does not work.
func (p *Provider) prepare() bool {
	slot, err := p.slot()
	if err != nil {
		return false
	}
	made, err := isolate.Prepare(p.cfg.Init, p.ids(slot))
	if err != nil {
		p.freeSlot(slot)
		p.cfg.Log.Warn("cannot prepare for the next sandbox", "error", err)
		return false
	}
	s := &p.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, spare{made, slot})
	return len(s.list) < p.cfg.Spares
}

// closeSpares ends those that are left.
func (p *Provider) closeSpares() {
	s := &p.spares
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, left := range s.list {
		left.Close()
		p.freeSlot(left.slot)
	}
	s.list = nil
}
