package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestClaim: a claimed member matches the request in every field, and is replaced.
func TestClaim(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.filled(2)
	before := r.members()
	b := binding("a", func(s *sandbox.Spec) {
		delete(s.Env, "OLD")
		s.Env["NEW"] = "y"
		s.Labels = map[string]string{"l": "1"}
		s.Annotations = map[string]string{"cove/app": "text"}
		s.Resources.CPU, s.Workdir = 200, "/tmp"
		s.Network = sandbox.Network{Mode: sandbox.NetworkNone}
		s.Lifetime = sandbox.Lifetime{Timeout: time.Minute, IdleTimeout: time.Second, IdlePolicy: sandbox.IdleStop}
	})
	b.Env = map[string]string{"TOKEN": "hush"}
	start := time.Now()
	sb, ok, err := r.pool.Claim(t.Context(), "e", "1", b)
	if err != nil || !ok || !slices.Contains(before, sb.ID) {
		t.Fatalf("got %+v %v %v, want one of %q", sb, ok, err, before)
	}
	if at := pool.Created(sb); at.Before(start) || at.After(time.Now()) || pool.Hidden(sb) {
		t.Errorf("created %v, hidden %v", at, pool.Hidden(sb))
	}
	kept, err := r.p.Get(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sb, kept); diff != "" {
		t.Errorf("got %v, want no difference", diff)
	}
	for k, v := range sb.Spec.Annotations {
		if strings.Contains(k+v, "pool") {
			t.Errorf(`a mark is left: got %s=%s, want none with "pool"`, k, v)
		}
	}
	got := sb.Spec
	delete(got.Annotations, "cove/claimed")
	// Fields that a provider cannot change keep the member's values.
	want := b.Spec
	want.Env, want.Workdir = got.Env, got.Workdir
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("got %v, want no difference", diff)
	}
	if strings.Contains(fmt.Sprint(sb), "hush") {
		t.Error("the record contains a secret")
	}
	in := r.guest(sb.ID).settings()
	if diff := cmp.Diff(map[string]string{"BASE": "1", "NEW": "y", "TOKEN": "hush"}, in.Env); diff != "" {
		t.Errorf("got %v, want no difference", diff)
	}
	if !slices.Contains(in.Unset, "OLD") || in.Workdir != "/tmp" {
		t.Errorf(`got %+v, want unset with "OLD" and workdir "/tmp"`, in)
	}
	r.filled(2)
	if slices.Contains(r.members(), sb.ID) {
		t.Error("the claimed sandbox is still a member")
	}
}

// TestHundredClaims: each of 20 members is claimed once, and the other claims do not wait.
func TestHundredClaims(t *testing.T) {
	t.Parallel()
	r := newRig(t, 20)
	r.filled(20)
	r.busy.Store(true)
	var mu sync.Mutex
	given, cold := map[string]string{}, 0
	var wait sync.WaitGroup
	for i := range 100 {
		wait.Go(func() {
			name := fmt.Sprintf("n%d", i)
			sb, ok, err := r.pool.Claim(context.Background(), "e", "1", binding(name, func(s *sandbox.Spec) { s.Env["ME"] = name }))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !ok {
				cold++
				return
			}
			if other, twice := given[sb.ID]; twice {
				t.Errorf("%s was claimed by %s and %s", sb.ID, other, name)
			}
			given[sb.ID] = name
		})
	}
	wait.Wait()
	if len(given) != 20 || cold != 80 {
		t.Errorf("%d warm, %d cold", len(given), cold)
	}
	for id, name := range given {
		sb, err := r.p.Get(t.Context(), id)
		if got := r.guest(id).settings(); err != nil || sb.Spec.Name != name || got.Env["ME"] != name {
			t.Errorf("%s is %s with ME=%s: %v", name, sb.Spec.Name, got.Env["ME"], err)
		}
	}
	r.busy.Store(false)
	r.filled(20)
}

