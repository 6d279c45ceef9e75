package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func text(s string) func(*os.File) error {
	return func(f *os.File) error { _, err := f.WriteString(s); return err }
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// alone fails if there is a temporary file next to the target.
func alone(t testing.TB, path string) {
	t.Helper()
	names, err := os.ReadDir(filepath.Dir(path))
	must(t, err)
	for _, n := range names {
		if IsTemp(n.Name()) {
			t.Errorf("left behind: got %s, want no temporary file", n.Name())
		}
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), strings.Repeat("n", 255))
	must(t, Replace(path, Options{Perm: 0o600}, text("one")))
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("new file: got %v %v, want mode 0600", info.Mode(), err)
	}
	must(t, os.Chmod(path, 0o751))
	before, err := os.Stat(path)
	must(t, err)
	must(t, Replace(path, Options{Sync: true}, text("two")))
	after, err := os.Stat(path)
	must(t, err)
	if read(t, path) != "two" || after.Mode() != 0o751 || os.SameFile(before, after) {
		t.Errorf("got %q %v, same file %v, want \"two\" with mode 0751 in another file", read(t, path), after.Mode(), os.SameFile(before, after))
	}
	broken := errors.New("broken")
	err = Replace(path, Options{}, func(f *os.File) error { _, _ = f.WriteString("half"); return broken })
	if !errors.Is(err, broken) || read(t, path) != "two" {
		t.Errorf(`a failed replacement: got %v, %q, want %v and file content "two"`, err, read(t, path), broken)
	}
	alone(t, path)
}

func TestReplaceKeepsOwner(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "f")
	must(t, Replace(path, Options{}, text("one")))
	must(t, os.Chown(path, 1234, 4321))
	must(t, os.Chmod(path, 0o755|fs.ModeSetuid))
	must(t, Replace(path, Options{}, text("two")))
	info, err := os.Stat(path)
	must(t, err)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 4321 || info.Mode()&fs.ModeSetuid == 0 {
		t.Errorf("got %d:%d %v, want 1234:4321 and set-uid", st.Uid, st.Gid, info.Mode())
	}
}

// A file that is a mount point cannot be replaced by a rename.
func TestReplaceMountedFile(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	must(t, os.WriteFile(src, []byte("a long old text"), 0o644))
	must(t, os.WriteFile(dst, nil, 0o644))
	must(t, unix.Mount(src, dst, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dst, unix.MNT_DETACH)) })
	calls := 0
	must(t, Replace(dst, Options{}, func(f *os.File) error { calls++; return text("new")(f) }))
	if read(t, src) != "new" || calls != 1 {
		t.Errorf(`got %q after %d calls, want file content "new" and 1 call`, read(t, src), calls)
	}
	alone(t, dst)
}

func TestReplaceRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, unix.Mkfifo(dir+"/fifo", 0o644))
	for path, want := range map[string]error{dir: syscall.EISDIR, dir + "/fifo": syscall.ENXIO,
		dir + "/none/f": fs.ErrNotExist, "/dev/null": syscall.ENXIO} {
		if err := Replace(path, Options{}, text("x")); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.MkdirAll(dir+"/real/deep", 0o755))
	must(t, os.WriteFile(dir+"/real/deep/f", nil, 0o644))
	for link, to := range map[string]string{"abs": dir + "/real/deep/f", "d": "real/deep", "real/deep/up": "../new",
		"dangling": "nowhere/f", "loop": "loop", "l1": "l2", "l2": "d/f"} {
		must(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	for path, want := range map[string]string{
		"real/deep/f": "real/deep/f", "abs": "real/deep/f", "d/f": "real/deep/f", "d/up": "real/new", "l1": "real/deep/f",
		"dangling": "nowhere/f", "none": "none", "none/at/all": "none/at/all",
	} {
		if got, err := Follow(filepath.Join(dir, path)); err != nil || got != filepath.Join(dir, want) {
			t.Errorf("%s: %s %v, want %s", path, got, err, want)
		}
	}
	if _, err := Follow(dir + "/loop"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("loop: got %v, want syscall.ELOOP", err)
	}
}
