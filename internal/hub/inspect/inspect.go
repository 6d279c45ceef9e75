// Package inspect shows people how sandboxes are doing: their usage over time, what happened to them, and
// what runs inside. It never wakes a sandbox or keeps it awake.
package inspect

import (
	"slices"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/activity"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/history"
	"github.com/cove-sandbox/cove/internal/hub/internal/meter"
	"github.com/cove-sandbox/cove/internal/hub/internal/tombstone"
	"github.com/cove-sandbox/cove/internal/hub/internal/trash"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Config of a Service.
type Config struct {
	Provider   sandbox.Provider
	Fleet      *fleet.Fleet
	Sandboxes  *lifecycle.Service
	Meter      *meter.Meter
	History    *history.Log
	Tombstones *tombstone.Log
	Bin        *trash.Bin      // nil: deleted sandboxes cannot be restored
	Records    *activity.Store // nil: none are kept
}

// Service implements the operations.
type Service struct {
	Config
	limits   func() []string // that the provider enforces
	searches searches
}

// New returns the service.
func New(cfg Config) *Service {
	return &Service{Config: cfg, limits: sync.OnceValue(func() []string { return cfg.Provider.Abilities().Limits })}
}

// UserIn selects a tenant.
type UserIn = caller.UserIn

const one = "/api/v1/sandbox/{name}"

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return slices.Concat(metricOps(s), pastOps(s), insideOps(s), searchOps(s), attentionOps(s))
}
