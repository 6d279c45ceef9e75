// Package usage counts what tenants hold against their limits: sandboxes that
// exist or are being created, disks, and calls under way.
//
// It owns no record: it counts what the provider has when the hub starts. It
// refuses a create for which the tenant has no room left.
package usage

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// Traffic counts bytes from and to the outside.
type Traffic = egress.Stats

// Config of a Ledger.
type Config struct {
	Provider sandbox.Provider
	Keeper   *quota.Keeper
	// Limits are a tenant's limits; nil: there are none.
	Limits func(tenant string) quota.Limits
	// Images is what the images of an owner take, in bytes: those it imported, and those that its
	// sandboxes and snapshots are based on. nil: there are none.
	Images func(ctx context.Context, owner string) (int64, error)
	// Traffic is what the sandboxes of an owner exchanged with the outside.
	Traffic func(owner string) Traffic
	Metrics *metric.Registry
	Log     *slog.Logger
}

// Ledger is the account of all tenants.
type Ledger struct {
	Config
	refused func(n float64, values ...string)

	counting sync.Mutex // held while the sandboxes of an earlier hub are counted
	counted  bool
	images   images
}

// New returns a ledger. It counts nothing yet.
func New(cfg Config) *Ledger {
	l := &Ledger{Config: cfg}
	l.refused = cfg.Metrics.Counter("cove_quota_refusals_total", "Requests refused because a tenant's limit was reached, by limit.", "limit")
	l.declareGauges()
	return l
}

// amount is what a sandbox takes from its owner's limits. It takes it as long as
// it exists, asleep or not: it may wake at any moment.
func amount(s sandbox.Spec) quota.Amount {
	return quota.Amount{Sandboxes: 1, CPU: max(s.Resources.CPULimit, s.Resources.CPU),
		Memory: max(s.Resources.MemoryLimit, s.Resources.Memory), Disk: s.Resources.Disk}
}

// Most returns how many sandboxes of a spec an owner's limits allow, if it has no others.
func (l *Ledger) Most(owner string, s sandbox.Spec) int {
	if l.Limits == nil {
		return math.MaxInt
	}
	limits, one, most := l.Limits(owner), amount(s), int64(math.MaxInt)
	for _, c := range []struct{ limit, one int64 }{
		{int64(limits.Sandboxes), 1}, {limits.CPU, one.CPU}, {limits.Memory, one.Memory}, {limits.Disk, one.Disk},
	} {
		if c.limit != 0 && c.one > 0 {
			most = min(most, max(0, c.limit)/c.one)
		}
	}
	return int(most)
}

// Reservation is room for sandboxes that are about to be created, and a turn to
// create them. It must be released.
type Reservation struct {
	holds []*quota.Hold
	specs []sandbox.Spec
	room  *Room
	turn  func()
}

// Bound returns a context in which a create may store no more than the owner has room for.
func (r *Reservation) Bound(ctx context.Context) context.Context {
	return sandbox.WithBudget(ctx, r.room.Budget)
}

// Commit gives the room kept for sandbox i to the sandbox with this ID.
func (r *Reservation) Commit(ctx context.Context, i int, id string) {
	r.holds[i].Commit(id)
	r.room.ledger.countImageOf(ctx, id, r.specs[i])
}

// Release ends the turn and gives back the room that was not committed.
func (r *Reservation) Release() {
	if r.turn != nil {
		r.turn()
	}
	r.room.Release()
	for _, h := range r.holds {
		h.Release()
	}
}

// Reserve keeps room for sandboxes and waits for a turn to create them.
func (l *Ledger) Reserve(ctx context.Context, owner string, specs ...sandbox.Spec) (*Reservation, error) {
	if err := l.Count(ctx); err != nil {
		return nil, err
	}
	l.countOnce(ctx, owner)
	r := &Reservation{specs: specs, room: &Room{ledger: l, owner: owner}}
	for _, s := range specs {
		hold, err := l.Keeper.Reserve(owner, amount(s))
		if err != nil {
			r.Release()
			return nil, l.refuse(err)
		}
		r.holds = append(r.holds, hold)
	}
	turn, err := l.Keeper.Turn(ctx, owner)
	if err != nil {
		r.Release()
		return nil, l.refuse(err)
	}
	r.turn = turn
	return r, nil
}

// Call counts a call in; done counts it out.
func (l *Ledger) Call(owner string) (done func(), err error) {
	if done, err = l.Keeper.Call(owner); err != nil {
		return nil, l.refuse(err)
	}
	return done, nil
}

