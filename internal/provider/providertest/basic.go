package providertest

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// rich sets the fields that every provider must preserve.
func (s *suite) rich(name string) sandbox.Spec {
	spec := s.spec(name)
	spec.Owner = "ann"
	spec.Environment = "aio"
	spec.Env = with(spec.Env, "GREETING", "hello = world\nsecond line")
	spec.Ports = []int{3000, 8888}
	spec.Labels = map[string]string{"team": "red", "flag": ""}
	spec.Annotations = map[string]string{"hub": `{"last": "ever"}`}
	spec.Lifetime = sandbox.Lifetime{Timeout: time.Hour, IdleTimeout: sandbox.Never, IdlePolicy: sandbox.IdlePause}
	spec.Network = sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"example.com:443"}}
	return spec
}

func (s *suite) sameSpec(got, want sandbox.Spec) {
	s.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		s.Errorf("the spec changed (-want +got):\n%s", d)
	}
}

func testCreate(s *suite) {
	spec := s.rich("one")
	before := time.Now()
	sb := s.create(spec)
	s.sameSpec(sb.Spec, spec)
	if sb.State != sandbox.Running || sb.ID == "" || sb.Created.Before(before.Add(-time.Second)) || sb.Changed.Before(sb.Created) {
		s.Errorf("got %+v, want it running, with ID and times", sb)
	}
	if len(sb.Stages) == 0 {
		s.Error("no stage times")
	}
	for _, st := range sb.Stages {
		if st.Name == "" || st.Took < 0 {
			s.Errorf("stage %+v", st)
		}
	}
	if got := s.ask(sb.ID, "/env/GREETING"); got != spec.Env["GREETING"] {
		s.Errorf("GREETING inside: got %q, want %q", got, spec.Env["GREETING"])
	}
	if d := cmp.Diff(sb, s.get(sb.ID), cmpopts.EquateEmpty()); d != "" {
		s.Errorf("get differs from create:\n%s", d)
	}
}

func testUnnamed(s *suite) {
	a, b := s.create(s.spec("")), s.create(s.spec(""))
	if a.Spec.Name != a.ID || b.Spec.Name != b.ID || a.ID == b.ID {
		s.Errorf("got IDs %s and %s, names %s and %s, want the IDs as names", a.ID, b.ID, a.Spec.Name, b.Spec.Name)
	}
	if err := sandbox.CheckName(a.ID); err != nil {
		s.Errorf("the ID is no valid name: %v", err)
	}
}

func testBadSpecs(s *suite) {
	for what, change := range map[string]func(*sandbox.Spec){
		"name":      func(sp *sandbox.Spec) { sp.Name = "../../etc" },
		"long name": func(sp *sandbox.Spec) { sp.Name = strings.Repeat("x", sandbox.MaxName+1) },
		"env":       func(sp *sandbox.Spec) { sp.Env = map[string]string{"A=B": "c"} },
		"image":     func(sp *sandbox.Spec) { sp.Image = "x y" },
		"port":      func(sp *sandbox.Spec) { sp.Ports = []int{70000} },
		"volume":    func(sp *sandbox.Spec) { sp.Volumes = []sandbox.Volume{{Name: "v", Target: "/proc"}} },
	} {
		spec := s.spec("bad")
		change(&spec)
		_, err := s.p.Create(s.Context(), spec)
		s.wantErr(what, err, sandbox.ErrInvalid)
	}
	spec := s.spec("isolation")
	spec.Isolation = "wishful"
	_, err := s.p.Create(s.Context(), spec)
	s.wantErr("isolation", err, sandbox.ErrUnsupported)
	s.empty()
}

func testCollisions(s *suite) {
	first := s.create(s.rich("twin"))
	_, err := s.p.Create(s.Context(), s.rich("twin"))
	s.wantErr("same name", err, sandbox.ErrConflict)
	s.ask(first.ID, "/readyz")
	foreign := s.rich("twin")
	foreign.Owner = "bob"
	second := s.create(foreign)
	s.must("delete", s.p.Delete, first.ID)
	s.ask(second.ID, "/readyz")
	s.create(s.rich("twin"))

	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = s.p.Create(s.Context(), s.spec("race")) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			s.wantErr("loser of the race", err, sandbox.ErrConflict)
		}
	}
	if won != 1 {
		s.Errorf("%d creates of one name succeeded", won)
	}
}

