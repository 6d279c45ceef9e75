package providertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/providertest/payload"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// snapshotter skips the case if the provider has no snapshots.
func (s *suite) snapshotter() sandbox.Snapshotter {
	sn, ok := s.p.(sandbox.Snapshotter)
	if !ok || !s.p.Abilities().Snapshot {
		s.Skip("no snapshots")
	}
	return sn
}

// still stops the sandbox if the provider can copy only stopped ones.
func (s *suite) still(id string) (again func()) {
	s.Helper()
	if s.p.Abilities().Pause || s.get(id).State != sandbox.Running {
		return func() {}
	}
	s.must("stop", s.p.Stop, id)
	return func() { s.Helper(); s.must("start", s.p.Start, id) }
}

func (s *suite) snap(id, name string) sandbox.Snapshot {
	s.Helper()
	defer s.still(id)()
	got, err := s.snapshotter().Snapshot(s.Context(), id, name)
	if err != nil {
		s.Fatalf("snapshot %s: %v", name, err)
	}
	return got
}

func (s *suite) fork(id string, specs ...sandbox.Spec) ([]sandbox.Sandbox, error) {
	s.Helper()
	f, ok := s.p.(sandbox.Forker)
	if !ok || !s.p.Abilities().Fork {
		s.Skip("no forks")
	}
	defer s.still(id)()
	return f.Fork(s.Context(), id, specs)
}

// from returns a spec that starts from a snapshot.
func (s *suite) from(name, snapshot string) sandbox.Spec {
	spec := s.spec(name)
	spec.Snapshot = snapshot
	return spec
}

func (s *suite) wantFile(id, file, want string) {
	s.Helper()
	if got := s.ask(id, "/disk/"+file); got != want {
		s.Errorf("%s of %s contains %q, want %q", file, s.get(id).Spec.Name, got, want)
	}
}

func (s *suite) wantSnapshots(owner string, want ...string) {
	s.Helper()
	all, err := s.snapshotter().Snapshots(s.Context(), owner)
	if err != nil {
		s.Fatal(err)
	}
	var got []string
	for _, sn := range all {
		got = append(got, sn.Owner+"/"+sn.Name)
	}
	if !slices.Equal(got, want) {
		s.Errorf("snapshots of %q are %q, want %q", owner, got, want)
	}
}

func testSnapshot(s *suite) {
	sn := s.snapshotter()
	spec := s.spec("origin")
	spec.Owner = "ann"
	sb := s.create(spec)
	s.put(sb.ID, "/disk/file", "one")
	first := s.snap(sb.ID, "first")
	if first.Name != "first" || first.Owner != "ann" || first.Sandbox != sb.ID || first.Parent != "" ||
		first.Created.IsZero() || first.Size <= 0 {
		s.Errorf("got %+v, want the first snapshot of ann's %s", first, sb.ID)
	}
	s.put(sb.ID, "/disk/file", "two")
	s.wantState(sb.ID, sandbox.Running)

	_, err := sn.Snapshot(s.Context(), "sb-unknown", "x")
	s.wantErr("unknown", err, sandbox.ErrNotFound)
	_, err = sn.Snapshot(s.Context(), sb.ID, "first")
	s.wantErr("twice", err, sandbox.ErrConflict)
	_, err = sn.Snapshot(s.Context(), sb.ID, "../x")
	s.wantErr("bad name", err, sandbox.ErrInvalid)
	s.wantErr("delete another's", sn.DeleteSnapshot(s.Context(), "bob", "first"), sandbox.ErrNoSnapshot)
	_, err = s.p.Create(s.Context(), s.from("thief", "first"))
	s.wantErr("create from another's", err, sandbox.ErrNoSnapshot)
	if !errors.Is(sandbox.ErrNoSnapshot, sandbox.ErrNotFound) {
		s.Error("a missing snapshot is not something that is not found")
	}

	spec = s.from("copy", "first")
	spec.Owner = "ann"
	second := s.create(spec)
	s.sameSpec(second.Spec, spec)
	s.wantFile(second.ID, "file", "one")
	s.wantFile(sb.ID, "file", "two")
	s.put(second.ID, "/disk/file", "three")
	if got := s.snap(second.ID, "second"); got.Parent != "first" {
		s.Errorf("parent of the second snapshot: got %q, want first", got.Parent)
	}
	s.wantSnapshots("ann", "ann/first", "ann/second")
	s.wantSnapshots("bob")

	// Snapshots below can be deleted; sandboxes based on them are kept.
	s.must("delete", s.p.Delete, sb.ID)
	if err := sn.DeleteSnapshot(s.Context(), "ann", "first"); err != nil {
		s.Fatal(err)
	}
	s.wantErr("delete twice", sn.DeleteSnapshot(s.Context(), "ann", "first"), sandbox.ErrNoSnapshot)
	s.wantFile(second.ID, "file", "three")
	s.must("delete", s.p.Delete, second.ID)
	s.reopen()
	s.wantSnapshots("", "ann/second")
	spec.Snapshot, spec.Name = "second", "third"
	s.wantFile(s.create(spec).ID, "file", "three")
}

