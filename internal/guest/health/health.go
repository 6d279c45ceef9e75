// Package health tells whether the sandbox lives, whether it is ready, and what it
// has counted. It owns no state: it asks the components when it is asked.
package health

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/metric"
	"github.com/cove-sandbox/cove/internal/op"
)

// Component is a part whose state readiness reports: ready, idle, starting,
// absent or failed, and why.
type Component struct {
	Name string
	// Needed: the sandbox is not ready unless this is.
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

// Service answers probes.
type Service struct{ Config }

// New returns the service.
func New(c Config) *Service { return &Service{c} }

// Ops lists what it offers.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "health_live", Route: "GET /healthz", Tag: "health", Public: true, NoTool: true, ReadOnly: true, Produces: "text/plain",
			Doc: "Say OK as long as the server answers."}, s.Live),
		op.New(op.Spec{Name: "health_ready", Route: "GET /readyz", Tag: "health", Style: op.Resource, NoTool: true, ReadOnly: true,
			Doc: "Tell whether the sandbox is ready, with the state of each component. The status is 503 while it is not."}, s.Ready),
		op.New(op.Spec{Name: "health_metrics", Route: "GET /metrics", Tag: "health", NoTool: true, ReadOnly: true, Produces: "text/plain",
			Doc: "Give counters and timings in Prometheus' text format."}, s.Read),
	}
}

// None is an input without fields.
type None struct{}

// Live answers at once.
func (s *Service) Live(context.Context, None) (*op.Blob, error) { return text("OK\n"), nil }

func text(s string) *op.Blob {
	return &op.Blob{Type: "text/plain; charset=utf-8", Size: int64(len(s)), Body: io.NopCloser(strings.NewReader(s))}
}

// State of a component.
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

// Ready asks every component.
func (s *Service) Ready(context.Context, None) (Readiness, error) {
	r := Readiness{Status: "ready", Version: s.Version, Uptime: time.Since(s.Started).Seconds()}
	var waiting []string
	for _, c := range s.Components {
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

// Read gives the metrics.
func (s *Service) Read(context.Context, None) (*op.Blob, error) {
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
