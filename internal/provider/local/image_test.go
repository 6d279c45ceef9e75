package local_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/image"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// saveImage writes an image of folders, lowest first, as an archive.
func saveImage(t *testing.T, layers ...string) (path string) {
	t.Helper()
	store, err := image.Open(image.Config{Dir: t.TempDir(), MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	e := image.Export{Command: []string{"/server"}, Env: map[string]string{"FROM": "image"}, Workdir: "/srv/app"}
	for _, dir := range layers {
		var packed bytes.Buffer
		if _, err := image.Tar(t.Context(), &packed, dir, nil); err != nil {
			t.Fatal(err)
		}
		e.Layers = append(e.Layers, func() (io.ReadCloser, error) { return io.NopCloser(&packed), nil })
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.Save(t.Context(), f, e), f.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func TestImages(t *testing.T) {
	testenv.NeedRoot(t)
	k := newKit(t)
	t.Run("import", func(t *testing.T) { testImport(t, k) })
	t.Run("killed", func(t *testing.T) { testKilledImport(t, k) })
	t.Run("use", func(t *testing.T) { testImageUse(t, k) })
	t.Run("none", func(t *testing.T) { testNoImages(t, k) })
	t.Run("export", func(t *testing.T) { testExport(t, k) })
	t.Run("export without an image", func(t *testing.T) { testExportOwn(t, k) })
}

// testImport: an imported image is listed under its reference until it is deleted, and only with its prefix.
func testImport(t *testing.T, k kit) {
	cfg := k.config(t)
	cfg.Images.Dir = filepath.Join(cfg.Dir, "images")
	p := k.open(t, cfg)
	defer p.Close()
	layer := t.TempDir()
	if err := os.WriteFile(filepath.Join(layer, "hello"), []byte("hi"), 0o644); err != nil {
		t.Fatal(err)
	}
	const prefix = "imported.invalid/0123456789abcdef0123456789abcdef/"
	if err := p.ImportImage(t.Context(), saveImage(t, layer), prefix+"a"); err != nil {
		t.Fatal(err)
	}
	list := func(prefix string) []sandbox.ImageInfo {
		t.Helper()
		got, err := p.Images(t.Context(), prefix)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := list(prefix); len(got) != 1 || got[0].Ref != prefix+"a:latest" || got[0].Size != 2 {
		t.Fatalf("images: got %+v, want %sa:latest of 2 bytes", got, prefix)
	}
	if got := list("imported.invalid/other/"); len(got) != 0 {
		t.Errorf("images of another prefix: got %+v, want none", got)
	}
	if err := p.DeleteImage(t.Context(), prefix+"a"); err != nil {
		t.Error(err)
	}
	if got := list(prefix); len(got) != 0 {
		t.Errorf("images after the delete: got %+v, want none", got)
	}
	if err := p.DeleteImage(t.Context(), prefix+"a"); !errors.Is(err, sandbox.ErrNotFound) {
		t.Errorf("second delete: got %v, want %v", err, sandbox.ErrNotFound)
	}
}

// testKilledImport: the next hub removes everything of an import that was interrupted by kill -9, including complete layers.
func testKilledImport(t *testing.T, k kit) {
	cfg := k.config(t)
	cfg.Images.Dir = filepath.Join(cfg.Dir, "images")
	small, large := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.WriteFile(filepath.Join(small, "small"), []byte("complete"), 0o644),
		os.WriteFile(filepath.Join(large, "large"), bytes.Repeat([]byte("x"), 4<<20), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	stored := func(part string) []string {
		names, err := filepath.Glob(filepath.Join(cfg.Images.Dir, part, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	other, out := k.dying(t, cfg, nil, "import "+saveImage(t, small, large))
	complete := testenv.Eventually(func() bool { return len(stored("layers")) == 1 && len(stored("tmp")) == 1 })
	kill9(t, other, out)
	if !complete {
		t.Fatalf("got the layers %v and %v in tmp before the kill, want one of each", stored("layers"), stored("tmp"))
	}
	p := k.open(t, cfg)
	defer p.Close()
	if !testenv.Eventually(func() bool { return len(stored("layers")) == 0 && len(stored("tmp")) == 0 }) {
		t.Errorf("left: the layers %v and %v in tmp, want nothing", stored("layers"), stored("tmp"))
	}
}

// testImageUse: each layer of an owner's images, sandboxes and snapshots counts once for the owner, until the last use ends;
// then it is removed.
func testImageUse(t *testing.T, k kit) {
	cfg := k.config(t)
	cfg.Images.Dir = filepath.Join(cfg.Dir, "images")
	h := &hub{t: t, k: k, cfg: cfg, Provider: k.open(t, cfg)}
	t.Cleanup(h.clean)
	base, own := t.TempDir(), t.TempDir()
	payload, err := os.ReadFile(k.payload)
	if err == nil {
		err = errors.Join(os.Chmod(base, 0o755), os.Chmod(own, 0o755), os.WriteFile(filepath.Join(base, "server"), payload, 0o755),
			os.WriteFile(filepath.Join(own, "own"), []byte("own"), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	use := func(what, owner string, low, high int64) {
		t.Helper()
		got, err := h.ImageUse(t.Context(), owner, "imported.invalid/"+owner+"/")
		if err != nil || got < low || got > high {
			t.Errorf("%s: got %d bytes, %v, want %d to %d", what, got, err, low, high)
		}
	}
	size, few := int64(len(payload)), int64(64<<10)
	for ref, layers := range map[string][]string{"imported.invalid/ann/a": {base}, "imported.invalid/ann/b": {base, own}} {
		if err := h.ImportImage(t.Context(), saveImage(t, layers...), ref); err != nil {
			t.Fatal(err)
		}
	}
	use("two images that share a layer", "ann", size, size+few)
	use("another owner", "bob", 0, 0)
	sb := h.create(sandbox.Spec{Image: "imported.invalid/ann/a", Owner: "bob"})
	use("an owner with a sandbox of it", "bob", size, size+few)
	if _, err := h.Snapshot(t.Context(), sb.ID, "s"); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{h.Delete(t.Context(), sb.ID), h.DeleteImage(t.Context(), "imported.invalid/ann/a"),
		h.DeleteImage(t.Context(), "imported.invalid/ann/b")} {
		if err != nil {
			t.Error(err)
		}
	}
	use("the owner of deleted images", "ann", 0, 0)
	use("the owner of a snapshot", "bob", size, size+few)
	if err := h.DeleteSnapshot(t.Context(), "bob", "s"); err != nil {
		t.Error(err)
	}
	use("the former owner", "bob", 0, 0)
}

// testNoImages: without a store all calls about images fail.
func testNoImages(t *testing.T, k kit) {
	p := k.open(t, k.config(t))
	defer p.Close()
	_, list := p.Images(t.Context(), "")
	for what, err := range map[string]error{"import": p.ImportImage(t.Context(), "/a.tar", "a"), "list": list,
		"delete": p.DeleteImage(t.Context(), "a")} {
		if !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("%s: got %v, want %v", what, err, sandbox.ErrUnsupported)
		}
	}
}

// testExport: an exported and imported sandbox has the same files and starts the same program.
func testExport(t *testing.T, k kit) {
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
	cfg := k.config(t)
	cfg.Images.Dir = filepath.Join(cfg.Dir, "images")
	h := &hub{t: t, k: k, cfg: cfg, Provider: k.open(t, cfg)}
	t.Cleanup(h.clean)
	if !h.Abilities().Export {
		t.Fatal("abilities: got no export, want it")
	}

	if err := h.ImportImage(t.Context(), saveImage(t, lower, upper), "first"); err != nil {
		t.Fatal(err)
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
	used, err := h.UsedImageLayers()
	if err != nil || len(used) != 2 {
		t.Errorf("image layers in use: got %q, %v, want two", used, err)
	}

	file := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(file)
	if err == nil {
		err = errors.Join(h.Export(t.Context(), sb.ID, f), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := h.ImportImage(t.Context(), file, "exported:1"); err != nil {
		t.Fatal(err)
	}
	again := h.create(sandbox.Spec{Image: "exported:1"})
	for path, want := range map[string]string{"/disk/below": "below", "/disk/kept": "kept", "/disk/new": "new",
		"/env/FROM": "image", "/env/SECRET": ""} {
		if got, err := h.try(again.ID, http.MethodGet, path, ""); got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
	if _, err := h.try(again.ID, http.MethodGet, "/disk/old", ""); err == nil {
		t.Error("a deleted file is in the export")
	}
	put(again.ID, http.MethodPut, "/disk/kept", "mine") // it belongs to the same user
	// An export that is not read to the end leaves nothing behind.
	if err := h.Export(t.Context(), sb.ID, failing{}); err == nil {
		t.Error("an export whose writer fails succeeded")
	}
	if err := h.Delete(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }

// testExportOwn: the export of a sandbox without an image contains no files of the host.
func testExportOwn(t *testing.T, k kit) {
	cfg := k.config(t)
	cfg.Images.Dir = filepath.Join(cfg.Dir, "images")
	h := &hub{t: t, k: k, cfg: cfg, Provider: k.open(t, cfg)}
	t.Cleanup(h.clean)
	sb := h.create(sandbox.Spec{})
	if _, err := h.try(sb.ID, http.MethodPut, "/disk/mine", "mine"); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := h.Export(t.Context(), sb.ID, &b); err != nil {
		t.Fatal(err)
	}
	own := false
	for _, name := range exportedNames(t, &b) {
		own = own || name == "home/gem/mine"
		if (strings.HasPrefix(name, "usr/") || strings.HasPrefix(name, "opt/")) && !strings.HasSuffix(name, "/") {
			t.Errorf("the export contains file %s of the host, want only changes of the sandbox", name)
		}
	}
	if !own {
		t.Error("the export lacks home/gem/mine")
	}
	if err := h.Delete(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
}

// exportedNames lists the files in all layers of an image.
func exportedNames(t *testing.T, r io.Reader) (names []string) {
	t.Helper()
	each := func(r io.Reader, do func(*tar.Header, io.Reader)) {
		for in := tar.NewReader(r); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			do(h, in)
		}
	}
	each(r, func(_ *tar.Header, in io.Reader) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return // not a layer
		}
		each(z, func(h *tar.Header, _ io.Reader) { names = append(names, h.Name) })
	})
	return names
}
