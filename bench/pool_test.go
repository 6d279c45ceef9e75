package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/pool"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// BenchmarkPoolClaim: from the claim of a warm sandbox to the first output of a
// command in it, beside a cold create.
func BenchmarkPoolClaim(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	aio, cove := program(b, "aio"), program(b, "cove")
	p, err := local.Open(b.Context(), local.Config{Dir: filepath.Join(b.TempDir(), "state"), Init: []string{cove, "isolate-init"}, Command: []string{"/run/bin/aio", "serve"},
		Binds: []local.Bind{{Source: aio, Target: "/run/bin/aio"}}, Env: map[string]string{"AIO_LOG_LEVEL": "warn"}})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	// Members are made in batches while nobody measures.
	const batch = 10
	want := pool.Want{Size: batch, Spec: sandbox.Spec{Environment: "e"}}
	var filling atomic.Bool
	filling.Store(true)
	ready := pool.New(pool.Config{Provider: p, Size: func() map[string]pool.Want { return map[string]pool.Want{"e": want} },
		Busy: func() bool { return !filling.Load() }, Every: time.Hour,
		Bind: pool.BindHTTP(func(ctx context.Context, id string) (sandbox.Endpoint, error) { return p.Endpoint(ctx, id, 0) })})
	if err := ready.Begin(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer clearPool(b, p)
	defer ready.Close()
	var warm, cold []time.Duration
	for i := range 10 {
		filling.Store(true)
		for ready.Kick(); ready.Ready()["e"] < batch; {
			time.Sleep(5 * time.Millisecond)
		}
		filling.Store(false)
		for j := range batch {
			spec := sandbox.Spec{Name: fmt.Sprintf("n%d-%d", i, j), Owner: "ann", Environment: "e", Env: map[string]string{"A": "b"}}
			begin := time.Now()
			sb, ok, err := ready.Claim(b.Context(), "e", pool.Fingerprint(want.Spec), pool.Binding{Spec: spec})
			if err != nil || !ok {
				b.Fatal(ok, err)
			}
			hello(b, p, sb.ID)
			warm = append(warm, time.Since(begin))
			end(b, p, sb.ID)

			begin = time.Now()
			if sb, err = p.Create(b.Context(), spec); err != nil {
				b.Fatal(err)
			}
			hello(b, p, sb.ID)
			cold = append(cold, time.Since(begin))
			end(b, p, sb.ID)
		}
	}
	w, c := percentile(warm, 0.5), percentile(cold, 0.5)
	report(b, "claim to first output p50 %v, p99 %v (target p50 10ms); cold create p50 %v, %.1f × as long",
		w.Round(100*time.Microsecond), percentile(warm, 0.99).Round(time.Millisecond), c.Round(100*time.Microsecond), float64(c)/float64(w))
}

// hello runs a command in a sandbox.
func hello(b *testing.B, p sandbox.Provider, id string) {
	b.Helper()
	ep, err := p.Endpoint(b.Context(), id, 0)
	if err != nil {
		b.Fatal(err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ep.Dial(ctx) }}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Post("http://sandbox/v1/bash/exec", "application/json", strings.NewReader(`{"command":"echo hello"}`))
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); err != nil || !bytes.Contains(got, []byte("hello")) {
		b.Fatalf("%v %s", err, got)
	}
}

func end(b *testing.B, p sandbox.Provider, id string) {
	b.Helper()
	if err := p.Delete(context.Background(), id); err != nil {
		b.Error(err)
	}
}

func clearPool(b *testing.B, p sandbox.Provider) {
	list, err := p.List(context.Background(), sandbox.Filter{})
	if err != nil {
		b.Error(err)
	}
	for _, sb := range list {
		end(b, p, sb.ID)
	}
}
