// Package cluster starts real engines for tests: a Docker engine, Podman or a Kubernetes cluster, with a separate network,
// mounts, processes and control group. An engine ends with the test, even if the test is killed.
//
// It owns folders below the user's cache folder, one for each concurrent engine, which cache the images of Docker and
// Podman. It never uses an engine of the host.
package cluster

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

//go:embed engine.sh
var engineScript string

// maxEngines is the maximum number of concurrent engines.
const maxEngines = 16

// inUse is the exit status of the script if another engine uses the folder.
const inUse = 3

// Engine is a private engine with the API of Docker.
type Engine struct {
	Socket string // of its API
	Dir    string // its folder; images in it outlive the engine

	*script
}

// StartDocker starts an engine that ends with the test. It skips the test if no engine can run here.
func StartDocker(t testing.TB) *Engine {
	t.Helper()
	return startEngine(t, "docker", "engine-", "dockerd", "containerd", "runc", "iptables")
}

// StartPodman is StartDocker with the service of Podman, which has the same API.
func StartPodman(t testing.TB) *Engine {
	t.Helper()
	return startEngine(t, "podman", "podman-", "podman", "conmon", "crun")
}

// startEngine starts an engine in an unused folder with a prefix.
func startEngine(t testing.TB, kind, prefix string, programs ...string) *Engine {
	t.Helper()
	testenv.Engine(t)
	testenv.NeedRoot(t)
	testenv.Need(t, append(programs, "curl", "ip", "unshare", "nsenter", "setpriv", "flock")...)
	cache, err := os.UserCacheDir()
	if err != nil {
		testenv.Lack(t, "no folder for the engine's images: "+err.Error())
	}
	for slot := range maxEngines {
		e := &Engine{Dir: filepath.Join(cache, "cove", prefix+strconv.Itoa(slot))}
		e.Socket = filepath.Join(e.Dir, "docker.sock")
		why, free := e.start(t, kind)
		if !free {
			continue
		}
		if why != "" {
			testenv.Lack(t, "no "+kind+" on this machine: "+why)
		}
		e.clear(t)
		return e
	}
	testenv.Lack(t, fmt.Sprintf("%d engines of %s are running already", maxEngines, kind))
	return nil
}

// start runs the script. It returns why the engine cannot start, and whether the folder was unused.
func (e *Engine) start(t testing.TB, kind string) (why string, free bool) {
	t.Helper()
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return err.Error(), true
	}
	cmd := exec.Command("bash", "-c", engineScript, "engine.sh", e.Dir, kind)
	cmd.Stderr = os.Stderr
	run, why, err := startScript(t, cmd, func() {})
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == inUse {
		return "", false
	}
	e.script = run
	return why, true
}

// clear removes objects of killed tests from the cache. It keeps tagged images.
func (e *Engine) clear(t testing.TB) {
	t.Helper()
	for _, what := range []struct{ list, remove []string }{
		{[]string{"ps", "-aq"}, []string{"rm", "-f"}},
		{[]string{"images", "-q", "--filter", "label=io.cove.hub"}, []string{"rmi", "-f"}},
		{[]string{"images", "-q", "--filter", "dangling=true"}, []string{"rmi", "-f"}},
		{[]string{"volume", "ls", "-q"}, []string{"volume", "rm", "-f"}},
	} {
		// A parent image can be removed only after its children.
		for before := 0; ; {
			found := strings.Fields(e.Run(t, nil, what.list...))
			if len(found) == 0 {
				break
			}
			slices.Sort(found)
			found = slices.Compact(found)
			out, err := e.command(t, nil, append(what.remove, found...)...).CombinedOutput()
			if err == nil {
				break
			}
			if len(found) == before {
				t.Fatalf("docker %s: %v\n%s", what.remove, err, out)
			}
			before = len(found)
		}
	}
}

// Restart restarts the engine, which ends all containers of Docker.
func (e *Engine) Restart(t testing.TB) { t.Helper(); e.send(t, "restart") }

// Kill is Restart with kill -9.
func (e *Engine) Kill(t testing.TB) { t.Helper(); e.send(t, "kill") }

// Dial connects to an address on the machine of the engine, where ports are published.
func (e *Engine) Dial(address string) (c net.Conn, err error) {
	inside := e.inside(func() { c, err = net.Dial("tcp", address) })
	return c, errors.Join(inside, err)
}

// Listen listens on the machine of the engine, where only the engine can connect.
func (e *Engine) Listen(address string) (l net.Listener, err error) {
	inside := e.inside(func() { l, err = net.Listen("tcp", address) })
	return l, errors.Join(inside, err)
}

// inside runs do in the network namespace of the engine.
func (e *Engine) inside(do func()) error {
	pid, err := os.ReadFile(filepath.Join(e.Dir, "init.pid"))
	if err != nil {
		return err
	}
	theirs, err := os.Open(filepath.Join("/proc", strings.TrimSpace(string(pid)), "ns/net"))
	if err != nil {
		return err
	}
	defer theirs.Close()
	ours, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer ours.Close()
	runtime.LockOSThread()
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	do()
	if err := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNET); err != nil {
		return err // the thread cannot be reused: it remains locked, and ends with the goroutine
	}
	runtime.UnlockOSThread()
	return nil
}

// Run runs the docker command with the engine and returns its output.
func (e *Engine) Run(t testing.TB, stdin io.Reader, args ...string) string {
	t.Helper()
	out, err := e.command(t, stdin, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (e *Engine) command(t testing.TB, stdin io.Reader, args ...string) *exec.Cmd {
	t.Helper()
	testenv.Need(t, "docker")
	program := "/usr/bin/docker" // the one that belongs to the engine, if there are several
	if _, err := os.Stat(program); err != nil {
		program = "docker"
	}
	cmd := exec.Command(program, args...)
	cmd.Stdin = stdin
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+e.Socket, "DOCKER_BUILDKIT=1", "DOCKER_CONFIG="+e.Dir)
	return cmd
}
