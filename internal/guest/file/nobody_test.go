package file

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/text"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// asNobody is set when this test program runs as an unprivileged user. Its value is the
// folder prepared for it.
const asNobody = "COVE_TEST_AS_NOBODY"

// TestUnprivileged runs TestFilesAsUserNobody as an unprivileged user.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	dir, err := os.MkdirTemp("", "nobody")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	program := dir + "/test"
	testenv.CopySelf(t, program)
	for path, mode := range map[string]os.FileMode{"mine": 0o777, "theirs": 0o755, "closed": 0o700} {
		must(t, os.Mkdir(filepath.Join(dir, path), 0o700))
		must(t, os.Chmod(filepath.Join(dir, path), mode))
	}
	must(t, os.Chown(dir+"/mine", 65534, 65534))
	for path, mode := range map[string]os.FileMode{"theirs/secret": 0o600, "theirs/open": 0o666, "theirs/readable": 0o644, "closed/f": 0o644} {
		must(t, os.WriteFile(filepath.Join(dir, path), []byte("old content\n"), 0o600))
		must(t, os.Chmod(filepath.Join(dir, path), mode))
	}
	cmd := exec.Command(program, "-test.run=^TestFilesAsUserNobody$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{asNobody + "=" + dir, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir + "/mine"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestFilesAsUserNobody") {
		t.Errorf("got %v\n%s, want \"--- PASS: TestFilesAsUserNobody\" in it", err, out)
	}
}

func TestFilesAsUserNobody(t *testing.T) {
	dir := os.Getenv(asNobody)
	if dir == "" {
		t.Skip("TestUnprivileged runs it")
	}
	s := newSandbox(t)
	for _, c := range []struct {
		op string
		in args
	}{
		{"file_read", args{"file": dir + "/theirs/secret"}},
		{"file_read", args{"file": dir + "/closed/f"}},
		{"file_write", args{"file": dir + "/theirs/secret", "content": "x"}},
		{"file_write", args{"file": dir + "/theirs/readable", "content": "x"}},
		{"file_write", args{"file": dir + "/theirs/readable", "content": "x", "append": true}},
		{"file_write", args{"file": dir + "/theirs/new", "content": "x"}},
		{"file_write", args{"file": dir + "/closed/deep/new", "content": "x"}},
		{"file_list", args{"path": dir + "/closed"}},
		{"file_glob", args{"path": dir + "/closed", "pattern": "*"}},
		{"file_grep", args{"path": dir + "/closed", "pattern": "x"}},
		{"file_grep", args{"path": dir + "/theirs/secret", "pattern": "x"}},
		{"file_delete", args{"path": dir + "/theirs/open"}},
		{"file_move", args{"source": dir + "/theirs/open", "destination": dir + "/mine/open"}},
		{"file_chmod", args{"path": dir + "/theirs/open", "mode": "0600"}},
		{"file_mkdir", args{"path": dir + "/theirs/new"}},
		{"file_archive", args{"path": dir + "/theirs"}},
		{"file_str_replace_editor", args{"command": "view", "path": dir + "/theirs/secret"}},
		{"file_str_replace_editor", args{"command": "create", "path": dir + "/theirs/new", "file_text": "x"}},
	} {
		_, err := do[any](s, c.op, c.in)
		fails(t, err, pyerr.Denied, "PermissionError")
	}
	if out := want[text.ReadOut](s, "file_read", args{"file": dir + "/theirs/readable"}); out.Content != "old content\n" {
		t.Errorf(`got %q, want content "old content\n"`, out.Content)
	}
	// A writable file in a read-only folder is written in place.
	want[text.WriteOut](s, "file_write", args{"file": dir + "/theirs/open", "content": "new"})
	if out := want[text.ReadOut](s, "file_read", args{"file": dir + "/theirs/open"}); out.Content != "new" {
		t.Errorf(`got %q, want content "new"`, out.Content)
	}
	must(t, os.WriteFile(dir+"/mine/protected", []byte("x"), 0o444))
	_, err := do[text.WriteOut](s, "file_write", args{"file": dir + "/mine/protected", "content": "y"})
	fails(t, err, pyerr.Denied, "PermissionError") // although a rename would succeed
	for _, in := range []args{{"file": dir + "/theirs/secret", "sudo": true}} {
		_, err := do[text.ReadOut](s, "file_read", in)
		fails(t, err, pyerr.Denied, "PermissionError")
		if !strings.Contains(err.Error(), "sudo") {
			t.Errorf(`got %v, want an error that contains "sudo"`, err)
		}
	}
	_, err = do[text.WriteOut](s, "file_write", args{"file": dir + "/theirs/secret", "content": "x", "sudo": true})
	fails(t, err, pyerr.Denied, "PermissionError")
}