func testList(s *suite) {
	_, err := s.p.Get(s.Context(), "sb-0000000000000000")
	s.wantErr("get unknown", err, sandbox.ErrNotFound)
	_, err = s.p.Get(s.Context(), "../../etc/passwd")
	s.wantErr("get a path", err, sandbox.ErrNotFound)
	if all := s.list(sandbox.Filter{}); len(all) != 0 {
		s.Errorf("a fresh provider lists %v", all)
	}
	a, b := s.create(s.rich("a")), s.create(s.spec("b"))
	names := func(f sandbox.Filter) (names []string) {
		for _, sb := range s.list(f) {
			names = append(names, sb.Spec.Name)
		}
		return names
	}
	for _, c := range []struct {
		what string
		f    sandbox.Filter
		want []string
	}{
		{"all", sandbox.Filter{}, []string{"a", "b"}},
		{"owner", sandbox.Filter{Owner: "ann"}, []string{"a"}},
		{"label", sandbox.Filter{Labels: map[string]string{"team": "red"}}, []string{"a"}},
		{"state", sandbox.Filter{States: []sandbox.State{sandbox.Paused}}, nil},
		{"name", sandbox.Filter{Name: "b"}, []string{"b"}},
	} {
		if got := names(c.f); !slices.Equal(got, c.want) {
			s.Errorf("list by %s: got %q, want %q", c.what, got, c.want)
		}
	}
	if a.ID == b.ID {
		s.Error("two sandboxes share an ID")
	}
}

func testCopies(s *suite) {
	spec := s.rich("copied")
	sb := s.create(spec)
	spec.Env["GREETING"], spec.Labels["team"], spec.Ports[0] = "x", "x", 1
	sb.Spec.Env["GREETING"], sb.Spec.Labels["team"], sb.Spec.Ports[0] = "x", "x", 1
	s.list(sandbox.Filter{})[0].Spec.Labels["team"] = "x"
	s.sameSpec(s.get(sb.ID).Spec, s.rich("copied"))
}

func testUpdate(s *suite) {
	a := s.create(s.rich("a"))
	s.create(s.rich("b"))
	update := func(change func(*sandbox.Spec)) error {
		_, err := s.p.Update(s.Context(), a.ID, func(sp *sandbox.Spec) error { change(sp); return nil })
		return err
	}
	s.wantErr("rename to a taken name", update(func(sp *sandbox.Spec) { sp.Name = "b" }), sandbox.ErrConflict)
	s.wantErr("bad name", update(func(sp *sandbox.Spec) { sp.Name = "B" }), sandbox.ErrInvalid)
	s.wantErr("fixed field", update(func(sp *sandbox.Spec) { sp.Command = []string{"/bin/other"} }), sandbox.ErrInvalid)
	refused := errors.New("refused by the caller")
	_, err := s.p.Update(s.Context(), a.ID, func(sp *sandbox.Spec) error { sp.Labels["team"] = "x"; return refused })
	s.wantErr("own error", err, refused)
	_, err = s.p.Update(s.Context(), "sb-unknown", func(*sandbox.Spec) error { return nil })
	s.wantErr("unknown", err, sandbox.ErrNotFound)
	s.sameSpec(s.get(a.ID).Spec, s.rich("a"))

	want := s.rich("claimed")
	want.Owner, want.Labels, want.Annotations = "bob", map[string]string{"x": "y"}, map[string]string{"n": "m"}
	want.Lifetime, want.Network = sandbox.Lifetime{Timeout: time.Minute}, sandbox.Network{Mode: sandbox.NetworkNone}
	got, err := s.p.Update(s.Context(), a.ID, func(sp *sandbox.Spec) error { *sp = want.Clone(); return nil })
	if err != nil {
		s.Fatal(err)
	}
	s.sameSpec(got.Spec, want)
	s.create(s.rich("a")) // the old name is free
	s.reopen()
	s.sameSpec(s.get(a.ID).Spec, want)

	// Concurrent updates are not lost.
	var wg sync.WaitGroup
	for _, k := range []string{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"} {
		wg.Go(func() {
			if err := update(func(sp *sandbox.Spec) { sp.Labels[k] = k }); err != nil {
				s.Errorf("update: %v", err)
			}
		})
	}
	wg.Wait()
	if n := len(s.get(a.ID).Spec.Labels); n != 9 {
		s.Errorf("got %d labels after 8 concurrent updates of one label each", n)
	}
}

func testEndpoint(s *suite) {
	spec := s.spec("served")
	spec.Env = with(spec.Env, "PAYLOAD_TCP", "127.0.0.1:9090")
	sb := s.create(spec)
	ep, err := s.p.Endpoint(s.Context(), sb.ID, 0)
	if err != nil {
		s.Fatal(err)
	}
	if ep.Address == "" {
		s.Error("the endpoint has no address to show")
	}
	for range 3 {
		s.ask(sb.ID, "/readyz")
	}
	for _, port := range []int{-1, 65536} {
		_, err := s.p.Endpoint(s.Context(), sb.ID, port)
		s.wantErr("bad port", err, sandbox.ErrInvalid)
	}
	_, err = s.p.Endpoint(s.Context(), "sb-unknown", 0)
	s.wantErr("unknown", err, sandbox.ErrNotFound)
	if !s.p.Abilities().AnyPort {
		_, err = s.p.Endpoint(s.Context(), sb.ID, 9090)
		s.wantErr("other port", err, sandbox.ErrUnsupported)
		return
	}
	if !testenv.Eventually(func() bool { _, err = fetch(s.client(sb.ID, 9090), "GET", "/readyz", ""); return err == nil }) {
		s.Errorf("port 9090: %v", err)
	}
	dead, err := s.p.Endpoint(s.Context(), sb.ID, 9)
	if err != nil {
		s.Fatal(err)
	}
	if c, err := dead.Dial(s.Context()); err == nil {
		c.Close()
		s.Error("connected to a closed port")
	}
}

