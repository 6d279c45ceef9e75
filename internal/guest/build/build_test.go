package build

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func newService(t *testing.T) *Service {
	r := proc.New(proc.Config{Env: []string{"PATH=/bad", "https_proxy=http://proxy", "SECRET=x"}})
	t.Cleanup(func() { r.Close() })
	return New(Config{Runner: r, Staging: t.TempDir(), EndOthers: func(context.Context) error { return nil }})
}

func (s *Service) output(t *testing.T, in RunIn) (lines []string, end RunEvent) {
	t.Helper()
	if in.Workdir == "" {
		in.Workdir = t.TempDir()
	}
	if in.Timeout == 0 {
		in.Timeout = 300
	}
	if in.User == "" && os.Geteuid() != 0 {
		in.User = itoa(os.Geteuid())
	}
	err := s.Run(t.Context(), in, func(e op.Event) error {
		if ev := e.Data.(RunEvent); ev.Done {
			end = ev
		} else {
			lines = append(lines, ev.Text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines, end
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func TestRun(t *testing.T) {
	t.Parallel()
	s := newService(t)
	work := filepath.Join(t.TempDir(), "new", "folder")
	out, end := s.output(t, RunIn{Args: []string{"/bin/sh", "-c", "pwd; echo $A; env; echo err >&2; printf last; exit 3"},
		Env: map[string]string{"A": "b c"}, Workdir: work})
	text := strings.Join(out, "\n")
	if !strings.HasPrefix(text, work+"\nb c\n") || !strings.HasSuffix(text, "\nerr\nlast") || end.Code != 3 || !end.Done {
		t.Errorf("got %q, %+v", text, end)
	}
	if strings.Contains(text, "SECRET") || strings.Contains(text, "/bad") || !strings.Contains(text, "https_proxy=http://proxy") {
		t.Errorf("the environment is %q, want the proxy and nothing else of the server", text)
	}
	for _, c := range []struct {
		in   RunIn
		want string
	}{
		{RunIn{Args: []string{"/no/such/program"}}, "/no/such/program"},
		{RunIn{Args: []string{"/bin/true"}, User: "root123"}, "invalid username: 'root123'"},
		{RunIn{Args: []string{"/bin/true"}, User: "0:no-such-group"}, "invalid group"},
		{RunIn{Args: []string{"/bin/sleep", "1000"}, Timeout: 0.1}, "did not end in 0.1 seconds"},
		{RunIn{Args: []string{"/bin/sh", "-c", "kill -9 $$"}}, "memory"},
		{RunIn{Args: []string{"/bin/true"}, Workdir: "relative"}, "absolute"},
		{RunIn{Args: []string{"/bin/true"}, Workdir: "/bin/sh/x"}, "/bin/sh"},
	} {
		if _, end := s.output(t, c.in); !end.Done || !strings.Contains(end.Reason, c.want) {
			t.Errorf("%q: got %+v, want reason %q", c.in.Args, end, c.want)
		}
	}
	// A line without end is split, and a background process does not delay the end.
	out, end = s.output(t, RunIn{Args: []string{"/bin/sh", "-c", "head -c 20000 /dev/zero | tr '\\0' x; sleep 1000 &"}})
	if len(out) != 3 || len(out[0]) != maxLine || end.Code != 0 {
		t.Errorf("got %d lines, %+v, want three parts", len(out), end)
	}
}

// TestOps: no operation is a tool, a verb or documented: only the hub calls them.
func TestOps(t *testing.T) {
	t.Parallel()
	for _, o := range newService(t).Ops() {
		if !o.NoTool || !o.NoVerb || !o.NoDoc {
			t.Errorf("%s is visible to users", o.Name)
		}
	}
}

func TestRunAsUser(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	s := newService(t)
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	out, end := s.output(t, RunIn{Args: []string{"/bin/sh", "-c", "id -u; id -g; echo $HOME"}, User: "1234:65", Workdir: "/"})
	if got := strings.Join(out, " "); got != "1234 65 /" || end.Code != 0 {
		t.Errorf("got %q, %+v", got, end)
	}
}

type file struct {
	name, text, link string
	mode             int64
	kind             byte
}

func tarOf(t *testing.T, files ...file) *op.File {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Size: int64(len(f.text)), Mode: f.mode, Typeflag: f.kind, Linkname: f.link}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &op.File{Reader: &b}
}

func TestCopy(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tree := func() *op.File {
		return tarOf(t, file{name: "a.txt", text: "a"}, file{name: "b.txt", text: "b", mode: 0o755},
			file{name: "src/x", text: "x"}, file{name: "src/deep/y", text: "y"}, file{name: "src/link", kind: tar.TypeSymlink, link: "x"})
	}
	owner := itoa(os.Geteuid())
	for _, c := range []struct {
		name, sources, to string
		want              map[string]string
	}{
		{"file to a name", `["a.txt"]`, "c.txt", map[string]string{"c.txt": "a"}},
		{"file to a folder", `["a.txt"]`, "new/", map[string]string{"new/a.txt": "a"}},
		{"file to an existing folder", `["a.txt"]`, "old", map[string]string{"old/a.txt": "a", "old/kept": "kept"}},
		{"pattern", `["*.txt"]`, "new", map[string]string{"new/a.txt": "a", "new/b.txt": "b"}},
		{"content of a folder", `["src"]`, "old", map[string]string{"old/x": "x", "old/deep/y": "y", "old/link": "x", "old/kept": "kept"}},
		{"everything", `["."]`, "all", map[string]string{"all/a.txt": "a", "all/src/deep/y": "y"}},
		{"through a link to a folder", `["src/"]`, "linked", map[string]string{"old/x": "x"}},
	} {
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "old"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "old/kept"), []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("old", filepath.Join(root, "linked")); err != nil {
			t.Fatal(err)
		}
		out, err := s.Copy(t.Context(), CopyIn{Sources: c.sources, To: root + "/" + c.to, Owner: owner, File: tree()})
		if err != nil || out.Files == 0 {
			t.Errorf("%s: got %+v, %v", c.name, out, err)
		}
		for name, want := range c.want {
			if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
				t.Errorf("%s: %s contains %q, %v, want %q", c.name, name, got, err, want)
			}
		}
	}
	// To another filesystem, if there is one.
	if other, err := os.MkdirTemp("/dev/shm", "copy-"); err == nil {
		defer os.RemoveAll(other)
		_, err := s.Copy(t.Context(), CopyIn{Sources: `["src","b.txt"]`, To: other, Owner: owner, File: tree()})
		got, _ := os.ReadFile(filepath.Join(other, "link"))
		info, statErr := os.Stat(filepath.Join(other, "b.txt"))
		if err != nil || string(got) != "x" || statErr != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("to another filesystem: got %q, %v, %v, %v", got, info, err, statErr)
		}
	}
	made := filepath.Join(t.TempDir(), "made")
	if _, err := s.Copy(t.Context(), CopyIn{Sources: `["."]`, To: made, Owner: owner, File: tree()}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("a folder for all files: got %v, %v, want mode 755", info, err)
	}
	root := t.TempDir()
	if _, err := s.Copy(t.Context(), CopyIn{Sources: `["."]`, To: root, Owner: owner, Mode: "750", File: tree()}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(root, "a.txt")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("mode: got %v, %v", info, err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Staging, "*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestHostileCopy: an archive never writes outside its destination, and a failed copy leaves nothing behind.
func TestHostileCopy(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.Limits = archive.Limits{Entries: 10, Bytes: 1 << 10, Packed: 1 << 20}
	outside := t.TempDir()
	for name, c := range map[string]struct {
		sources string
		files   []file
	}{
		"name above":       {`["."]`, []file{{name: "../x", text: "x"}}},
		"absolute name":    {`["."]`, []file{{name: outside + "/x", text: "x"}}},
		"file below link":  {`["."]`, []file{{name: "l", kind: tar.TypeSymlink, link: outside}, {name: "l/x", text: "x"}}},
		"hard link":        {`["."]`, []file{{name: "l", kind: tar.TypeLink, link: "/etc/passwd"}}},
		"source above":     {`["../../etc/passwd"]`, []file{{name: "x", text: "x"}}},
		"too many entries": {`["."]`, make([]file, 0)},
		"too large":        {`["."]`, []file{{name: "x", text: strings.Repeat("x", 2<<10)}}},
	} {
		if name == "too many entries" {
			for i := range 11 {
				c.files = append(c.files, file{name: itoa(i), text: "x"})
			}
		}
		to := t.TempDir()
		_, err := s.Copy(t.Context(), CopyIn{Sources: c.sources, To: to, Owner: itoa(os.Geteuid()), File: tarOf(t, c.files...)})
		if err == nil && name != "file below link" {
			t.Errorf("%s: accepted", name)
		}
		if left, _ := os.ReadDir(outside); len(left) != 0 {
			t.Errorf("%s: wrote %v outside", name, left)
		}
		if left, _ := filepath.Glob(filepath.Join(s.Staging, "*")); len(left) != 0 {
			t.Errorf("%s: left behind: %q", name, left)
		}
	}
	// An error at the destination is one of the caller.
	for _, to := range []string{"/proc/sys/kernel/core_pattern/x", "/proc/none/", "/etc/passwd/"} {
		_, err := s.Copy(t.Context(), CopyIn{Sources: `["x"]`, To: to, Owner: itoa(os.Geteuid()), File: tarOf(t, file{name: "x", text: "x"})})
		if _, shown := op.AsError(err); !shown {
			t.Errorf("to %s: got %v, want an error for the caller", to, err)
		}
	}
	// Devices and links that leave the files are not copied, and are reported.
	to := t.TempDir()
	out, err := s.Copy(t.Context(), CopyIn{Sources: `["."]`, To: to, Owner: itoa(os.Geteuid()), File: tarOf(t,
		file{name: "dev", kind: tar.TypeChar}, file{name: "link", kind: tar.TypeSymlink, link: "/etc"},
		file{name: "x", text: "x", mode: 0o4755})})
	if err != nil || len(out.Skipped) != 2 || out.Files != 1 {
		t.Errorf("got %+v, %v, want one file and two skipped", out, err)
	}
	if info, err := os.Stat(filepath.Join(to, "x")); err != nil || info.Mode()&fs.ModeSetuid != 0 {
		t.Errorf("got %v, %v, want no setuid bit", info, err)
	}
}
