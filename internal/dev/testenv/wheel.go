package testenv

import (
	"archive/zip"
	"os"
	"path/filepath"
	"testing"
)

// Wheel creates a Python package named thing with one file, which pip installs without a network, and returns its path.
func Wheel(t testing.TB, file, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "thing-1.0-py3-none-any.whl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	for name, content := range map[string]string{
		file:                           content,
		"thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
		"thing-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"thing-1.0.dist-info/RECORD":   "",
	} {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
