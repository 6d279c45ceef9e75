package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub"
	"github.com/cove-sandbox/cove/internal/provider/mem"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

// echo is a sandbox with a minimal server.
type echo struct{}

func (echo) ServeHTTP(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }
func (echo) Pause()                                           {}
func (echo) Resume()                                          {}
func (echo) Close() error                                     { return nil }

// newHub serves a hub whose sandboxes run in this process.
func newHub(b *testing.B, audited bool) (url string, p *mem.Provider) {
	b.Helper()
	p, err := mem.Open(mem.Config{Store: &mem.Store{}, Run: func(sandbox.Sandbox, *mem.Disk, func(int)) (mem.Guest, error) {
		return echo{}, nil
	}})
	if err != nil {
		b.Fatal(err)
	}
	h, err := hub.Open(hub.Config{Provider: p, State: b.TempDir(), Creates: 16, Audit: hub.Audit{Enabled: audited}})
	if err != nil {
		b.Fatal(err)
	}
	h.Begin(b.Context())
	server := httptest.NewServer(rest.New(rest.Config{
		Table: op.NewTable(h.Ops()), Dialect: rest.Hub, Front: h.Front, Admit: h.Admit, Served: func(s rest.Served) { h.Served(hub.Visit(s)) },
		Caller: func(_ context.Context, c *op.Call) { c.Subject, c.Role, c.KeyID = "tenant", "user", "4o7pgghpdsl7" },
	}))
	b.Cleanup(func() {
		server.Close()
		list, _ := p.List(context.Background(), sandbox.Filter{})
		for _, sb := range list {
			p.Delete(context.Background(), sb.ID)
		}
		h.Close()
		p.Close()
	})
	return server.URL, p
}

// populate creates sandboxes of the tenant, 10 % of them with a label.
func populate(b *testing.B, p *mem.Provider, n int) {
	b.Helper()
	for i := range n {
		spec := sandbox.Spec{Name: fmt.Sprintf("s-%d", i), Owner: "tenant",
			Lifetime: sandbox.Lifetime{Timeout: sandbox.Never, IdleTimeout: sandbox.Never}}
		if i%10 == 0 {
			spec.Labels = map[string]string{"team": "red"}
		}
		if _, err := p.Create(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
	}
}

func fetch(b *testing.B, url string) time.Duration {
	b.Helper()
	begin := time.Now()
	res, err := http.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	_, err = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK {
		b.Fatalf("got %v, %v, want status 200", res.Status, err)
	}
	return time.Since(begin)
}

// BenchmarkAudit: a call to a sandbox with and without an audit record. The sandbox does no work, so
// the measured share is the maximum.
func BenchmarkAudit(b *testing.B) {
	with, p1 := newHub(b, true)
	without, p2 := newHub(b, false)
	populate(b, p1, 1)
	populate(b, p2, 1)
	var recorded, plain []time.Duration
	for i := range 6000 {
		w, o := fetch(b, with+"/sandbox/s-0/x"), fetch(b, without+"/sandbox/s-0/x")
		if i >= 500 {
			recorded, plain = append(recorded, w), append(plain, o)
		}
	}
	w, o := percentile(recorded, 0.5), percentile(plain, 0.5)
	report(b, "p50 of a call %v with the record, %v without: %+.1f %% (target 5 %%)", w, o, 100*(float64(w)/float64(o)-1))
}

// BenchmarkManyListed: lists all of a thousand sandboxes, and 10 % of them.
func BenchmarkManyListed(b *testing.B) {
	url, p := newHub(b, false)
	populate(b, p, 1000)
	var all, some []time.Duration
	for range 50 {
		all = append(all, fetch(b, url+"/api/v1/sandbox"))
		some = append(some, fetch(b, url+"/api/v1/sandbox?label=team=red"))
	}
	report(b, "1,000 sandboxes listed p50 %v, filtered to 100 p50 %v (target 20ms)",
		percentile(all, 0.5).Round(10*time.Microsecond), percentile(some, 0.5).Round(10*time.Microsecond))
}