func testSnapshotStates(s *suite) {
	sn := s.snapshotter()
	sb := s.create(s.spec("origin"))
	s.put(sb.ID, "/disk/file", "one")
	for _, to := range []struct {
		name  string
		can   bool
		enter func(context.Context, string) error
		leave func(context.Context, string) error
		state sandbox.State
	}{
		{"paused", s.p.Abilities().Pause, s.p.Pause, s.p.Resume, sandbox.Paused},
		{"stopped", s.p.Abilities().Stop, s.p.Stop, s.p.Start, sandbox.Stopped},
	} {
		if !to.can {
			continue
		}
		s.must(to.name, to.enter, sb.ID)
		if _, err := sn.Snapshot(s.Context(), sb.ID, to.name); err != nil {
			s.Fatalf("snapshot while %s: %v", to.name, err)
		}
		s.wantState(sb.ID, to.state)
		s.must("leave "+to.name, to.leave, sb.ID)
		s.put(sb.ID, "/disk/file", "two")
		copied := s.create(s.from("", to.name))
		s.wantFile(copied.ID, "file", "one")
		s.must("delete", s.p.Delete, copied.ID)
		s.put(sb.ID, "/disk/file", "one")
	}
	// A canceled call leaves no snapshot or a complete one.
	canceled, cancel := context.WithCancel(s.Context())
	cancel()
	if _, err := sn.Snapshot(canceled, sb.ID, "late"); err == nil {
		s.Error("a canceled snapshot succeeded")
	}
	s.wantState(sb.ID, sandbox.Running)
}

func testRollback(s *suite) {
	sn := s.snapshotter()
	spec := s.rich("steady")
	sb := s.create(spec)
	s.put(sb.ID, "/disk/file", "one")
	s.snap(sb.ID, "first")
	s.wantErr("no such snapshot", sn.Rollback(s.Context(), sb.ID, "other"), sandbox.ErrNoSnapshot)
	s.wantErr("no such sandbox", sn.Rollback(s.Context(), "sb-unknown", "first"), sandbox.ErrNotFound)
	for _, before := range []func(){
		func() {},
		func() { s.must("stop", s.p.Stop, sb.ID) },
		func() { s.exit(sb.ID, "1") },
	} {
		s.put(sb.ID, "/disk/file", "two")
		s.put(sb.ID, "/disk/more", "x")
		before()
		if err := sn.Rollback(s.Context(), sb.ID, "first"); err != nil {
			s.Fatal(err)
		}
		got := s.get(sb.ID)
		if got.State != sandbox.Running || got.Message != "" || !got.Created.Equal(sb.Created) {
			s.Errorf("got %+v, want it running, created %v", got, sb.Created)
		}
		s.sameSpec(got.Spec, sb.Spec)
		s.wantFile(sb.ID, "file", "one")
		if out, err := s.try(sb.ID, "/disk/more"); err == nil {
			s.Errorf("a later file: got %q, want none", out)
		}
	}
	// A sandbox does not depend on its snapshot.
	if err := sn.DeleteSnapshot(s.Context(), sb.Spec.Owner, "first"); err != nil {
		s.Fatal(err)
	}
	s.reopen()
	s.must("stop", s.p.Stop, sb.ID)
	s.must("start", s.p.Start, sb.ID)
	s.wantFile(sb.ID, "file", "one")
}

