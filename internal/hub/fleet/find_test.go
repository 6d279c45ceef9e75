package fleet

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
	"github.com/cove-sandbox/cove/internal/hub/internal/tombstone"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// shelf is a provider that counts its List calls.
type shelf struct {
	sandbox.Provider
	table *sandbox.Table[int]
	lists atomic.Int64
}

func (s *shelf) Get(_ context.Context, id string) (sandbox.Sandbox, error) { return s.table.Get(id) }

func (s *shelf) List(_ context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	s.lists.Add(1)
	return s.table.List(f)
}

func (s *shelf) add(t testing.TB, id, owner, name string) sandbox.Sandbox {
	t.Helper()
	sb := sandbox.Sandbox{ID: id, State: sandbox.Running, Created: time.Now(), Spec: sandbox.Spec{Owner: owner, Name: name}}
	if _, err := s.table.Adopt(sb, 0); err != nil {
		t.Fatal(err)
	}
	return sb
}

// TestFindByID: the owner and admins can find a sandbox by ID, without a list of all sandboxes. If a caller has a
// sandbox with that name, the name takes precedence.
func TestFindByID(t *testing.T) {
	t.Parallel()
	s := &shelf{table: sandbox.NewTable[int]()}
	d := &directory{provider: s, tombstones: &tombstone.Log{}, ids: map[key]string{}}
	s.add(t, "sb-1", "ann", "a")
	d.add(s.add(t, "sb-2", "ann", "sb-3"))
	s.add(t, "sb-3", "ann", "c")
	s.add(t, "sb-4", "bob", "sb-1")
	for _, c := range []struct{ who, role, name, want string }{
		{"ann", "user", "sb-1", "sb-1"}, {"root", string(tenant.RoleAdmin), "sb-1", "sb-1"},
		{"ann", "user", "sb-3", "sb-2"}, {"ann", "user", "a", "sb-1"},
		{"bob", "user", "sb-1", "sb-4"}, {"bob", "user", "sb-2", ""}, {"bob", "user", "a", ""}, {"ann", "user", "sb-9", ""},
	} {
		call := &op.Call{Subject: c.who, Role: c.role}
		sb, err := d.find(op.WithCall(t.Context(), call), call, c.name)
		if e, ok := op.AsError(err); sb.ID != c.want || c.want == "" && (!ok || e.Code != op.NotFound) {
			t.Errorf("%s finds %s: got %q, %v, want %q", c.who, c.name, sb.ID, err, c.want)
		}
	}
	before := s.lists.Load()
	call := &op.Call{Subject: "ann", Role: "user"}
	if _, err := d.find(op.WithCall(t.Context(), call), call, "sb-1"); err != nil || s.lists.Load() != before {
		t.Errorf("got %v and %d lists, want none", err, s.lists.Load()-before)
	}
}

// BenchmarkFind finds one of the maximum number of sandboxes of a hub.
func BenchmarkFind(b *testing.B) {
	s := &shelf{table: sandbox.NewTable[int]()}
	d := &directory{provider: s, tombstones: &tombstone.Log{}, ids: map[key]string{}}
	for range 10000 {
		id := sandbox.NewID()
		s.add(b, id, "", "name-of-"+id)
	}
	id := s.add(b, sandbox.NewID(), "", "one").ID
	call := &op.Call{Role: string(tenant.RoleAdmin)}
	ctx := op.WithCall(b.Context(), call)
	for b.Loop() {
		if _, err := d.find(ctx, call, id); err != nil {
			b.Fatal(err)
		}
	}
}