func testAbilities(s *suite) {
	a := s.p.Abilities()
	if a.Provider == "" || len(a.Isolation) == 0 {
		s.Errorf("abilities: got %+v, want a provider and its isolation", a)
	}
	_, logs := s.p.(sandbox.Logger)
	_, stats := s.p.(sandbox.Stater)
	_, egress := s.p.(sandbox.Egresser)
	_, snap := s.p.(sandbox.Snapshotter)
	_, fork := s.p.(sandbox.Forker)
	_, diff := s.p.(sandbox.Differ)
	_, volume := s.p.(sandbox.Volumer)
	_, export := s.p.(sandbox.Exporter)
	for _, c := range []struct {
		what         string
		claimed, has bool
	}{{"logs", a.Logs, logs}, {"stats", a.Stats, stats}, {"egress", a.Egress, egress}, {"snapshot", a.Snapshot, snap}, {"fork", a.Fork, fork},
		{"diff", a.Diff, diff}, {"volume", a.Volume, volume}, {"export", a.Export, export}} {
		if c.claimed && !c.has {
			s.Errorf("ability %s: got true, want its methods", c.what)
		}
	}
	if !a.Snapshot {
		spec := s.spec("from-snapshot")
		spec.Snapshot = "some"
		_, err := s.p.Create(s.Context(), spec)
		s.wantErr("from a snapshot", err, sandbox.ErrUnsupported)
	}
	if !a.Image {
		spec := s.spec("from-image")
		spec.Image = "some"
		_, err := s.p.Create(s.Context(), spec)
		s.wantErr("from an image", err, sandbox.ErrUnsupported)
	}
}

func testStats(s *suite) {
	st, ok := s.p.(sandbox.Stater)
	if !ok || !s.p.Abilities().Stats {
		s.Skip("no stats")
	}
	_, err := st.Stats(s.Context(), "sb-unknown")
	s.wantErr("unknown", err, sandbox.ErrNotFound)
	sb := s.create(s.spec("measured"))
	got, err := st.Stats(s.Context(), sb.ID)
	if err != nil {
		s.Fatal(err)
	}
	if got.Time.IsZero() || got.Memory == 0 || got.Pids == 0 || got.OOMKills > 0 {
		s.Errorf("stats: got %+v, want a time, memory and processes, and no OOM kills", got)
	}
}

func testEgress(s *suite) {
	e, ok := s.p.(sandbox.Egresser)
	if !ok || !s.p.Abilities().Egress {
		s.Skip("no egress")
	}
	_, err := e.Egress(s.Context(), "sb-unknown")
	s.wantErr("unknown", err, sandbox.ErrNotFound)
	sb := s.create(s.spec("outgoing"))
	for round := range 3 { // also again, and after a restart
		if round == 2 {
			s.reopen()
			e = s.p.(sandbox.Egresser)
		}
		l, err := e.Egress(s.Context(), sb.ID)
		if err != nil {
			s.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- greet(l) }()
		if got := s.ask(sb.ID, "/egress"); got != "hello from outside" {
			s.Errorf("round %d: got %q inside, want %q", round, got, "hello from outside")
		}
		if err := <-done; err != nil {
			s.Errorf("round %d: %v", round, err)
		}
		l.Close()
	}
}

// testEgressOfDeleted opens the egress socket of a sandbox that is being deleted. The
// suite fails if that leaves anything.
func testEgressOfDeleted(s *suite) {
	e, ok := s.p.(sandbox.Egresser)
	if !ok || !s.p.Abilities().Egress {
		s.Skip("no egress")
	}
	sb := s.create(s.spec("leaving"))
	opened := make(chan struct{}, 1)
	ended := make(chan error)
	go func() {
		for {
			l, err := e.Egress(s.Context(), sb.ID)
			if err != nil {
				ended <- err
				return
			}
			l.Close()
			select {
			case opened <- struct{}{}:
			default:
			}
		}
	}()
	<-opened
	s.must("delete", s.p.Delete, sb.ID)
	err := <-ended
	if !errors.Is(err, sandbox.ErrNotFound) && !errors.Is(err, sandbox.ErrState) {
		s.Errorf("got %v, want %v or %v", err, sandbox.ErrNotFound, sandbox.ErrState)
	}
}

func greet(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	heard := make([]byte, len("hello from inside\n"))
	if _, err := io.ReadFull(c, heard); err != nil {
		return err
	}
	_, err = io.WriteString(c, "hello from outside")
	return err
}