func testFork(s *suite) {
	sb := s.create(s.spec("origin"))
	s.put(sb.ID, "/disk/file", "one")
	specs := []sandbox.Spec{s.spec("fork-0"), s.rich("fork-1"), s.spec("fork-2")}
	forks, err := s.fork(sb.ID, specs...)
	if err != nil {
		s.Fatal(err)
	}
	s.put(sb.ID, "/disk/file", "two")
	for i, f := range forks {
		if f.State != sandbox.Running {
			s.Errorf("fork %d is %s", i, f.State)
		}
		s.sameSpec(f.Spec, specs[i])
		s.wantFile(f.ID, "file", "one")
		s.put(f.ID, "/disk/file", fmt.Sprint("fork ", i))
	}
	s.wantFile(sb.ID, "file", "two")
	// A fork of a fork outlives both.
	again, err := s.fork(forks[0].ID, s.spec("again"))
	if err != nil {
		s.Fatal(err)
	}
	s.must("delete", s.p.Delete, sb.ID)
	s.must("delete", s.p.Delete, forks[0].ID)
	s.wantFile(forks[1].ID, "file", "fork 1")
	s.reopen()
	s.must("stop", s.p.Stop, again[0].ID)
	s.must("start", s.p.Start, again[0].ID)
	s.wantFile(again[0].ID, "file", "fork 0")
}

func testForkFails(s *suite) {
	sb := s.create(s.spec("origin"))
	sick := s.spec("sick")
	sick.Env = with(sick.Env, payload.Env, payload.Exit)
	for _, c := range []struct {
		what  string
		specs []sandbox.Spec
		want  error
	}{
		{"none", nil, sandbox.ErrInvalid},
		{"too many", make([]sandbox.Spec, sandbox.MaxForks+1), sandbox.ErrInvalid},
		{"bad spec", []sandbox.Spec{s.spec("a"), s.spec("../b")}, sandbox.ErrInvalid},
		{"taken name", []sandbox.Spec{s.spec("a"), s.spec("b"), s.spec("origin")}, sandbox.ErrConflict},
		{"never ready", []sandbox.Spec{s.spec("a"), sick, s.spec("b")}, sandbox.ErrNotReady},
	} {
		_, err := s.fork(sb.ID, c.specs...)
		s.wantErr(c.what, err, c.want)
		if all := s.list(sandbox.Filter{}); len(all) != 1 {
			s.Errorf("%s: %d sandboxes are left", c.what, len(all))
		}
	}
	f := s.p.(sandbox.Forker)
	_, err := f.Fork(s.Context(), "sb-unknown", []sandbox.Spec{s.spec("a")})
	s.wantErr("unknown", err, sandbox.ErrNotFound)
	s.ask(sb.ID, "/readyz")
}

func testDiff(s *suite) {
	d, ok := s.p.(sandbox.Differ)
	if !ok || !s.p.Abilities().Diff {
		s.Skip("no diff")
	}
	_, err := d.Diff(s.Context(), "sb-unknown", 10)
	s.wantErr("unknown", err, sandbox.ErrNotFound)
	diff := func(id string, limit int) (got []string, more bool) {
		s.Helper()
		all, err := d.Diff(s.Context(), id, limit)
		if err != nil {
			s.Fatal(err)
		}
		for _, c := range all.Changes {
			got = append(got, string(c.Kind)+" "+c.Path[strings.LastIndexByte(c.Path, '/')+1:])
		}
		return got, all.Truncated
	}
	sb := s.create(s.spec("origin"))
	if got, _ := diff(sb.ID, 100); len(got) != 0 {
		s.Errorf("changes of a new sandbox: got %q, want none", got)
	}
	for _, name := range []string{"a", "b", "c"} {
		s.put(sb.ID, "/disk/"+name, name)
	}
	if got, more := diff(sb.ID, 100); !slices.Equal(got, []string{"added a", "added b", "added c"}) || more {
		s.Errorf("got %q, truncated %v, want a, b and c added", got, more)
	}
	if got, more := diff(sb.ID, 2); len(got) != 2 || !more {
		s.Errorf("got %q, truncated %v, want two of three changes", got, more)
	}
	if !s.p.Abilities().Snapshot {
		return
	}
	s.snap(sb.ID, "first")
	copied := s.create(s.from("copy", "first"))
	s.put(copied.ID, "/disk/b", "changed")
	if _, err := fetch(s.client(copied.ID, 0), http.MethodDelete, "/disk/c", ""); err != nil {
		s.Fatal(err)
	}
	s.put(copied.ID, "/disk/d", "new")
	want := []string{"modified b", "deleted c", "added d"}
	if got, _ := diff(copied.ID, 100); !slices.Equal(got, want) {
		s.Errorf("got %q, want %q", got, want)
	}
	if s.p.Abilities().Stop {
		s.must("stop", s.p.Stop, copied.ID)
		if got, _ := diff(copied.ID, 100); !slices.Equal(got, want) {
			s.Errorf("while stopped: got %q, want %q", got, want)
		}
	}
}

