package observe

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	off       = "off"
	guardrail = "guardrail"
	capture   = "capture"

	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
	maxDuration = 7 * 24 * time.Hour
	maxKeys     = 256
	// maxSessionRows limits the processes in a sample.
	maxSessionRows = 20
	// maxSessions limits the sessions with samples on disk.
	maxSessions = 5
)

// session stores samples on disk until it is stopped.
type session struct {
	id        string
	mode      string
	started   time.Time
	ends      time.Time // zero: unlimited
	interval  time.Duration
	processes bool
	disk      bool
	dir       string

	stop    context.CancelFunc
	stopped chan struct{}

	mu     sync.Mutex
	ended  bool
	last   time.Time // of the last sample
	seen   int       // events already written
	files  map[string]*os.File
	sizes  map[string]int64
	failed bool // a write failed
}

// StartIn describes a session.
type StartIn struct {
	Mode      string   `json:"mode" enum:"guardrail,capture" default:"capture" doc:"capture: detailed, short; guardrail: sparse, unlimited"`
	Key       *string  `json:"idempotency_key" maxLength:"128" doc:"A repeated request with the same key returns the same session"`
	Duration  *int     `json:"duration_seconds" doc:"Default: 300 for capture, unlimited for guardrail"`
	Interval  *float64 `json:"interval_seconds" doc:"Default: 1 for capture, 30 for guardrail"`
	Processes *bool    `json:"include_processes" doc:"Include processes; default: for capture"`
	Disk      bool     `json:"include_disk" default:"true" doc:"Include disks"`
}

// Started describes the new session.
type Started struct {
	SessionID string     `json:"session_id"`
	Mode      string     `json:"mode" enum:"off,guardrail,capture"`
	StartedAt time.Time  `json:"started_at"`
	EndsAt    *time.Time `json:"ends_at"`
	Interval  float64    `json:"interval_seconds"`
	Dir       string     `json:"runtime_dir" doc:"Folder with the samples"`
}

// Start starts a session.
func (s *Service) Start(_ context.Context, in StartIn) (Started, error) {
	duration, interval := 5*time.Minute, time.Second
	if in.Mode == guardrail {
		duration, interval = 0, 30*time.Second
	}
	if in.Duration != nil {
		duration = time.Duration(*in.Duration) * time.Second
		if duration <= 0 || duration > maxDuration {
			return Started{}, op.Errorf(op.Invalid, "invalid duration_seconds %d; use 1 to %d", *in.Duration, int(maxDuration.Seconds()))
		}
	}
	if in.Interval != nil {
		interval = op.Seconds(*in.Interval)
		if !(*in.Interval >= minInterval.Seconds() && *in.Interval <= maxInterval.Seconds()) {
			return Started{}, op.Errorf(op.Invalid, "invalid interval_seconds %v; use %v to %v", *in.Interval,
				minInterval.Seconds(), maxInterval.Seconds())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.keys["start "+op.Value(in.Key)].(Started); ok && in.Key != nil {
		return known, nil
	}
	if s.closed {
		return Started{}, op.Errorf(op.Unavailable, "the sandbox is stopping")
	}
	if n := s.session; n != nil && !n.isEnded() {
		return Started{}, op.Errorf(op.Conflict, "the %s session %s is already running; stop it first", n.mode, n.id)
	}
	n := &session{
		id: "obs-" + strings.ToLower(rand.Text()[:12]), mode: in.Mode, started: time.Now(), interval: interval, disk: in.Disk,
		processes: in.Mode == capture, stopped: make(chan struct{}), files: map[string]*os.File{}, sizes: map[string]int64{},
	}
	if in.Processes != nil {
		n.processes = *in.Processes
	}
	if duration > 0 {
		n.ends = n.started.Add(duration)
	}
	n.dir = filepath.Join(s.dir(), "sessions", n.id)
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return Started{}, op.Errorf(op.Unavailable, "create the folder of the session: %w", err)
	}
	s.dropSessions()
	_, n.seen = s.events.since(0)
	s.session = n
	ctx, stop := context.WithCancel(s.live)
	n.stop = stop
	s.work.Go(func() { s.run(ctx, n) })
	out := Started{SessionID: n.id, Mode: n.mode, StartedAt: n.started, EndsAt: n.endsAt(), Interval: interval.Seconds(), Dir: n.dir}
	s.remember("start ", in.Key, out)
	return out, nil
}

// remember stores the response to a request with a key; s.mu is held.
func (s *Service) remember(what string, key *string, response any) {
	if key == nil {
		return
	}
	name := what + *key
	if len(s.order) >= maxKeys {
		delete(s.keys, s.order[0])
		s.order = s.order[1:]
	}
	s.keys[name] = response
	s.order = append(s.order, name)
}

// dropSessions deletes the samples of old sessions.
func (s *Service) dropSessions() {
	entries, err := os.ReadDir(filepath.Join(s.dir(), "sessions"))
	if err != nil || len(entries) <= maxSessions {
		return
	}
	oldest := ""
	var at time.Time
	for _, e := range entries {
		if info, err := e.Info(); err == nil && (oldest == "" || info.ModTime().Before(at)) {
			oldest, at = e.Name(), info.ModTime()
		}
	}
	os.RemoveAll(filepath.Join(s.dir(), "sessions", oldest))
}

// run samples until the session ends, and exports its report.
func (s *Service) run(ctx context.Context, n *session) {
	defer close(n.stopped)
	defer n.stop()
	if !n.ends.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, n.ends)
		defer cancel()
	}
	tick := time.NewTicker(n.interval)
	defer tick.Stop()
	for {
		s.sample(n)
		select {
		case <-ctx.Done():
			reason := "stop"
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				reason = "completed"
			}
			s.finish(n, reason)
			return
		case <-tick.C:
		}
	}
}

