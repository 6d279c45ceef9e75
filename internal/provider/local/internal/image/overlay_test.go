package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// overlay mounts layers, topmost first, as sandboxes have them.
func overlay(t *testing.T, upper string, lower ...string) string {
	t.Helper()
	at := t.TempDir()
	options := "userxattr,lowerdir=" + strings.Join(lower, ":")
	if upper != "" {
		work := filepath.Join(filepath.Dir(upper), "work")
		if err := os.MkdirAll(work, 0o700); err != nil {
			t.Fatal(err)
		}
		options += ",upperdir=" + upper + ",workdir=" + work
	}
	if err := unix.Mount("overlay", at, "overlay", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		t.Fatalf("mount overlay %s: %v", options, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return at
}

func TestWhiteoutsThroughAnOverlay(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	low := tarOf(t, file("gone", "1"), file("stays", "1"), file("dir/a", "1"), file("dir/sub/b", "1"),
		file("swap/old", "1"), file("opaque/old", "1"), file("again/old", "1"))
	high := tarOf(t, file(".wh.gone", ""), file("dir/sub/.wh.b", ""), file(".wh.swap", ""), dir("swap"), file("swap/new", "2"),
		dir("opaque"), file("opaque/new", "2"), file("opaque/.wh..wh..opq", ""), file("opaque/.wh.old", ""),
		file("again/new", "2"), file(".wh.again", ""))
	for _, attrs := range []bool{false, true} {
		t.Run(fmt.Sprintf("attributes %v", attrs), func(t *testing.T) {
			l := roomy
			l.owners = true
			lower, _, err := unpackTo(t, l, low)
			if err != nil {
				t.Fatal(err)
			}
			l.noDevices = attrs
			upper, _, err := unpackTo(t, l, high)
			if err != nil {
				t.Fatal(err)
			}
			got := look(t, overlay(t, "", upper, lower))
			want(t, got, map[string]string{"stays": "-rw-r--r-- 1", "dir": "drwxr-xr-x", "dir/a": "-rw-r--r-- 1", "dir/sub": "drwxr-xr-x",
				"swap": "drwxr-xr-x", "swap/new": "-rw-r--r-- 2", "opaque": "drwxr-xr-x",
				"opaque/new": "-rw-r--r-- 2", "again": "drwxr-xr-x", "again/new": "-rw-r--r-- 2"})
			// In the other direction: the layer made of the tree unpacks to the same tree.
			var b bytes.Buffer
			if left, err := Tar(t.Context(), &b, upper, nil); err != nil || left != 0 {
				t.Fatalf("omitted: got %d, %v, want none", left, err)
			}
			second, _, err := unpackTo(t, roomy, b.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			want(t, look(t, overlay(t, "", second, lower)), got)
		})
	}
}

// TestSandboxRoundTrip changes a tree through an overlay, as a sandbox would, and
// expects to find it again in the image that is saved of it.
func TestSandboxRoundTrip(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	l := roomy
	l.owners = true
	base := tarOf(t, file("etc/conf", "1"), file("etc/old", "1"), file("srv/a", "1"), file("srv/b", "1"), file("tool", "x", mode(0o755)))
	lower, _, err := unpackTo(t, l, base)
	if err != nil {
		t.Fatal(err)
	}
	upper := filepath.Join(t.TempDir(), "upper")
	if err := os.Mkdir(upper, 0o755); err != nil {
		t.Fatal(err)
	}
	at := overlay(t, upper, lower)
	in := func(p string) string { return filepath.Join(at, p) }
	const shift = 100_000
	err = errors.Join(os.WriteFile(in("etc/conf"), []byte("2"), 0o600), os.Remove(in("etc/old")),
		os.RemoveAll(in("srv")), os.Mkdir(in("srv"), 0o711),
		os.WriteFile(in("srv/c"), []byte("3"), 0o644), os.Symlink("/etc/shadow", in("link")),
		os.Link(in("srv/c"), in("srv/d")), os.Chmod(in("tool"), 0o700),
		os.WriteFile(in(".wh.etc"), nil, 0o644), unix.Mkfifo(in("pipe"), 0o644), unix.Mknod(in("sock"), unix.S_IFSOCK|0o600, 0),
		os.Lchown(in("srv/c"), shift+7, shift+8), unix.Setxattr(in("srv/c"), "user.note", []byte("n\x00n"), 0))
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	left, err := Tar(t.Context(), &layer, upper, func(uid, gid int) (int, int) {
		return max(0, uid-shift), max(0, gid-shift)
	})
	if err != nil || left != 2 {
		t.Fatalf("omitted: got %d, %v, want 2", left, err)
	}
	if bytes.Contains(layer.Bytes(), []byte("overlay.")) {
		t.Error("the layer contains metadata of the overlay")
	}
	s := openStore(t)
	out := filepath.Join(t.TempDir(), "out.tar")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Save(t.Context(), f,
		Export{Layers: []func() (io.ReadCloser, error){reader(base), reader(layer.Bytes())}}), f.Close()); err != nil {
		t.Fatal(err)
	}
	img, err := s.Load(t.Context(), "tar:"+out, "saved:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	wanted := look(t, at)
	delete(wanted, ".wh.etc")
	delete(wanted, "sock")
	again := overlay(t, "", img.Layers...)
	want(t, look(t, again), wanted)
	var st, other unix.Stat_t
	if err := errors.Join(unix.Stat(filepath.Join(again, "srv/c"), &st), unix.Stat(filepath.Join(again, "srv/d"), &other)); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 7 || st.Gid != 8 || st.Ino != other.Ino {
		t.Errorf("got owner %d:%d, inodes %d and %d, want 7:8 and one inode", st.Uid, st.Gid, st.Ino, other.Ino)
	}
	note := make([]byte, 8)
	if n, err := unix.Getxattr(filepath.Join(again, "srv/c"), "user.note", note); err != nil || string(note[:n]) != "n\x00n" {
		t.Errorf("attribute: got %q, %v, want %q", note, err, "n\x00n")
	}
}

func TestTar(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(root, "f"), make([]byte, 200<<10), 0o600),
		os.Symlink("/etc", filepath.Join(root, "out"))); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := Tar(t.Context(), &b, root, nil); err != nil {
		t.Fatal(err)
	}
	names := map[string]byte{}
	for tr := tar.NewReader(&b); ; {
		h, err := tr.Next()
		if err != nil {
			break
		}
		names[h.Name] = h.Typeflag
	}
	if fmt.Sprint(names) != fmt.Sprint(map[string]byte{"f": tar.TypeReg, "out": tar.TypeSymlink}) {
		t.Errorf("entries: got %v, want a file and a link", names)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Tar(ctx, io.Discard, root, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if _, err := Tar(t.Context(), io.Discard, root, func(int, int) (int, int) { return -1, 0 }); err == nil {
		t.Error("an owner that the sandbox does not have was taken")
	}
}

func TestCapabilityBecomesRoots(t *testing.T) {
	t.Parallel()
	v3 := "\x01\x00\x00\x03" + strings.Repeat("c", 16) + "\x00\x94\x35\x77"
	if got := rootCapability(v3); got != "\x01\x00\x00\x02"+strings.Repeat("c", 16) {
		t.Errorf("got %q, want revision 2 without the ID", got)
	}
	if got := rootCapability("short"); got != "short" {
		t.Errorf("got %q, want %q", got, "short")
	}
}

// insideEnv is set for the test binary in a user namespace.
const insideEnv = "IMAGE_TEST_INSIDE"

// TestOverlayWithoutRoot unpacks and mounts as a hub without root does: one user,
// who is root in a namespace only.
func TestOverlayWithoutRoot(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		inside(t)
		return
	}
	t.Parallel()
	at, err := os.MkdirTemp("", "image-rootless-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(at)
	program := filepath.Join(at, "test")
	testenv.CopySelf(t, program)
	if err := errors.Join(os.Chmod(at, 0o755), os.Mkdir(filepath.Join(at, "tmp"), 0o700)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^TestOverlayWithoutRoot$")
	cmd.Dir, cmd.Env = at, append(os.Environ(), insideEnv+"=1", "TMPDIR="+filepath.Join(at, "tmp"))
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = nobody, nobody
		if err := os.Chown(filepath.Join(at, "tmp"), uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: uid, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: gid, Size: 1}}}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{NoSetGroups: true}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("PASS")) {
		t.Fatalf("%v: %s", err, out)
	}
}

func inside(t *testing.T) {
	s := openStore(t)
	s.private = true // the namespace's root is no root to the filesystem
	low := tarOf(t, file("gone", "1"), file("secret", "1", mode(0), owned(0, 42)), file("opaque/old", "1"),
		dir("closed", mode(0), owned(5, 5)), file("closed/f", "1"))
	high := tarOf(t, file(".wh.gone", ""), dir("opaque"), file("opaque/.wh..wh..opq", ""), file("closed/g", "2"))
	var b bytes.Buffer
	if err := s.Save(t.Context(), &b, Export{Layers: []func() (io.ReadCloser, error){reader(low), reader(high)}}); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "i.tar")
	if err := os.WriteFile(out, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := s.Load(t.Context(), "tar:"+out, "x:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	want(t, look(t, overlay(t, "", img.Layers...)), map[string]string{"secret": "-r-------- 1", "opaque": "drwxr-xr-x",
		"closed": "drwxr-xr-x", "closed/f": "-rw-r--r-- 1", "closed/g": "-rw-r--r-- 2"})
	if _, err := s.Remove("x:1"); err != nil {
		t.Error(err)
	}
}
