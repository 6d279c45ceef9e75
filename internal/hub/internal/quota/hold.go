package quota

import (
	"container/list"
	"math"
	"time"
)

// Hold is room kept for a sandbox until it exists or has failed. Commit or Release
// must be called; only the first call counts, so Release may be deferred.
type Hold struct {
	k      *Keeper
	tenant string
	amount Amount
	place  *list.Element // in the open holds; nil when over
}

// Reserve keeps room for a, and takes its sandboxes from the create rate. It
// fails with *Exceeded, and then nothing is taken.
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
	// The rate comes last: a create that does not fit must not use it up.
	if wait, ok := t.rate.take(k.cfg.Now(), limits, a.Sandboxes); !ok {
		return nil, &Exceeded{Tenant: tenant, What: Rate, PerMinute: max(0, limits.CreateRate), Asked: int64(a.Sandboxes), RetryAfter: wait}
	}
	t.used = t.used.plus(a)
	t.holds++
	h := &Hold{k: k, tenant: tenant, amount: a}
	h.place = k.open.push()
	return h, nil
}

// Commit gives the room to the sandbox with this id, which Free ends. If the
// sandbox is counted already, or is gone already, the room is given back.
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

// Release gives the room back. What it took from the create rate stays taken: a
// failed create is work, too.
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

// holds are the open holds in the order they began, and the IDs that were freed
// meanwhile: the news that a sandbox is gone can be faster than the news that it was
// created, and a commit after it would count it for ever. An ID is remembered until
// all holds that were open when it was freed are over.
type holds struct {
	order  list.List // of uint64, rising
	last   uint64
	graves map[string]uint64 // to the last hold at that time
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

// bucket is a create rate: it fills with the rate up to the burst. It may owe,
// when more is taken at once than it can ever hold, so that the average is kept.
type bucket struct {
	began  bool
	tokens float64
	at     time.Time
	rate   float64 // as last asked, per second
	burst  float64
}

func (b *bucket) fill(now time.Time) {
	if d := now.Sub(b.at).Seconds(); d > 0 {
		b.tokens = min(b.burst, b.tokens+d*b.rate)
		b.at = now
	}
}

// full reports whether forgetting the bucket changes nothing.
func (b *bucket) full(now time.Time) bool {
	b.fill(now)
	return !b.began || b.tokens >= b.burst
}

// take takes n, or returns how long until that is possible.
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
	// The wait that was computed must suffice in spite of rounding.
	const slack = 1e-6
	if b.tokens+slack >= need {
		b.tokens -= float64(n)
		return 0, true
	}
	seconds := math.Ceil((need - b.tokens) / b.rate)
	const most = 24 * 60 * 60
	return time.Duration(min(seconds, most)) * time.Second, false
}
