package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// doctor --fix installs missing programs, makes the state folder private, reports each step, and
// examines the machine again. A second run changes nothing.
func TestDoctorFixes(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.NeedRoot(t)
	bin, state, venv := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.Chmod(state, 0o755); err != nil {
		t.Fatal(err)
	}
	// ripgrep and ffmpeg are missing; the package manager can install both.
	for _, name := range []string{"bash", "chromium", "Xtigervnc", "openbox", "python3", "node", "git"} {
		testenv.WriteProgram(t, filepath.Join(bin, name), []byte("#!/bin/sh\n"))
	}
	testenv.WriteProgram(t, filepath.Join(bin, "apt-get"), []byte(`#!/bin/bash
echo "$DEBIAN_FRONTEND $*" >> "${0%/*}/calls"
[ $1 = install ] || exit 0
printf '#!/bin/sh\n' > "${0%/*}/rg"; /bin/chmod +x "${0%/*}/rg"
echo "no such package" >&2; exit 100
`))
	if err := os.Mkdir(filepath.Join(venv, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	testenv.WriteProgram(t, filepath.Join(venv, "bin", "python"), []byte("#!/bin/sh\n"))
	doctor := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), cove, append([]string{"doctor", "--state", state, "--venv", venv}, args...)...)
		cmd.Env = []string{"PATH=" + bin, "HOME=" + t.TempDir()}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Errorf("doctor %v: got error %v and %s, want success", args, err, &out)
		}
		return out.String()
	}
	if out := doctor(); !strings.Contains(out, "missing   fast search in files (rg)") ||
		!strings.Contains(out, "missing   state folder") || strings.Contains(out, "fixing") {
		t.Errorf("got %s, want the missing programs and no change", out)
	}
	out := doctor("--fix")
	for _, want := range []string{
		"fixing    chmod 700 " + state + "\n", "ok        state folder",
		"fixing    apt-get install -y -q --no-install-recommends ffmpeg ripgrep\n", "ok        fast search in files (rg)",
		"failed    apt-get: ", "no such package", "missing   recordings of the desktop (ffmpeg)", "ok        a trial sandbox ran",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("got %s, want %q in it", out, want)
		}
	}
	if calls, err := os.ReadFile(filepath.Join(bin, "calls")); err != nil ||
		!strings.HasPrefix(string(calls), "noninteractive update -q\nnoninteractive install -y") {
		t.Errorf("got calls %q and error %v, want an update and an installation", calls, err)
	}
	testenv.WriteProgram(t, filepath.Join(bin, "ffmpeg"), []byte("#!/bin/sh\n"))
	if out := doctor("--fix"); strings.Contains(out, "fixing    apt-get") || strings.Contains(out, "fixing    chmod") {
		t.Errorf("got %s, want nothing left to install", out)
	}
}
