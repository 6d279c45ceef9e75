// Package quota enforces the limits of tenants and schedules waiting creates fairly.
//
// It owns the usage of each tenant (sandboxes, CPU, memory, disk), its create rate, its concurrent calls,
// and the order of waiting creates. All state is in memory: existing sandboxes are adopted at start, so a
// killed process leaves no slot in use. It rejects requests with an error that names the limit and the
// remedy, and never waits for free quota.
package quota

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// Limits of one tenant. Zero is no limit; a negative number allows nothing.
type Limits struct {
	Sandboxes int   `json:"sandboxes,omitempty"`
	CPU       int64 `json:"cpu,omitempty"`    // thousandths of a CPU
	Memory    int64 `json:"memory,omitempty"` // bytes
	Disk      int64 `json:"disk,omitempty"`   // bytes

	CreateRate float64 `json:"create_rate,omitempty"` // sandboxes per minute, on average
	Burst      int     `json:"burst,omitempty"`       // sandboxes at once, within the rate; at least 1

	Calls int `json:"calls,omitempty"` // concurrent

	RequestMemory int64 `json:"request_memory,omitempty"` // bytes of the hub's memory for in-flight requests
}

// Amount is the quota that a sandbox uses. An amount of zero uses nothing, even if the sandbox itself is
// unlimited.
type Amount struct {
	Sandboxes         int
	CPU, Memory, Disk int64
}

func (a Amount) plus(b Amount) Amount {
	return Amount{a.Sandboxes + b.Sandboxes, a.CPU + b.CPU, a.Memory + b.Memory, a.Disk + b.Disk}
}

func (a Amount) minus(b Amount) Amount {
	return Amount{a.Sandboxes - b.Sandboxes, a.CPU - b.CPU, a.Memory - b.Memory, a.Disk - b.Disk}
}

func (a Amount) check() error {
	if a.Sandboxes < 0 || a.CPU < 0 || a.Memory < 0 || a.Disk < 0 {
		return fmt.Errorf("count %+v: an amount cannot be negative", a)
	}
	return nil
}

// Config of a Keeper.
type Config struct {
	// Limits returns the current limits of a tenant; nil: no limits. It is called often, and never with
	// a lock held.
	Limits func(tenant string) Limits
	// Creates is the maximum number of concurrent creates of all tenants; default 8. Queue is the maximum
	// number of waiting creates of one tenant; default 256.
	Creates int
	Queue   int
	// RequestMemory is the maximum memory of the requests of all tenants; default 256 MiB.
	RequestMemory int64

	Now func() time.Time // nil is time.Now
}

// Keeper counts the usage of tenants. It is safe for concurrent use and need not be closed.
type Keeper struct {
	cfg Config

	mu      sync.Mutex
	tenants map[string]*account
	items   map[string]item
	// buffered is the memory of the requests of all tenants.
	buffered int64
	sweepAt  int // number of tenants at which idle accounts are removed

	open  holds
	queue line
}

// item is one counted sandbox.
type item struct {
	tenant string
	amount Amount
}

// account is the usage of one tenant.
type account struct {
	used  Amount // holds and items
	holds int
	items int
	calls int
	// guests is the number of calls of callers with links.
	guests int
	rate   bucket

	buffered int64
}

const minSweep = 64

