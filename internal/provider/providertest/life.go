package providertest

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/providertest/payload"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func testDelete(s *suite) {
	s.wantErr("unknown", s.p.Delete(s.Context(), "sb-unknown"), sandbox.ErrNotFound)
	s.wantErr("a path", s.p.Delete(s.Context(), "../.."), sandbox.ErrNotFound)
	sb, other := s.create(s.spec("a")), s.create(s.spec("b"))
	s.must("delete", s.p.Delete, sb.ID)
	s.wantErr("twice", s.p.Delete(s.Context(), sb.ID), sandbox.ErrNotFound)
	_, err := s.p.Get(s.Context(), sb.ID)
	s.wantErr("get", err, sandbox.ErrNotFound)
	_, err = s.p.Endpoint(s.Context(), sb.ID, 0)
	s.wantErr("endpoint", err, sandbox.ErrNotFound)
	s.ask(other.ID, "/readyz")

	// Concurrently, and by callers that have canceled.
	canceled, cancel := context.WithCancel(s.Context())
	cancel()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ctx := s.Context()
			if i%2 == 0 {
				ctx = canceled
			}
			_ = s.p.Delete(ctx, other.ID)
		})
	}
	wg.Wait()
	if !testenv.Eventually(func() bool { return len(s.list(sandbox.Filter{})) == 0 }) {
		s.Error("the sandbox survived eight deletes")
	}
	s.empty()
}

func testDeleteStates(s *suite) {
	a := s.p.Abilities()
	if a.Pause {
		sb := s.create(s.spec("paused"))
		s.must("pause", s.p.Pause, sb.ID)
		s.must("delete paused", s.p.Delete, sb.ID)
	}
	if a.Stop {
		sb := s.create(s.spec("stopped"))
		s.must("stop", s.p.Stop, sb.ID)
		s.must("delete stopped", s.p.Delete, sb.ID)
	}
	sb := s.create(s.spec("failed"))
	s.exit(sb.ID, "1")
	s.must("delete failed", s.p.Delete, sb.ID)
	s.empty()
}

// exit ends the program inside and waits until the provider detects it.
func (s *suite) exit(id, code string) {
	s.Helper()
	_, _ = fetch(s.client(id, 0), http.MethodPost, "/exit/"+code, "")
	if !testenv.Eventually(func() bool { return s.get(id).State == sandbox.Failed }) {
		s.Fatalf("the program ended, but the sandbox is %s", s.get(id).State)
	}
}

func testPause(s *suite) {
	sb := s.create(s.spec("paused"))
	if !s.p.Abilities().Pause {
		s.wantErr("pause", s.p.Pause(s.Context(), sb.ID), sandbox.ErrUnsupported)
		return
	}
	s.wantErr("unknown", s.p.Pause(s.Context(), "sb-unknown"), sandbox.ErrNotFound)
	s.must("resume while running", s.p.Resume, sb.ID)
	s.put(sb.ID, "/disk/file", "kept")
	c := s.client(sb.ID, 0)
	_, _ = fetch(c, http.MethodGet, "/gap", "") // resets it

	s.must("pause", s.p.Pause, sb.ID)
	s.must("pause again", s.p.Pause, sb.ID)
	s.wantState(sb.ID, sandbox.Paused)
	// No response while paused; the request is answered after resume.
	const hold = 300 * time.Millisecond
	began, answer := time.Now(), make(chan string, 1)
	go func() { a, _ := fetch(c, http.MethodGet, "/gap", ""); answer <- a }()
	select {
	case a := <-answer:
		s.Errorf("a paused sandbox answered %q", a)
		answer <- a
	case <-time.After(hold):
	}
	s.must("resume", s.p.Resume, sb.ID)
	took := time.Since(began)
	s.wantState(sb.ID, sandbox.Running)
	if gap, _ := time.ParseDuration(<-answer); gap < hold/2 || gap > took+maxWait {
		s.Errorf("inside, the longest pause was %v of %v", gap, took)
	}
	if got := s.ask(sb.ID, "/disk/file"); got != "kept" {
		s.Errorf("the file after resume: got %q, want kept", got)
	}
	if s.p.Abilities().Stop {
		s.must("pause", s.p.Pause, sb.ID)
		s.wantErr("start while paused", s.p.Start(s.Context(), sb.ID), sandbox.ErrState)
		s.must("stop while paused", s.p.Stop, sb.ID)
		s.wantErr("pause while stopped", s.p.Pause(s.Context(), sb.ID), sandbox.ErrState)
		s.wantErr("resume while stopped", s.p.Resume(s.Context(), sb.ID), sandbox.ErrState)
	}
}

