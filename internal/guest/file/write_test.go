package file

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/editor"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/text"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/tree"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	for _, c := range []struct {
		in   args
		want string
	}{
		{args{"content": "one"}, "one"},
		{args{"content": "two", "append": true}, "onetwo"},
		{args{"content": "three", "append": true, "leading_newline": true, "trailing_newline": true}, "onetwo\nthree\n"},
		{args{"content": "new", "leading_newline": true}, "\nnew"},
		{args{"content": ""}, ""},
		{args{"content": base64.StdEncoding.EncodeToString([]byte("\x00\xff")), "encoding": "base64"}, "\x00\xff"},
		{args{"content": "AP8", "encoding": "base64", "append": true}, "\x00\xff\x00\xff"},
		{args{"content": "_-8=\n", "encoding": "base64"}, "\xff\xef"},
		{args{"content": "größe", "encoding": "raw"}, "größe"},
	} {
		c.in["file"] = "deep/er/f"
		out := want[text.WriteOut](s, "file_write", c.in)
		if got := s.get("deep/er/f"); got != c.want || out.File != s.dir+"/deep/er/f" {
			t.Errorf("%v: %q, want %q", c.in, got, c.want)
		}
	}
	if out := want[text.WriteOut](s, "file_write", args{"file": "n", "content": "é", "trailing_newline": true}); *out.BytesWritten != 3 {
		t.Errorf("got %d bytes, want bytes written 3", *out.BytesWritten)
	}
	_, err := do[text.WriteOut](s, "file_write", args{"file": "f", "content": "***", "encoding": "base64"})
	fails(t, err, pyerr.Decode, "ValueError")
	want[text.WriteOut](s, "file_write", args{"file": "~/in-home", "content": "x"})
	if _, err := os.Stat(s.cfg.Home + "/in-home"); err != nil {
		t.Error(err)
	}
}

func TestWriteKeepsModeAndFollowsLinks(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"real/script": "old"})
	must(t, os.Chmod(s.dir+"/real/script", 0o750))
	must(t, os.Symlink("real/script", s.dir+"/link"))
	must(t, os.Symlink("made/by/link", s.dir+"/dangling"))
	for _, how := range []bool{false, true} {
		want[text.WriteOut](s, "file_write", args{"file": "link", "content": "new", "append": how})
		info, err := os.Lstat(s.dir + "/real/script")
		must(t, err)
		if info.Mode() != 0o750 {
			t.Errorf("append %v: mode %v, want mode 0750", how, info.Mode())
		}
	}
	if info, err := os.Lstat(s.dir + "/link"); err != nil || info.Mode()&os.ModeSymlink == 0 || s.get("real/script") != "newnew" {
		t.Errorf(`the link was replaced: got %v %q, want a link to a file with "newnew"`, err, s.get("real/script"))
	}
	want[text.WriteOut](s, "file_write", args{"file": "dangling", "content": "x"})
	if s.get("made/by/link") != "x" {
		t.Error("a link to nowhere was not followed")
	}
}

