package hub

import (
	"context"
	"slices"
	"sync"

	"github.com/cove-sandbox/cove/internal/egress"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/quota"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// usageOps measure what tenants use.
func (h *Hub) usageOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "hub_usage", Route: "GET /api/v1/usage", Tag: "hub", Verb: "usage", ReadOnly: true,
			Columns: []string{"user", "sandboxes", "cpu_seconds", "memory_bytes", "disk_bytes", "sent_bytes", "received_bytes"},
			Doc:     "Measure what a tenant uses: what its sandboxes hold of its limits, and what they really use."}, h.Usage),
	}
}

// UsageOut is what a tenant uses; -1 where that cannot be measured.
type UsageOut struct {
	User      string `json:"user"`
	Sandboxes int    `json:"sandboxes" doc:"Sandboxes, with those that are being made"`
	CPU       string `json:"cpu" doc:"Processors that they may use together"`
	Memory    string `json:"memory" doc:"Memory that they may use together"`
	Disk      string `json:"disk" doc:"Disk that they may use together, with snapshots and volumes"`
	Calls     int    `json:"calls" doc:"Calls under way"`
	Waiting   int    `json:"waiting" doc:"Creates that wait for their turn"`
	Limits    Limits `json:"limits"`

	CPUSeconds  float64 `json:"cpu_seconds" doc:"Processor time of the sandboxes there are"`
	MemoryBytes int64   `json:"memory_bytes"`
	DiskBytes   int64   `json:"disk_bytes"`
	Sent        int64   `json:"sent_bytes" doc:"To the outside, since the hub was started; also by sandboxes that are gone"`
	Received    int64   `json:"received_bytes"`
}

// Limits of a tenant; what is 0 or empty has none.
type Limits struct {
	Sandboxes  int     `json:"sandboxes"`
	CPU        string  `json:"cpu"`
	Memory     string  `json:"memory"`
	Disk       string  `json:"disk"`
	CreateRate float64 `json:"create_rate" doc:"Sandboxes per minute"`
	Burst      int     `json:"burst"`
	Calls      int     `json:"calls"`
}

// Usage measures the caller's tenant, or for an admin another or all.
func (h *Hub) Usage(ctx context.Context, in UserIn) ([]UsageOut, error) {
	who, all, err := whose(ctx, in.User)
	if err != nil {
		return nil, err
	}
	if err := h.counted(ctx); err != nil {
		return nil, err
	}
	filter := sandbox.Filter{Owner: who}
	if all {
		filter.Owner = ""
	}
	list, err := h.cfg.Provider.List(ctx, filter)
	if err != nil {
		return nil, h.wire("", err)
	}
	names := []string{who}
	if all {
		names = h.quota.Tenants()
		for _, sb := range list {
			names = append(names, sb.Spec.Owner)
		}
		slices.Sort(names)
		names = slices.Compact(names)
	}
	measured := h.measure(ctx, list)
	out := []UsageOut{}
	for _, name := range names {
		u := h.held(name)
		for i, sb := range list {
			if sb.Spec.Owner == name {
				u.add(measured[i])
			}
		}
		traffic := h.traffic(name)
		u.Sent, u.Received = traffic.Sent, traffic.Received
		out = append(out, u)
	}
	return out, nil
}

// held is what a tenant holds of its limits.
func (h *Hub) held(name string) UsageOut {
	u := h.quota.Usage(name)
	var l quota.Limits
	if h.cfg.Tenants != nil {
		l = h.cfg.Tenants.Limits(name)
	}
	return UsageOut{
		User: name, Sandboxes: u.Sandboxes, CPU: processors(u.CPU), Memory: size(u.Memory), Disk: size(u.Disk), Calls: u.Calls, Waiting: u.Waiting,
		Limits: Limits{l.Sandboxes, processors(l.CPU), size(l.Memory), size(l.Disk), l.CreateRate, l.Burst, l.Calls},
	}
}

