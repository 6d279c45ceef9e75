package local_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cove-sandbox/cove/internal/image"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/testenv"
)

// stored serves images that are in a store.
type stored struct{ *image.Store }

func (s stored) Resolve(ctx context.Context, ref string) (local.Image, error) {
	img, err := s.Store.Resolve(ctx, ref)
	return local.Image{Layers: img.Layers, Command: img.Command, Env: img.Env, Workdir: img.Workdir}, err
}

// first serves one image from folders, and others from a store.
type first struct {
	images
	then stored
}

func (f first) Resolve(ctx context.Context, ref string) (local.Image, error) {
	if ref == "first" {
		return f.images.Resolve(ctx, ref)
	}
	return f.then.Resolve(ctx, ref)
}

// TestExport: a sandbox that was exported and loaded again holds what it held,
// lacks what it lacked, and starts the same program.
func TestExport(t *testing.T) {
	testenv.NeedRoot(t)
	k := newKit(t)
	lower, upper := t.TempDir(), t.TempDir()
	payload, err := os.ReadFile(k.payload)
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(lower, "home", "gem")
	for _, step := range []error{
		os.Chmod(lower, 0o755), os.Chmod(upper, 0o755), os.MkdirAll(home, 0o755), os.Chown(home, 1000, 1000), os.Chmod(home, 0o755),
		os.WriteFile(filepath.Join(upper, "server"), payload, 0o755),
		os.WriteFile(filepath.Join(home, "old"), []byte("old"), 0o644), os.Chown(filepath.Join(home, "old"), 1000, 1000),
		os.WriteFile(filepath.Join(home, "kept"), []byte("kept"), 0o644), os.Chown(filepath.Join(home, "kept"), 1000, 1000),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	store, err := image.Open(image.Config{Dir: t.TempDir(), MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	cfg := k.config(t)
	cfg.Images, cfg.Saver = first{images{[]string{upper, lower}}, stored{store}}, store
	h := &hub{t: t, k: k, cfg: cfg, Provider: k.open(t, cfg)}
	t.Cleanup(h.clean)
	if !h.Abilities().Export {
		t.Fatal("export is not told")
	}

	sb := h.create(sandbox.Spec{Image: "first", Env: map[string]string{"SECRET": "s3cret"}})
	put := func(id, method, path, body string) {
		t.Helper()
		if _, err := h.try(id, method, path, body); err != nil {
			t.Fatal(err)
		}
	}
	put(sb.ID, http.MethodPut, "/disk/below", "below")
	h.snap(sb.ID, "s") // so that there are two layers
	if err := h.Rollback(t.Context(), sb.ID, "s"); err != nil {
		t.Fatal(err)
	}
	put(sb.ID, http.MethodDelete, "/disk/old", "")
	put(sb.ID, http.MethodPut, "/disk/new", "new")
	used, err := h.ImageLayers()
	if err != nil || !slices.Contains(used, lower) || !slices.Contains(used, upper) {
		t.Errorf("layers in use: %q, %v", used, err)
	}

	file := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(file)
	if err == nil {
		err = errors.Join(h.Export(t.Context(), sb.ID, f), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(t.Context(), "tar:"+file, "exported:1", nil); err != nil {
		t.Fatal(err)
	}
	again := h.create(sandbox.Spec{Image: "exported:1"})
	for path, want := range map[string]string{"/disk/below": "below", "/disk/kept": "kept", "/disk/new": "new", "/env/FROM": "image", "/env/SECRET": ""} {
		if got, err := h.try(again.ID, http.MethodGet, path, ""); got != want || err != nil {
			t.Errorf("%s is %q, %v", path, got, err)
		}
	}
	if _, err := h.try(again.ID, http.MethodGet, "/disk/old", ""); err == nil {
		t.Error("a deleted file is back")
	}
	put(again.ID, http.MethodPut, "/disk/kept", "mine") // it belongs to the same user
	// One that nobody reads to the end leaves nothing.
	if err := h.Export(t.Context(), sb.ID, failing{}); err == nil {
		t.Error("exported to nowhere")
	}
	if err := h.Delete(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }
