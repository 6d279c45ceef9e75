package file

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

func TestManage(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"a": "A", "dir/f": "F", "dir/sub/g": "G"})
	must(t, os.Symlink("f", s.dir+"/dir/link"))

	if out := want[MkdirOut](s, "file_mkdir", args{"path": "x/y/z", "mode": "0700"}); !out.Created {
		t.Errorf("got %+v, want created", out)
	}
	if out := want[MkdirOut](s, "file_mkdir", args{"path": "x/y/z"}); out.Created {
		t.Errorf("got %+v, want not created", out)
	}
	_, err := do[MkdirOut](s, "file_mkdir", args{"path": "x", "parents": false})
	fails(t, err, pyerr.Exists, "FileExistsError")
	_, err = do[MkdirOut](s, "file_mkdir", args{"path": "a"})
	fails(t, err, pyerr.Target, "NotADirectoryError")

	st := want[StatOut](s, "file_stat", args{"path": "x/y/z"})
	if st.Type != "directory" || st.Mode != "0700" || st.Permissions != "drwx------" || !st.IsDirectory || st.Owner == "" {
		t.Errorf(`got %+v, want type "directory", mode "0700", permissions "drwx------", a directory and an owner`, st)
	}
	if st = want[StatOut](s, "file_stat", args{"path": "dir/link", "follow": false}); st.Type != "symlink" || *st.Target != "f" {
		t.Errorf(`got %+v, want type "symlink" and target "f"`, st)
	}
	if st = want[StatOut](s, "file_stat", args{"path": "dir/link"}); st.Type != "file" || *st.Target != "f" || st.Size != 1 {
		t.Errorf(`got %+v, want type "file", target "f" and size 1`, st)
	}

	cp := want[CopyOut](s, "file_copy", args{"source": "dir", "destination": "copy"})
	if cp.Files != 3 || cp.Folders != 2 || cp.Bytes != 2 || s.get("copy/sub/g") != "G" {
		t.Errorf(`got %+v, want 3 files, 2 folders, 2 bytes and file copy/sub/g with "G"`, cp)
	}
	if to, _ := os.Readlink(s.dir + "/copy/link"); to != "f" {
		t.Errorf(`link to %q, want "f"`, to)
	}
	_, err = do[CopyOut](s, "file_copy", args{"source": "a", "destination": "dir/f"})
	fails(t, err, pyerr.Exists, "FileExistsError")
	want[CopyOut](s, "file_copy", args{"source": "a", "destination": "dir/f", "overwrite": true})
	want[CopyOut](s, "file_copy", args{"source": "a", "destination": "copy/"})
	if s.get("dir/f") != "A" || s.get("copy/a") != "A" {
		t.Error("not copied")
	}
	for _, to := range []string{"dir", "dir/in/itself"} {
		_, err = do[CopyOut](s, "file_copy", args{"source": "dir", "destination": to})
		fails(t, err, pyerr.Target, "ValueError")
	}

	want[MoveOut](s, "file_move", args{"source": "copy", "destination": "moved/to"})
	if s.get("moved/to/sub/g") != "G" {
		t.Error("not moved")
	}
	_, err = do[MoveOut](s, "file_move", args{"source": "a", "destination": "dir/f"})
	fails(t, err, pyerr.Exists, "FileExistsError")
	want[MoveOut](s, "file_move", args{"source": "a", "destination": "dir/f", "overwrite": true})
	_, err = do[MoveOut](s, "file_move", args{"source": "dir", "destination": "dir/sub/x"})
	fails(t, err, pyerr.Target, "ValueError")
	_, err = do[MoveOut](s, "file_move", args{"source": "none", "destination": "x"})
	fails(t, err, pyerr.NotFound, "FileNotFoundError")

	ch := want[ChmodOut](s, "file_chmod", args{"path": "moved", "mode": "u=rwX,go=", "recursive": true})
	if ch.Mode != "0700" || ch.Changed != 6 {
		t.Errorf(`got %+v, want mode "0700" and changed 6`, ch)
	}
	if st = want[StatOut](s, "file_stat", args{"path": "moved/to/sub/g"}); st.Mode != "0600" {
		t.Errorf(`got %+v, want mode "0600"`, st)
	}
	_, err = do[ChmodOut](s, "file_chmod", args{"path": "moved", "mode": "rwx"})
	fails(t, err, pyerr.Target, "ValueError")
}

func TestDelete(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"moved/to/sub/g": "G"})
	for _, path := range []string{"/", "~", "."} {
		_, err := do[DeleteOut](s, "file_delete", args{"path": path, "recursive": true})
		fails(t, err, pyerr.Denied, "PermissionError")
		if path != "/" { // which cannot go into itself anyway
			_, err = do[MoveOut](s, "file_move", args{"source": path, "destination": "/tmp/x"})
			fails(t, err, pyerr.Denied, "PermissionError")
		}
	}
	must(t, os.Symlink(filepath.Join(s.dir, "moved"), s.dir+"/tofolder"))
	want[DeleteOut](s, "file_delete", args{"path": "tofolder", "recursive": true})
	if s.get("moved/to/sub/g") != "G" {
		t.Error("a link was followed")
	}
	_, err := do[DeleteOut](s, "file_delete", args{"path": "moved"})
	fails(t, err, pyerr.Target, "OSError")
	want[DeleteOut](s, "file_delete", args{"path": "moved", "recursive": true})
	_, err = do[DeleteOut](s, "file_delete", args{"path": "moved"})
	fails(t, err, pyerr.NotFound, "FileNotFoundError")
	if out := want[DeleteOut](s, "file_delete", args{"path": "moved", "missing_ok": true}); out.Deleted {
		t.Errorf("got %+v, want not deleted", out)
	}
}

// Between file systems a move is a copy and a removal.
func TestMoveBetweenFileSystems(t *testing.T) {
	t.Parallel()
	other := tmpfs(t, "size=4m")
	s := newSandbox(t)
	s.put(map[string]string{"d/f": "F", "d/sub/g": "G"})
	must(t, os.Chmod(s.dir+"/d/sub", 0o500))
	want[MoveOut](s, "file_move", args{"source": "d", "destination": other + "/d"})
	if b, err := os.ReadFile(other + "/d/sub/g"); err != nil || string(b) != "G" {
		t.Errorf(`got %q %v, want "G"`, b, err)
	}
	if _, err := os.Stat(s.dir + "/d"); err == nil {
		t.Error("the source is still there")
	}
	if st := want[StatOut](s, "file_stat", args{"path": other + "/d/sub"}); st.Mode != "0500" {
		t.Errorf(`got %+v, want mode "0500"`, st)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		from os.FileMode
		want os.FileMode
	}{
		{"644", 0, 0o644}, {"0o755", 0, 0o755}, {"4755", 0, 0o755 | os.ModeSetuid}, {"u+x", 0o644, 0o744}, {"+x", 0o644, 0o755},
		{"a-w", 0o666, 0o444}, {"go=r", 0o777, 0o744}, {"u=rw,go-rwx", 0o777, 0o600}, {"u+s", 0o755, 0o755 | os.ModeSetuid},
		{"+X", 0o644, 0o644}, {"+X", 0o744, 0o755}, {"+t", 0o777, 0o777 | os.ModeSticky},
	} {
		if got, err := applyMode(c.text, c.from); err != nil || got != c.want {
			t.Errorf("%s of %v: %v %v, want %v", c.text, c.from, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "9", "x", "u", "u+z", "z+x", "77777", "u+x,"} {
		if _, err := applyMode(bad, 0o644); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
