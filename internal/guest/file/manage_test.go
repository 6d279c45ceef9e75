package file

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/tree"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

func TestManage(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"a": "A", "dir/f": "F", "dir/sub/g": "G"})
	must(t, os.Symlink("f", s.dir+"/dir/link"))

	if out := want[tree.MkdirOut](s, "file_mkdir", args{"path": "x/y/z", "mode": "0700"}); !out.Created {
		t.Errorf("got %+v, want created", out)
	}
	if out := want[tree.MkdirOut](s, "file_mkdir", args{"path": "x/y/z"}); out.Created {
		t.Errorf("got %+v, want not created", out)
	}
	_, err := do[tree.MkdirOut](s, "file_mkdir", args{"path": "x", "parents": false})
	fails(t, err, pyerr.Exists, "FileExistsError")
	_, err = do[tree.MkdirOut](s, "file_mkdir", args{"path": "a"})
	fails(t, err, pyerr.Target, "NotADirectoryError")

	st := want[tree.StatOut](s, "file_stat", args{"path": "x/y/z"})
	if st.Type != "directory" || st.Mode != "0700" || st.Permissions != "drwx------" || !st.IsDirectory || st.Owner == "" {
		t.Errorf(`got %+v, want type "directory", mode "0700", permissions "drwx------", a directory and an owner`, st)
	}
	if st = want[tree.StatOut](s, "file_stat", args{"path": "dir/link", "follow": false}); st.Type != "symlink" || *st.Target != "f" {
		t.Errorf(`got %+v, want type "symlink" and target "f"`, st)
	}
	if st = want[tree.StatOut](s, "file_stat", args{"path": "dir/link"}); st.Type != "file" || *st.Target != "f" || st.Size != 1 {
		t.Errorf(`got %+v, want type "file", target "f" and size 1`, st)
	}

	cp := want[tree.CopyOut](s, "file_copy", args{"source": "dir", "destination": "copy"})
	if cp.Files != 3 || cp.Folders != 2 || cp.Bytes != 2 || s.get("copy/sub/g") != "G" {
		t.Errorf(`got %+v, want 3 files, 2 folders, 2 bytes and file copy/sub/g with "G"`, cp)
	}
	if to, _ := os.Readlink(s.dir + "/copy/link"); to != "f" {
		t.Errorf(`link to %q, want "f"`, to)
	}
	_, err = do[tree.CopyOut](s, "file_copy", args{"source": "a", "destination": "dir/f"})
	fails(t, err, pyerr.Exists, "FileExistsError")
	want[tree.CopyOut](s, "file_copy", args{"source": "a", "destination": "dir/f", "overwrite": true})
	want[tree.CopyOut](s, "file_copy", args{"source": "a", "destination": "copy/"})
	if s.get("dir/f") != "A" || s.get("copy/a") != "A" {
		t.Errorf("got %q and %q, want copies of a", s.get("dir/f"), s.get("copy/a"))
	}
	for _, to := range []string{"dir", "dir/in/itself"} {
		_, err = do[tree.CopyOut](s, "file_copy", args{"source": "dir", "destination": to})
		fails(t, err, pyerr.Target, "ValueError")
	}

	want[tree.MoveOut](s, "file_move", args{"source": "copy", "destination": "moved/to"})
	if s.get("moved/to/sub/g") != "G" {
		t.Errorf("got %q, want the moved file with \"G\"", s.get("moved/to/sub/g"))
	}
	_, err = do[tree.MoveOut](s, "file_move", args{"source": "a", "destination": "dir/f"})
	fails(t, err, pyerr.Exists, "FileExistsError")
	want[tree.MoveOut](s, "file_move", args{"source": "a", "destination": "dir/f", "overwrite": true})
	_, err = do[tree.MoveOut](s, "file_move", args{"source": "dir", "destination": "dir/sub/x"})
	fails(t, err, pyerr.Target, "ValueError")
	_, err = do[tree.MoveOut](s, "file_move", args{"source": "none", "destination": "x"})
	fails(t, err, pyerr.NotFound, "FileNotFoundError")

	ch := want[tree.ChmodOut](s, "file_chmod", args{"path": "moved", "mode": "u=rwX,go=", "recursive": true})
	if ch.Mode != "0700" || ch.Changed != 6 {
		t.Errorf(`got %+v, want mode "0700" and changed 6`, ch)
	}
	if st = want[tree.StatOut](s, "file_stat", args{"path": "moved/to/sub/g"}); st.Mode != "0600" {
		t.Errorf(`got %+v, want mode "0600"`, st)
	}
	_, err = do[tree.ChmodOut](s, "file_chmod", args{"path": "moved", "mode": "rwx"})
	fails(t, err, pyerr.Target, "ValueError")
}

func TestDelete(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"moved/to/sub/g": "G"})
	for _, path := range []string{"/", "~", "."} {
		_, err := do[tree.DeleteOut](s, "file_delete", args{"path": path, "recursive": true})
		fails(t, err, pyerr.Denied, "PermissionError")
		if path != "/" { // a folder cannot be moved into itself
			_, err = do[tree.MoveOut](s, "file_move", args{"source": path, "destination": "/tmp/x"})
			fails(t, err, pyerr.Denied, "PermissionError")
		}
	}
	must(t, os.Symlink(filepath.Join(s.dir, "moved"), s.dir+"/tofolder"))
	want[tree.DeleteOut](s, "file_delete", args{"path": "tofolder", "recursive": true})
	if s.get("moved/to/sub/g") != "G" {
		t.Error("a link was followed")
	}
	_, err := do[tree.DeleteOut](s, "file_delete", args{"path": "moved"})
	fails(t, err, pyerr.Target, "OSError")
	want[tree.DeleteOut](s, "file_delete", args{"path": "moved", "recursive": true})
	_, err = do[tree.DeleteOut](s, "file_delete", args{"path": "moved"})
	fails(t, err, pyerr.NotFound, "FileNotFoundError")
	if out := want[tree.DeleteOut](s, "file_delete", args{"path": "moved", "missing_ok": true}); out.Deleted {
		t.Errorf("got %+v, want not deleted", out)
	}
}

// A move between file systems copies and then deletes.
func TestMoveBetweenFileSystems(t *testing.T) {
	t.Parallel()
	other := tmpfs(t, "size=4m")
	s := newSandbox(t)
	s.put(map[string]string{"d/f": "F", "d/sub/g": "G"})
	must(t, os.Chmod(s.dir+"/d/sub", 0o500))
	want[tree.MoveOut](s, "file_move", args{"source": "d", "destination": other + "/d"})
	if b, err := os.ReadFile(other + "/d/sub/g"); err != nil || string(b) != "G" {
		t.Errorf(`got %q %v, want "G"`, b, err)
	}
	if _, err := os.Stat(s.dir + "/d"); err == nil {
		t.Error("the source still exists")
	}
	if st := want[tree.StatOut](s, "file_stat", args{"path": other + "/d/sub"}); st.Mode != "0500" {
		t.Errorf(`got %+v, want mode "0500"`, st)
	}
}
