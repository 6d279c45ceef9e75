package inspect

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/meter"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// metricOps lists the operations on resource usage over time.
func metricOps(s *Service) []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_metrics", Access: op.AccessRead, Route: "GET " + one + "/metrics", Tag: "sandbox",
			Verb: "metrics", ReadOnly: true, NoTool: true,
			Doc: "Show the resource usage of a sandbox during the last hour, oldest first. Samples are taken every 5 seconds " +
				"since the first request for them."}, s.Metrics),
		op.New(op.Spec{Name: "hub_metrics", Access: op.AccessRead, Route: "GET /api/v1/metrics", Tag: "hub",
			NoVerb: true, ReadOnly: true, NoTool: true,
			Doc: "Show the latest resource usage of all sandboxes. Samples are taken every 5 seconds since the first " +
				"request for them."}, s.AllMetrics),
	}
}

// Limits are the limits that the provider enforces.
type Limits struct {
	CPU    float64 `json:"cpu_limit" doc:"Cores; 0: not limited"`
	Memory int64   `json:"memory_limit" doc:"Bytes; 0: not limited"`
	Disk   int64   `json:"disk_limit" doc:"Bytes; 0: not limited"`
}

// Sample is the usage of a sandbox at one time. Unknown figures are -1.
type Sample struct {
	Time     time.Time `json:"time"`
	CPU      float64   `json:"cpu" doc:"Cores in use since the previous sample"`
	Memory   int64     `json:"memory" doc:"Bytes"`
	Disk     int64     `json:"disk" doc:"Bytes"`
	Pids     int64     `json:"pids" doc:"Processes and threads"`
	OOMKills int64     `json:"oom_kills" doc:"Processes killed so far because the memory limit was reached"`
	Sent     int64     `json:"sent" doc:"Bytes per second to the network"`
	Received int64     `json:"received" doc:"Bytes per second from the network"`
}

// MetricsOut is the usage of a sandbox over time.
type MetricsOut struct {
	Limits
	Interval float64  `json:"interval_seconds" doc:"Seconds between two samples"`
	Samples  []Sample `json:"samples"`
}

// Usage is the latest usage of a sandbox.
type Usage struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	User   string `json:"user,omitempty"`
	Status string `json:"status"`
	Limits
	CPU    float64 `json:"cpu" doc:"Cores in use; -1: unknown"`
	Memory int64   `json:"memory" doc:"Bytes; -1: unknown"`
	Disk   int64   `json:"disk" doc:"Bytes; -1: unknown"`
	Pids   int64   `json:"pids" doc:"Processes and threads; -1: unknown"`
	// Use changes them without an event.
	LastActive time.Time  `json:"last_active_at" doc:"Time of last use"`
	EndsAt     *time.Time `json:"ends_at" doc:"Time at which the first policy applies if the sandbox is not used; null: never"`
	EndAction  string     `json:"end_action,omitempty" doc:"Action at that time: delete, stop or pause"`
	BusySince  *time.Time `json:"busy_since" doc:"Since when it uses at least 90 % of its CPU limit; null: it does not"`
	Trend      []float64  `json:"trend" doc:"Cores in use in each sample of the last two minutes, oldest first"`
}

// limitsOf returns the limits of a sandbox that the provider enforces.
func (s *Service) limitsOf(sb sandbox.Sandbox) Limits {
	r := sandbox.Abilities{Limits: s.limits()}.Enforced(sb.Spec.Resources)
	return Limits{CPU: float64(r.CPULimit) / 1000, Memory: r.MemoryLimit, Disk: r.Disk}
}

// Metrics shows the usage of a sandbox over time.
func (s *Service) Metrics(ctx context.Context, in lifecycle.NameIn) (MetricsOut, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return MetricsOut{}, err
	}
	op.CallOf(ctx).Recorded = true // pages poll, which would fill the audit log
	s.Meter.Watch(sb.ID)
	out := MetricsOut{Limits: s.limitsOf(sb), Interval: meter.Interval.Seconds(), Samples: []Sample{}}
	for _, x := range s.Meter.Samples(sb.ID) {
		out.Samples = append(out.Samples, Sample(x))
	}
	return out, nil
}

// trendSamples is the number of samples of a trend: two minutes.
const trendSamples = int(2 * time.Minute / meter.Interval)

// AllMetrics shows the latest usage of the caller's sandboxes.
func (s *Service) AllMetrics(ctx context.Context, in UserIn) ([]Usage, error) {
	list, err := s.Sandboxes.Select(ctx, lifecycle.ListIn{User: in.User})
	if err != nil {
		return nil, err
	}
	op.CallOf(ctx).Recorded = true
	out := []Usage{}
	for _, sb := range list {
		u := Usage{ID: sb.ID, Name: sb.Spec.Name, User: sb.Spec.Owner, Status: string(sb.State), Limits: s.limitsOf(sb),
			CPU: -1, Memory: -1, Disk: -1, Pids: -1, Trend: []float64{}, LastActive: s.Fleet.LastActive(sb).UTC()}
		if at, action, ok := fleet.Deadline(sb, u.LastActive); ok {
			u.EndsAt, u.EndAction = new(at.UTC()), string(action)
		}
		s.Meter.Watch(sb.ID)
		samples := s.Meter.Samples(sb.ID)
		if n := len(samples); n > 0 && sb.State == sandbox.Running {
			last := samples[n-1]
			u.CPU, u.Memory, u.Disk, u.Pids = last.CPU, last.Memory, last.Disk, last.Pids
			for _, x := range samples[max(0, n-trendSamples):] {
				u.Trend = append(u.Trend, x.CPU)
			}
			if since := meter.BusySince(samples, u.Limits.CPU); !since.IsZero() {
				u.BusySince = &since
			}
		}
		out = append(out, u)
	}
	return out, nil
}
