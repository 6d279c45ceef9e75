package hub

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/e2b"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// ends returns how long from now the first policy applies to a sandbox, and its action.
func (q *quiet) ends(sb sandbox.Sandbox) (time.Duration, string) {
	q.Helper()
	o, err := q.lifecycle.Get(q.Context(), lifecycle.NameIn{Name: sb.Spec.Name})
	if err != nil {
		q.Fatal(err)
	}
	if o.EndsAt == nil {
		return 0, o.EndAction
	}
	return time.Until(*o.EndsAt), o.EndAction
}

func (q *quiet) wantEnds(sb sandbox.Sandbox, in time.Duration, action string) {
	q.Helper()
	if d, a := q.ends(sb); d != in || a != action {
		q.Errorf("ends in %v with %q, want %v and %q", d, a, in, action)
	}
}

// TestEarlierDeadline: the idle timeout can end a sandbox long before its timeout.
func TestEarlierDeadline(t *testing.T) {
	inBubble(t, func(q *quiet) {
		sb := q.make(lifecycle.CreateIn{Name: "a"})
		q.wantEnds(sb, 10*time.Minute, "delete")
		soon := q.make(lifecycle.CreateIn{Name: "b", Timeout: new(5.0), TimeoutPolicy: "pause"})
		q.wantEnds(soon, 5*time.Minute, "pause")
		never := q.make(lifecycle.CreateIn{Name: "c", Timeout: new(-1.0), IdleTimeout: new(-1.0)})
		q.wantEnds(never, 0, "")
		q.want(4*time.Minute, sb, sandbox.Running)
		q.wantEnds(sb, 6*time.Minute, "delete")
	})
}

// TestKeep: a sandbox that is kept for its owner loses only its processes when it is idle.
func TestKeep(t *testing.T) {
	const week = 7 * 24 * time.Hour
	inBubble(t, func(q *quiet) {
		sb := q.make(lifecycle.CreateIn{Name: "a", Keep: true})
		explicit := q.make(lifecycle.CreateIn{Name: "b", Keep: true, IdlePolicy: "delete"})
		q.wantEnds(sb, 10*time.Minute, "stop")
		q.want(11*time.Minute, sb, sandbox.Stopped)
		q.want(0, explicit, "")
		q.wantEnds(sb, week-time.Minute, "delete")
		q.want(3*24*time.Hour, sb, sandbox.Stopped)
		if _, err := q.lifecycle.Start(q.Context(), lifecycle.NameIn{Name: "a"}); err != nil {
			q.Fatal(err)
		}
		q.want(11*time.Minute, sb, sandbox.Stopped)
		q.want(week-2*time.Minute, sb, sandbox.Stopped)
		q.want(2*time.Minute, sb, "")
	})
}

// TestDeletedErrorStatesReason: for a day, a missing sandbox is not only missing.
func TestDeletedErrorStatesReason(t *testing.T) {
	inBubble(t, func(q *quiet) {
		made := map[string]sandbox.Sandbox{}
		for name, in := range map[string]lifecycle.CreateIn{
			"idle": {}, "expired": {Timeout: new(5.0)}, "request": {IdleTimeout: new(-1.0)},
		} {
			in.Name = name
			made[name] = q.make(in)
		}
		if _, err := q.lifecycle.Delete(q.Context(), lifecycle.NameIn{Name: "request"}); err != nil {
			q.Fatal(err)
		}
		find := func(name, want string) {
			q.Helper()
			if _, err := q.fleet.Find(q.Context(), name); err == nil || !strings.Contains(err.Error(), want) {
				q.Errorf("%s: got error %v, want one with %q", name, err, want)
			}
		}
		q.want(11*time.Minute, made["idle"], "")
		find("idle", "it was deleted on 1 Jan 2000 at 00:10 UTC, because it was not used for 10 minutes")
		find("expired", "its timeout was reached")
		find("request", "its owner requested it")
		find("other", "list sandboxes")
		q.want(24*time.Hour, made["idle"], "")
		find("idle", "list sandboxes")
	})
}

// TestUnenforcedLimits: a limit that the provider cannot enforce is rejected, and a default is not shown.
func TestUnenforcedLimits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "environments.json")
	if err := os.WriteFile(file, []byte(`[{"name":"small","cpu_limit":"500m","memory_limit":"64Mi","disk_limit":"1Gi"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	inBubbleWith(t, Config{Environments: file}, func(q *quiet) { // its provider limits only disks
		o := q.lifecycle.Show(q.Context(), q.make(lifecycle.CreateIn{Name: "a"}))
		if o.MemoryLimit != "" || o.CPULimit != "" || o.Memory == "" {
			q.Errorf("got limits %q and %q, want none", o.MemoryLimit, o.CPULimit)
		}
		for name, in := range map[string]lifecycle.CreateIn{"memory_limit": {MemoryLimit: "256Mi"}, "cpu_limit": {CPULimit: "500m"}} {
			if _, err := q.lifecycle.Make(q.Context(), in); err == nil || !strings.Contains(err.Error(), name+": provider pipe cannot limit") {
				q.Errorf("%s: got error %v, want it rejected", name, err)
			}
		}
		info, err := q.lifecycle.Info(q.Context(), op.None{})
		if d := info.Defaults; err != nil || d.CPULimit != "" || d.MemoryLimit != "" || d.Environment == "" {
			q.Errorf("got defaults %+v and error %v, want no limits of CPU and memory", d, err)
		}
		list, err := q.lifecycle.ListEnvironments(q.Context(), op.None{})
		small := slices.IndexFunc(list, func(e environment.Environment) bool { return e.Name == "small" })
		if err != nil || small < 0 || list[small].CPULimit != "" || list[small].MemoryLimit != "" || list[small].DiskLimit != "1Gi" {
			q.Errorf("got environments %+v and error %v, want small without limits of CPU and memory", list, err)
		}
		made, err := q.Hub.e2b.Create(q.Context(), e2b.CreateIn{TemplateID: "small"})
		if err != nil {
			q.Fatal(err)
		}
		got, err := q.Hub.e2b.Get(q.Context(), e2b.IDIn{ID: made.SandboxID})
		if err != nil || got.CPUs != 1 || got.MemoryMB != 0 || got.DiskMB != 1024 {
			q.Errorf("got %+v and error %v, want the machine's CPUs and memory, which are unknown, and the limit of disks", got.Listed, err)
		}
		templates, err := q.Hub.e2b.ListTemplates(q.Context(), e2b.TemplatesIn{})
		for _, template := range templates {
			if template.MemoryMB != 0 {
				q.Errorf("got template %+v, want no limit of memory", template)
			}
		}
		if err != nil {
			q.Error(err)
		}
	})
}
