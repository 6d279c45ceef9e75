package lifecycle

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

type able struct{ sandbox.Provider }

func (able) Abilities() sandbox.Abilities { return sandbox.Abilities{} }

type noSecrets struct{}

func (noSecrets) Assign(*sandbox.Spec, []string) error             { return nil }
func (noSecrets) Provision(context.Context, sandbox.Sandbox) error { return nil }

type noNetworks struct{ Networks }

func (noNetworks) Assign(context.Context, *sandbox.Spec, []string) error { return nil }

// TestImages: a request with only an image uses the environment custom. A request with both
// keeps its environment.
func TestImages(t *testing.T) {
	t.Parallel()
	s := New(Config{Provider: able{}, Secrets: noSecrets{}, Networks: noNetworks{}, Metrics: metric.New(), MaxTimeout: time.Hour,
		MaxIdleTimeout: time.Hour,
		Environments:   environment.New("", environment.Defaults{Image: "base:1"}, slog.New(slog.DiscardHandler))})
	for _, c := range []struct{ inEnv, inImage, env, image string }{
		{"", "", "aio", "base:1"}, {"", "my:2", "custom", "my:2"}, {"aio", "my:2", "aio", "my:2"},
	} {
		in := CreateIn{Environment: c.inEnv, Image: c.inImage}
		env, _, err := s.findEnvironment(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := s.spec(t.Context(), env, in)
		if err != nil || spec.Environment != c.env || spec.Image != c.image {
			t.Errorf("%q with image %q: got %q %q %v, want %q %q", c.inEnv, c.inImage, spec.Environment, spec.Image, err, c.env, c.image)
		}
	}
}
