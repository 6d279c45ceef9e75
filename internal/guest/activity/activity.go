// Package activity owns the activity of the sandbox: whether commands or code are running, even
// without a waiting client, and a record of its operations with a limited size. A hub checks it
// before it pauses an idle sandbox. The package queries the services that run work, and observes
// their operations.
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
	// Running returns the number of running commands or cells. It is called concurrently and must
	// not block.
	Running func() int
}

// Config of the service.
type Config struct {
	Sources []Source
	// Started is when the sandbox started.
	Started time.Time
	Now     func() time.Time // nil is time.Now
	// State is the folder of the record; empty: there is no record.
	State string
	// Secrets are values that are never recorded.
	Secrets []string
	// Env is the environment of programs. Values whose names indicate a secret are never recorded.
	Env []string
	// Home and Workspace are the folders that paths in inputs are relative to.
	Home, Workspace string
	// Screen returns a small JPEG picture of the display, or nil if no display runs.
	Screen func(ctx context.Context, width int) ([]byte, error)
	Log    *slog.Logger
}

// Service reports the activity.
type Service struct {
	cfg    Config
	record *Record // nil: there is no record
	life   context.Context
	end    context.CancelFunc

	helps helps

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
func (s *Service) Record(o op.Op) op.Op { return s.helps.wrap(s.record.Op(o)) }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	list := op.New(op.Spec{Name: "sandbox_activity", Access: op.AccessRead, Route: "GET /v1/sandbox/activity",
		Tag: "sandbox", Style: op.Resource, ReadOnly: true,
		Doc: "Show whether commands or code are running in the sandbox, even without a waiting client. " +
			"Also return the latest entries of the activity record that match the filters. " +
			"With stream=true, new entries follow as events named entry."}, s.Get)
	return []op.Op{
		op.WithStream[GetIn, Entry](list, s.Follow),
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

// Close ends all streams and writes the queued entries.
func (s *Service) Close() error {
	s.end()
	if s.record != nil {
		s.record.Close()
	}
	return nil
}

// Activity is the current activity and the latest entries.
type Activity struct {
	Busy    bool           `json:"busy" doc:"Whether anything is running"`
	Running int            `json:"running" doc:"Number of running commands and cells"`
	Since   time.Time      `json:"since" doc:"When this state was first observed; changes between two requests are not detected"`
	By      map[string]int `json:"by" doc:"Number of running commands and cells by service"`
	Help    []Help         `json:"help" doc:"Calls that wait for a person, oldest first"`
	Entries []Entry        `json:"entries" doc:"Entries of the record, oldest first; empty for callers with read-only access"`
}

// maxLimit is the maximum of GetIn.Limit.
const maxLimit = 1000

// GetIn selects entries of the record.
type GetIn struct {
	Limit  int    `query:"limit" default:"50" minimum:"0" maximum:"1000" doc:"Maximum number of entries; 0 returns none"`
	After  int64  `query:"after" default:"0" minimum:"0" doc:"Only entries with a higher ID"`
	Kind   string `query:"kind" default:"" doc:"Only entries of this group, such as bash, file or browser"`
	Op     string `query:"op" default:"" doc:"Only entries of this operation"`
	Search string `query:"q" default:"" doc:"Only entries whose input, output or error contains this text"`
	Failed bool   `query:"failed" default:"false" doc:"Only failures: errors, commands with an exit code other than 0, and cells that raised"`
}

// Get queries all sources and returns the latest entries.
func (s *Service) Get(ctx context.Context, in GetIn) (Activity, error) {
	a := Activity{By: map[string]int{}, Help: s.helps.list()}
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
