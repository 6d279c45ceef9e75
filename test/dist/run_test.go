package dist

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// checkout creates a folder with copies of files of the repository, and an empty HOME. Programs that it gets in bin come first.
func checkout(t *testing.T, files ...string) (dir string, env []string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range files {
		text, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		program(t, dir, name, string(text))
	}
	env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CACHE_HOME=", "TMPDIR="+t.TempDir(), "DIR="+dir,
		"PATH="+filepath.Join(dir, "stubs")+":"+os.Getenv("PATH"), "PROGRESS_INTERVAL=0.001", "MISSING_SHOWN=")
	return dir, env
}

func program(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	testenv.WriteProgram(t, path, []byte(text))
}

// shown waits until the display of running tasks has shown something since this program started.
const shown = `#!/bin/bash
case "$(basename "$0") $*" in
'id -u') echo 0; exit ;;
'go env GOVERSION') echo go0; exit ;;
'python3 -c '*) exit ;;
'apt-cache '*) printf 'Package: %s\n' python3-venv chromium; exit ;;
unshare*) exit 1 ;;
esac
before=$(wc -l <"$DIR/log")
for ((try = 0; ; try++)); do
  [ $try -lt 20000 ] || { echo "no progress while $(basename "$0") $* runs" >&2; exit 1; }
  ! tail -n +$((before + 1)) "$DIR/log" | grep -q '^  [0-9]* s: .' || break
done
echo "$(basename "$0") $*" >>"$DIR/calls"
case "$(basename "$0") $*" in
*' venv '*) for last; do :; done; mkdir -p "$last/bin"; for name in python pip uv; do cp "$0" "$last/bin/$name"; done ;;
esac
`

// TestStepsOfMakeRunShowProgress: while a program runs that may take long, make run shows its progress. The programs
// wait for that.
func TestStepsOfMakeRunShowProgress(t *testing.T) {
	t.Parallel()
	for _, lane := range []string{"start", "run"} {
		t.Run(lane, func(t *testing.T) {
			t.Parallel()
			dir, env := checkout(t, "scripts/deps", "scripts/progress", "go.mod", "internal/app/cove/requirements.txt")
			for _, name := range []string{"apt-get", "apt-cache", "unshare", "go", "make", "id", "systemctl"} {
				program(t, dir, "stubs/"+name, shown)
			}
			deps := strings.NewReplacer("/usr/bin/python3", dir+"/stubs/python3", "/usr/share/doc/python3-venv:", dir+"/no:",
				"chromium:chromium", dir+"/no:chromium")
			text, err := os.ReadFile("../../scripts/deps")
			if err != nil {
				t.Fatal(err)
			}
			program(t, dir, "scripts/deps", deps.Replace(string(text)))
			program(t, dir, "stubs/python3", shown)
			log, err := os.Create(filepath.Join(dir, "log"))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // a step without progress never ends
			defer cancel()
			cmd := exec.CommandContext(ctx, "scripts/deps", lane)
			cmd.WaitDelay = time.Second
			cmd.Dir, cmd.Env, cmd.Stderr = dir, env, log
			if out, err := cmd.Output(); err != nil || len(out) > 0 {
				b, _ := os.ReadFile(log.Name())
				t.Fatalf("got error %v, output %q and %s, want success and no output", err, out, b)
			}
			calls, err := os.ReadFile(filepath.Join(dir, "calls"))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"apt-get -o DPkg::Lock::Timeout=300 update", " install -y", "python3 -m venv",
				"uv -q --no-progress pip install", "make -s build"} {
				if !bytes.Contains(calls, []byte(want)) {
					t.Errorf("got calls %s, want %q", calls, want)
				}
			}
			for _, later := range []string{" chromium", "python -m compileall"} {
				if got := bytes.Contains(calls, []byte(later)); got != (lane == "run") {
					t.Errorf("got calls %s, want%s only while the server runs", calls, later)
				}
			}
		})
	}
}

