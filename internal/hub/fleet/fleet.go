// Package fleet owns what a hub runs for each sandbox: its connections, timers and egress proxy. It finds
// sandboxes for callers, wakes them on use, suspends idle ones, and deletes expired ones.
//
// It stores no state: the provider is authoritative, and everything here can be rebuilt at any time. It
// never returns a sandbox of another owner.
package fleet

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/hub/internal/tombstone"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// Secrets provides secrets to sandboxes.
type Secrets interface {
	// Credentials are the headers that a sandbox's egress proxy adds.
	Credentials(sandbox.Spec) []egress.Credential
	// Provision sends secrets to a sandbox that has just started.
	Provision(context.Context, sandbox.Sandbox) error
}

// Records stores activity records of sandboxes.
type Records interface {
	Save(sb sandbox.Sandbox, entries []json.RawMessage, pictures map[int64][]byte)
}

// Observer receives events of the fleet.
type Observer interface {
	// Gone is called after a sandbox was deleted.
	Gone(id string)
	// Acted is called after an action that the fleet initiated.
	Acted(what string, sb sandbox.Sandbox)
	// Swept is called once a minute.
	Swept(ctx context.Context)
}

// Config of a Fleet.
type Config struct {
	Provider sandbox.Provider
	Secrets  Secrets
	Observer Observer
	History  *history.Log
	Tasks    *task.Group

	// Tombstones remembers deleted sandboxes.
	Tombstones *tombstone.Log
	// Records stores activity records of sandboxes; nil: they are not stored.
	Records Records

	// WakeWait is how long a connection waits until a sandbox is awake.
	WakeWait time.Duration
	// Private lists private addresses that sandboxes may connect to.
	Private []netip.Prefix
	// Peer returns the sandbox that a name stands for in the private networks of a sandbox; nil: there are no networks.
	Peer func(ctx context.Context, id, name string) (egress.Peer, bool)
	// Authority signs certificates for hosts to which secrets are brokered.
	Authority *certificate.Authority
	// ChangeEgress changes the configuration of egress proxies; for tests.
	ChangeEgress func(*egress.Config)

	Metrics *metric.Registry
	Log     *slog.Logger
}

// Fleet is the set of sandboxes that a hub runs.
type Fleet struct {
	Config
	directory directory
	clock     clock
	traffic   traffic
	watch     watchState
	counts    counts

	mu     sync.Mutex
	closed bool
	boxes  map[string]*Box // by ID
}

// counts are the fleet's metrics. Labels are few and fixed.
type counts struct {
	woken  func(n float64, values ...string)
	ended  func(n float64, values ...string)
	egress func(n float64, values ...string)
}

// New returns a fleet. It starts no goroutine.
func New(cfg Config) *Fleet {
	f := &Fleet{Config: cfg, boxes: map[string]*Box{}}
	f.directory = directory{provider: cfg.Provider, tombstones: cfg.Tombstones, ids: map[key]string{}}
	f.clock = clock{fleet: f, changed: make(chan struct{}, 1)}
	f.traffic.gone = map[string]egress.Stats{}
	f.counts = counts{
		woken:  cfg.Metrics.Counter("cove_wakes_total", "Sandboxes woken by a request, by result.", "result"),
		ended:  cfg.Metrics.Counter("cove_timeouts_total", "Sandboxes whose timeout or idle timeout was reached, by action.", "done"),
		egress: cfg.Metrics.Counter("cove_egress_total", "Egress connections of sandboxes, by verdict.", "verdict"),
	}
	cfg.Metrics.Gauge("cove_sandboxes", "Sandboxes by state.", "state", f.states)
	return f
}

// Begin starts the timers and adopts existing sandboxes.
func (f *Fleet) Begin() {
	f.clock.begin(time.Now())
	f.Tasks.Go(f.watchProvider)
	f.Tasks.Go(f.clock.run)
	f.Tasks.Go(f.sweep)
}

// Close releases the resources of all sandboxes, which keep running. Wait for the task group before.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closed = true
	left := f.boxes
	f.boxes = map[string]*Box{}
	f.mu.Unlock()
	for _, b := range left {
		b.close()
	}
}

// all lists the boxes.
func (f *Fleet) all() []*Box {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*Box, 0, len(f.boxes))
	for _, b := range f.boxes {
		out = append(out, b)
	}
	return out
}

// known returns the box of a sandbox; nil if there is none.
func (f *Fleet) known(id string) *Box {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boxes[id]
}

// Knows reports whether the fleet has a box for a sandbox.
func (f *Fleet) Knows(id string) bool { return f.known(id) != nil }

