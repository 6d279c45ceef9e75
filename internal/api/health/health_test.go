package health

import (
	"io"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

func TestReadinessDependsOnNeededComponents(t *testing.T) {
	states := map[string]string{"needed": "starting", "extra": "failed"}
	component := func(name string, needed bool) Component {
		return Component{Name: name, Needed: needed, State: func() (string, string) { return states[name], "why" }}
	}
	s := New(Config{Version: "1", Components: []Component{component("needed", true), component("extra", false)}})
	_, err := s.Ready(t.Context(), ReadyIn{})
	e, ok := op.AsError(err)
	if !ok || e.Code != op.Unavailable || e.Msg != "needed is starting: why" || e.Data.(Readiness).Components[0].State != "failed" {
		t.Fatalf("got %+v, want unavailable: needed is starting", err)
	}
	states["needed"] = "ready"
	r, err := s.Ready(t.Context(), ReadyIn{})
	if err != nil || r.Status != "ready" || len(r.Components) != 2 {
		t.Errorf("got %+v and error %v, want ready and two components", r, err)
	}
	if r, err := s.Ready(t.Context(), ReadyIn{Needed: true}); err != nil || len(r.Components) != 1 || r.Components[0].Name != "needed" {
		t.Errorf("got %+v and error %v, want only the needed component", r, err)
	}
}

func TestProbes(t *testing.T) {
	m := metric.New()
	m.Counter("n_total", "N.")(1)
	s := New(Config{Metrics: m})
	live, err := s.Live(t.Context(), op.None{})
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(live.Body); string(b) != "OK\n" {
		t.Errorf("live: got %q, want OK", b)
	}
	read, err := s.Read(t.Context(), op.None{})
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(read.Body); !strings.Contains(string(b), "n_total 1") {
		t.Errorf("metrics: got %q, want n_total 1", b)
	}
}
