package client_test

import (
	"testing"

	"github.com/cove-sandbox/cove/client"
)

// TestDisks: snapshot, rollback and fork.
func TestDisks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	if _, err := r.Create(ctx, client.CreateOptions{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	s, err := r.Snapshot(ctx, "a", "s")
	if err != nil || s.Name != "s" {
		t.Fatalf(`got %v %v, want name "s"`, s, err)
	}
	list, err := r.Snapshots(ctx)
	if err != nil || len(list) != 1 || list[0].Sandbox != s.Sandbox {
		t.Errorf("got %v %v, want 1 entry and first sandbox %q", list, err, s.Sandbox)
	}
	if _, err := r.Rollback(ctx, "a", "s"); err != nil {
		t.Error(err)
	}
	forks, err := r.Fork(ctx, "a", 2, "b")
	if err != nil || len(forks) != 2 || forks[0].Name != "b" {
		t.Errorf(`got %v %v, want 2 forks and first name "b"`, forks, err)
	}
	if _, _, err := r.Diff(ctx, "a", 10); err != nil {
		t.Error(err)
	}
	if err := r.DeleteSnapshot(ctx, "s"); err != nil {
		t.Error(err)
	}
	if _, err := r.Share(ctx, "a", 0, true, 0); err == nil {
		t.Error("got a link from a hub without tenants, want an error")
	}
}
