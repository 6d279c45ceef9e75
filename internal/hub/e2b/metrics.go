package e2b

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// sampleTime is the interval of samples.
	sampleTime = 5 * time.Second
	// maxSamples is the maximum number of samples of a sandbox: one hour.
	maxSamples = int(time.Hour / sampleTime)
	// maxSampled is the maximum number of sandboxes with samples.
	maxSampled = 1000
	// measureFor is how long the CPU is measured if there is no earlier sample.
	measureFor = 100 * time.Millisecond
)

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

// samples are the metrics of the sandboxes that E2B's clients have created or measured. They are in memory only.
type samples struct {
	mu      sync.Mutex
	running bool
	byID    map[string]*series
}

// series are the samples of one sandbox, oldest first.
type series struct {
	last    *sandbox.Stats // nil while the sandbox does not run
	metrics []Metric
}

// sample starts to measure a sandbox regularly.
func (s *Service) sample(id string) {
	m := &s.samples
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[id] != nil || len(m.byID) >= maxSampled || s.Tasks == nil {
		return
	}
	if m.byID == nil {
		m.byID = map[string]*series{}
	}
	m.byID[id] = &series{}
	if !m.running {
		m.running = s.Tasks.Go(s.runSamples)
	}
}

// runSamples measures until no sandbox is left.
func (s *Service) runSamples(ctx context.Context) {
	tick := time.NewTicker(sampleTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.samples.mu.Lock()
		ids := make([]string, 0, len(s.samples.byID))
		for id := range s.samples.byID {
			ids = append(ids, id)
		}
		s.samples.running = len(ids) > 0
		s.samples.mu.Unlock()
		if len(ids) == 0 {
			return
		}
		for _, id := range ids {
			s.takeSample(ctx, id)
		}
	}
}

// takeSample measures a sandbox once.
func (s *Service) takeSample(ctx context.Context, id string) {
	sb, err := s.Provider.Get(ctx, id)
	m := &s.samples
	if errors.Is(err, sandbox.ErrNotFound) {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.byID, id)
		return
	}
	var now *sandbox.Stats
	if p, ok := s.Provider.(sandbox.Stater); ok && err == nil && sb.State == sandbox.Running {
		if st, err := p.Stats(ctx, id); err == nil {
			now = &st
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.byID[id]
	if x == nil {
		return
	}
	if now != nil && x.last != nil {
		x.metrics = append(x.metrics, s.metricOf(sb, *x.last, *now))
		x.metrics = x.metrics[max(0, len(x.metrics)-maxSamples):]
	}
	x.last = now
}

// metricOf describes the time between two measurements.
func (s *Service) metricOf(sb sandbox.Sandbox, first, next sandbox.Stats) Metric {
	l := s.listed(sb)
	m := Metric{Timestamp: next.Time.UTC(), Unix: next.Time.Unix(), CPUs: l.CPUs, MemUsed: max(next.Memory, 0),
		MemTotal: sb.Spec.Resources.MemoryLimit, DiskUsed: max(next.Disk, 0), DiskTotal: sb.Spec.Resources.Disk}
	if took := next.Time.Sub(first.Time).Seconds(); took > 0 && first.CPU >= 0 {
		m.CPUPct = max(0, 100*(next.CPU-first.CPU).Seconds()/took/float64(l.CPUs))
	}
	return m
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
	s.sample(sb.ID)
	list := []Metric{}
	s.samples.mu.Lock()
	if x := s.samples.byID[sb.ID]; x != nil {
		list = append(list, x.metrics...)
	}
	s.samples.mu.Unlock()
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
	return s.metricOf(sb, statsOf(first), statsOf(next)), err
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