// A reader that loops during 10,000 writes reads only complete contents.
func TestConcurrentWritersNeverTearAFile(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	sizes := map[byte]int{'a': 1, 'b': 5000, 'c': 40_000, 'd': 333}
	dir := fastDir(t)
	path := dir + "/f"
	must(t, os.WriteFile(path, []byte("a"), 0o644))
	var writers sync.WaitGroup
	var done atomic.Bool
	for c, n := range sizes {
		content := strings.Repeat(string(c), n)
		writers.Go(func() {
			for range 2500 {
				if _, err := s.text.Write(t.Context(), text.WriteIn{File: path, Content: content}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		for !done.Load() {
			b, err := os.ReadFile(path)
			if err != nil || len(b) == 0 || len(b) != sizes[b[0]] || bytes.Count(b, b[:1]) != len(b) {
				t.Errorf("torn: got %d bytes %.10q %v, want one whole write of a single letter", len(b), b, err)
				return
			}
		}
	})
	writers.Wait()
	done.Store(true)
	reader.Wait()
	noTemps(t, dir)
}

func noTemps(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if atomicfile.IsTemp(e.Name()) {
			t.Errorf("left behind: got %s, want no temporary file", e.Name())
		}
	}
}

// Appending and replacing at the same time loses nothing.
func TestConcurrentAppends(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"log": ""})
	must(t, os.Symlink("log", s.dir+"/alias"))
	var wg sync.WaitGroup
	const writers, each = 8, 100
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				name := []string{"log", "alias"}[i%2]
				in := text.WriteIn{File: name, Content: fmt.Sprintf("%d-%d x %s", w, i, strings.Repeat("y", 500)), Append: true, TrailingNewline: true}
				if _, err := s.text.Write(t.Context(), in); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			if _, err := s.text.Replace(t.Context(), text.ReplaceIn{File: "log", OldStr: " x ", NewStr: " z "}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	seen := map[string]bool{}
	for line := range strings.Lines(s.get("log")) {
		id, rest, _ := strings.Cut(line, " ")
		if len(rest) != 503 {
			t.Errorf("torn line: got %.30q…, want 503 bytes", line)
		}
		seen[id] = true
	}
	if len(seen) != writers*each {
		t.Errorf("got %d lines, want %d", len(seen), writers*each)
	}
}

// tmpfs mounts a small file system.
func tmpfs(t testing.TB, options string) string {
	t.Helper()
	testenv.NeedRoot(t)
	dir := filepath.Join(t.TempDir(), "mnt")
	must(t, os.Mkdir(dir, 0o755))
	must(t, unix.Mount("cove-test", dir, "tmpfs", 0, options))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// fastDir is a folder in memory, if the machine has one.
func fastDir(t testing.TB) string {
	t.Helper()
	if os.Geteuid() == 0 {
		return tmpfs(t, "size=1g")
	}
	return t.TempDir()
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, "size=256k")
	s := newSandbox(t)
	path := dir + "/f"
	old := strings.Repeat("old content\n", 5_000) // a quarter of the disk
	big := strings.Repeat("x", 512<<10)
	must(t, os.WriteFile(path, []byte(old), 0o644))
	for name, in := range map[string]struct {
		op string
		in args
	}{
		"write":     {"file_write", args{"file": path, "content": big}},
		"write new": {"file_write", args{"file": dir + "/new", "content": big}},
		"append":    {"file_write", args{"file": path, "content": big, "append": true}},
		"replace":   {"file_replace", args{"file": path, "old_str": "old", "new_str": strings.Repeat("new", 100)}},
		"create":    {"file_str_replace_editor", args{"command": "create", "path": path, "file_text": big}},
		"str_replace": {"file_str_replace_editor", args{"command": "str_replace", "path": path, "old_str": "old",
			"new_str": big, "replace_mode": "FIRST"}},
	} {
		var err error
		switch in.op {
		case "file_write":
			_, err = do[text.WriteOut](s, in.op, in.in)
		case "file_replace":
			_, err = do[text.ReplaceOut](s, in.op, in.in)
		default:
			_, err = do[editor.EditOut](s, in.op, in.in)
		}
		fails(t, err, pyerr.NoSpace, "OSError")
		if f := failure(t, err); *f.Errno != 28 || *f.ErrnoName != "ENOSPC" {
			t.Errorf(`%s: got %+v, want errno 28 and errno name "ENOSPC"`, name, f)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != old {
			t.Fatalf("%s: got %d bytes, %v, want the old %d bytes", name, len(b), err, len(old))
		}
	}
	_, err := upload(s, "up", strings.NewReader(big), dir+"/")
	fails(t, err, pyerr.NoSpace, "OSError")
	noTemps(t, dir)
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("got %v, want 1 entry", entries)
	}
	_, err = do[editor.EditOut](s, "file_str_replace_editor", args{"command": "undo_edit", "path": path})
	fails(t, err, pyerr.Target, "") // what failed is not in the history
}

func TestReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, "size=1m")
	must(t, os.WriteFile(dir+"/f", []byte("x"), 0o644))
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	s := newSandbox(t)
	for _, in := range []args{{"file": dir + "/f", "content": "y"},
		{"file": dir + "/f", "content": "y", "append": true}, {"file": dir + "/new/g", "content": "y"}} {
		_, err := do[text.WriteOut](s, "file_write", in)
		fails(t, err, pyerr.ReadOnly, "OSError")
	}
	_, err := do[tree.DeleteOut](s, "file_delete", args{"path": dir + "/f"})
	fails(t, err, pyerr.ReadOnly, "OSError")
}

func TestReplaceInFile(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"f": "a.b.c\xff", "same": "x"})
	if out := want[text.ReplaceOut](s, "file_replace",
		args{"file": "f", "old_str": ".", "new_str": "::"}); out.ReplacedCount != 2 || s.get("f") != "a::b::c\xff" {
		t.Errorf(`got %+v %q, want replaced count 2 and file f with "a::b::c\xff"`, out, s.get("f"))
	}
	before, err := os.Stat(s.dir + "/same")
	must(t, err)
	call := &op.Call{}
	out, err := s.text.Replace(op.WithCall(t.Context(), call), text.ReplaceIn{File: "same", OldStr: "y", NewStr: "z"})
	after, _ := os.Stat(s.dir + "/same")
	if err != nil || out.ReplacedCount != 0 || !os.SameFile(before, after) || !strings.Contains(call.Message, "nothing was changed") {
		t.Errorf(`got %+v %v %q, want none replaced, the same file and "nothing was changed"`, out, err, call.Message)
	}
	_, err = do[text.ReplaceOut](s, "file_replace", args{"file": "f", "old_str": "", "new_str": "x"})
	fails(t, err, pyerr.Target, "ValueError")
}