// Root needs no sudo. A service that does not know that it is root tests the way through sudo.
func TestSudo(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	testenv.Need(t, "sudo")
	direct := newSandbox(t)
	through := newSandbox(t)
	through.restart(newService(through.cfg, false))
	for name, s := range map[string]*sandbox{"direct": direct, "sudo": through} {
		t.Run(name, func(t *testing.T) {
			path := s.dir + "/de ep/f'\"$x"
			want[text.WriteOut](s, "file_write", args{"file": path, "content": "one\ntwo\n", "sudo": true})
			must(t, os.Chmod(path, 0o640))
			must(t, os.Chown(path, 1234, 4321))
			want[text.WriteOut](s, "file_write", args{"file": path, "content": "three\n", "append": true, "sudo": true})
			if out := want[text.ReplaceOut](s, "file_replace", args{"file": path, "old_str": "two", "new_str": "2",
				"sudo": true}); out.ReplacedCount != 1 {
				t.Errorf("got %+v, want replaced count 1", out)
			}
			info, err := os.Stat(path)
			must(t, err)
			if st := info.Sys().(*syscall.Stat_t); info.Mode() != 0o640 || st.Uid != 1234 || st.Gid != 4321 {
				t.Errorf("got %v %d:%d, want mode 0640, owner 1234 and group 4321", info.Mode(), st.Uid, st.Gid)
			}
			if out := want[text.ReadOut](s, "file_read", args{"file": path, "sudo": true}); out.Content != "one\n2\nthree\n" {
				t.Errorf(`got %q, want content "one\n2\nthree\n"`, out.Content)
			}
			for lines, wanted := range map[[2]int]string{{1, 2}: "2", {-1, 99}: "three", {0, -1}: "one\n2"} {
				if out := want[text.ReadOut](s, "file_read", args{"file": path, "start_line": lines[0],
					"end_line": lines[1], "sudo": true}); out.Content != wanted {
					t.Errorf("%v: got %q, want content %q", lines, out.Content, wanted)
				}
			}
			if out := want[text.SearchOut](s, "file_search",
				args{"file": path, "regex": "^t", "sudo": true}); len(out.Matches) != 1 || out.LineNumbers[0] != 2 {
				t.Errorf("got %+v, want 1 match and first line number 2", out)
			}
			_, err = do[text.ReadOut](s, "file_read", args{"file": s.dir + "/none", "sudo": true})
			fails(t, err, pyerr.NotFound, "FileNotFoundError")
			_, err = do[text.ReadOut](s, "file_read", args{"file": s.dir, "sudo": true})
			fails(t, err, pyerr.Target, "IsADirectoryError")
			_, err = do[text.WriteOut](s, "file_write", args{"file": s.dir, "content": "x", "sudo": true})
			fails(t, err, pyerr.Target, "IsADirectoryError")
			_, err = do[text.WriteOut](s, "file_write", args{"file": path + "/below", "content": "x", "sudo": true})
			fails(t, err, pyerr.Target, "")
			noTemps(t, filepath.Dir(path))
		})
	}
	full := tmpfs(t, "size=64k")
	_, err := do[text.WriteOut](through, "file_write", args{"file": full + "/f", "content": strings.Repeat("x", 1<<20), "sudo": true})
	fails(t, err, pyerr.NoSpace, "OSError")
}

func TestSudoIsMissing(t *testing.T) {
	t.Parallel()
	runner := proc.New(proc.Config{Env: []string{"PATH=/nowhere"}})
	t.Cleanup(func() { runner.Close() })
	s := newSandbox(t, func(c *Config) { c.Runner = runner })
	s.restart(newService(s.cfg, false))
	_, err := do[text.ReadOut](s, "file_read", args{"file": "/etc/passwd", "sudo": true})
	fails(t, err, pyerr.Denied, "PermissionError")
	if !strings.Contains(err.Error(), "not installed") {
		t.Errorf(`got %v, want an error that contains "not installed"`, err)
	}
}
