package cove

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/image"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestImports: what is saved as an image can be brought back under a name.
func TestImports(t *testing.T) {
	t.Parallel()
	store, err := image.Open(image.Config{Dir: filepath.Join(t.TempDir(), "images"), MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var layer, saved bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: "hello", Mode: 0o644, Size: 2, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "hi")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil }
	if err := store.Save(t.Context(), &saved, image.Export{Layers: []func() (io.ReadCloser, error){open}, Command: []string{"/bin/true"}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(path, saved.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	const prefix = "imported.invalid/0123456789abcdef0123456789abcdef/"
	i := imports{store}
	if err := i.Import(t.Context(), path, prefix+"a"); err != nil {
		t.Fatal(err)
	}
	list := i.Imported(prefix)
	if len(list) != 1 || !strings.HasPrefix(list[0].Ref, prefix+"a") || list[0].Size != 2 {
		t.Fatalf("%+v", list)
	}
	if _, err := store.Resolve(t.Context(), prefix+"a"); err != nil {
		t.Error(err)
	}
	if err := i.RemoveImage(prefix + "a"); err != nil || len(i.Imported(prefix)) != 0 {
		t.Error(err)
	}
	if err := i.RemoveImage(prefix + "a"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Error(err)
	}
}