// New returns a Keeper. It starts nothing.
func New(cfg Config) *Keeper {
	if cfg.Limits == nil {
		cfg.Limits = func(string) Limits { return Limits{} }
	}
	if cfg.Creates <= 0 {
		cfg.Creates = 8
	}
	if cfg.Queue <= 0 {
		cfg.Queue = 256
	}
	if cfg.RequestMemory <= 0 {
		cfg.RequestMemory = 256 << 20
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Keeper{cfg: cfg, tenants: map[string]*account{}, items: map[string]item{}, sweepAt: minSweep, queue: newLine(cfg.Creates)}
}

// account returns the account of a tenant, and creates it if needed. The lock is held.
func (k *Keeper) account(tenant string) *account {
	if a, ok := k.tenants[tenant]; ok {
		return a
	}
	if len(k.tenants) >= k.sweepAt {
		now := k.cfg.Now()
		maps.DeleteFunc(k.tenants, func(_ string, a *account) bool { return a.idle() && a.rate.full(now) })
		k.sweepAt = max(minSweep, 2*len(k.tenants))
	}
	a := &account{}
	k.tenants[tenant] = a
	return a
}

func (a *account) idle() bool { return a.holds == 0 && a.items == 0 && a.calls == 0 && a.buffered == 0 }

// Adopt counts an existing sandbox, regardless of limits. If the id is already counted, its amount is
// replaced.
func (k *Keeper) Adopt(tenant, id string, a Amount) error {
	if err := a.check(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	before, known := k.items[id]
	var base Amount
	if t := k.tenants[tenant]; t != nil {
		base = t.used
	}
	if known && before.tenant == tenant {
		base = base.minus(before.amount)
	}
	if err := fits(tenant, Limits{}, base, a); err != nil {
		return err
	}
	k.free(id)
	k.add(tenant, id, a)
	return nil
}

func (k *Keeper) add(tenant, id string, a Amount) {
	t := k.account(tenant)
	t.used = t.used.plus(a)
	t.items++
	k.items[id] = item{tenant, a}
}

func (k *Keeper) free(id string) {
	it, ok := k.items[id]
	if !ok {
		return
	}
	delete(k.items, id)
	t := k.tenants[it.tenant]
	t.used = t.used.minus(it.amount)
	t.items--
}

// Counted returns the amount of an id.
func (k *Keeper) Counted(id string) Amount {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.items[id].amount
}

// Free releases the quota of an id. If an id is freed before its Hold is committed, it is not counted at
// all. Free is idempotent.
func (k *Keeper) Free(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.free(id)
	k.open.bury(id)
}

// fits reports whether more can be added to used. It checks only requested resources, so a tenant above a
// lowered limit can still make requests that do not need that resource.
func fits(tenant string, l Limits, used, more Amount) error {
	for _, c := range []struct {
		what              What
		limit, used, more int64
	}{
		{Sandboxes, int64(l.Sandboxes), int64(used.Sandboxes), int64(more.Sandboxes)},
		{CPU, l.CPU, used.CPU, more.CPU},
		{Memory, l.Memory, used.Memory, more.Memory},
		{Disk, l.Disk, used.Disk, more.Disk},
	} {
		limit := c.limit
		switch {
		case c.more == 0:
			continue
		case limit == 0:
			limit = math.MaxInt64
		case limit < 0:
			limit = 0
		}
		if c.more > limit-c.used {
			return &Exceeded{Tenant: tenant, What: c.what, Limit: limit, Used: c.used, Asked: c.more, RetryAfter: retryRoom}
		}
	}
	return nil
}

// Call counts a call until done is called. done is idempotent.
func (k *Keeper) Call(tenant string) (done func(), err error) {
	limit := k.cfg.Limits(tenant).Calls
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.call(tenant, limit)
}

// maxGuests is the maximum number of concurrent guest calls of a tenant without a limit.
const maxGuests = 10_000

// Guest is Call for callers with a link to a sandbox of the tenant, and for clients of public ports. A
// tenth of the limit is reserved for the tenant's own calls.
func (k *Keeper) Guest(tenant string) (done func(), err error) {
	limit := k.cfg.Limits(tenant).Calls
	most := maxGuests
	if limit != 0 {
		most = limit - max(1, limit/10)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.account(tenant)
	if t.guests >= most {
		return nil, &Exceeded{Tenant: tenant, What: Guests, Limit: int64(max(0, most)), Used: int64(t.guests), Asked: 1, RetryAfter: retryCall}
	}
	leave, err := k.call(tenant, limit)
	if err != nil {
		return nil, err
	}
	t.guests++
	return sync.OnceFunc(func() {
		leave()
		k.mu.Lock()
		defer k.mu.Unlock()
		t.guests--
	}), nil
}

// call counts a call. The keeper is locked.
func (k *Keeper) call(tenant string, limit int) (done func(), err error) {
	t := k.account(tenant)
	if limit != 0 && t.calls >= limit {
		return nil, &Exceeded{Tenant: tenant, What: Calls, Limit: int64(max(0, limit)), Used: int64(t.calls), Asked: 1, RetryAfter: retryCall}
	}
	t.calls++
	return sync.OnceFunc(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		t.calls--
	}), nil
}

// Usage is the current usage of a tenant.
type Usage struct {
	Amount       // including reservations
	Held     int // reservations that are neither committed nor released
	Calls    int // in flight
	Creating int // running creates
	Waiting  int // creates that wait for their turn
}

// Usage returns the usage of a tenant.
func (k *Keeper) Usage(tenant string) Usage {
	k.mu.Lock()
	defer k.mu.Unlock()
	var u Usage
	if t := k.tenants[tenant]; t != nil {
		u = Usage{Amount: t.used, Held: t.holds, Calls: t.calls}
	}
	u.Creating, u.Waiting = k.queue.count(tenant)
	return u
}

// Tenants lists the tenants with usage, sorted.
func (k *Keeper) Tenants() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for name, t := range k.tenants {
		if !t.idle() {
			names = append(names, name)
		}
	}
	for name := range k.queue.rows {
		if t := k.tenants[name]; t == nil || t.idle() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
