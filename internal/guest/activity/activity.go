// Package activity reports what happens in the sandbox: whether it is busy with commands and
// code, even those that no client waits for, and a bounded record of every operation. A hub
// asks before it pauses an idle sandbox. The package starts no work; it asks the services
// that do, and listens to their operations.
package activity

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Source is a service that may have work running.
type Source struct {
	Name string
	// Running returns how much is running. It is called from many goroutines and must
	// not block.
	Running func() int
}

// Config of the service.
type Config struct {
	Sources []Source
	// Started is when the sandbox started.
	Started time.Time
	Now     func() time.Time // nil is time.Now
	// State is the folder of the record; empty: none is kept.
	State string
	// Secrets are values that never enter the record.
	Secrets []string
	// Env is the environment of programs. Values whose names tell of a secret never enter the
	// record, either.
	Env []string
	// Home and Workspace are what paths in inputs are relative to.
	Home, Workspace string
	// Screen returns a small JPEG picture of the display, nil if none runs.
	Screen func(ctx context.Context, width int) ([]byte, error)
	Log    *slog.Logger
}

// Service reports the activity.
type Service struct {
	cfg    Config
	record *Record // nil: none is kept
	life   context.Context
	end    context.CancelFunc

	mu    sync.Mutex
	busy  bool
	since time.Time
}

// New returns the service.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{cfg: cfg, since: cfg.Started}
	if cfg.State != "" {
		s.record = newRecord(cfg)
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Record returns the operation so that its calls are recorded.
func (s *Service) Record(o op.Op) op.Op { return s.record.Op(o) }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	list := op.New(op.Spec{Name: "sandbox_activity", Access: op.AccessRead, Route: "GET /v1/sandbox/activity",
		Tag: "sandbox", Style: op.Resource, ReadOnly: true,
		Doc: "Show what runs and what happened in the sandbox: whether commands or code are running, including " +
			"those that no client waits for, and the latest entries of the activity record that match the filters. " +
			"With stream=true new entries follow as events named entry."}, s.Ask)
	return []op.Op{
		op.WithStream[AskIn, Entry](list, s.Follow),
		op.New(op.Spec{Name: "sandbox_activity_export", Content: op.ContentForeign,
			Route: "GET /v1/sandbox/activity/export", Tag: "sandbox", Verb: "sandbox activity-export", ReadOnly: true,
			NoTool: true, Produces: "text/html",
			Doc: "Download the activity record as one self-contained HTML file."}, s.Export),
		op.New(op.Spec{Name: "sandbox_activity_picture", Content: op.ContentForeign,
			Route: "GET /v1/sandbox/activity/{id}/picture", Tag: "sandbox", Verb: "sandbox activity-picture",
			ReadOnly: true, NoTool: true, Style: op.Resource, Produces: "image/jpeg",
			Doc: "Return the picture of the screen that was taken after an entry of the activity record."}, s.Picture),
	}
}

// Close ends all streams and writes what is queued.
func (s *Service) Close() error {
	s.end()
	if s.record != nil {
		s.record.Close()
	}
	return nil
}

// Activity is what runs.
type Activity struct {
	Busy    bool           `json:"busy" doc:"Whether anything is running"`
	Running int            `json:"running" doc:"Number of running commands and cells"`
	Since   time.Time      `json:"since" doc:"When this state was first observed; changes between two requests are not seen"`
	By      map[string]int `json:"by" doc:"Number of running commands and cells by service"`
	Entries []Entry        `json:"entries" doc:"What happened, oldest first; empty for callers who may only read"`
}

// maxLimit is the maximum of AskIn.Limit.
const maxLimit = 1000

// AskIn selects entries of the record.
type AskIn struct {
	Limit  int    `query:"limit" default:"50" minimum:"0" maximum:"1000" doc:"Maximum number of entries; the latest are returned. 0: none, only what runs"`
	After  int64  `query:"after" default:"0" minimum:"0" doc:"Only entries with a higher ID"`
	Kind   string `query:"kind" default:"" doc:"Only entries of this group, such as bash, file or browser"`
	Op     string `query:"op" default:"" doc:"Only entries of this operation"`
	Search string `query:"q" default:"" doc:"Only entries whose input, output or error contains this text"`
	Failed bool   `query:"failed" default:"false" doc:"Only operations that failed"`
}

// Ask queries every source.
func (s *Service) Ask(ctx context.Context, in AskIn) (Activity, error) {
	a := Activity{By: map[string]int{}}
	for _, src := range s.cfg.Sources {
		if n := src.Running(); n > 0 {
			a.Running += n
			a.By[src.Name] += n
		}
	}
	a.Busy = a.Running > 0
	if in.Limit > 0 {
		a.Entries = s.entries(ctx, in)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Busy != s.busy {
		s.busy, s.since = a.Busy, s.cfg.Now()
	}
	a.Since = s.since
	return a, nil
}
