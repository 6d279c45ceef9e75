package hub

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func (q *quiet) delete(name string) {
	q.Helper()
	if _, err := q.lifecycle.Delete(q.Context(), lifecycle.NameIn{Name: name}); err != nil {
		q.Error(err)
	}
}

// undelete restores a sandbox and wants an error that contains text, or none.
func (q *quiet) undelete(in lifecycle.UndeleteIn, text string) (o lifecycle.Object) {
	q.Helper()
	o, err := q.lifecycle.Undelete(q.Context(), in)
	if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
		q.Errorf("undelete %+v: got error %v, want one with %q", in, err, text)
	}
	return o
}

func (q *quiet) names() (names []string) {
	q.Helper()
	list, err := q.lifecycle.List(q.Context(), lifecycle.ListIn{})
	if err != nil {
		q.Error(err)
	}
	for _, o := range list.Items() {
		names = append(names, o.Name)
	}
	return names
}

// TestUndelete: a sandbox that is kept can be restored for an hour, and is not visible meanwhile.
func TestUndelete(t *testing.T) {
	inBubble(t, func(q *quiet) {
		sb := q.make(lifecycle.CreateIn{Name: "a", Keep: true})
		fast := q.make(lifecycle.CreateIn{Name: "b"})
		q.delete("a")
		q.delete("b")
		q.want(time.Minute, sb, sandbox.Stopped)
		q.want(0, fast, "")
		if got := q.names(); len(got) != 0 {
			q.Errorf("got sandboxes %v, want none", got)
		}
		for _, name := range []string{"a", sb.ID} {
			if _, err := q.fleet.Find(q.Context(), name); err == nil {
				q.Errorf("%s is still found", name)
			}
		}
		if used := q.stores.quota.Usage(""); used.Sandboxes != 0 || used.CPU != 0 || used.Memory != 0 {
			q.Errorf("got usage %+v, want only disk", used)
		}
		q.undelete(lifecycle.UndeleteIn{Name: "b"}, "created with keep")
		second := q.make(lifecycle.CreateIn{Name: "a"}) // the name is free
		q.undelete(lifecycle.UndeleteIn{Name: "a"}, "already exists")
		q.undelete(lifecycle.UndeleteIn{Name: second.ID}, "is not deleted")
		if o := q.undelete(lifecycle.UndeleteIn{Name: "a", NewName: "c"}, ""); o.ID != sb.ID || o.Name != "c" || o.Status != "stopped" {
			q.Errorf("got %+v, want %s as c, stopped", o, sb.ID)
		}
		q.delete("c")
		q.undelete(lifecycle.UndeleteIn{Name: "c"}, "")
		q.delete("c")
		q.want(61*time.Minute, sb, "")
		q.want(0, second, "")
		q.undelete(lifecycle.UndeleteIn{Name: "c"}, "no deleted sandbox")
	})
}

// TestUndeleteWithinBudget: deleted sandboxes never use more than the quota of their owner, or than ten.
func TestUndeleteWithinBudget(t *testing.T) {
	inBubble(t, func(q *quiet) {
		q.stores.quota = nil
		keeper := quota.New(quota.Config{Creates: 10, Queue: 10, Limits: func(string) quota.Limits { return quota.Limits{Disk: 3 << 30} }})
		q.usage.Keeper = keeper
		one := func(name string) lifecycle.CreateIn {
			return lifecycle.CreateIn{Name: name, Keep: true, DiskLimit: "1Gi"}
		}
		first := q.make(one("first"))
		q.delete("first")
		for _, name := range []string{"a", "b"} {
			q.make(one(name))
		}
		if used := keeper.Usage("").Disk; used != 3<<30 {
			q.Errorf("got %d bytes counted, want those of the deleted sandbox too", used)
		}
		q.undelete(lifecycle.UndeleteIn{Name: "first"}, "")
		q.delete("first")
		q.make(one("c"))
		q.want(0, first, "")
		q.undelete(lifecycle.UndeleteIn{Name: "first"}, "no deleted sandbox")
		for range 12 {
			q.delete("c")
			q.make(lifecycle.CreateIn{Name: "c", Keep: true, DiskLimit: "16Mi"})
		}
		all, err := q.p.List(q.Context(), sandbox.Filter{})
		if err != nil {
			q.Fatal(err)
		}
		all = slices.DeleteFunc(all, func(sb sandbox.Sandbox) bool { return !strings.HasPrefix(sb.Spec.Name, "deleted-") })
		if len(all) != 10 {
			q.Errorf("got %d deleted sandboxes, want 10", len(all))
		}
	})
}
