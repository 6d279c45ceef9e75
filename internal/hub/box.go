package hub

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// box is what a hub runs for one sandbox: its connections, its clock, its way
// out. It can be lost and made anew at any time.
type box struct {
	id        string
	transport *http.Transport

	mu     sync.Mutex // may be held when the hub's is taken, never the other way round
	closed bool
	sb     sandbox.Sandbox // as last seen: good enough to set an alarm by
	told   sandbox.Sandbox // as the provider's latest event had it
	open   int             // requests and streams under way
	last   time.Time       // when it was last used
	kept   time.Time       // what the provider knows of last
	hold   chan struct{}   // not nil while it is put to sleep; closed when that is over
	acting bool            // the clock is dealing with it
	retry  time.Time       // not to be dealt with before
	flight *flight         // its waking, if it is being woken
	out    *egress.Proxy
	rules  sandbox.Network // of out
	served chan struct{}   // closed when nobody serves out any more
}

// all lists the boxes.
func (h *Hub) all() []*box {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*box, 0, len(h.boxes))
	for _, b := range h.boxes {
		out = append(out, b)
	}
	return out
}

// box returns the box of a sandbox, which it makes if need be.
func (h *Hub) box(sb sandbox.Sandbox) *box {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b, ok := h.boxes[sb.ID]; ok {
		return b
	}
	b := &box{id: sb.ID, sb: sb, last: adopted(sb)}
	b.kept = b.last
	b.transport = h.newTransport(b)
	if !h.closed {
		h.boxes[sb.ID] = b
		h.names[key{sb.Spec.Owner, sb.Spec.Name}] = sb.ID
	}
	return b
}

// adopted is when a sandbox that this hub did not make was last used. It is
// noted now and then only, so it may have been used a little later.
func adopted(sb sandbox.Sandbox) time.Time {
	last := sb.Changed
	if n, err := strconv.ParseInt(sb.Spec.Annotations[noteActive], 10, 64); err == nil {
		noted := time.Unix(n, 0).Add(sweepEvery)
		if now := time.Now(); noted.After(now) {
			noted = now
		}
		if noted.After(last) {
			last = noted
		}
	}
	return last
}

// lastActive is when a sandbox was last used.
func (h *Hub) lastActive(sb sandbox.Sandbox) time.Time {
	h.mu.Lock()
	b := h.boxes[sb.ID]
	h.mu.Unlock()
	if b == nil {
		return adopted(sb)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open > 0 {
		return time.Now()
	}
	return b.last
}

// see takes note of how a sandbox stands: its alarm, its way out.
func (h *Hub) see(sb sandbox.Sandbox) {
	b := h.box(sb)
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	before := b.sb
	b.sb = sb
	if sb.State == sandbox.Running && sb.Changed.After(b.last) {
		b.last = sb.Changed
	}
	b.mu.Unlock()
	if before.Spec.Name != sb.Spec.Name || before.Spec.Owner != sb.Spec.Owner {
		h.mu.Lock()
		delete(h.names, key{before.Spec.Owner, before.Spec.Name})
		h.names[key{sb.Spec.Owner, sb.Spec.Name}] = sb.ID
		h.mu.Unlock()
	}
	h.openEgress(b, sb)
	h.alarm()
}

// drop forgets a sandbox that is gone.
func (h *Hub) drop(id string) {
	h.mu.Lock()
	b := h.boxes[id]
	delete(h.boxes, id)
	h.mu.Unlock()
	h.tools.forget(id)
	h.quota.Free(id)
	h.endShares(id)
	if b == nil {
		return
	}
	h.remember(b)
	sb := b.seen()
	k := key{sb.Spec.Owner, sb.Spec.Name}
	h.mu.Lock()
	if h.names[k] == id {
		delete(h.names, k)
	}
	h.mu.Unlock()
	b.close()
}

// close ends what the hub runs for the sandbox.
func (b *box) close() {
	b.mu.Lock()
	b.closed = true
	out, served := b.out, b.served
	b.mu.Unlock()
	if out != nil {
		out.Close()
		<-served
	}
	b.transport.CloseIdleConnections()
}

// seen is the sandbox as last seen.
func (b *box) seen() sandbox.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sb
}

// exit is the sandbox's way out; nil when it has none.
func (b *box) exit() *egress.Proxy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out
}

// busy is how many requests and streams are under way.
func (b *box) busy() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// touch notes that a sandbox is used.
func (h *Hub) touch(id string) {
	h.mu.Lock()
	b := h.boxes[id]
	h.mu.Unlock()
	if b != nil {
		b.mu.Lock()
		b.last = time.Now()
		b.mu.Unlock()
	}
}

// use counts a request in; while any is under way the sandbox is not put to
// sleep. If that is just happening, it waits until it is over.
func (b *box) use(ctx context.Context) error {
	for {
		b.mu.Lock()
		hold := b.hold
		if hold == nil {
			b.open++
			b.last = time.Now()
			b.mu.Unlock()
			return nil
		}
		b.mu.Unlock()
		select {
		case <-hold:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave counts a request out.
func (b *box) leave() {
	b.mu.Lock()
	b.open--
	b.last = time.Now()
	b.mu.Unlock()
}

// watch follows the provider, which alone knows what happens to sandboxes.
func (h *Hub) watch(ctx context.Context) {
	for pause := time.Duration(0); ctx.Err() == nil; pause = min(max(2*pause, 50*time.Millisecond), 5*time.Second) {
		events, err := h.cfg.Provider.Watch(ctx)
		if err == nil {
			pause = 0
			h.prune(ctx)
			for e := range events {
				h.happen(e)
			}
		} else if ctx.Err() == nil {
			h.cfg.Log.Error("cannot watch the sandboxes", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// prune forgets what is gone; its end may not have been told.
func (h *Hub) prune(ctx context.Context) {
	list, err := h.cfg.Provider.List(ctx, sandbox.Filter{})
	if err != nil {
		return
	}
	for _, b := range h.all() {
		if !slices.ContainsFunc(list, func(sb sandbox.Sandbox) bool { return sb.ID == b.id }) {
			h.drop(b.id)
		}
	}
}

// happen takes note of one event and passes it on.
func (h *Hub) happen(e sandbox.Event) {
	if e.Kind == sandbox.Deleted {
		h.drop(e.Sandbox.ID)
	} else {
		h.see(e.Sandbox)
		b := h.box(e.Sandbox)
		b.mu.Lock()
		before := b.told
		b.told = e.Sandbox
		b.mu.Unlock()
		if e.Kind == sandbox.Existing || e.Kind == sandbox.Changed && same(before, e.Sandbox) {
			return // only our own records on it were changed
		}
	}
	h.past.add(string(e.Kind), e.Time, e.Sandbox, e.Message)
}

// same tells whether two states of a sandbox differ only in the hub's records.
func same(a, b sandbox.Sandbox) bool {
	a.Spec.Annotations, b.Spec.Annotations = nil, nil
	return reflect.DeepEqual(a, b)
}
