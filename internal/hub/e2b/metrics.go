package e2b

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/meter"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// measureFor is how long the CPU is measured if there is no earlier sample.
const measureFor = 100 * time.Millisecond

// MetricsIn selects a sandbox and a time.
type MetricsIn struct {
	ID    string `path:"id" doc:"ID of the sandbox"`
	Start int64  `query:"start" default:"0" minimum:"0" doc:"Only samples since this time, in Unix seconds"`
	End   int64  `query:"end" default:"0" minimum:"0" doc:"Only samples until this time, in Unix seconds; 0 means now"`
}

// Metric is a sample.
type Metric struct {
	Timestamp time.Time `json:"timestamp"`
	Unix      int64     `json:"timestampUnix"`
	CPUs      int       `json:"cpuCount"`
	CPUPct    float64   `json:"cpuUsedPct"`
	MemUsed   int64     `json:"memUsed"`
	MemTotal  int64     `json:"memTotal"`
	MemCache  int64     `json:"memCache"`
	DiskUsed  int64     `json:"diskUsed"`
	DiskTotal int64     `json:"diskTotal"`
}

// Begin continues to measure the sandboxes of E2B clients after a restart of the hub.
func (s *Service) Begin(ctx context.Context) {
	list, err := s.Provider.List(ctx, sandbox.Filter{})
	if err != nil {
		return // their first request for metrics starts it
	}
	for _, sb := range list {
		if _, ok := sb.Spec.Annotations[naming.AnnotationTemplate]; ok {
			s.Meter.Watch(sb.ID)
		}
	}
}

// metricOf describes a sample.
func (s *Service) metricOf(sb sandbox.Sandbox, x meter.Sample) Metric {
	l := s.listed(sb)
	return Metric{Timestamp: x.Time, Unix: x.Time.Unix(), CPUs: l.CPUs, CPUPct: max(0, 100*x.CPU/float64(l.CPUs)),
		MemUsed: max(x.Memory, 0), MemTotal: l.MemoryMB << 20, DiskUsed: max(x.Disk, 0), DiskTotal: l.DiskMB << 20}
}

// Metrics returns the samples of a sandbox, and measures it now.
func (s *Service) Metrics(ctx context.Context, in MetricsIn) ([]Metric, error) {
	sb, err := s.Fleet.Find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if in.End > 0 && in.End < in.Start {
		return nil, op.Errorf(op.Invalid, "end %d is before start %d", in.End, in.Start)
	}
	s.Meter.Watch(sb.ID)
	list := []Metric{}
	for _, x := range s.Meter.Samples(sb.ID) {
		list = append(list, s.metricOf(sb, x))
	}
	if now := time.Now().Unix(); sb.State == sandbox.Running && in.Start <= now && (in.End == 0 || now <= in.End) {
		m, err := s.measure(ctx, sb)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	out := []Metric{}
	for _, m := range list {
		if m.Unix >= in.Start && (in.End == 0 || m.Unix <= in.End) {
			out = append(out, m)
		}
	}
	return out, nil
}

// measure measures a sandbox now.
func (s *Service) measure(ctx context.Context, sb sandbox.Sandbox) (Metric, error) {
	first, err := s.Sandboxes.Stats(ctx, lifecycle.NameIn{Name: sb.ID})
	if err != nil {
		return Metric{}, err
	}
	timer := time.NewTimer(measureFor)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return Metric{}, op.Errorf(op.Canceled, "measure sandbox: canceled")
	}
	next, err := s.Sandboxes.Stats(ctx, lifecycle.NameIn{Name: sb.ID})
	return s.metricOf(sb, meter.Between(statsOf(first), statsOf(next), 0, 0)), err
}

func statsOf(o lifecycle.StatsOut) sandbox.Stats {
	return sandbox.Stats{CPU: time.Duration(o.CPU * float64(time.Second)), Memory: o.Memory, Disk: o.Disk, Time: o.Time}
}

// AllMetricsIn selects sandboxes.
type AllMetricsIn struct {
	IDs string `query:"sandbox_ids" doc:"IDs of sandboxes, separated by commas; at most 100"`
}

// AllMetricsOut contains the newest sample of each sandbox, by ID.
type AllMetricsOut struct {
	Sandboxes map[string]Metric `json:"sandboxes"`
}

// AllMetrics measures several sandboxes. It omits those that do not exist or do not run.
func (s *Service) AllMetrics(ctx context.Context, in AllMetricsIn) (AllMetricsOut, error) {
	out := AllMetricsOut{map[string]Metric{}}
	ids := strings.Split(in.IDs, ",")
	if in.IDs == "" || len(ids) > maxMeasured {
		return out, op.Errorf(op.Invalid, "sandbox_ids: name 1 to %d sandboxes, separated by commas", maxMeasured)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, id := range ids {
		sb, err := s.Fleet.Find(ctx, strings.TrimSpace(id))
		if err != nil || sb.State != sandbox.Running {
			continue
		}
		all.Go(func() {
			if m, err := s.measure(ctx, sb); err == nil {
				mu.Lock()
				defer mu.Unlock()
				out.Sandboxes[naming.E2BID(sb.ID)] = m
			}
		})
	}
	all.Wait()
	return out, nil
}

// maxMeasured is the maximum number of sandboxes in one request for metrics.
const maxMeasured = 100
