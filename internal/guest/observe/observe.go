// Package observe measures a sandbox: CPU, memory, disks and processes, now and over time.
//
// It owns the samples, their events and their reports, all limited in number and size. It
// reads control groups (v1 and v2) and /proc, and does not change them. Only one session runs
// at a time.
package observe

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Component is a part of the sandbox that can fail.
type Component struct {
	Name  string
	State func() (state, why string)
}

// Config of the service. Zero limits mean the defaults.
type Config struct {
	State      string   // folder for sessions and reports
	Disks      []string // paths whose file systems are measured
	Components []Component
	Log        *slog.Logger

	Proc       string // default /proc
	MaxReports int    // older reports are deleted
	MaxSamples int64  // bytes that a session keeps on disk
}

// Service implements the observation operations.
type Service struct {
	cfg    Config
	group  func() group // found once
	events events
	users  sync.Map // names by ID; a sandbox has few
	live   context.Context
	end    context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	counted *Sample // the last sample, for changes of counters
	last    *Sample // for the use of CPU
	lastAll *Sample // for the use of CPU by each process
	failed  map[string]bool
	session *session // running, or the last one
	keys    map[string]any
	order   []string // of keys, oldest first
	closed  bool

	export sync.Mutex // one report at a time
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Proc = cmp.Or(c.Proc, "/proc")
	c.MaxReports = cmp.Or(c.MaxReports, 20)
	c.MaxSamples = cmp.Or(c.MaxSamples, 32<<20)
	s := &Service{cfg: c, failed: map[string]bool{}, keys: map[string]any{}}
	s.group = sync.OnceValue(func() group { return findGroup(c.Proc) })
	s.live, s.end = context.WithCancel(context.Background())
	return s
}

// Ops lists the operations of the service.
func (s *Service) Ops() []op.Op {
	return append(s.processOps(), []op.Op{
		op.New(op.Spec{Name: "observe_status", Access: op.AccessRead, Route: "GET /v1/sandbox/observe/status",
			Tag: "sandbox", SDK: "sandbox.observe_status", ReadOnly: true, Verb: "observe status",
			Doc: "Show whether an observation session runs."}, s.Status),
		op.New(op.Spec{Name: "observe_live", Route: "GET /v1/sandbox/observe/live", Tag: "sandbox",
			SDK: "sandbox.observe_live", ReadOnly: true, Verb: "observe live",
			Doc: "Measure the sandbox now: CPU, memory, disks, the largest and busiest processes, and recent " +
				"events. Percentages of CPU are of one core."}, s.Live),
		op.New(op.Spec{Name: "observe_start", Route: "POST /v1/sandbox/observe/start", Tag: "sandbox",
			SDK: "sandbox.observe_start", Verb: "observe start",
			Doc: "Start a session that stores samples on disk. Mode capture is for detailed analysis; guardrail is for " +
				"continuous monitoring at low cost, with processes only when an event occurs."}, s.Start),
		op.New(op.Spec{Name: "observe_stop", Route: "POST /v1/sandbox/observe/stop", Tag: "sandbox",
			SDK: "sandbox.observe_stop", Verb: "observe stop",
			Doc: "Stop the session and export its report."}, s.Stop),
		op.New(op.Spec{Name: "observe_export", Route: "POST /v1/sandbox/observe/export", Tag: "sandbox",
			SDK: "sandbox.observe_export", Verb: "observe export",
			Doc: "Export a report of the running or last session, or of the current state without one. " +
				"It is a tar.gz with JSON lines and an HTML page with plots."}, s.Export),
		op.New(op.Spec{Name: "observe_reports", Route: "GET /v1/sandbox/observe/reports", Tag: "sandbox",
			SDK: "sandbox.observe_reports", ReadOnly: true, Verb: "observe reports",
			Doc: "List the reports, newest first."}, s.Reports),
		op.New(op.Spec{Name: "observe_report_download", Content: op.ContentForeign,
			Route: "GET /v1/sandbox/observe/reports/{report_id}", Tag: "sandbox",
			SDK: "sandbox.observe_report_download", ReadOnly: true, NoTool: true, Verb: "observe download",
			Produces: "application/gzip", Doc: "Download a report."}, s.Download),
		op.New(op.Spec{Name: "observe_report_delete", Route: "DELETE /v1/sandbox/observe/reports/{report_id}",
			Tag: "sandbox", SDK: "sandbox.observe_report_delete", Destructive: true, Verb: "observe delete",
			Doc: "Delete a report."}, s.Delete),
	}...)
}

// Begin takes the first sample, to which later samples are compared.
func (s *Service) Begin() { s.measure(false) }

// Close ends the running session. Its samples stay on disk.
func (s *Service) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	return nil
}

func (s *Service) dir() string { return filepath.Join(s.cfg.State, "observe") }

// LiveIn limits the number of processes.
type LiveIn struct {
	TopRows int `query:"top_rows" default:"10" doc:"Number of processes to list"`
}

// Snapshot is the current resource usage of the sandbox.
type Snapshot struct {
	CapturedAt   time.Time `json:"captured_at"`
	Mode         string    `json:"mode" enum:"off,guardrail,capture"`
	Cgroup       Cgroup    `json:"cgroup"`
	Disk         []Disk    `json:"disk"`
	TopProcesses []Process `json:"top_processes" doc:"The largest processes, by memory"`
	TopCPU       []Process `json:"top_cpu_processes" doc:"The busiest processes"`
	RecentEvents []Event   `json:"recent_events" doc:"Oldest first"`
}

const (
	maxRows = 500
	// minWindow and maxWindow limit the period for which rates are computed.
	minWindow = 300 * time.Millisecond
	maxWindow = time.Minute
)

// Live measures the sandbox.
func (s *Service) Live(ctx context.Context, in LiveIn) (Snapshot, error) {
	if in.TopRows < 0 || in.TopRows > maxRows {
		return Snapshot{}, op.Errorf(op.Invalid, "invalid top_rows %d; use 0 to %d", in.TopRows, maxRows)
	}
	sample, err := s.measureRates(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	byMemory, byCPU := sample.top(in.TopRows)
	return Snapshot{
		CapturedAt: sample.Time, Mode: s.mode(), Cgroup: sample.Cgroup, Disk: sample.Disk,
		TopProcesses: byMemory, TopCPU: byCPU, RecentEvents: s.events.list(),
	}, nil
}

// measureRates takes a sample with the CPU usage of each process since a recent sample.
func (s *Service) measureRates(ctx context.Context) (Sample, error) {
	s.mu.Lock()
	base := s.lastAll
	s.mu.Unlock()
	if age := sinceSample(base); age < minWindow || age > maxWindow {
		s.measure(true)
		select {
		case <-ctx.Done():
			return Sample{}, ctx.Err()
		case <-time.After(minWindow):
		}
	}
	return s.measure(true), nil
}

// sinceSample returns the age of a sample, and more than maxWindow without one.
func sinceSample(s *Sample) time.Duration {
	if s == nil {
		return maxWindow + 1
	}
	return time.Since(s.Time)
}

// Usage returns the figures of the sandbox without its processes, for metrics.
func (s *Service) Usage() (Cgroup, []Disk) {
	sample := s.read(false)
	return sample.Cgroup, sample.Disk
}