// Owner returns the owner of a sandbox; false if it is unknown.
func (f *Fleet) Owner(id string) (string, bool) {
	b := f.known(id)
	if b == nil {
		return "", false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sb.Spec.Owner, true
}

// box returns the box of a sandbox, and creates it if there is none.
func (f *Fleet) box(sb sandbox.Sandbox) *Box {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, ok := f.boxes[sb.ID]; ok {
		return b
	}
	b := &Box{id: sb.ID, sb: sb, last: lastUse(sb)}
	b.kept = b.last
	b.transport = f.newTransport(b)
	if !f.closed {
		f.boxes[sb.ID] = b
		f.directory.add(sb)
	}
	return b
}

// lastUse is the time of last use of a sandbox of an earlier hub. It is stored only periodically, so the
// real time can be later.
func lastUse(sb sandbox.Sandbox) time.Time {
	last := sb.Changed
	if n, err := strconv.ParseInt(sb.Spec.Annotations[naming.AnnotationLastActive], 10, 64); err == nil {
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

// LastActive is the time of last use of a sandbox.
func (f *Fleet) LastActive(sb sandbox.Sandbox) time.Time {
	b := f.known(sb.ID)
	if b == nil {
		return lastUse(sb)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open > 0 {
		return time.Now()
	}
	return b.last
}

// Touch marks a sandbox as used.
func (f *Fleet) Touch(id string) {
	if b := f.known(id); b != nil {
		b.mu.Lock()
		b.last = time.Now()
		b.mu.Unlock()
	}
}

// Observe updates the box of a sandbox to the given state.
func (f *Fleet) Observe(sb sandbox.Sandbox) {
	b := f.box(sb)
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
		f.directory.remove(before)
		f.directory.add(sb)
	}
	f.openEgress(b, sb)
	f.clock.notifyFor(b)
}

// Forget removes the box of a deleted sandbox.
func (f *Fleet) Forget(id string) {
	f.mu.Lock()
	b := f.boxes[id]
	delete(f.boxes, id)
	f.mu.Unlock()
	f.Observer.Gone(id)
	if b == nil {
		return
	}
	f.traffic.keep(b)
	f.directory.remove(b.seen())
	b.close()
}

// states counts sandboxes by their last observed state.
func (f *Fleet) states() map[string]float64 {
	out := map[string]float64{}
	for _, s := range []sandbox.State{sandbox.Creating, sandbox.Running, sandbox.Paused, sandbox.Stopped, sandbox.Failed, sandbox.Deleting} {
		out[string(s)] = 0
	}
	for _, b := range f.all() {
		out[string(b.seen().State)]++
	}
	return out
}

// watchState is the state of the watch of the provider.
type watchState struct {
	mu  sync.Mutex
	err error
}

func (w *watchState) set(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// Fault is the error of the watch of the provider; nil: none.
func (f *Fleet) Fault() error {
	f.watch.mu.Lock()
	defer f.watch.mu.Unlock()
	return f.watch.err
}

// watchProvider receives the events of the provider.
func (f *Fleet) watchProvider(ctx context.Context) {
	for pause := time.Duration(0); ctx.Err() == nil; pause = min(max(2*pause, 50*time.Millisecond), 5*time.Second) {
		events, err := f.Provider.Watch(ctx)
		if err == nil {
			pause = 0
			f.watch.set(nil)
			f.prune(ctx)
			for e := range events {
				f.handle(e)
			}
		} else if ctx.Err() == nil {
			f.watch.set(err)
			f.Log.Error("cannot watch sandboxes", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// prune removes the boxes of deleted sandboxes, whose events may have been lost.
func (f *Fleet) prune(ctx context.Context) {
	list, err := f.Provider.List(ctx, sandbox.Filter{})
	if err != nil {
		return
	}
	exists := make(map[string]bool, len(list))
	for _, sb := range list {
		exists[sb.ID] = true
	}
	for _, b := range f.all() {
		if !exists[b.id] {
			f.Forget(b.id)
		}
	}
}

// handle applies one event and adds it to the history.
func (f *Fleet) handle(e sandbox.Event) {
	if e.Kind == sandbox.Deleted {
		f.Forget(e.Sandbox.ID)
	} else {
		f.Observe(e.Sandbox)
		b := f.box(e.Sandbox)
		b.mu.Lock()
		before := b.announced
		b.announced = e.Sandbox
		b.mu.Unlock()
		if e.Kind == sandbox.Existing || e.Kind == sandbox.Changed && same(before, e.Sandbox) {
			return // only annotations of the hub have changed
		}
	}
	f.History.Add(string(e.Kind), e.Time, e.Sandbox, e.Message)
}

// same reports whether two states of a sandbox differ only in annotations of the hub.
func same(a, b sandbox.Sandbox) bool {
	a.Spec.Annotations, b.Spec.Annotations = nil, nil
	return reflect.DeepEqual(a, b)
}

// sweepEvery is the interval in which the provider stores the time of last use.
const sweepEvery = time.Minute

// sweep periodically stores the time of last use of sandboxes for the next hub, and removes the boxes of
// deleted sandboxes.
func (f *Fleet) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.SaveActivity(ctx)
			f.prune(ctx)
			f.Observer.Swept(ctx)
			f.clock.notify()
		}
	}
}

// SaveActivity stores the time of last use of each sandbox with the provider.
func (f *Fleet) SaveActivity(ctx context.Context) {
	for _, b := range f.all() {
		b.mu.Lock()
		if b.open > 0 {
			b.last = time.Now()
		}
		last, state := b.last, b.sb.State
		stale := last.Sub(b.kept) >= time.Second && state != sandbox.Creating && state != sandbox.Deleting
		b.mu.Unlock()
		if !stale || ctx.Err() != nil {
			continue
		}
		short, cancel := context.WithTimeout(ctx, queryTimeout)
		_, err := f.Provider.Update(short, b.id, func(s *sandbox.Spec) error {
			naming.Annotate(s, naming.AnnotationLastActive, strconv.FormatInt(last.Unix(), 10))
			return nil
		})
		cancel()
		if err != nil {
			continue // it is being changed; the next sweep retries
		}
		b.mu.Lock()
		b.kept = last
		b.mu.Unlock()
	}
}