// TestClaimsDuringRefill: members that are created during claims are claimed once each, and
// none is lost.
func TestClaimsDuringRefill(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	var mu sync.Mutex
	given := map[string]bool{}
	var wait sync.WaitGroup
	for i := range 6 {
		wait.Go(func() {
			for j := 0; j < 10; {
				sb, ok, err := r.pool.Claim(context.Background(), "e", "1", binding(fmt.Sprintf("n%d-%d", i, j)))
				if err != nil {
					t.Error(err)
					return
				}
				if !ok {
					continue
				}
				j++
				mu.Lock()
				if given[sb.ID] {
					t.Errorf("%s was claimed twice", sb.ID)
				}
				given[sb.ID] = true
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	r.filled(4)
	r.mu.Lock()
	defer r.mu.Unlock()
	if made := len(r.guests); made != 64 {
		t.Errorf("%d were created for 60 claims and a pool of 4", made)
	}
}

// TestCold: a request that no member matches falls back to a create and uses no member.
func TestCold(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.filled(1)
	before := r.members()
	for name, change := range map[string]func(*sandbox.Spec){
		"image":       func(s *sandbox.Spec) { s.Image = "other" },
		"args":        func(s *sandbox.Spec) { s.Args = []string{"-x"} },
		"ports":       func(s *sandbox.Spec) { s.Ports = []int{80} },
		"volume":      func(s *sandbox.Spec) { s.Volumes = []sandbox.Volume{{Name: "v", Target: "/data"}} },
		"snapshot":    func(s *sandbox.Spec) { s.Snapshot = "s" },
		"disk":        func(s *sandbox.Spec) { s.Resources.Disk = 2 << 30 },
		"files":       func(s *sandbox.Spec) { s.Resources.Files = 100 },
		"environment": func(s *sandbox.Spec) { s.Environment = "f" },
		"invalid":     func(s *sandbox.Spec) { s.Labels = map[string]string{"-": ""} },
	} {
		if sb, ok, err := r.pool.Claim(t.Context(), "e", "1", binding("a", change)); ok || err != nil {
			t.Errorf("%s: got %+v %v %v, want no sandbox and no error", name, sb, ok, err)
		}
	}
	if _, ok, err := r.pool.Claim(t.Context(), "e", "0", binding("a")); ok || err != nil {
		t.Errorf("another definition: got %v %v, want no sandbox and no error", ok, err)
	}
	if _, ok, err := r.pool.Claim(t.Context(), "other", "1", binding("a")); ok || err != nil {
		t.Errorf("another environment: got %v %v, want no sandbox and no error", ok, err)
	}
	// A name that is in use returns a conflict, as with a create.
	if _, err := r.p.Create(t.Context(), sandbox.Spec{Name: "a", Owner: "ann"}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := r.pool.Claim(t.Context(), "e", "1", binding("a")); ok || !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("got %v %v, want no sandbox and sandbox.ErrConflict", ok, err)
	}
	r.filled(1)
	if diff := cmp.Diff(before, r.members()); diff != "" {
		t.Errorf("got %v, want no difference", diff)
	}
	if sb, ok, err := r.pool.Claim(t.Context(), "e", "1", binding("")); !ok || err != nil || sb.Spec.Name != sb.ID {
		t.Errorf("without a name: got %+v %v %v, want a sandbox with its ID as name", sb, ok, err)
	}
}

// TestFailedClaim: a member that fails is deleted, its name is free, and the next member is tried.
func TestFailedClaim(t *testing.T) {
	t.Parallel()
	var failures atomic.Int64
	broken := errors.New("broken")
	r := newRig(t, 4, func(c *pool.Config) {
		real := c.Bind
		c.Bind = func(ctx context.Context, sb sandbox.Sandbox, in pool.Init) error {
			if failures.Add(-1) >= 0 {
				return broken
			}
			return real(ctx, sb, in)
		}
	})
	r.filled(4)
	r.busy.Store(true)
	failures.Store(2)
	sb, ok, err := r.pool.Claim(t.Context(), "e", "1", binding("a"))
	if !ok || err != nil {
		t.Fatalf("got %v %v, want ok", ok, err)
	}
	r.filled(1)
	// The server rejects the request. All other members would too, so none is tried.
	r.fault.Store(&op.Error{Code: op.Invalid, Msg: "no"})
	r.busy.Store(false)
	r.filled(4)
	r.busy.Store(true)
	if _, ok, err := r.pool.Claim(t.Context(), "e", "1", binding("b")); ok || err != nil {
		t.Errorf("got %v %v, want no sandbox and no error", ok, err)
	}
	r.filled(3)
	// The caller cancels during the claim.
	r.fault.Store(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok, err := r.pool.Claim(ctx, "e", "1", binding("c")); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v %v, want no sandbox and context.Canceled", ok, err)
	}
	testenv.Poll(t, "only the claimed one has an owner", func() bool {
		list, err := r.p.List(t.Context(), sandbox.Filter{Owner: "ann"})
		return err == nil && len(list) == 1 && list[0].ID == sb.ID
	})
}

// TestDrain: members are deleted if their definition changed, if there are too many, or if they are dead or old.
func TestDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.filled(3)
	first := r.members()
	r.want(3, "2")
	testenv.Poll(t, "all are of the new definition", func() bool {
		now := r.members()
		return len(now) == 3 && r.pool.Ready()["e"] == 3 && !slices.ContainsFunc(now, func(id string) bool { return slices.Contains(first, id) })
	})
	r.want(1, "2")
	r.filled(1)
	last := r.members()
	r.guest(last[0]).exit(1)
	testenv.Poll(t, "the dead one is replaced", func() bool {
		now := r.members()
		return len(now) == 1 && now[0] != last[0] && r.pool.Ready()["e"] == 1
	})
	r.mu.Lock()
	delete(r.wants, "e")
	r.mu.Unlock()
	r.filled(0)
}

func TestOldMembersAreReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, func(c *pool.Config) { c.Age = 50 * time.Millisecond })
	var first []string // read once, because a member may be deleted afterwards
	testenv.Poll(t, "there are two", func() bool { first = r.members(); return len(first) == 2 })
	testenv.Poll(t, "both are new", func() bool {
		now := r.members()
		return len(now) == 2 && !slices.Contains(now, first[0]) && !slices.Contains(now, first[1])
	})
}

// TestRestart: the next pool adopts the members of the previous one. A member that was being bound when the pool was
// killed is never claimed, and its name is free.
func TestRestart(t *testing.T) {
	t.Parallel()
	reached, never := make(chan sandbox.Sandbox, 1), make(chan struct{})
	var stuck atomic.Bool
	r := newRig(t, 3, func(c *pool.Config) {
		real := c.Bind
		c.Bind = func(ctx context.Context, sb sandbox.Sandbox, in pool.Init) error {
			if !stuck.Load() {
				return real(ctx, sb, in)
			}
			err := real(ctx, sb, in)
			reached <- sb
			<-never
			return err
		}
	})
	r.filled(3)
	r.busy.Store(true)
	stuck.Store(true)
	done := make(chan error, 1)
	go func() {
		_, _, err := r.pool.Claim(context.Background(), "e", "1", binding("a", func(s *sandbox.Spec) { s.Env["WHOSE"] = "a" }))
		done <- err
	}()
	half := <-reached
	if !pool.Hidden(half) || r.guest(half.ID).settings().Env["WHOSE"] != "a" {
		t.Errorf("got %+v, want a hidden member although its server is bound", half)
	}
	before := r.members()
	r.p.Abandon()
	r.pool.Close()
	close(never)
	<-done
	r.open()
	if diff := cmp.Diff(before, r.members()); diff != "" || r.pool.Ready()["e"] != 3 {
		t.Errorf("got %s %v, want the three members", diff, r.pool.Ready())
	}
	stuck.Store(false)
	for _, name := range []string{"a", "b"} { // one of the claims gets the member that is already bound
		sb, ok, err := r.pool.Claim(t.Context(), "e", "1", binding(name, func(s *sandbox.Spec) { s.Env["WHOSE"] = "other" }))
		if !ok || err != nil || !slices.Contains(before, sb.ID) || sb.ID == half.ID || r.guest(sb.ID).settings().Env["WHOSE"] != "other" {
			t.Errorf("%s: got %v %v %v, want another member", name, sb.ID, ok, err)
		}
	}
	if _, ok, err := r.pool.Claim(t.Context(), "e", "1", binding("c")); ok || err != nil {
		t.Errorf("got %v, %v, want no member left", ok, err)
	}
	testenv.Poll(t, "the member that was bound is deleted", func() bool {
		_, err := r.p.Get(t.Context(), half.ID)
		return errors.Is(err, sandbox.ErrNotFound)
	})
}

// TestSameName: of two concurrent claims of one name, one succeeds. A claim of a name in use uses no member.
func TestSameName(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	r.filled(4)
	r.busy.Store(true)
	var won, lost atomic.Int64
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			switch _, ok, err := r.pool.Claim(context.Background(), "e", "1", binding("a")); {
			case ok && err == nil:
				won.Add(1)
			case !ok && errors.Is(err, sandbox.ErrConflict):
				lost.Add(1)
			default:
				t.Errorf("got %v, %v", ok, err)
			}
		})
	}
	wait.Wait()
	if won.Load() != 1 || lost.Load() != 1 {
		t.Errorf("%d succeeded and %d failed, want one each", won.Load(), lost.Load())
	}
	testenv.Poll(t, "the members of the loser are deleted", func() bool { return len(r.members()) == r.pool.Ready()["e"] })
	ready := r.pool.Ready()["e"]
	if _, ok, err := r.pool.Claim(t.Context(), "e", "1", binding("a")); ok || !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("got %v, %v, want a conflict", ok, err)
	}
	r.filled(ready)
}
