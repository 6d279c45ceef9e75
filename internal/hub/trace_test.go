package hub

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/toolcatalog"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// TestTraces: a call is a child span of the caller's span, and the sandbox continues the trace.
func TestTraces(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, string(b))
	}))
	defer collector.Close()
	tracer := span.New(span.Config{Endpoint: collector.URL, Service: "hub", Interval: time.Millisecond})
	r := newRig(t, setup{stores: stores{tracer: tracer}})
	r.create(`{"name":"a"}`)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	parent := "00-" + trace + "-00f067aa0ba902b7-01"
	s := r.seen("GET", "/sandbox/a/x", "", "Traceparent", parent)
	inside := s.Header.Get("Traceparent")
	if !strings.HasPrefix(inside, "00-"+trace+"-") || inside == parent {
		t.Errorf("got %q, want a value that starts with %q and differs from %q", inside, "00-"+trace+"-", parent)
	}
	// A trace that is not sampled is passed through unchanged.
	quiet := "00-" + trace + "-00f067aa0ba902b7-00"
	if s := r.seen("GET", "/sandbox/a/x", "", "Traceparent", quiet); s.Header.Get("Traceparent") != quiet {
		t.Errorf("got %v, want header Traceparent %q", s.Header, quiet)
	}
	agent := r.agent(as{"Traceparent", parent})
	agent.call(toolcatalog.Execute, object{"sandbox_name": "a", "tool_name": "say"})
	if err := tracer.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	all := strings.Join(got, "\n")
	for _, want := range []string{`"sandbox_create"`, `"sandbox_proxy"`, `"sandboxExecutor"`, `"cove.sandbox"`, trace,
		strings.Split(inside, "-")[2]} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s", want)
		}
	}
	for _, text := range got {
		if !json.Valid([]byte(text)) {
			t.Errorf("got %v, want JSON", text)
		}
	}
}