func testStop(s *suite) {
	sb := s.create(s.spec("stopped"))
	if !s.p.Abilities().Stop {
		s.wantErr("stop", s.p.Stop(s.Context(), sb.ID), sandbox.ErrUnsupported)
		return
	}
	s.wantErr("unknown", s.p.Stop(s.Context(), "sb-unknown"), sandbox.ErrNotFound)
	s.must("start while running", s.p.Start, sb.ID)
	s.put(sb.ID, "/disk/file", "kept")
	for range 2 {
		s.must("stop", s.p.Stop, sb.ID)
		s.must("stop again", s.p.Stop, sb.ID)
		s.wantState(sb.ID, sandbox.Stopped)
		_, err := s.p.Endpoint(s.Context(), sb.ID, 0)
		s.wantErr("endpoint while stopped", err, sandbox.ErrState)
		s.must("start", s.p.Start, sb.ID)
		s.wantState(sb.ID, sandbox.Running)
		if got := s.ask(sb.ID, "/disk/file"); got != "kept" {
			s.Errorf("the file after start: got %q, want kept", got)
		}
	}
}

func testExit(s *suite) {
	sb := s.create(s.spec("exits"))
	s.put(sb.ID, "/disk/file", "kept")
	s.exit(sb.ID, "7")
	if got := s.get(sb.ID); !bytes.Contains([]byte(got.Message), []byte("7")) {
		s.Errorf("message: got %q, want the exit status in it", got.Message)
	}
	_, err := s.p.Endpoint(s.Context(), sb.ID, 0)
	s.wantErr("endpoint", err, sandbox.ErrState)
	if s.p.Abilities().Stop {
		s.must("start", s.p.Start, sb.ID)
		if got := s.ask(sb.ID, "/disk/file"); got != "kept" || s.get(sb.ID).Message != "" {
			s.Errorf("after start: got file %q, message %q, want kept and none", got, s.get(sb.ID).Message)
		}
	}
}

func testLogs(s *suite) {
	l, ok := s.p.(sandbox.Logger)
	if !ok || !s.p.Abilities().Logs {
		s.Skip("no logs")
	}
	_, err := l.Logs(s.Context(), "sb-unknown", 10)
	s.wantErr("unknown", err, sandbox.ErrNotFound)
	sb := s.create(s.spec("talks"))
	if out, err := l.Logs(s.Context(), sb.ID, 1<<10); err != nil {
		s.Errorf("logs: got %q, %v", out, err)
	}
}