// TestAptIsNotInterrupted: an interrupted installation would leave the packages of the machine half configured.
func TestAptIsNotInterrupted(t *testing.T) {
	t.Parallel()
	dir, env := checkout(t, "scripts/deps", "scripts/progress", "go.mod")
	for name, text := range map[string]string{
		"id": "echo 0", "unshare": "exit 1", "go": "echo go999", "make": ":", "apt-cache": "echo Package: git", "git": "",
		"apt-get": `case "$*" in *update*) exit ;; esac; echo $$ >"$DIR/apt"; read -r _ <"$DIR/go-on"; echo >"$DIR/finished"`,
	} {
		program(t, dir, "stubs/"+name, "#!/bin/sh\n"+text+"\n")
	}
	text, err := os.ReadFile(filepath.Join(dir, "scripts/deps"))
	if err != nil {
		t.Fatal(err)
	}
	program(t, dir, "scripts/deps", strings.Replace(string(text), "debian git:git", "debian /nowhere:git", 1))
	if err := syscall.Mkfifo(filepath.Join(dir, "go-on"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "scripts/deps", "run")
	file, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd.Dir, cmd.Env, cmd.Stderr, cmd.Stdout = dir, env, file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
	}
	testenv.Poll(t, "apt-get runs", exists("apt"))
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 143 {
		t.Errorf("got %v, want exit status 143", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go-on"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "apt-get has finished", exists("finished"))
	if b, err := os.ReadFile(file.Name()); err != nil || !bytes.Contains(b, []byte("apt-get finishes in the background.\n")) {
		t.Errorf("got %s and error %v, want a note", b, err)
	}
}

// TestInstallationEndsWithTheServer: make run returns the exit status of the server. What it installs ends then.
func TestInstallationEndsWithTheServer(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "tail")
	dir, env := checkout(t, "scripts/serve")
	program(t, dir, "scripts/deps", `#!/bin/bash
echo "$PROGRESS_FILE" >"$DIR/progress"
echo $$ >"$DIR/new" && mv "$DIR/new" "$DIR/deps"
exec tail -f /dev/null
`)
	program(t, dir, "bin/aio", `#!/bin/sh
cat "$AIO_INSTALLING" >"$DIR/shown"
until [ -e "$DIR/deps" ]; do :; done
exit 7
`)
	cmd := exec.CommandContext(t.Context(), "scripts/serve")
	cmd.Dir, cmd.Env = dir, env
	err := cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("got %v, want exit status 7", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "deps"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the installation has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	progress, err := os.ReadFile(filepath.Join(dir, "progress"))
	if err != nil {
		t.Fatal(err)
	}
	path := strings.TrimSpace(string(progress))
	testenv.Poll(t, "the progress is removed", func() bool { _, err := os.Stat(path); return errors.Is(err, os.ErrNotExist) })
	if b, err := os.ReadFile(filepath.Join(dir, "shown")); err != nil || len(b) == 0 {
		t.Errorf("got %q and error %v, want progress when the server starts", b, err)
	}
}

// TestInstallationEndsQuietly: after the installation, make run prints nothing more.
func TestInstallationEndsQuietly(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "tail")
	dir, env := checkout(t, "scripts/serve")
	program(t, dir, "scripts/deps", "#!/bin/sh\n")
	program(t, dir, "bin/aio", `#!/bin/sh
while [ -e "$AIO_INSTALLING" ]; do :; done
`)
	cmd := exec.CommandContext(t.Context(), "scripts/serve")
	cmd.Dir, cmd.Env = dir, env
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 { // all that it started has ended
		t.Errorf("got %q and error %v, want nothing", out, err)
	}
}

// TestMakeRunWithoutRights: make run continues without optional packages, and prints one command that installs all of them.
func TestMakeRunWithoutRights(t *testing.T) {
	t.Parallel()
	dir, env := checkout(t, "scripts/deps", "scripts/progress", "go.mod", "internal/app/cove/requirements.txt")
	for name, text := range map[string]string{"id": "echo 1000", "sudo": "exit 1", "go": "echo go999", "make": `echo "$*" >>"$DIR/made"`,
		"apt-get": `touch "$DIR/installed"`} {
		program(t, dir, "stubs/"+name, "#!/bin/sh\n"+text+"\n")
	}
	program(t, dir, "stubs/python3", `#!/bin/sh
for last; do :; done
case "$*" in *-m\ venv*) mkdir -p "$last/bin" && cp "$0" "$last/bin/pip" && cp "$0" "$last/bin/uv" && cp "$0" "$last/bin/python" ;; esac
`)
	text, err := os.ReadFile(filepath.Join(dir, "scripts/deps"))
	if err != nil {
		t.Fatal(err)
	}
	program(t, dir, "scripts/deps", strings.NewReplacer("/usr/bin/python3", dir+"/stubs/python3", "git:git", "/nowhere:git",
		"chromium:chromium", "/nowhere:chromium").Replace(string(text)))
	for _, lane := range []string{"start", "run"} {
		cmd := exec.CommandContext(t.Context(), "scripts/deps", lane)
		cmd.Dir, cmd.Env = dir, env
		if lane == "run" {
			cmd.Env = append(env, "MISSING_SHOWN=1")
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: got error %v and %s, want success", lane, err, out)
		}
		commands := strings.Count(string(out), "apt-get install --no-install-recommends ")
		if lane == "start" && (commands != 1 || !strings.Contains(string(out), " git ") || !strings.Contains(string(out), " chromium")) {
			t.Errorf("got %s, want one command with all packages", out)
		}
		if lane == "run" && commands != 0 {
			t.Errorf("got %s, want no second command", out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "installed")); err == nil {
		t.Error("apt-get ran, want it not to")
	}
	made, err := os.ReadFile(filepath.Join(dir, "made"))
	if want := "-s build PROGRAMS=./cmd/aio\n-s build\n"; err != nil || string(made) != want {
		t.Errorf("got %q and error %v, want %q", made, err, want)
	}
}
