package dist

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// make install copies programs for all users, and reports how to find them.
func TestMakeInstall(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "make")
	makefile, err := filepath.Abs("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/cove"), []byte("#!/bin/sh\necho runs\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	prefix := filepath.Join(dir, "prefix")
	for _, path := range []string{os.Getenv("PATH"), prefix + "/bin:" + os.Getenv("PATH")} {
		cmd := exec.CommandContext(t.Context(), "make", "-C", dir, "-f", makefile, "-o", "build", "install", "PREFIX="+prefix)
		cmd.Env = append(os.Environ(), "PATH="+path)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("make install: got error %v and %s, want none", err, out)
		}
		onPath := strings.HasPrefix(path, prefix)
		if hint := "export PATH=" + prefix + "/bin:$PATH"; strings.Contains(string(out), hint+"\n") == onPath {
			t.Errorf("got %s with the programs on the PATH: %v, want %q only if they are not", out, onPath, hint)
		}
	}
	if out, err := exec.CommandContext(t.Context(), prefix+"/bin/cove").Output(); err != nil || string(out) != "runs\n" {
		t.Errorf("the installed program: got error %v and %s, want none", err, out)
	}
	if info, err := os.Lstat(prefix + "/bin/cove"); err != nil || info.Mode().Perm() != 0o755 || !info.Mode().IsRegular() {
		t.Errorf("got %v and error %v, want an executable file", info, err)
	}
}
