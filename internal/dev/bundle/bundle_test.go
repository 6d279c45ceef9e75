package bundle

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestGoldenBundles: the checked-in bundles are those of the sources.
func TestGoldenBundles(t *testing.T) {
	const web = "../../../web"
	bundles, err := Build(web)
	if err != nil {
		t.Fatal(err)
	}
	update := flag.Lookup("update").Value.String() == "true" // a flag of testenv.Golden
	for name, want := range bundles {
		path := filepath.Join(web, Folder, filepath.FromSlash(name))
		if update {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, want, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("web/%s/%s is not the bundle of its sources (%v); run make gen", Folder, name, err)
		}
	}
	root := os.DirFS(filepath.Join(web, Folder))
	if err := fs.WalkDir(root, ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && bundles[name] == nil {
			t.Errorf("web/%s/%s is the bundle of no page; delete it", Folder, name)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestFaults: a module that imports a missing file is reported.
func TestFaults(t *testing.T) {
	web := t.TempDir()
	if err := os.MkdirAll(filepath.Join(web, "page"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(web, "page", "page.js"), []byte(`import "./gone.js";`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Build(web); err == nil {
		t.Error("got no error, want one about gone.js")
	}
}
