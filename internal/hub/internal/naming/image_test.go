package naming

import "testing"

func TestImportedImageBelongsToOwner(t *testing.T) {
	t.Parallel()
	ref, err := ResolveImage("anna", "imported/mine")
	if err != nil || ImageName(ref) != "imported/mine" || ref == ImagePrefix("bert")+"mine" {
		t.Errorf("got %q %v, want a reference that belongs to anna only", ref, err)
	}
	for _, name := range []string{ref, "imported/../x", "imported/"} {
		if got, err := ResolveImage("bert", name); err == nil {
			t.Errorf("ResolveImage(%q): got %q, want an error", name, got)
		}
	}
	if got, err := ResolveImage("bert", "debian:12"); got != "debian:12" || err != nil || ImageName(got) != got {
		t.Errorf("got %q %v, want the reference unchanged", got, err)
	}
}
