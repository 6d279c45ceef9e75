package audit

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// TestTenantCannotPushTheLogOut: beyond its share, a tenant's requests are only counted and its
// changes are rejected. Operations of other tenants are still recorded. Changes and requests
// have separate shares.
func TestTenantCannotPushTheLogOut(t *testing.T) {
	t.Parallel()
	open := func() (*auditlog.Log, string) {
		dir := filepath.Join(t.TempDir(), "log")
		l, err := auditlog.Open(auditlog.Config{Dir: dir, Queue: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return l, dir
	}
	changes, changesDir := open()
	requests, requestsDir := open()
	r := New(Config{Log: changes, Dir: changesDir, Requests: requests, RequestsDir: requestsDir, Metrics: metric.New(), Life: t.Context()})
	now := time.Unix(1, 0)
	r.requests.now, r.changes.now = func() time.Time { return now }, func() time.Time { return now }
	set := r.Record(op.New(op.Spec{Name: "thing_set", Route: "POST /x", Tag: "t", Doc: "Set."},
		func(context.Context, op.None) (string, error) { return "", nil }))
	as := func(who string) context.Context {
		return op.WithCall(t.Context(), &op.Call{Subject: who, Role: "user"})
	}
	for range 2 * requestBurst {
		r.note(auditlog.Entry{Tenant: "eve", Op: "sandbox_proxy"})
	}
	refused := 0
	for range changeBurst + 100 {
		if _, err := set.Call(as("eve"), &op.None{}); err != nil {
			if e, ok := errors.AsType[*op.Error](err); !ok || e.Code != op.Exhausted || e.RetryAfter == 0 {
				t.Fatalf("got %v, want exhausted with a retry delay", err)
			}
			refused++
		}
	}
	if refused != 100 {
		t.Errorf("got %d changes rejected, want 100", refused)
	}
	if _, err := set.Call(as("ann"), &op.None{}); err != nil {
		t.Errorf("another tenant's change: got %v, want none", err)
	}
	r.note(auditlog.Entry{Tenant: "ann", Op: "sandbox_proxy"})
	now = now.Add(time.Second)
	r.note(auditlog.Entry{Tenant: "eve", Op: "sandbox_proxy"})
	for _, l := range []*auditlog.Log{changes, requests} {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	count := func(dir string) map[string]int {
		n := map[string]int{}
		if err := auditlog.Tail(t.Context(), dir, auditlog.Filter{}, func(l auditlog.Line) error {
			n[l.Tenant+" "+l.Op]++
			if l.Op == "audit_skipped" && !strings.HasPrefix(l.Name, "5000 requests") {
				t.Errorf("got %q, want 5000 requests that were not recorded", l.Name)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(changesDir); n["eve thing_set"] != changeBurst || n["ann thing_set"] != 1 || len(n) != 2 {
		t.Errorf("log of changes: got %v, want %d of eve, 1 of ann, and no requests", n, changeBurst)
	}
	if n := count(requestsDir); n["eve sandbox_proxy"] != requestBurst+1 || n["ann sandbox_proxy"] != 1 || n["eve audit_skipped"] != 1 {
		t.Errorf("log of requests: got %v, want %d of eve, 1 of ann, and a line about the rest", n, requestBurst+1)
	}
}
