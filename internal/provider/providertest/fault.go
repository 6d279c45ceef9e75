package providertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// creating returns the ID of the sandbox that is being created under name.
func (s *suite) creating(events <-chan sandbox.Event, name string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), maxWait)
	defer cancel()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				s.Fatal("the watch ended")
			}
			if e.Sandbox.Spec.Name == name && e.Sandbox.State == sandbox.Creating {
				return e.Sandbox.ID
			}
		case <-ctx.Done():
			s.Fatalf("no event about the creation of %s", name)
		}
	}
}

func testCancel(s *suite) {
	events, err := s.p.Watch(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	// Early, before anything is made; then late, while the server is awaited.
	canceled, cancel := context.WithCancel(s.Context())
	cancel()
	_, err = s.p.Create(canceled, s.spec("early"))
	s.wantErr("create with an ended context", err, context.Canceled)

	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() { _, err := s.p.Create(ctx, s.never("late", maxWait)); failed <- err }()
	id := s.creating(events, "late")
	s.wantState(id, sandbox.Creating)
	for what, call := range map[string]func(context.Context, string) error{"pause": s.p.Pause, "stop": s.p.Stop, "start": s.p.Start} {
		if err := call(s.Context(), id); !errors.Is(err, sandbox.ErrState) && !errors.Is(err, sandbox.ErrUnsupported) {
			s.Errorf("%s while creating: %v, want %v", what, err, sandbox.ErrState)
		}
	}
	cancel()
	s.wantErr("create", <-failed, context.Canceled)
	s.empty()
	s.create(s.spec("late"))
}

func testDeleteCreating(s *suite) {
	events, err := s.p.Watch(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { _, err := s.p.Create(s.Context(), s.never("doomed", maxWait)); failed <- err }()
	s.must("delete", s.p.Delete, s.creating(events, "doomed"))
	if err := <-failed; err == nil {
		s.Error("create succeeded although the sandbox was deleted")
	}
	s.empty()
}

func testNeverReady(s *suite) {
	// The spec's own deadline, then the caller's. On a busy machine the server may not have answered by then.
	var err error
	for timeout := 2 * time.Second; timeout <= maxWait && (err == nil || !strings.Contains(err.Error(), "503")); timeout *= 3 {
		_, err = s.p.Create(s.Context(), s.never("slow", timeout))
		s.wantErr("create", err, sandbox.ErrNotReady)
		s.empty()
	}
	if err != nil && !strings.Contains(err.Error(), "503") {
		s.Errorf("got %v, want the answer of the server in it", err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = s.p.Create(ctx, s.never("slow", maxWait))
	s.wantErr("create", err, context.DeadlineExceeded)
	s.empty()
	s.create(s.spec("slow"))
}

func testCrowd(s *suite) {
	n := cmp.Or(s.h.Crowd, 100)
	var wg sync.WaitGroup
	ids := make([]string, n)
	for i := range ids {
		wg.Go(func() {
			name := fmt.Sprintf("crowd-%d", i)
			spec := s.spec(name)
			spec.Env = with(spec.Env, "WHO", name)
			sb, err := s.p.Create(s.Context(), spec)
			if err != nil {
				s.Errorf("create %s: %v", name, err)
				return
			}
			ids[i] = sb.ID
			if got, err := s.try(sb.ID, "/env/WHO"); got != name {
				s.Errorf("%s is %q inside, %v", name, got, err)
			}
		})
	}
	wg.Wait()
	if s.Failed() {
		return
	}
	if got := len(s.list(sandbox.Filter{States: []sandbox.State{sandbox.Running}})); got != n {
		s.Errorf("%d of %d are running", got, n)
	}
	for _, id := range ids {
		wg.Go(func() {
			if err := s.p.Delete(s.Context(), id); err != nil {
				s.Errorf("delete: %v", err)
			}
		})
	}
	wg.Wait()
	s.empty()
}

func testReopen(s *suite) {
	sb := s.create(s.rich("kept"))
	s.put(sb.ID, "/disk/file", "kept")
	s.reopen()
	s.checkAdopted("kept", sandbox.Running)
	got := s.get(sb.ID)
	s.sameSpec(got.Spec, s.rich("kept"))
	if !got.Created.Equal(sb.Created) || len(got.Stages) != len(sb.Stages) {
		s.Errorf("got created %v with %d stages, want %v with %d", got.Created, len(got.Stages), sb.Created, len(sb.Stages))
	}
	if file := s.ask(sb.ID, "/disk/file"); file != "kept" {
		s.Errorf("the file: got %q, want kept", file)
	}
	_, err := s.p.Create(s.Context(), s.rich("kept"))
	s.wantErr("the name is still taken", err, sandbox.ErrConflict)
}

func testAdopt(s *suite) {
	a := s.p.Abilities()
	if err := s.p.Close(); err != nil {
		s.Fatal(err)
	}
	specs := []sandbox.Spec{s.rich("running"), s.spec("other")}
	if a.Pause {
		specs = append(specs, s.spec("paused"))
	}
	if a.Stop {
		specs = append(specs, s.spec("stopped"))
	}
	s.h.CreateAndDie(s.T, specs)
	s.open()
	if got := len(s.list(sandbox.Filter{})); got != len(specs) {
		s.Errorf("%d of %d sandboxes were adopted", got, len(specs))
	}
	s.checkAdopted("running", sandbox.Running)
	s.sameSpec(s.byName("running").Spec, s.rich("running"))
	s.checkAdopted("other", sandbox.Running)
	if a.Pause {
		s.checkAdopted("paused", sandbox.Paused)
	}
	if a.Stop {
		s.checkAdopted("stopped", sandbox.Stopped)
	}
	// The end of an adopted program is noticed like that of a child.
	s.exit(s.byName("other").ID, "5")
	if m := s.byName("other").Message; !strings.Contains(m, "5") {
		s.Errorf("message: got %q, want the exit status in it", m)
	}
}

// checkAdopted brings the sandbox to life, uses it, and puts it through its states.
func (s *suite) checkAdopted(name string, want sandbox.State) {
	s.Helper()
	sb := s.byName(name)
	if sb.State != want {
		s.Fatalf("%s is %s", name, sb.State)
	}
	switch want {
	case sandbox.Paused:
		s.must("resume", s.p.Resume, sb.ID)
	case sandbox.Stopped:
		s.must("start", s.p.Start, sb.ID)
	}
	s.ask(sb.ID, "/readyz")
	a := s.p.Abilities()
	if a.Pause {
		s.must("pause", s.p.Pause, sb.ID)
		s.must("resume", s.p.Resume, sb.ID)
	}
	if a.Stop && want != sandbox.Running {
		s.must("stop", s.p.Stop, sb.ID)
		s.must("start", s.p.Start, sb.ID)
	}
	s.ask(sb.ID, "/readyz")
}

func testHalfMade(s *suite) {
	s.create(s.spec("whole"))
	if err := s.p.Close(); err != nil {
		s.Fatal(err)
	}
	s.h.DieCreating(s.T, s.never("half", maxWait))
	s.open()
	s.checkAdopted("whole", sandbox.Running)
	if all := s.list(sandbox.Filter{}); len(all) != 1 {
		s.Errorf("%d sandboxes are left, want only the whole one", len(all))
	}
	s.create(s.spec("half"))
}

func testTwo(s *suite) {
	sb := s.create(s.spec("mine"))
	if p, err := s.h.Open(); !errors.Is(err, sandbox.ErrInUse) {
		s.Errorf("a second provider was let in: %v, want %v", err, sandbox.ErrInUse)
		if err == nil {
			p.Close()
		}
	}
	s.ask(sb.ID, "/readyz")
	s.reopen()
	s.ask(sb.ID, "/readyz")
}