func (u *UsageOut) add(s *sandbox.Stats) {
	if s == nil {
		return
	}
	u.CPUSeconds += max(s.CPU.Seconds(), 0)
	u.MemoryBytes += max(s.Memory, 0)
	u.DiskBytes += max(s.Disk, 0)
}

// measurers is how many sandboxes are measured at once.
const measurers = 8

// measure asks for the stats of sandboxes; nil where there are none.
func (h *Hub) measure(ctx context.Context, list []sandbox.Sandbox) []*sandbox.Stats {
	out := make([]*sandbox.Stats, len(list))
	p, ok := h.cfg.Provider.(sandbox.Stater)
	if !ok || !h.cfg.Provider.Abilities().Stats {
		return out
	}
	var all sync.WaitGroup
	next := make(chan int)
	for range min(measurers, len(list)) {
		all.Go(func() {
			for i := range next {
				if s, err := p.Stats(ctx, list[i].ID); err == nil {
					out[i] = &s
				}
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	all.Wait()
	return out
}

// maxTraffic bounds the tenants whose past traffic is remembered by name.
const maxTraffic = 10000

// traffic is what a tenant's sandboxes exchanged with the outside.
func (h *Hub) traffic(owner string) egress.Stats {
	h.mu.Lock()
	sum := h.left[owner]
	h.mu.Unlock()
	for _, b := range h.all() {
		if p := b.exit(); p != nil && b.seen().Spec.Owner == owner {
			s := p.Stats()
			sum.Sent, sum.Received = sum.Sent+s.Sent, sum.Received+s.Received
		}
	}
	return sum
}

// remember keeps what a sandbox that is gone had exchanged.
func (h *Hub) remember(b *box) {
	p := b.exit()
	if p == nil {
		return
	}
	s, owner := p.Stats(), b.seen().Spec.Owner
	h.mu.Lock()
	defer h.mu.Unlock()
	sum, known := h.left[owner]
	if !known && len(h.left) >= maxTraffic {
		return
	}
	sum.Sent, sum.Received = sum.Sent+s.Sent, sum.Received+s.Received
	h.left[owner] = sum
}

// maxTenants bounds the tenants that have numbers of their own in the metrics.
const maxTenants = 200

// byTenant gives a number of each tenant that uses anything; beyond a limit they
// are one.
func (h *Hub) byTenant(number func(quota.Usage) float64) func() map[string]float64 {
	return func() map[string]float64 {
		out := map[string]float64{}
		for i, name := range h.quota.Tenants() {
			label := name
			if i >= maxTenants {
				label = "other"
			}
			out[label] += number(h.quota.Usage(name))
		}
		return out
	}
}

// gauges declares the numbers that are asked for when the metrics are read.
func (h *Hub) gauges() {
	m := h.cfg.Metrics
	if m == nil {
		return
	}
	m.Gauge("cove_sandboxes", "Sandboxes by state.", "state", h.states)
	m.Gauge("cove_tenant_sandboxes", "Sandboxes by tenant.", "tenant", h.byTenant(func(u quota.Usage) float64 { return float64(u.Sandboxes) }))
	m.Gauge("cove_tenant_calls", "Calls under way by tenant.", "tenant", h.byTenant(func(u quota.Usage) float64 { return float64(u.Calls) }))
	m.Gauge("cove_tenant_memory_bytes", "Memory that the sandboxes of a tenant may use.", "tenant", h.byTenant(func(u quota.Usage) float64 { return float64(u.Memory) }))
	m.Gauge("cove_audit_lost", "Entries that are not in the audit log, since the start.", "", func() map[string]float64 {
		if h.cfg.Audit == nil {
			return map[string]float64{"": 0}
		}
		return map[string]float64{"": float64(h.cfg.Audit.Stats().Lost)}
	})
	m.Gauge("cove_spans_dropped", "Spans that could not be delivered, since the start.", "", func() map[string]float64 {
		return map[string]float64{"": float64(h.cfg.Tracer.Dropped())}
	})
}
