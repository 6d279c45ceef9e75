// Package health provides liveness, readiness and metrics as operations. It owns no state, and
// queries the components at each request.
package health

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// Component is a part whose state readiness reports: ready, idle, starting, absent or
// failed, and why.
type Component struct {
	Name string
	// Needed components must be ready or idle for readiness.
	Needed bool
	State  func() (state, why string)
}

// Config of the service.
type Config struct {
	Version    string
	Started    time.Time
	Components []Component
	Metrics    *metric.Registry
}

// Service provides the operations.
type Service struct{ Config }

// New returns the service.
func New(c Config) *Service { return &Service{c} }

// Ops returns the operations of the service.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "health_live", Content: op.ContentAPI, Route: "GET /healthz", Tag: "health",
			Public: true, NoTool: true, ReadOnly: true, Produces: "text/plain",
			Doc: "Check that the server answers. Returns OK."}, s.Live),
		op.New(op.Spec{Name: "health_ready", Access: op.AccessRead, Route: "GET /readyz", Tag: "health",
			Style: op.Resource, NoTool: true, ReadOnly: true,
			Doc: "Check that the server is ready, with the state of each component. The status is 503 until it is ready."}, s.Ready),
		op.New(op.Spec{Name: "health_metrics", Content: op.ContentAPI, Route: "GET /metrics", Tag: "health",
			NoTool: true, ReadOnly: true, Produces: "text/plain",
			Doc: "Return metrics in the Prometheus text format."}, s.Read),
	}
}

// Live reports that the server answers.
func (s *Service) Live(context.Context, op.None) (*op.Blob, error) { return text("OK\n"), nil }

func text(s string) *op.Blob {
	return &op.Blob{Type: "text/plain; charset=utf-8", Size: int64(len(s)), Body: io.NopCloser(strings.NewReader(s))}
}

// State is the state of a component.
type State struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
}

// Readiness is the reply of /readyz.
type Readiness struct {
	Status     string  `json:"status"`
	Version    string  `json:"version"`
	Uptime     float64 `json:"uptime_seconds"`
	Components []State `json:"components"`
}

// ReadyIn selects components.
type ReadyIn struct {
	Needed bool `query:"needed" default:"false" doc:"List only the components that readiness depends on, which is faster"`
}

// Ready reports the state of each component. It fails unless the needed ones are ready.
func (s *Service) Ready(_ context.Context, in ReadyIn) (Readiness, error) {
	r := Readiness{Status: "ready", Version: s.Version, Uptime: time.Since(s.Started).Seconds()}
	var waiting []string
	for _, c := range s.Components {
		if in.Needed && !c.Needed {
			continue
		}
		state, why := c.State()
		r.Components = append(r.Components, State{c.Name, state, why})
		if c.Needed && state != "ready" && state != "idle" {
			waiting = append(waiting, c.Name+" is "+state+": "+why)
		}
	}
	slices.SortFunc(r.Components, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	if len(waiting) > 0 {
		r.Status = "not ready"
		return r, &op.Error{Code: op.Unavailable, Msg: strings.Join(waiting, "; "), Data: r}
	}
	return r, nil
}

// Read returns the metrics.
func (s *Service) Read(context.Context, op.None) (*op.Blob, error) {
	var b bytes.Buffer
	if s.Metrics != nil {
		if _, err := s.Metrics.WriteTo(&b); err != nil {
			return nil, err
		}
	}
	blob := text(b.String())
	blob.Type = "text/plain; version=0.0.4; charset=utf-8"
	return blob, nil
}