// Guest counts a call in that is not the owner's own; done counts it out.
func (l *Ledger) Guest(owner string) (done func(), err error) {
	if done, err = l.Keeper.Guest(owner); err != nil {
		return nil, l.refuse(err)
	}
	return done, nil
}

// Buffer counts the memory that a request of the caller takes.
func (l *Ledger) Buffer(ctx context.Context) *Buffer {
	return &Buffer{l, l.Keeper.Buffer(caller.Owner(ctx))}
}

// Buffer is the memory of one request. It must be freed.
type Buffer struct {
	ledger *Ledger
	*quota.Buffer
}

// Grow takes n more bytes.
func (b *Buffer) Grow(n int) error {
	if err := b.Buffer.Grow(n); err != nil {
		return b.ledger.refuse(err)
	}
	return nil
}

// refuse explains why there is no room or turn.
func (l *Ledger) refuse(err error) error {
	if e, ok := errors.AsType[*quota.Exceeded](err); ok {
		l.refused(1, string(e.What))
		if e.Tenant == "" && e.What == quota.RequestMemory {
			return &op.Error{Code: op.Unavailable, Msg: e.Error(), Err: err, RetryAfter: e.RetryAfter}
		}
		return &op.Error{Code: op.Exhausted, Msg: e.Error(), Err: err, RetryAfter: e.RetryAfter}
	}
	return fault.FromProvider("", err)
}

// Free gives back what a sandbox that is gone held.
func (l *Ledger) Free(id string) {
	l.Keeper.Free(id)
	l.images.drop(id)
}

// Count returns when the sandboxes that existed before this hub are counted: the
// room they take must not be given away.
func (l *Ledger) Count(ctx context.Context) error {
	l.counting.Lock()
	defer l.counting.Unlock()
	if l.counted {
		return nil
	}
	list, err := l.Provider.List(ctx, sandbox.Filter{})
	if err != nil {
		return fault.FromProvider("", err)
	}
	for _, sb := range list {
		l.adopt(sb)
	}
	// What went away meanwhile may have been freed before it was counted.
	for _, sb := range list {
		if _, err := l.Provider.Get(ctx, sb.ID); errors.Is(err, sandbox.ErrNotFound) {
			l.Free(sb.ID)
		}
	}
	l.counted = true
	return nil
}

// KeepCounting counts until that works, or the hub stops.
func (l *Ledger) KeepCounting(ctx context.Context) {
	for ctx.Err() == nil {
		err := l.Count(ctx)
		if err == nil {
			return
		}
		if e, ok := op.AsError(err); ok && e.Code == op.Unavailable {
			return
		}
		l.Log.Error("cannot count the existing sandboxes", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// settled is the age from which on a sandbox is no longer part of a create.
const settled = time.Minute

// Recount counts sandboxes that others than this hub created. known reports
// whether a sandbox is still there.
func (l *Ledger) Recount(ctx context.Context, known func(id string) bool) {
	list, err := l.Provider.List(ctx, sandbox.Filter{})
	if err != nil || l.Count(ctx) != nil {
		return
	}
	for _, sb := range list {
		if sb.State == sandbox.Creating || time.Since(sb.Created) < settled {
			continue
		}
		l.adopt(sb)
		if !known(sb.ID) { // it went away meanwhile, or will be seen again
			l.Free(sb.ID)
		}
	}
}

func (l *Ledger) adopt(sb sandbox.Sandbox) {
	if err := l.Keeper.Adopt(sb.Spec.Owner, sb.ID, amount(sb.Spec)); err != nil {
		l.Log.Error("cannot count a sandbox", "sandbox", sb.ID, "error", err)
	}
	l.images.add(sb.ID, sb.Spec)
}

// Disk is what counts beside sandboxes: a snapshot, a volume, or all images or activity records
// of an owner.
type Disk struct{ Kind, Owner, Name string }

// id differs from every sandbox's ID, which has no slash.
func (d Disk) id() string { return d.Kind + "/" + d.Owner + "/" + d.Name }

// CountDisk counts what a disk takes. It exists already, so it counts even beyond
// the limit; then new sandboxes find no room.
func (l *Ledger) CountDisk(d Disk, size int64) {
	if err := l.Keeper.Adopt(d.Owner, d.id(), quota.Amount{Disk: max(size, 0)}); err != nil {
		l.Log.Warn("cannot count a disk", "disk", d.id(), "error", err)
	}
}

// FreeDisk gives back what a deleted disk held.
func (l *Ledger) FreeDisk(d Disk) {
	l.Keeper.Free(d.id())
	l.images.forget(d.Owner) // a snapshot may have been the last use of an image
}
