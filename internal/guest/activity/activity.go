// Package activity tells whether the sandbox is busy on its own: with commands and
// code that run although nobody waits for an answer. A hub asks before it
// puts an unused sandbox to sleep. The package owns no work and starts none; it
// asks those who do, when it is asked.
package activity

import (
	"context"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

// Source is one who may have work running.
type Source struct {
	Name string
	// Running is how much runs at this moment. It is called from many goroutines
	// and must not block.
	Running func() int
}

// Config of the service.
type Config struct {
	Sources []Source
	// Started is since when the sandbox lives.
	Started time.Time
	Now     func() time.Time // nil is time.Now
}

// Service answers the question.
type Service struct {
	cfg Config

	mu    sync.Mutex
	busy  bool
	since time.Time
}

// New returns the service.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{cfg: cfg, since: cfg.Started}
}

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_activity", Route: "GET /v1/sandbox/activity", Tag: "sandbox", Style: op.Resource, ReadOnly: true, NoTool: true,
			Doc: "Tell whether commands or code run in the sandbox at this moment, whether or not anybody waits for them."}, s.Ask),
	}
}

// Close has nothing to end.
func (s *Service) Close() error { return nil }

// None is an input without fields.
type None struct{}

// Activity is the answer.
type Activity struct {
	Busy    bool           `json:"busy" doc:"Whether anything runs"`
	Running int            `json:"running" doc:"How many commands and cells run"`
	Since   time.Time      `json:"since" doc:"When it was first found so: changes between two questions are not seen"`
	By      map[string]int `json:"by" doc:"How many run in each service that has any"`
}

// Ask asks every source.
func (s *Service) Ask(context.Context, None) (Activity, error) {
	a := Activity{By: map[string]int{}}
	for _, src := range s.cfg.Sources {
		if n := src.Running(); n > 0 {
			a.Running += n
			a.By[src.Name] += n
		}
	}
	a.Busy = a.Running > 0
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Busy != s.busy {
		s.busy, s.since = a.Busy, s.cfg.Now()
	}
	a.Since = s.since
	return a, nil
}
