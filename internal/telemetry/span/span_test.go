package span

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"

	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// collector receives the exports of a tracer, as strictly as a real collector.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	status int // of the replies; 0 means 200
	got    []exportRequest
	header http.Header
	path   string
}

func collect(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.header, c.path = r.Header, r.URL.Path
		if c.status != 0 {
			w.WriteHeader(c.status)
			return
		}
		var req exportRequest
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err := d.Decode(&req); err != nil {
			t.Error(err)
		}
		c.got = append(c.got, req)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) answer(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
}

func (c *collector) spans() []wireSpan {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []wireSpan
	for _, req := range c.got {
		all = append(all, req.ResourceSpans[0].ScopeSpans[0].Spans...)
	}
	return all
}

func tracer(t *testing.T, cfg Config) *Tracer {
	tr := New(cfg)
	t.Cleanup(func() { tr.Close() })
	return tr
}

func TestTraceFromCallerToSandbox(t *testing.T) {
	c := collect(t)
	tr := tracer(t, Config{Endpoint: c.URL + "/", Service: "cove", Version: "1", Headers: map[string]string{"Authorization": "Bearer x"}})
	const trace, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	in := http.Header{"Traceparent": {"00-" + trace + "-" + caller + "-01"}, "Tracestate": {"a=1", "b=2"}}
	ctx, server := tr.Start(Extract(context.Background(), in), "GET /x", slog.String("sandbox", "sb-1"), slog.Int("n", 7))
	inner, client := tr.Start(ctx, "proxy")
	out := http.Header{"Traceparent": {"something else"}}
	Inject(inner, out)
	client.Set(slog.Bool("ok", false), slog.Float64("f", 0.5), slog.Float64("inf", math.Inf(1)), slog.Duration("took", time.Second))
	client.End("unavailable")
	client.End(OK)
	_, plain := tr.Start(ctx, strings.Repeat("é", 500))
	plain.End(OK)
	server.End(OK)
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	got := c.spans()
	if len(got) != 3 {
		t.Fatalf("got %d spans, want 3", len(got))
	}
	for i, s := range got {
		start, err := strconv.ParseInt(s.Start, 10, 64)
		end, err2 := strconv.ParseInt(s.End, 10, 64)
		if err != nil || err2 != nil || end < start || time.Since(time.Unix(0, start)) > time.Minute {
			t.Errorf("got start %q and end %q, want times of the last minute, in order", s.Start, s.End)
		}
		got[i].Start, got[i].End = "", ""
	}
	text := func(s string) value { return value{String: &s} }
	no, half, seven := false, 0.5, "7"
	want := []wireSpan{
		{TraceID: trace, SpanID: got[0].SpanID, Parent: got[2].SpanID, State: "a=1,b=2", Name: "proxy", Kind: kindClient,
			Attributes: []attribute{{"ok", value{Bool: &no}}, {"f", value{Double: &half}}, {"inf", text("+Inf")}, {"took", text("1s")}},
			Status:     wireStatus{statusError, "unavailable"}},
		{TraceID: trace, SpanID: got[1].SpanID, Parent: got[2].SpanID, State: "a=1,b=2", Name: strings.Repeat("é", 128), Kind: kindInternal},
		{TraceID: trace, SpanID: got[2].SpanID, Parent: caller, State: "a=1,b=2", Name: "GET /x", Kind: kindServer,
			Attributes: []attribute{{"sandbox", text("sb-1")}, {"n", value{Int: &seven}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if want := "00-" + trace + "-" + got[0].SpanID + "-01"; out.Get("Traceparent") != want || out.Get("Tracestate") != "a=1,b=2" {
		t.Errorf("injected: got %v, want %s and the state", out, want)
	}
	if c.path != "/v1/traces" || c.header.Get("Authorization") != "Bearer x" || c.header.Get("Content-Type") != "application/json" {
		t.Errorf("export: got path %s and headers %v, want /v1/traces and JSON with the token", c.path, c.header)
	}
	about := c.got[0].ResourceSpans[0].Resource.Attributes
	if diff := cmp.Diff([]attribute{{"service.name", text("cove")}, {"service.version", text("1")}}, about); diff != "" {
		t.Error(diff)
	}
}

func TestNoTracer(t *testing.T) {
	tr := New(Config{Service: "cove"})
	in := http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	ctx, s := tr.Start(Extract(context.Background(), in), "x", slog.Int("n", 1))
	s.Set(slog.Int("n", 2))
	out := http.Header{}
	Inject(ctx, out)
	s.End("bad")
	if tr != nil || s != nil || tr.Dropped() != 0 || tr.Close() != nil || !slices.Equal(out["Traceparent"], in["Traceparent"]) {
		t.Errorf("got tracer %v, span %v and headers %v, want nil, nil and the caller's", tr, s, out)
	}
	Inject(context.Background(), out)
}

func TestUnsampledIsPropagated(t *testing.T) {
	c := collect(t)
	tr := tracer(t, Config{Endpoint: c.URL})
	in := http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}}
	ctx, s := tr.Start(Extract(context.Background(), in), "x")
	s.End(OK)
	out := http.Header{}
	Inject(ctx, out)
	tr.Close()
	if len(c.spans()) != 0 || out.Get("Traceparent") != in.Get("Traceparent") {
		t.Errorf("got spans %v and headers %v, want none and the caller's", c.spans(), out)
	}
}

func TestBatchesWithoutWaiting(t *testing.T) {
	c := collect(t)
	tr := tracer(t, Config{Endpoint: c.URL + "/v1/traces", Batch: 10, Interval: time.Hour})
	var work sync.WaitGroup
	for range 10 {
		work.Go(func() {
			for range 10 {
				_, s := tr.Start(context.Background(), "x")
				s.End(OK)
			}
		})
	}
	work.Wait()
	testenv.Poll(t, "full batches are sent at once", func() bool { return len(c.spans()) >= 91 })
	tr.Close()
	tr.Close()
	seen := map[string]bool{}
	for _, s := range c.spans() {
		seen[s.TraceID+s.SpanID] = true
	}
	if len(seen) != 100 || tr.Dropped() != 0 {
		t.Errorf("got %d different spans and %d dropped, want 100 and 0", len(seen), tr.Dropped())
	}
	_, s := tr.Start(context.Background(), "late")
	s.End(OK)
	if tr.Dropped() != 1 {
		t.Errorf("after Close: got %d dropped, want 1", tr.Dropped())
	}
}

func TestFailedExports(t *testing.T) {
	c := collect(t)
	tr := tracer(t, Config{Endpoint: c.URL, Queue: 5, Interval: 2 * time.Millisecond})
	one := func() {
		_, s := tr.Start(context.Background(), "x")
		s.End(OK)
	}
	c.answer(http.StatusBadRequest) // not to be retried
	one()
	testenv.Poll(t, "rejected spans are dropped", func() bool { return tr.Dropped() == 1 })
	c.answer(http.StatusServiceUnavailable) // to be retried
	for range 20 {
		one()
	}
	testenv.Poll(t, "the queue is bounded", func() bool { return tr.Dropped() >= 11 })
	c.answer(0)
	testenv.Poll(t, "the rest is sent later", func() bool { return len(c.spans()) > 0 && len(c.spans())+int(tr.Dropped()) == 21 })
}

func TestEndpointThatHangs(t *testing.T) {
	free := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-free }))
	defer srv.Close()
	defer close(free)
	for _, endpoint := range []string{srv.URL, "http://127.0.0.1:1", ":no address"} {
		tr := tracer(t, Config{Endpoint: endpoint, Batch: 1, Queue: 10, Timeout: 50 * time.Millisecond})
		for range 100 {
			_, s := tr.Start(context.Background(), "x")
			s.End(OK)
		}
		tr.Close()
		if tr.Dropped() != 100 {
			t.Errorf("%s: got %d dropped, want 100", endpoint, tr.Dropped())
		}
	}
}