func testWatch(s *suite) {
	old := s.create(s.spec("old"))
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	events, err := s.p.Watch(ctx)
	if err != nil {
		s.Fatal(err)
	}
	sb := s.create(s.spec("new"))
	a := s.p.Abilities()
	want := []string{"created creating", "changed running"}
	if a.Pause {
		s.must("pause", s.p.Pause, sb.ID)
		s.must("resume", s.p.Resume, sb.ID)
		want = append(want, "changed paused", "changed running")
	}
	if a.Stop {
		s.must("stop", s.p.Stop, sb.ID)
		s.must("start", s.p.Start, sb.ID)
		want = append(want, "changed stopped", "changed running")
	}
	if _, err := s.p.Update(ctx, sb.ID, func(sp *sandbox.Spec) error { sp.Labels = map[string]string{"a": "b"}; return nil }); err != nil {
		s.Fatal(err)
	}
	s.must("delete", s.p.Delete, sb.ID)
	want = append(want, "changed running", "deleted deleting")

	var got []string
	first := true
	limit, end := context.WithTimeout(s.Context(), maxWait)
	defer end()
	for !slices.Contains(got, "deleted deleting") {
		select {
		case e, ok := <-events:
			if !ok {
				s.Fatalf("the watch ended after %q", got)
			}
			if first && (e.Kind != sandbox.Existing || e.Sandbox.ID != old.ID) {
				s.Errorf("the first event is %s of %s", e.Kind, e.Sandbox.Spec.Name)
			}
			first = false
			// Events about intermediate states are optional, events about the final states are required.
			if e.Sandbox.ID == sb.ID && (e.Kind != sandbox.Changed || e.Sandbox.State != sandbox.Creating && e.Sandbox.State != sandbox.Deleting) {
				got = append(got, string(e.Kind)+" "+string(e.Sandbox.State))
			}
			if e.Time.IsZero() {
				s.Errorf("event %s has no time", e.Kind)
			}
		case <-limit.Done():
			s.Fatalf("waited for the deletion, saw %q", got)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("events\n got %q\nwant %q", got, want)
	}
	cancel()
	if !testenv.Eventually(func() bool {
		select {
		case _, ok := <-events:
			return !ok
		default:
			return false
		}
	}) {
		s.Error("the watch outlives its context")
	}
}

func testClosed(s *suite) {
	sb := s.create(s.spec("lives-on"))
	events, err := s.p.Watch(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	ep, err := s.p.Endpoint(s.Context(), sb.ID, 0)
	if err != nil {
		s.Fatal(err)
	}
	old := s.p
	for range 2 {
		if err := old.Close(); err != nil {
			s.Errorf("close: %v", err)
		}
	}
	for range events { // ends
	}
	_, err = old.Create(s.Context(), s.spec("late"))
	s.wantErr("create", err, sandbox.ErrClosed)
	_, err = old.Get(s.Context(), sb.ID)
	s.wantErr("get", err, sandbox.ErrClosed)
	_, err = old.List(s.Context(), sandbox.Filter{})
	s.wantErr("list", err, sandbox.ErrClosed)
	s.wantErr("delete", old.Delete(s.Context(), sb.ID), sandbox.ErrClosed)
	_, err = old.Watch(s.Context())
	s.wantErr("watch", err, sandbox.ErrClosed)
	if c, err := ep.Dial(s.Context()); err == nil {
		c.Close()
	}
	s.open()
	s.ask(sb.ID, "/readyz")
}

func testStartFails(s *suite) {
	if !s.p.Abilities().Stop {
		s.Skip("no stop")
	}
	sb := s.create(s.spec("stays"))
	s.put(sb.ID, "/disk/file", "kept")
	s.must("stop", s.p.Stop, sb.ID)
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	s.wantErr("start with an ended context", s.p.Start(ctx, sb.ID), context.Canceled)
	s.wantState(sb.ID, sandbox.Stopped)
	s.must("start", s.p.Start, sb.ID)
	if got := s.ask(sb.ID, "/disk/file"); got != "kept" {
		s.Errorf("the file: got %q, want kept", got)
	}
}

func testExitEarly(s *suite) {
	spec := s.spec("exits")
	spec.Env = with(spec.Env, payload.Env, payload.Exit)
	spec.Server.ReadyTimeout = maxWait
	_, err := s.p.Create(s.Context(), spec)
	s.wantErr("create", err, sandbox.ErrNotReady)
	if err != nil && s.p.Abilities().Logs && !bytes.Contains([]byte(err.Error()), []byte(payload.LastWords)) {
		s.Errorf("got %v, want the last output of the program in it", err)
	}
	s.empty()
}
