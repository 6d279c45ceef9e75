package hostroot

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestHostRoot: the base contains what programs need and no secrets.
func TestHostRoot(t *testing.T) {
	dir := t.TempDir()
	root, err := Build(dir, -1)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Build(dir, -1)
	if err != nil || again.Base != root.Base || len(root.Trees) == 0 {
		t.Errorf("second build: got %+v, %v, want %+v", again, err, root)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files remain in the folder: %v", left)
	}
	for _, name := range []string{"passwd", "group", "nsswitch.conf", "hosts", "resolv.conf"} {
		if data, err := os.ReadFile(filepath.Join(root.Base, "etc", name)); len(data) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"shadow-", "ssh", "sudoers", "machine-id", "fstab", "ssl/private", "krb5.keytab",
		"environment", "npmrc", "pip.conf"} {
		if exists(filepath.Join(root.Base, "etc", name)) {
			t.Errorf("etc/%s exists", name)
		}
	}
	for _, name := range []string{"shadow", "gshadow"} {
		text, err := os.ReadFile(filepath.Join(root.Base, "etc", name))
		if err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(text), "\nuser:") {
			t.Errorf("etc/%s has no user, which E2B's clients expect", name)
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Split(line, ":"); f[1] != "*" {
				t.Errorf("etc/%s: user %q has the password %q, want none", name, f[0], f[1])
			}
		}
	}
	host, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	own, _ := os.ReadFile(filepath.Join(root.Base, "etc/passwd"))
	if string(own) == string(host) {
		t.Error("the host's users are in the base")
	}
}

func TestCopyTakesOnlyPublicFiles(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"open": 0o644, "closed": 0o640, "setuid": 0o755 | os.ModeSetuid} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600), os.Chmod(filepath.Join(dir, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "private"), 0o700),
		os.Symlink("/etc/shadow", filepath.Join(dir, "link")), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	p := &basePlan{have: map[string]bool{}}
	if err := p.copy(dir, "etc/x"); err != nil {
		t.Fatal(err)
	}
	got := map[string]os.FileMode{}
	for _, e := range p.entries {
		got[e.path] = e.mode
	}
	want := map[string]os.FileMode{"etc/x": 0o755 | os.ModeDir, "etc/x/open": 0o644, "etc/x/setuid": 0o755, "etc/x/link": os.ModeSymlink}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestAptIsCopiedWithoutCredentials(t *testing.T) {
	for text, want := range map[string]string{
		"deb http://user:pass@host/debian stable main\n":                        "deb http://host/debian stable main\n",
		"deb https://tok@en@host:8/x a b\n# plain\n":                            "deb https://host:8/x a b\n# plain\n",
		"Acquire::http::Proxy \"http://127.0.0.1:3142\";\nAPT::Get::x \"1\";\n": "APT::Get::x \"1\";\n",
		"URIs: http://a/ http://u:p@b/\nSigned-By: /x@y\n":                      "URIs: http://a/ http://b/\nSigned-By: /x@y\n",
		"deb [signed-by=/k] http://host/a@b c d":                                "deb [signed-by=/k] http://host/a@b c d",
	} {
		if got := string(scrubApt([]byte(text))); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestPrivateFilesAreHidden(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "closed"), 0o700),
		os.WriteFile(filepath.Join(dir, "closed/x"), nil, 0o644),
		os.WriteFile(filepath.Join(dir, "key"), nil, 0o600), os.WriteFile(filepath.Join(dir, "open"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	p := &basePlan{have: map[string]bool{}}
	p.hidePrivate(dir)
	got := map[string]bool{}
	for _, e := range p.entries {
		if e.mode == os.ModeCharDevice {
			got["/"+e.path] = true
		}
	}
	if d := cmp.Diff(map[string]bool{dir + "/closed": true, dir + "/key": true}, got); d != "" {
		t.Error(d)
	}
}

// TestNewShellExitsWithSuccess: the settings of a shell leave no failed status, which a plain "exit" would return.
func TestNewShellExitsWithSuccess(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	home := t.TempDir()
	for name, text := range HomeFiles() {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, login := range []string{"--login", "--noprofile"} {
		cmd := exec.Command("bash", login, "-i")
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "TERM=dumb"}
		cmd.Stdin = strings.NewReader("exit\n")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // without the terminal of the test
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", login, err, out)
		}
	}
}
