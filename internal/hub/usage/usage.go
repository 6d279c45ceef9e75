package usage

import (
	"context"
	"slices"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Ops lists the operations.
func (l *Ledger) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "hub_usage", Access: op.AccessRead, Route: "GET /api/v1/usage", Tag: "hub", Verb: "usage", ReadOnly: true,
			Columns: []string{"user", "sandboxes", "cpu_seconds", "memory_bytes", "disk_bytes", "sent_bytes", "received_bytes"},
			Doc:     "Show the usage of a tenant: how much of its quota its sandboxes reserve, and their actual consumption."}, l.Usage),
	}
}

// UsageOut is what a tenant uses.
type UsageOut struct {
	User      string `json:"user"`
	Sandboxes int    `json:"sandboxes" doc:"Sandboxes, including those being created"`
	CPU       string `json:"cpu" doc:"Sum of their CPU limits"`
	Memory    string `json:"memory" doc:"Sum of their memory limits"`
	Disk      string `json:"disk" doc:"Sum of their disk limits, plus snapshots, volumes, images and activity records"`
	Calls     int    `json:"calls" doc:"Calls in progress"`
	Waiting   int    `json:"waiting" doc:"Creates that wait for their turn"`
	Limits    Limits `json:"limits"`

	CPUSeconds  float64 `json:"cpu_seconds" doc:"CPU time of the existing sandboxes"`
	MemoryBytes int64   `json:"memory_bytes"`
	DiskBytes   int64   `json:"disk_bytes"`
	Sent        int64   `json:"sent_bytes" doc:"Bytes sent to the outside since the hub was started, including deleted sandboxes"`
	Received    int64   `json:"received_bytes"`
}

// Limits of a tenant; 0 or empty means no limit.
type Limits struct {
	Sandboxes  int     `json:"sandboxes"`
	CPU        string  `json:"cpu"`
	Memory     string  `json:"memory"`
	Disk       string  `json:"disk"`
	CreateRate float64 `json:"create_rate" doc:"Sandboxes per minute"`
	Burst      int     `json:"burst"`
	Calls      int     `json:"calls"`
}

// Usage measures the caller's tenant; an admin can select another, or all.
func (l *Ledger) Usage(ctx context.Context, in caller.UserIn) ([]UsageOut, error) {
	who, err := caller.Select(ctx, in.User)
	if err != nil {
		return nil, err
	}
	if err := l.Count(ctx); err != nil {
		return nil, err
	}
	list, err := l.Provider.List(ctx, sandbox.Filter{Owner: who.Filter()})
	if err != nil {
		return nil, fault.FromProvider("", err)
	}
	names := []string{who.Owner}
	if who.All {
		names = l.Keeper.Tenants()
		for _, sb := range list {
			names = append(names, sb.Spec.Owner)
		}
		slices.Sort(names)
		names = slices.Compact(names)
	}
	measured := l.measure(ctx, list)
	out := []UsageOut{}
	for _, name := range names {
		l.countOnce(ctx, name)
		u := l.held(name)
		for i, sb := range list {
			if sb.Spec.Owner == name {
				u.add(measured[i])
			}
		}
		traffic := l.Traffic(name)
		u.Sent, u.Received = traffic.Sent, traffic.Received
		out = append(out, u)
	}
	return out, nil
}

// held is how much of its quota a tenant has reserved.
func (l *Ledger) held(name string) UsageOut {
	u := l.Keeper.Usage(name)
	var limits quota.Limits
	if l.Limits != nil {
		limits = l.Limits(name)
	}
	return UsageOut{
		User: name, Sandboxes: u.Sandboxes, CPU: environment.FormatCPU(u.CPU),
		Memory: environment.FormatSize(u.Memory), Disk: environment.FormatSize(u.Disk), Calls: u.Calls, Waiting: u.Waiting,
		Limits: Limits{limits.Sandboxes, environment.FormatCPU(limits.CPU), environment.FormatSize(limits.Memory),
			environment.FormatSize(limits.Disk), limits.CreateRate, limits.Burst, limits.Calls},
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

// measurers is how many sandboxes are measured concurrently.
const measurers = 8

// measure returns the stats of sandboxes; nil if they cannot be measured.
func (l *Ledger) measure(ctx context.Context, list []sandbox.Sandbox) []*sandbox.Stats {
	out := make([]*sandbox.Stats, len(list))
	p, ok := l.Provider.(sandbox.Stater)
	if !ok || !l.Provider.Abilities().Stats {
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

// maxTenants is the maximum number of tenants with separate metrics.
const maxTenants = 200

// byTenant returns a number for each tenant with usage. Tenants beyond maxTenants share one.
func (l *Ledger) byTenant(number func(quota.Usage) float64) func() map[string]float64 {
	return func() map[string]float64 {
		out := map[string]float64{}
		for i, name := range l.Keeper.Tenants() {
			label := name
			if i >= maxTenants {
				label = "other"
			}
			out[label] += number(l.Keeper.Usage(name))
		}
		return out
	}
}

// declareGauges declares the metrics that are computed on read.
func (l *Ledger) declareGauges() {
	for _, g := range []struct {
		name, help string
		number     func(quota.Usage) float64
	}{
		{"cove_tenant_sandboxes", "Sandboxes by tenant.", func(u quota.Usage) float64 { return float64(u.Sandboxes) }},
		{"cove_tenant_calls", "In-flight calls by tenant.", func(u quota.Usage) float64 { return float64(u.Calls) }},
		{"cove_tenant_memory_bytes", "Memory limit of the sandboxes of a tenant.", func(u quota.Usage) float64 { return float64(u.Memory) }},
	} {
		l.Metrics.Gauge(g.name, g.help, "tenant", l.byTenant(g.number))
	}
}
