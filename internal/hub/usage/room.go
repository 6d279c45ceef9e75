package usage

import (
	"context"
	"errors"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Room is reserved disk quota of an owner while data is stored. It grows on demand, so that concurrent
// calls cannot each reserve the whole remaining quota. It must be released.
type Room struct {
	ledger *Ledger
	owner  string

	mu       sync.Mutex
	holds    []*quota.Hold
	held     int64 // reserved
	used     int64 // of that
	asked    bool  // a provider has called Budget
	released bool
}

// roomStep is how much is reserved at a time, if that much is free.
const roomStep = 4 << 20

// OpenRoom returns an empty room.
func (l *Ledger) OpenRoom(ctx context.Context, owner string) *Room {
	l.countOnce(ctx, owner)
	return &Room{ledger: l, owner: owner}
}

// Take reserves space for bytes before they are stored; a negative number returns it. It fails if the
// owner has not enough free quota.
func (r *Room) Take(bytes int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released {
		return op.Errorf(op.Canceled, "the call has ended")
	}
	if need := r.used + bytes - r.held; bytes > 0 && need > 0 {
		if err := r.grow(need); err != nil {
			return err
		}
	}
	r.used = max(0, r.used+bytes)
	return nil
}

// Budget is Take for providers.
func (r *Room) Budget(bytes int64) error {
	r.mu.Lock()
	r.asked = true
	r.mu.Unlock()
	return r.Take(bytes)
}

// grow reserves more. The lock is held.
func (r *Room) grow(need int64) error {
	var hold *quota.Hold
	var err error
	for _, size := range []int64{max(need, roomStep), need} {
		if hold, err = r.ledger.reserve(r.owner, quota.Amount{Disk: size}); err == nil {
			r.holds, r.held = append(r.holds, hold), r.held+size
			return nil
		}
	}
	return r.ledger.refuse(err)
}

// Write reserves space for b and discards b.
func (r *Room) Write(b []byte) (int, error) {
	if err := r.Take(int64(len(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Reuse makes the reserved space available for other data.
func (r *Room) Reuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used = 0
}

// Release returns the space. It is idempotent.
func (r *Room) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released = true
	for _, h := range r.holds {
		h.Release()
	}
	r.holds, r.held = nil, 0
}

// covers reports whether the owner has quota for more bytes that were stored within r. Data of
// providers that call Budget is already reserved; other data is checked here.
func (r *Room) covers(more int64) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if more -= r.held; r.asked || more <= 0 {
		return func() {}, nil
	}
	hold, err := r.ledger.reserve(r.owner, quota.Amount{Disk: more})
	if err != nil {
		return nil, r.ledger.refuse(err)
	}
	return hold.Release, nil
}

// images knows which sandboxes use which images, and the owners whose images are counted. The count is
// updated at the first and the last use of an image.
type images struct {
	counting sync.Mutex // held while the images of an owner are counted

	mu      sync.Mutex
	uses    map[string]use // by the sandbox's ID
	users   map[use]int
	counted map[string]bool // by owner; false: must be counted
}

// use is an image as named in the request of an owner.
type use struct{ owner, image string }

// add adds a sandbox. It reports whether it is the owner's first sandbox of its image.
func (m *images) add(id string, s sandbox.Spec) (first bool) {
	if s.Image == "" {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uses == nil {
		m.uses, m.users = map[string]use{}, map[use]int{}
	}
	if _, known := m.uses[id]; known {
		return false
	}
	u := use{s.Owner, s.Image}
	m.uses[id] = u
	m.users[u]++
	return m.users[u] == 1
}

// drop removes a deleted sandbox.
func (m *images) drop(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, ok := m.uses[id]
	if !ok {
		return
	}
	delete(m.uses, id)
	if m.users[u]--; m.users[u] == 0 {
		delete(m.users, u)
		delete(m.counted, u.owner)
	}
}

// forget marks the images of an owner to be counted again.
func (m *images) forget(owner string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.counted, owner)
}

// begin reports whether the images of an owner must be counted, and marks them as counted.
func (m *images) begin(owner string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counted[owner] {
		return false
	}
	if m.counted == nil {
		m.counted = map[string]bool{}
	}
	m.counted[owner] = true
	return true
}

// imagesOf is the entry for all images of an owner.
func imagesOf(owner string) Disk { return Disk{Kind: "image", Owner: owner} }

// countImageOf counts the image of a new sandbox.
func (l *Ledger) countImageOf(ctx context.Context, id string, s sandbox.Spec) {
	if l.images.add(id, s) {
		l.images.forget(s.Owner)
		l.countOnce(context.WithoutCancel(ctx), s.Owner)
	}
}

// CountImages counts the images of an owner again, after one was stored within room, or deleted if
// room is nil. It fails without a change if they have grown by more than the free quota.
func (l *Ledger) CountImages(ctx context.Context, owner string, room *Room) error {
	if l.Images == nil {
		return nil
	}
	l.images.counting.Lock()
	defer l.images.counting.Unlock()
	size, err := l.Images(ctx, owner)
	if err != nil {
		l.images.forget(owner)
		return l.refuse(err)
	}
	if room != nil {
		release, err := room.covers(size - l.Keeper.Counted(imagesOf(owner).id()).Disk)
		if err != nil {
			return err
		}
		defer release()
	}
	l.images.begin(owner)
	l.CountDisk(imagesOf(owner), size)
	return nil
}

// countOnce counts the images of an owner, unless they are already counted. The references of imported
// images do not contain the owner, so the first call of an owner counts them.
func (l *Ledger) countOnce(ctx context.Context, owner string) {
	if l.Images == nil || !l.images.begin(owner) {
		return
	}
	l.images.counting.Lock()
	defer l.images.counting.Unlock()
	size, err := l.Images(ctx, owner)
	if err != nil && !errors.Is(err, sandbox.ErrUnsupported) { // a provider without imports has no images
		l.images.forget(owner)
		l.Log.Warn("cannot count images", "owner", owner, "error", err)
		return
	}
	l.CountDisk(imagesOf(owner), size)
}
