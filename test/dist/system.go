// Package dist installs what is distributed in empty systems.
package dist

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

//go:embed system.sh
var systemScript string

// System is a running minimal Debian or Ubuntu. It has its own processes, mounts, network and control groups, and ends with
// the test, even if that is killed. Its changes are lost then.
type System struct {
	Exchange string   // folder that is /exchange in the system
	init     int      // its first process
	groups   []string // its control groups
}

// missingRelease is the exit status of scripts/root if the mirror of this machine does not have the release.
const missingRelease = 3

// StartSystem starts a system of a release, such as trixie, with access to the network. It has the certificates of
// this machine, whose network may have a private authority.
func StartSystem(t testing.TB, release string) *System {
	t.Helper()
	testenv.Engine(t)
	testenv.NeedRoot(t)
	testenv.Need(t, "debootstrap", "nsenter", "slirp4netns", "pivot_root", "flock")
	root := findRoot(t, release)
	work := t.TempDir()
	s := &System{Exchange: filepath.Join(work, "exchange")}
	for _, dir := range []string{"upper", "work", "root", "exchange"} {
		if err := os.Mkdir(filepath.Join(work, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	configure(t, filepath.Join(work, "upper"))
	cmd := exec.Command("bash", "-c", systemScript)
	cmd.Env = append(os.Environ(), "ROOT="+root, "WORK="+work, "SCRIPT="+systemScript, "NAME=cove-system-"+strconv.Itoa(os.Getpid())+
		"-"+strconv.FormatInt(systems.Add(1), 10), "INSIDE=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		testenv.Lack(t, "needs namespaces: "+err.Error())
	}
	s.init = cmd.Process.Pid
	t.Cleanup(func() {
		in.Close() // ends the first process, and with it all others
		if err := cmd.Wait(); err != nil {
			t.Errorf("the system ended with %v", err)
		}
		if !testenv.Eventually(s.removeGroups) {
			t.Errorf("control groups are left: %q", s.groups)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the system does not start: %q, %v", line, err)
	}
	s.groups = strings.Fields(line)
	s.connect(t)
	return s
}

// systems counts the systems of this program.
var systems atomic.Int64

// removeGroups removes the control groups, and those that programs of the system have left in them.
func (s *System) removeGroups() bool {
	removed := true
	for _, group := range s.groups {
		var dirs []string
		filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error { //nolint:errcheck // best effort
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				removed = false
			}
		}
	}
	return removed
}

func findRoot(t testing.TB, release string) string {
	t.Helper()
	var why strings.Builder
	cmd := exec.CommandContext(t.Context(), "scripts/root", release)
	cmd.Dir, cmd.Stderr = "../..", &why
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == missingRelease {
		testenv.Lack(t, strings.TrimSpace(why.String()))
	}
	if err != nil {
		testenv.Lack(t, fmt.Sprintf("no minimal system of %s: %v: %s", release, err, &why))
	}
	return strings.TrimSpace(string(out))
}

// configure writes the settings of the network.
func configure(t testing.TB, root string) {
	t.Helper()
	certificates, err := filepath.Glob("/usr/local/share/ca-certificates/*.crt")
	if err != nil {
		t.Fatal(err)
	}
	proxies, err := filepath.Glob("/etc/apt/apt.conf.d/*proxy*")
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"/etc/resolv.conf":               "nameserver 10.0.2.3\n", // of slirp4netns
		"/etc/hosts":                     "127.0.0.1 localhost " + host + "\n",
		"/etc/apt/apt.conf.d/99check":    "Acquire::Check-Valid-Until \"false\";\n",
		"/etc/dpkg/dpkg.cfg.d/unsafe-io": "force-unsafe-io\n", // it is lost with the test
	}
	for _, path := range append(certificates, proxies...) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = string(text)
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// connect connects the system to the network of this machine.
func (s *System) connect(t testing.TB) {
	t.Helper()
	ready, readyWriter, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	exitReader, exit, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback", "--ready-fd=3", "--exit-fd=4",
		strconv.Itoa(s.init), "tap0")
	cmd.ExtraFiles = []*os.File{readyWriter, exitReader} // it ends when the test closes the other end, or is killed
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	err = cmd.Start()
	readyWriter.Close()
	exitReader.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		exit.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("slirp4netns ended with %v: %s", err, &log)
		}
	})
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		testenv.Lack(t, "slirp4netns does not start: it needs /dev/net/tun")
	}
}

// Command returns a command that runs a script of bash in the system, in a folder, as a user.
func (s *System) Command(ctx context.Context, user, dir string, env []string, script string) *exec.Cmd {
	home := "/root"
	if user != "root" {
		home = "/home/" + user
	}
	args := append([]string{"-c", join, "join", strings.Join(s.groups, " "), strconv.Itoa(s.init),
		"/usr/bin/env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "USER=" + user,
		"LANG=C.UTF-8"}, env...)
	if user != "root" {
		args = append(args, "setpriv", "--reuid="+user, "--regid="+user, "--init-groups")
	}
	return exec.CommandContext(ctx, "bash", append(args, "bash", "-euo", "pipefail", "-c", "cd "+dir+"\n"+script)...)
}

// join enters the control groups and namespaces of a system.
const join = `set -e
for group in $1; do [ ! -d "$group/first" ] || group+=/first; echo 0 >"$group/cgroup.procs"; done
target=$2
shift 2
exec nsenter --target "$target" --mount --pid --net --cgroup -- "$@"`

// Build builds the archives and packages of a version for this machine and returns their folder.
func Build(t testing.TB, version string) string {
	t.Helper()
	testenv.Need(t, "dpkg-deb")
	out := filepath.Join(t.TempDir(), "dist")
	cmd := exec.CommandContext(t.Context(), "scripts/dist", version)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "OUT="+out, "PLATFORMS=linux/"+runtime.GOARCH)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("scripts/dist: got error %v and %s, want none", err, b)
	}
	return out
}
