package pool_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// BenchmarkPoolClaim measures the time from the claim of a warm sandbox to the
// first output of a command in it, compared to a cold create.
func BenchmarkPoolClaim(b *testing.B) {
	const batch = 10 // members are created in batches while the timer is stopped
	var measuring atomic.Bool
	want := pool.Want{Size: batch, Spec: sandbox.Spec{Environment: "e"}}
	m := newMachine(b, want, func(c *pool.Config) { c.Busy, c.Every = measuring.Load, time.Hour })
	var warm, cold []time.Duration
	measure := func(list *[]time.Duration, create func() (sandbox.Sandbox, error)) {
		began := time.Now()
		sb, err := create()
		if err != nil {
			b.Fatal(err)
		}
		if got := m.bash(sb.ID, "echo hello"); !strings.Contains(got, "hello") {
			b.Fatalf("got %q, want hello", got)
		}
		*list = append(*list, time.Since(began))
		if err := m.p.Delete(b.Context(), sb.ID); err != nil {
			b.Error(err)
		}
	}
	for i := range 10 {
		measuring.Store(false)
		m.pool.Notify()
		testenv.Poll(b, "the pool is filled", func() bool { return m.pool.Ready()["e"] == batch })
		measuring.Store(true)
		for j := range batch {
			spec := sandbox.Spec{Name: fmt.Sprintf("n%d-%d", i, j), Owner: "ann", Environment: "e", Env: map[string]string{"A": "b"}}
			measure(&warm, func() (sandbox.Sandbox, error) {
				sb, ok, err := m.pool.Claim(b.Context(), "e", pool.Fingerprint(want.Spec), pool.Binding{Spec: spec})
				if err == nil && !ok {
					b.Fatal("got no member, want one to claim")
				}
				return sb, err
			})
			measure(&cold, func() (sandbox.Sandbox, error) { return m.p.Create(b.Context(), spec) })
		}
	}
	slices.Sort(warm)
	slices.Sort(cold)
	w, c := warm[len(warm)/2], cold[len(cold)/2]
	fmt.Printf("  %-34s claim to first output p50 %v, p99 %v (target p50 10ms); cold create p50 %v, %.1f × as long\n", "PoolClaim",
		w.Round(100*time.Microsecond), warm[len(warm)*99/100].Round(time.Millisecond), c.Round(100*time.Microsecond), float64(c)/float64(w))
}
