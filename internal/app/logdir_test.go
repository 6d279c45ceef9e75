package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLogDir(t *testing.T) {
	d := newLogDir(filepath.Join(t.TempDir(), "a", "b"))
	if err := d.create(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(d.writer("x"), "one")
	fmt.Fprintln(d.writer("y"), "elsewhere")
	fmt.Fprintln(d.writer("x"), "two")
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(d.writer("x"), "late")
	for name, want := range map[string]string{"x.log": "one\ntwo\n", "y.log": "elsewhere\n"} {
		if b, err := os.ReadFile(filepath.Join(d.path, name)); err != nil || string(b) != want {
			t.Errorf("%s: got %q, %v, want %q", name, b, err, want)
		}
	}
}

func TestLogDirThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := newLogDir(path)
	if err := d.create(); err == nil || !strings.Contains(err.Error(), "LOG_DIR") {
		t.Errorf("got %v, want an error that names LOG_DIR", err)
	}
	if n, err := d.writer("x").Write([]byte("lost")); n != 4 || err != nil {
		t.Errorf("got %d, %v, want the error ignored", n, err)
	}
}
