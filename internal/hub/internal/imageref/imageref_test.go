package imageref

import "testing"

func TestImportedImagesAreTheirOwners(t *testing.T) {
	t.Parallel()
	ref, err := Resolve("anna", "imported/mine")
	if err != nil || Name(ref) != "imported/mine" || ref == Prefix("bert")+"mine" {
		t.Errorf("got %q %v, want a reference that only anna has", ref, err)
	}
	for _, name := range []string{ref, "imported/../x", "imported/"} {
		if got, err := Resolve("bert", name); err == nil {
			t.Errorf("Resolve(%q): got %q, want an error", name, got)
		}
	}
	if got, err := Resolve("bert", "debian:12"); got != "debian:12" || err != nil || Name(got) != got {
		t.Errorf("got %q %v, want the reference as it is", got, err)
	}
}