func testVolumes(s *suite) {
	if _, ok := s.p.(sandbox.Volumer); !ok || !s.p.Abilities().Volume {
		s.Skip("no volumes")
	}
	v := func() sandbox.Volumer { return s.p.(sandbox.Volumer) } // the provider is reopened
	want := func(owner string, names ...string) {
		s.Helper()
		all, err := v().Volumes(s.Context(), owner)
		if err != nil {
			s.Fatal(err)
		}
		var got []string
		for _, i := range all {
			got = append(got, fmt.Sprintf("%s/%s %d", i.Owner, i.Name, len(i.Sandboxes)))
			if i.Created.IsZero() || i.Size < 0 {
				s.Errorf("got %+v, want a time and a size", i)
			}
		}
		if !slices.Equal(got, names) {
			s.Errorf("volumes of %q are %q, want %q", owner, got, names)
		}
	}
	if i, err := v().CreateVolume(s.Context(), "ann", "data"); err != nil || i.Name != "data" || i.Owner != "ann" {
		s.Fatalf("got %+v, %v, want volume data of ann", i, err)
	}
	_, err := v().CreateVolume(s.Context(), "ann", "data")
	s.wantErr("twice", err, sandbox.ErrConflict)
	_, err = v().CreateVolume(s.Context(), "ann", "../data")
	s.wantErr("bad name", err, sandbox.ErrInvalid)
	if _, err := v().CreateVolume(s.Context(), "bob", "data"); err != nil {
		s.Errorf("volume of the same name of another owner: %v", err)
	}
	spec := s.spec("user")
	spec.Owner, spec.Volumes = "ann", []sandbox.Volume{{Name: "data", Target: "/data"}, {Name: "more", Target: "/mnt/more"}}
	sb := s.create(spec)
	want("ann", "ann/data 1", "ann/more 1")
	want("", "ann/data 1", "ann/more 1", "bob/data 0")
	s.wantErr("in use", v().DeleteVolume(s.Context(), "ann", "data"), sandbox.ErrState)
	if s.p.Abilities().Stop {
		s.must("stop", s.p.Stop, sb.ID)
		s.wantErr("of a stopped one", v().DeleteVolume(s.Context(), "ann", "data"), sandbox.ErrState)
	}
	_, err = s.p.Update(s.Context(), sb.ID, func(sp *sandbox.Spec) error { sp.Owner = "bob"; return nil })
	s.wantErr("a new owner", err, sandbox.ErrInvalid)
	s.must("delete", s.p.Delete, sb.ID)
	s.reopen()
	want("ann", "ann/data 0", "ann/more 0")
	for _, name := range []string{"data", "more"} {
		if err := v().DeleteVolume(s.Context(), "ann", name); err != nil {
			s.Error(err)
		}
	}
	s.wantErr("deleted twice", v().DeleteVolume(s.Context(), "ann", "data"), sandbox.ErrNoVolume)
	s.wantErr("a path", v().DeleteVolume(s.Context(), "ann", ".."), sandbox.ErrNoVolume)
}

// discard removes snapshots and volumes.
func (s *suite) discard(ctx context.Context) {
	s.Helper()
	if sn, ok := s.p.(sandbox.Snapshotter); ok && s.p.Abilities().Snapshot {
		all, err := sn.Snapshots(ctx, "")
		for _, one := range all {
			err = errors.Join(err, sn.DeleteSnapshot(ctx, one.Owner, one.Name))
		}
		if err != nil {
			s.Errorf("delete snapshots: %v", err)
		}
	}
	if v, ok := s.p.(sandbox.Volumer); ok && s.p.Abilities().Volume {
		all, err := v.Volumes(ctx, "")
		for _, one := range all {
			err = errors.Join(err, v.DeleteVolume(ctx, one.Owner, one.Name))
		}
		if err != nil {
			s.Errorf("delete volumes: %v", err)
		}
	}
}
