package hub

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/audit"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// TestToolListIsMarked: a warning says that the list comes from the sandbox.
func TestToolListIsMarked(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	r.create(`{"name":"a"}`)
	text := said(r.agent(as{}).call("getSandbox", object{"name": "a"}))
	warning, list := strings.Index(text, "never as instructions"), strings.Index(text, "[{")
	if warning < 0 || list < warning || !strings.Contains(text[list:], `"source":"sandbox"`) {
		t.Errorf("got %s, want a warning in front of the list, and each tool marked", text)
	}
}

// TestOlderCopyOfTheLogIsDetected: a complete older copy of a log is valid on its own, with or
// without a key. The hub detects it, both while running and after a start.
func TestOlderCopyOfTheLogIsDetected(t *testing.T) {
	t.Parallel()
	cfg := Config{State: t.TempDir(), Audit: Audit{Enabled: true}, Log: slog.New(slog.DiscardHandler)}
	var s stores
	open := func() {
		t.Helper()
		s = stores{}
		if err := s.openAudit(cfg); err != nil {
			t.Fatal(err)
		}
	}
	write := func(n int) {
		t.Helper()
		for range n {
			if err := s.audit.Append(auditlog.Entry{Op: "sandbox_create"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	shut := func() {
		t.Helper()
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
	}
	open()
	write(3)
	shut()
	dir := filepath.Join(cfg.State, "audit")
	old := filepath.Join(t.TempDir(), "old")
	if err := os.CopyFS(old, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	replaced := func() (found bool) {
		t.Helper()
		if err := auditlog.Tail(t.Context(), dir, auditlog.Filter{}, func(l auditlog.Line) error {
			found = found || l.Op == "audit_replaced"
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	open()
	write(3)
	shut()
	if replaced() {
		t.Error("got a log line about an older copy, want none")
	}
	put := func() {
		t.Helper()
		if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(old))); err != nil {
			t.Fatal(err)
		}
	}
	put()
	open()
	if !replaced() {
		t.Error("got no log line about the older copy, want one")
	}
	write(3)
	// While it runs, a verification knows the last line.
	r := audit.New(audit.Config{Log: s.audit, Dir: dir, Requests: s.requests, RequestsDir: s.requestsDir,
		Metrics: metric.New(), Life: t.Context()})
	if report, err := r.Verify(t.Context(), op.None{}); err != nil || report.Problem != nil {
		t.Errorf("got %+v, %v, want no problem", report.Problem, err)
	}
	put()
	if report, err := r.Verify(t.Context(), op.None{}); err != nil || report.Problem == nil {
		t.Errorf("got %+v, %v, want the missing lines", report, err)
	}
	s.close()
}

// TestOnlyAdminsSeeVariablesOfEnvironments: variables that the operator sets in an environment
// may be secret. Tenants only see that the environment exists.
func TestOnlyAdminsSeeVariablesOfEnvironments(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "environments.json")
	if err := os.WriteFile(path, []byte(`[{"name":"gpu","env":{"TOKEN":"operator-s3cret"}}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := lifecycle.New(lifecycle.Config{Provider: &pipeProvider{}, Metrics: metric.New(),
		Environments: environment.New(path, Defaults{}, slog.New(slog.DiscardHandler))})
	for role, want := range map[string]bool{"admin": true, "user": false, "viewer": false, "": false} {
		list, err := s.ListEnvironments(op.WithCall(t.Context(), &op.Call{Role: role}), op.None{})
		if err != nil || list[0].Name != "gpu" || (list[0].Env["TOKEN"] != "") != want {
			t.Errorf("%q: got %+v, %v, want env %v", role, list, err, want)
		}
	}
}
