// Package usage counts sandboxes, disks and in-flight calls of tenants against their quotas.
//
// It keeps no state: when the hub starts, it counts what the provider has. It rejects a create that
// exceeds the quota of the tenant.
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

// Traffic is the number of bytes from and to the outside.
type Traffic = egress.Stats

// Config of a Ledger.
type Config struct {
	Provider sandbox.Provider
	Keeper   *quota.Keeper
	// Limits returns the limits of a tenant; nil: none.
	Limits func(tenant string) quota.Limits
	// Images returns the size in bytes of the images that an owner imported, and of those on which its
	// sandboxes and snapshots are based; nil: no images.
	Images func(ctx context.Context, owner string) (int64, error)
	// Traffic returns the traffic of the sandboxes of an owner.
	Traffic func(owner string) Traffic
	// Reclaim frees disk space of an owner that is not needed; false if there is none.
	Reclaim func(owner string) bool
	Metrics *metric.Registry
	Log     *slog.Logger
}

// Ledger is the usage of all tenants.
type Ledger struct {
	Config
	refused func(n float64, values ...string)

	counting sync.Mutex // held while existing sandboxes are counted
	counted  bool
	images   images
}

// New returns a ledger. It counts nothing yet.
func New(cfg Config) *Ledger {
	l := &Ledger{Config: cfg}
	l.refused = cfg.Metrics.Counter("cove_quota_refusals_total",
		"Requests rejected because a limit of the tenant was reached, by limit.", "limit")
	l.declareGauges()
	return l
}

// amount is the quota that a sandbox uses. A sleeping sandbox uses it as well, because it can wake at
// any time.
func amount(s sandbox.Spec) quota.Amount {
	return quota.Amount{Sandboxes: 1, CPU: max(s.Resources.CPULimit, s.Resources.CPU),
		Memory: max(s.Resources.MemoryLimit, s.Resources.Memory), Disk: s.Resources.Disk}
}

// MaxSandboxes returns how many sandboxes of a spec the limits of an owner allow, if it has no others.
func (l *Ledger) MaxSandboxes(owner string, s sandbox.Spec) int {
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

// Reservation is quota for sandboxes that will be created, and a turn in the queue of creates. It must
// be released.
type Reservation struct {
	holds []*quota.Hold
	specs []sandbox.Spec
	room  *Room
	turn  func()
}

// Bound returns a context in which a create cannot store more than the owner's free quota.
func (r *Reservation) Bound(ctx context.Context) context.Context {
	return sandbox.WithBudget(ctx, r.room.Budget)
}

// Commit assigns the quota of sandbox i to the sandbox with this ID.
func (r *Reservation) Commit(ctx context.Context, i int, id string) {
	r.holds[i].Commit(id)
	r.room.ledger.countImageOf(ctx, id, r.specs[i])
}

// Release ends the turn and releases the quota that was not committed.
func (r *Reservation) Release() {
	if r.turn != nil {
		r.turn()
	}
	r.room.Release()
	for _, h := range r.holds {
		h.Release()
	}
}

// Reserve reserves quota for sandboxes and waits for a turn to create them.
func (l *Ledger) Reserve(ctx context.Context, owner string, specs ...sandbox.Spec) (*Reservation, error) {
	if err := l.Count(ctx); err != nil {
		return nil, err
	}
	l.countOnce(ctx, owner)
	r := &Reservation{specs: specs, room: &Room{ledger: l, owner: owner}}
	for _, s := range specs {
		hold, err := l.reserve(owner, amount(s))
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

// reserve reserves quota. If the disk quota is used up, it frees what can be freed.
func (l *Ledger) reserve(owner string, a quota.Amount) (*quota.Hold, error) {
	hold, err := l.Keeper.Reserve(owner, a)
	if e, ok := errors.AsType[*quota.Exceeded](err); ok && e.What == quota.Disk && l.Reclaim != nil && l.Reclaim(owner) {
		return l.Keeper.Reserve(owner, a)
	}
	return hold, err
}

// Call counts a call until done is called.
func (l *Ledger) Call(owner string) (done func(), err error) {
	if done, err = l.Keeper.Call(owner); err != nil {
		return nil, l.refuse(err)
	}
	return done, nil
}

// Guest counts a call of a caller with a link until done is called.
func (l *Ledger) Guest(owner string) (done func(), err error) {
	if done, err = l.Keeper.Guest(owner); err != nil {
		return nil, l.refuse(err)
	}
	return done, nil
}

// Buffer counts the memory of a request of the caller.
func (l *Ledger) Buffer(ctx context.Context) *Buffer {
	return &Buffer{l, l.Keeper.Buffer(caller.Owner(ctx))}
}

// Buffer is the memory of one request. It must be released.
type Buffer struct {
	ledger *Ledger
	*quota.Buffer
}

// Grow reserves n more bytes.
func (b *Buffer) Grow(n int) error {
	if err := b.Buffer.Grow(n); err != nil {
		return b.ledger.refuse(err)
	}
	return nil
}

// refuse turns an exceeded limit into an error for the caller.
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

// Free releases the quota of a deleted sandbox.
func (l *Ledger) Free(id string) {
	l.Keeper.Free(id)
	l.images.drop(id)
}

// Count counts the sandboxes that existed before this hub, so that their quota is not assigned to
// others.
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
	// A sandbox that was deleted meanwhile may have been freed before it was counted.
	for _, sb := range list {
		if _, err := l.Provider.Get(ctx, sb.ID); errors.Is(err, sandbox.ErrNotFound) {
			l.Free(sb.ID)
		}
	}
	l.counted = true
	return nil
}

// KeepCounting retries Count until it succeeds, or the hub stops.
func (l *Ledger) KeepCounting(ctx context.Context) {
	for ctx.Err() == nil {
		err := l.Count(ctx)
		if err == nil {
			return
		}
		if e, ok := op.AsError(err); ok && e.Code == op.Unavailable {
			return
		}
		l.Log.Error("cannot count existing sandboxes", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// settled is the age after which a sandbox is not part of a create.
const settled = time.Minute

// Recount counts sandboxes that other hubs created. known reports whether a sandbox still exists.
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
		if !known(sb.ID) { // deleted meanwhile, or not observed yet
			l.Free(sb.ID)
		}
	}
}

func (l *Ledger) adopt(sb sandbox.Sandbox) {
	if err := l.Keeper.Adopt(sb.Spec.Owner, sb.ID, amount(sb.Spec)); err != nil {
		l.Log.Error("cannot count sandbox", "sandbox", sb.ID, "error", err)
	}
	l.images.add(sb.ID, sb.Spec)
}

// Disk is a snapshot, a volume, or all images or activity records of an owner.
type Disk struct{ Kind, Owner, Name string }

// id differs from every sandbox's ID, which has no slash.
func (d Disk) id() string { return d.Kind + "/" + d.Owner + "/" + d.Name }

// CountDisk counts the size of a disk. The disk already exists, so it counts even above the limit; then
// creates are rejected.
func (l *Ledger) CountDisk(d Disk, size int64) {
	if err := l.Keeper.Adopt(d.Owner, d.id(), quota.Amount{Disk: max(size, 0)}); err != nil {
		l.Log.Warn("cannot count disk", "disk", d.id(), "error", err)
	}
}

// FreeDisk releases the quota of a deleted disk.
func (l *Ledger) FreeDisk(d Disk) {
	l.Keeper.Free(d.id())
	l.images.forget(d.Owner) // the snapshot can have been the last use of an image
}
