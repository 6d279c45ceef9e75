// Package meter measures sandboxes at an interval and keeps the samples of the last hour in memory. It
// starts to measure a sandbox when its samples are first requested, and stops when the sandbox is deleted.
package meter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// Interval is the time between two samples.
	Interval = 5 * time.Second
	// maxSamples is the maximum number of samples of a sandbox: one hour.
	maxSamples = int(time.Hour / Interval)
	// maxMeasured is the maximum number of sandboxes with samples.
	maxMeasured = 1000
	// restFactor limits the cost of sandboxes that are slow to measure, such as those with large disks: the
	// time between two samples is at least this multiple of the time that a measurement takes.
	restFactor = 100
	maxRest    = time.Minute
	// BusyShare is the share of the CPU limit from which a sandbox counts as busy.
	BusyShare = 0.9
)

// Sample is the usage of a sandbox. Unknown figures are -1.
type Sample struct {
	Time     time.Time
	CPU      float64 // cores in use since the previous sample
	Memory   int64   // bytes
	Disk     int64   // bytes
	Pids     int64
	OOMKills int64
	Sent     int64 // bytes per second since the previous sample
	Received int64
}

// Config of a Meter.
type Config struct {
	Provider sandbox.Provider
	// Traffic returns the bytes that a sandbox has sent and received so far.
	Traffic func(id string) (sent, received int64)
	Tasks   *task.Group
}

// Meter measures sandboxes.
type Meter struct {
	Config

	mu      sync.Mutex
	running bool
	byID    map[string]*series
}

// series are the samples of one sandbox, oldest first.
type series struct {
	last     *sandbox.Stats // nil while the sandbox does not run
	sent     int64          // traffic at that time
	received int64
	due      time.Time // earliest time of the next measurement
	samples  []Sample
}

// New returns a meter that measures nothing yet.
func New(cfg Config) *Meter { return &Meter{Config: cfg, byID: map[string]*series{}} }

// Watch starts to measure a sandbox.
func (m *Meter) Watch(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[id] != nil || len(m.byID) >= maxMeasured {
		return
	}
	if _, ok := m.Provider.(sandbox.Stater); !ok {
		return
	}
	m.byID[id] = &series{}
	if !m.running {
		m.running = m.Tasks.Go(m.run)
	}
}

// Samples returns the samples of a sandbox, oldest first.
func (m *Meter) Samples(id string) []Sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.byID[id]; x != nil {
		return slices.Clone(x.samples)
	}
	return nil
}

// BusySince returns since when the last samples use at least BusyShare of a number of cores.
func BusySince(list []Sample, cores float64) (since time.Time) {
	if cores <= 0 {
		return since
	}
	for _, s := range slices.Backward(list) {
		if s.CPU < cores*BusyShare {
			break
		}
		since = s.Time
	}
	return since
}

// run measures until no sandbox is left.
func (m *Meter) run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		m.mu.Lock()
		ids, now := []string{}, time.Now()
		for id, x := range m.byID {
			if !now.Before(x.due) {
				ids = append(ids, id)
			}
		}
		m.running = len(m.byID) > 0
		goOn := m.running
		m.mu.Unlock()
		if !goOn {
			return
		}
		for _, id := range ids {
			m.measure(ctx, id)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// measure measures a sandbox once.
func (m *Meter) measure(ctx context.Context, id string) {
	began := time.Now()
	sb, err := m.Provider.Get(ctx, id)
	if errors.Is(err, sandbox.ErrNotFound) {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.byID, id)
		return
	}
	var now *sandbox.Stats
	if p, ok := m.Provider.(sandbox.Stater); ok && err == nil && sb.State == sandbox.Running {
		if st, err := p.Stats(ctx, id); err == nil {
			now = &st
		}
	}
	sent, received := m.Traffic(id)
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.byID[id]
	if x == nil {
		return
	}
	if now != nil && x.last != nil {
		x.samples = append(x.samples, Between(*x.last, *now, sent-x.sent, received-x.received))
		x.samples = x.samples[max(0, len(x.samples)-maxSamples):]
	}
	x.last, x.sent, x.received = now, sent, received
	x.due = time.Now().Add(min(restFactor*time.Since(began), maxRest) - Interval/2)
}

// Between returns the sample of the time between two measurements, in which a number of bytes was sent and received.
func Between(first, next sandbox.Stats, sent, received int64) Sample {
	s := Sample{Time: next.Time.UTC(), CPU: -1, Memory: next.Memory, Disk: next.Disk, Pids: next.Pids, OOMKills: next.OOMKills}
	took := next.Time.Sub(first.Time).Seconds()
	if took <= 0 {
		return s
	}
	if first.CPU >= 0 && next.CPU >= 0 {
		s.CPU = max(0, (next.CPU-first.CPU).Seconds()/took)
	}
	s.Sent, s.Received = int64(max(0, float64(sent)/took)), int64(max(0, float64(received)/took))
	return s
}
