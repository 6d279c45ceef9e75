package providertest

import (
	"strings"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// testLayers saves the disk of one sandbox several times, as a build does.
func testLayers(s *suite) {
	if !s.p.Abilities().Build {
		spec := s.spec("root")
		spec.Root = true
		_, err := s.p.Create(s.Context(), spec)
		s.wantErr("a server that runs as root", err, sandbox.ErrUnsupported)
		s.Skip("no builds")
	}
	l, ok := s.p.(sandbox.Layerer)
	if !ok {
		s.Fatal("the provider supports builds but has no layers")
	}
	spec := s.spec("build")
	spec.Owner, spec.Root = "ann", true
	sb := s.create(spec)
	s.sameSpec(sb.Spec, spec)
	const small, large = 64 << 10, 512 << 10
	sizes := map[string]int64{}
	for _, step := range []struct {
		name string
		size int
	}{{"one", large}, {"two", small}, {"three", large}} {
		s.put(sb.ID, "/disk/"+step.name, strings.Repeat(step.name[:1], step.size))
		got, err := l.SaveLayer(s.Context(), sb.ID, step.name)
		if err != nil {
			s.Fatalf("save layer %s: %v", step.name, err)
		}
		if !got.Layer || got.Name != step.name || got.Owner != "ann" || got.Sandbox != sb.ID || got.Created.IsZero() {
			s.Errorf("got %+v, want the layer %s of ann", got, step.name)
		}
		sizes[step.name] = got.Size
		s.wantState(sb.ID, sandbox.Running)
	}
	if sizes["one"] < large || sizes["two"] < small || sizes["two"] >= large || sizes["three"] < large {
		s.Errorf("sizes are %v, want what each step has written", sizes)
	}
	_, err := l.SaveLayer(s.Context(), sb.ID, "two")
	s.wantErr("twice", err, sandbox.ErrConflict)
	_, err = l.SaveLayer(s.Context(), "sb-unknown", "x")
	s.wantErr("unknown", err, sandbox.ErrNotFound)
	s.must("delete", s.p.Delete, sb.ID)
	s.reopen()

	sn := s.snapshotter()
	all, err := sn.Snapshots(s.Context(), "ann")
	if err != nil || len(all) != 3 || !all[0].Layer || all[0].Size != sizes["one"] {
		s.Fatalf("layers after a restart: got %+v, %v", all, err)
	}
	// Layers are independent of each other.
	if err := sn.DeleteSnapshot(s.Context(), "ann", "one"); err != nil {
		s.Fatal(err)
	}
	spec = s.from("copy", "two")
	spec.Owner, spec.Root = "ann", true // the files belong to root
	copied := s.create(spec)
	s.wantFile(copied.ID, "two", strings.Repeat("t", small))
	s.wantFile(copied.ID, "one", strings.Repeat("o", large))
	if out, err := s.try(copied.ID, "/disk/three"); err == nil {
		s.Errorf("a file of a later layer has %d bytes, want none", len(out))
	}
}