// sample takes one sample of a session.
func (s *Service) sample(n *session) {
	sample := s.measure(n.processes)
	fresh, seen := s.events.since(n.seen)
	if len(fresh) > 0 && !n.processes {
		// An event occurred: include the processes.
		sample = s.measure(true)
	}
	if !n.disk {
		sample.Disk = nil
	}
	sample.Processes, _ = sample.top(maxSessionRows)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen, n.last = seen, sample.Time
	n.write(s, samplesFile, sample)
	for _, e := range fresh {
		n.write(s, eventsFile, e)
	}
}

const (
	samplesFile = "samples.jsonl"
	eventsFile  = "events.jsonl"
	olderSuffix = ".1"
)

// write appends a line to a file of the session; n.mu is held. A full file becomes the older half
// and replaces the previous one.
func (n *session) write(s *Service, name string, v any) {
	if n.ended {
		return
	}
	b, err := json.Marshal(v)
	if err == nil {
		err = n.append(name, append(b, '\n'), s.cfg.MaxSamples/2)
	}
	if err != nil && !n.failed {
		n.failed = true
		s.cfg.Log.Warn("cannot write observation sample", "session", n.id, "error", err)
	}
}

func (n *session) append(name string, line []byte, limit int64) error {
	path := filepath.Join(n.dir, name)
	if f := n.files[name]; f != nil && n.sizes[name]+int64(len(line)) > limit {
		f.Close()
		delete(n.files, name)
		if err := os.Rename(path, path+olderSuffix); err != nil {
			return err
		}
	}
	f := n.files[name]
	if f == nil {
		var err error
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
			return err
		}
		n.files[name], n.sizes[name] = f, 0
	}
	k, err := f.Write(line)
	n.sizes[name] += int64(k)
	return err
}

// finish closes the files and exports the report.
func (s *Service) finish(n *session, reason string) {
	n.mu.Lock()
	n.ended = true
	for _, f := range n.files {
		f.Close()
	}
	n.mu.Unlock()
	if s.live.Err() != nil {
		return // the sandbox is stopping; the samples stay on disk
	}
	if _, err := s.makeReport(n, reason); err != nil {
		s.cfg.Log.Warn("cannot export observation report", "session", n.id, "error", err)
	}
}

func (n *session) isEnded() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ended
}

func (n *session) endsAt() *time.Time {
	if n.ends.IsZero() {
		return nil
	}
	return &n.ends
}

// StopIn names the session.
type StopIn struct {
	SessionID *string `json:"session_id" doc:"Default: the running session"`
}

// Stopped is the result of a stop.
type Stopped struct {
	SessionID   string `json:"session_id"`
	Stopped     bool   `json:"stopped"`
	ReportReady bool   `json:"report_ready" doc:"Whether the report of the session is available"`
}

// Stop stops the session.
func (s *Service) Stop(ctx context.Context, in StopIn) (Stopped, error) {
	s.mu.Lock()
	n := s.session
	s.mu.Unlock()
	if n == nil || n.isEnded() {
		return Stopped{}, op.Errorf(op.NotFound, "no session is running; start one with POST /v1/sandbox/observe/start")
	}
	if id := op.Value(in.SessionID); id != "" && id != n.id {
		return Stopped{}, op.Errorf(op.NotFound, "no such running session: %q; %s is running", id, n.id)
	}
	n.stop()
	select {
	case <-ctx.Done():
		return Stopped{}, ctx.Err()
	case <-n.stopped:
	}
	ready := false
	for _, r := range s.reports() {
		ready = ready || op.Value(r.SessionID) == n.id
	}
	return Stopped{n.id, true, ready}, nil
}

// Status describes the running session.
type Status struct {
	Mode        string     `json:"mode" enum:"off,guardrail,capture"`
	Running     bool       `json:"running"`
	SessionID   *string    `json:"session_id"`
	StartedAt   *time.Time `json:"started_at"`
	EndsAt      *time.Time `json:"ends_at"`
	Interval    *float64   `json:"interval_seconds"`
	LastSample  *time.Time `json:"last_sample_at"`
	Dir         *string    `json:"runtime_dir"`
	ReportCount int        `json:"report_count"`
}

// Status returns the running session.
func (s *Service) Status(context.Context, op.None) (Status, error) {
	out := Status{Mode: off, ReportCount: len(s.reports())}
	n := s.running()
	if n == nil {
		return out, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	out.Mode, out.Running, out.SessionID, out.StartedAt, out.EndsAt = n.mode, true, &n.id, &n.started, n.endsAt()
	out.Interval, out.Dir = new(n.interval.Seconds()), &n.dir
	if !n.last.IsZero() {
		out.LastSample = new(n.last)
	}
	return out, nil
}

// running returns the running session, or nil.
func (s *Service) running() *session {
	s.mu.Lock()
	n := s.session
	s.mu.Unlock()
	if n == nil || n.isEnded() {
		return nil
	}
	return n
}

func (s *Service) mode() string {
	if n := s.running(); n != nil {
		return n.mode
	}
	return off
}
