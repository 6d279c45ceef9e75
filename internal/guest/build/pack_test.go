package build

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"compress/gzip"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// transfer copies files of one root to a folder.
func transfer(t *testing.T, s *Service, to string, sources ...string) CopyOut {
	t.Helper()
	blob, err := s.Pack(t.Context(), PackIn{Sources: sources})
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Body.Close()
	out, err := s.Copy(t.Context(), CopyIn{Sources: `["` + strings.Join(sources, `","`) + `"]`, To: to, Keep: true,
		File: &op.File{Reader: blob.Body}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPack: files go from one stage to another with their modes and links; a source that is a link stands for its target.
func TestPack(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.Root = t.TempDir()
	for name, text := range map[string]string{"venv/bin/run": "run", "venv/lib/a": "a", "bin/one": "1", "bin/two": "2", "proc/1/mem": "x",
		stagingPrefix + "old/x": "x"} {
		path := filepath.Join(s.Root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"venv/bin/python": "/usr/bin/python3", "venv/up": "../../../etc", "current": "venv"} {
		if err := os.Symlink(target, filepath.Join(s.Root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(s.Root, "venv/lib/a"), 0o444); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(s.Root, "venv/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"venv", "/current"} {
		to := filepath.Join(t.TempDir(), "to")
		transfer(t, s, to, source)
		for name, want := range map[string]string{"bin/python": "/usr/bin/python3", "up": "../../../etc"} {
			if got, err := os.Readlink(filepath.Join(to, name)); got != want {
				t.Errorf("%s: link %s points to %q, %v", source, name, got, err)
			}
		}
		if info, err := os.Stat(filepath.Join(to, "lib/a")); err != nil || info.Mode().Perm() != 0o444 {
			t.Errorf("%s: got %v, %v", source, info, err)
		}
		if _, err := os.Lstat(filepath.Join(to, "fifo")); err == nil {
			t.Error("a FIFO was copied")
		}
	}
	to := t.TempDir()
	if out := transfer(t, s, to+"/", "bin/*"); out.Files != 2 {
		t.Errorf("a pattern copied %+v", out)
	}
	to = t.TempDir()
	transfer(t, s, to, "/")
	if list, _ := os.ReadDir(to); len(list) != 3 {
		t.Errorf("everything: got %v, want bin, current and venv", list)
	}
	for _, source := range []string{"nothing", "[", "../../../etc/passwd"} {
		if _, err := s.Pack(t.Context(), PackIn{Sources: []string{source}}); err == nil {
			t.Errorf("%s: accepted", source)
		}
	}
	blob, err := s.Pack(t.Context(), PackIn{Sources: []string{"venv"}})
	if err != nil {
		t.Fatal(err)
	}
	blob.Body.Close() // nobody reads it: TestMain finds a goroutine that stays
}

// TestCopyKeepsOwners: files of another stage keep their owners, unless there is an owner.
func TestCopyKeepsOwners(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	s := newService(t)
	s.Root = t.TempDir()
	if err := os.MkdirAll(filepath.Join(s.Root, "app/data"), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"app", "app/data"} {
		if err := os.Chown(filepath.Join(s.Root, name), 1234, 65); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(t.TempDir(), "app")
	transfer(t, s, to, "app")
	for _, path := range []string{to, filepath.Join(to, "data")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 && path != to || info.Mode().Perm() != 0o750 && path != to {
			t.Errorf("%s has owner %d and mode %v", path, st.Uid, info.Mode())
		}
	}
}

// TestUnpack: ADD unpacks tar archives, and copies other files.
func TestUnpack(t *testing.T) {
	t.Parallel()
	s := newService(t)
	inner, err := io.ReadAll(tarOf(t, file{name: "dir/x", text: "x"}, file{name: "abs", kind: tar.TypeSymlink, link: "/etc/hosts"}))
	if err != nil {
		t.Fatal(err)
	}
	var packed, text bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(inner)
	z.Close()
	z = gzip.NewWriter(&text)
	z.Write([]byte("only text"))
	z.Close()
	me := itoa(os.Geteuid())
	add := func(files ...file) (string, error) {
		to := t.TempDir()
		var names []string
		for _, f := range files {
			names = append(names, `"`+f.name+`"`)
		}
		_, err := s.Copy(t.Context(), CopyIn{Sources: "[" + strings.Join(names, ",") + "]", To: to + "/", Owner: me, Unpack: true,
			File: tarOf(t, files...)})
		return to, err
	}
	to, err := add(file{name: "a.tgz", text: packed.String()}, file{name: "b.tar", text: string(inner[:0])}, file{name: "c.gz",
		text: text.String()},
		file{name: "d.txt", text: "text"}, file{name: "e.zip", text: "PK\x03\x04..."})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"dir/x": "x", "c.gz": text.String(), "d.txt": "text", "b.tar": "", "e.zip": "PK\x03\x04..."} {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if link, err := os.Readlink(filepath.Join(to, "abs")); link != "/etc/hosts" {
		t.Errorf("got the link %q, %v", link, err)
	}
	if _, err := os.Stat(filepath.Join(to, "a.tgz")); err == nil {
		t.Error("the archive itself was copied")
	}
	hostile, err := io.ReadAll(tarOf(t, file{name: "../../escape", text: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	through, err := io.ReadAll(tarOf(t, file{name: "l", kind: tar.TypeSymlink, link: s.Staging}, file{name: "l/escape", text: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]file{"xz": {name: "a.xz", text: "\xfd7zXZ\x00..."}, "name above": {name: "a.tar",
		text: string(hostile)}} {
		if _, err := add(f); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := add(file{name: "a.tar", text: string(through)}); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(s.Staging); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}
