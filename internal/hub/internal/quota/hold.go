package quota

import (
	"container/list"
	"math"
	"time"
)

// Hold is quota reserved for a sandbox until its create ends. Commit or Release must be called; only the
// first call has an effect, so Release can be deferred.
type Hold struct {
	k      *Keeper
	tenant string
	amount Amount
	place  *list.Element // in the open holds; nil when over
}

// Reserve reserves a and counts its sandboxes for the create rate. It fails with *Exceeded, and then
// reserves nothing.
func (k *Keeper) Reserve(tenant string, a Amount) (*Hold, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	limits := k.cfg.Limits(tenant)
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.account(tenant)
	if err := fits(tenant, limits, t.used, a); err != nil {
		return nil, err
	}
	// Check the rate last, so that a rejected create does not count for it.
	if wait, ok := t.rate.take(k.cfg.Now(), limits, a.Sandboxes); !ok {
		return nil, &Exceeded{Tenant: tenant, What: Rate, PerMinute: max(0, limits.CreateRate), Asked: int64(a.Sandboxes), RetryAfter: wait}
	}
	t.used = t.used.plus(a)
	t.holds++
	h := &Hold{k: k, tenant: tenant, amount: a}
	h.place = k.open.push()
	return h, nil
}

// Commit assigns the quota to the sandbox with this id, until Free. If the sandbox is already counted, or
// already freed, the quota is released.
func (h *Hold) Commit(id string) {
	k := h.k
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.place == nil {
		return
	}
	_, counted := k.items[id]
	buried := k.open.buried(id)
	h.end()
	if !counted && !buried {
		k.add(h.tenant, id, h.amount)
	}
}

// Release releases the quota. A failed create still counts for the create rate.
func (h *Hold) Release() {
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	if h.place != nil {
		h.end()
	}
}

func (h *Hold) end() {
	t := h.k.tenants[h.tenant]
	t.used = t.used.minus(h.amount)
	t.holds--
	h.k.open.remove(h.place)
	h.place = nil
}

// holds are the open holds in order, and the IDs that were freed meanwhile. The event of a deletion can
// arrive before the commit of the create, which would then count the sandbox forever. So a freed ID is kept
// until all holds have ended that were open at that time.
type holds struct {
	order  list.List // of uint64, rising
	last   uint64
	graves map[string]uint64 // ID to the last hold at that time
	dug    []grave
}

type grave struct {
	id   string
	last uint64
}

func (s *holds) push() *list.Element {
	s.last++
	return s.order.PushBack(s.last)
}

func (s *holds) bury(id string) {
	if s.order.Len() == 0 {
		return
	}
	if s.graves == nil {
		s.graves = map[string]uint64{}
	}
	if s.graves[id] != s.last {
		s.graves[id] = s.last
		s.dug = append(s.dug, grave{id, s.last})
	}
}

func (s *holds) buried(id string) bool {
	_, ok := s.graves[id]
	return ok
}

func (s *holds) remove(e *list.Element) {
	s.order.Remove(e)
	oldest := uint64(math.MaxUint64)
	if front := s.order.Front(); front != nil {
		oldest = front.Value.(uint64)
	}
	n := 0
	for ; n < len(s.dug) && s.dug[n].last < oldest; n++ {
		if g := s.dug[n]; s.graves[g.id] == g.last {
			delete(s.graves, g.id)
		}
	}
	s.dug = s.dug[n:]
	if len(s.dug) == 0 {
		s.dug = nil
	}
}

// bucket is a token bucket for the create rate. It can become negative if one request takes more than the
// burst, so that the average rate is kept.
type bucket struct {
	began  bool
	tokens float64
	at     time.Time
	rate   float64 // latest limit, per second
	burst  float64
}

func (b *bucket) fill(now time.Time) {
	if d := now.Sub(b.at).Seconds(); d > 0 {
		b.tokens = min(b.burst, b.tokens+d*b.rate)
		b.at = now
	}
}

// full reports whether the bucket is full, so that it can be removed.
func (b *bucket) full(now time.Time) bool {
	b.fill(now)
	return !b.began || b.tokens >= b.burst
}

// take takes n tokens, or returns the delay until that is possible.
func (b *bucket) take(now time.Time, l Limits, n int) (wait time.Duration, ok bool) {
	switch {
	case n == 0:
		return 0, true
	case l.CreateRate == 0:
		b.began = false
		return 0, true
	case !(l.CreateRate > 0):
		return retryRoom, false
	}
	b.fill(now)
	b.rate, b.burst = l.CreateRate/60, float64(max(1, l.Burst))
	if !b.began {
		b.began, b.tokens, b.at = true, b.burst, now
	}
	b.tokens = min(b.tokens, b.burst)
	need := min(float64(n), b.burst)
	// Round up, so that the delay is sufficient.
	const slack = 1e-6
	if b.tokens+slack >= need {
		b.tokens -= float64(n)
		return 0, true
	}
	seconds := math.Ceil((need - b.tokens) / b.rate)
	const most = 24 * 60 * 60
	return time.Duration(min(seconds, most)) * time.Second, false
}