func FuzzParse(f *testing.F) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for v, want := range map[string]bool{
		good: true, "cc" + good[2:] + "-what-comes": true, "cc" + good[2:]: true, good[:53] + "ff": true,
		good + "-x": false, "cc" + good[2:] + "x": false, "ff" + good[2:]: false, strings.ToUpper(good): false, "": false, good[:54]: false,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": false, "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01": false,
		strings.Replace(good, "-", "_", 1): false, good[:20] + "g" + good[21:]: false,
	} {
		if _, ok := parse(v); ok != want {
			f.Errorf("%q: got %v, want %v", v, ok, want)
		}
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		s, ok := parse(v)
		if !ok {
			return
		}
		if again, ok := parse(s.String()); !ok || again != s {
			t.Errorf("%q: got %q when formatted, want the same span", v, s.String())
		}
	})
}

func BenchmarkStartEnd(b *testing.B) {
	for name, endpoint := range map[string]string{"off": "", "on": "http://127.0.0.1:1"} {
		b.Run(name, func(b *testing.B) {
			tr := New(Config{Endpoint: endpoint, Timeout: time.Millisecond})
			defer tr.Close()
			b.ReportAllocs()
			for b.Loop() {
				_, s := tr.Start(context.Background(), "x", slog.String("sandbox", "sb-1"))
				s.End(OK)
			}
		})
	}
}
