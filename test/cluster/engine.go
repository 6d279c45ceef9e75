// Package cluster starts real engines for tests: a Docker engine with its own network,
// mounts, processes and control group, which ends with the test, also if that is killed.
//
// It owns folders below the user's cache folder, one for each engine that runs at the
// same time, in which images are kept between runs. It never uses an engine of the host.
package cluster

import (
	"bufio"
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
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/testenv"
)

//go:embed engine.sh
var engineScript string

// maxEngines is how many engines may run at the same time.
const maxEngines = 16

// inUse is the script's exit status if another engine uses the folder.
const inUse = 3

// Engine is a private Docker engine.
type Engine struct {
	Socket string // of its API
	Dir    string // its folder; images in it outlive the engine

	mu     sync.Mutex
	input  io.WriteCloser
	output *bufio.Reader
}

// StartDocker starts an engine that ends with the test. The test is skipped if none can run
// here.
func StartDocker(t testing.TB) *Engine {
	t.Helper()
	testenv.NeedRoot(t)
	testenv.Need(t, "dockerd", "containerd", "runc", "iptables", "curl", "ip", "unshare", "nsenter", "setpriv", "flock")
	cache, err := os.UserCacheDir()
	if err != nil {
		testenv.Lack(t, "no folder for the engine's images: "+err.Error())
	}
	for slot := range maxEngines {
		e := &Engine{Dir: filepath.Join(cache, "cove", "engine-"+strconv.Itoa(slot))}
		e.Socket = filepath.Join(e.Dir, "docker.sock")
		why, free := e.start(t)
		if !free {
			continue
		}
		if why != "" {
			testenv.Lack(t, "no Docker engine on this machine: "+why)
		}
		e.clear(t)
		return e
	}
	testenv.Lack(t, fmt.Sprintf("%d Docker engines are running already", maxEngines))
	return nil
}

// start runs the script. It returns why the engine cannot start, and whether the folder was free.
func (e *Engine) start(t testing.TB) (why string, free bool) {
	t.Helper()
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return err.Error(), true
	}
	cmd := exec.Command("bash", "-c", engineScript, "engine.sh", e.Dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // an interrupt for us must not keep it from cleaning up
	in, err := cmd.StdinPipe()
	if err != nil {
		return err.Error(), true
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err.Error(), true
	}
	if err := cmd.Start(); err != nil {
		return err.Error(), true
	}
	e.input, e.output = in, bufio.NewReader(out)
	line, _ := e.output.ReadString('\n')
	if line != "ready\n" {
		in.Close()
		err := cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == inUse {
			return "", false
		}
		return strings.TrimSpace(line), true
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("stop the engine: %v", err)
		}
	})
	return "", true
}

// clear removes what tests that were killed left in the cache. Tagged images stay.
func (e *Engine) clear(t testing.TB) {
	t.Helper()
	for _, what := range []struct{ list, remove []string }{
		{[]string{"ps", "-aq"}, []string{"rm", "-f"}},
		{[]string{"images", "-q", "--filter", "label=io.cove.hub"}, []string{"rmi", "-f"}},
		{[]string{"images", "-q", "--filter", "dangling=true"}, []string{"rmi", "-f"}},
		{[]string{"volume", "ls", "-q"}, []string{"volume", "rm", "-f"}},
	} {
		if found := strings.Fields(e.Run(t, nil, what.list...)); len(found) > 0 {
			slices.Sort(found)
			e.Run(t, nil, append(what.remove, slices.Compact(found)...)...)
		}
	}
}

// Restart ends the engine, and with it all containers, and starts it again.
func (e *Engine) Restart(t testing.TB) { t.Helper(); e.tell(t, "restart") }

// Kill is Restart by kill -9.
func (e *Engine) Kill(t testing.TB) { t.Helper(); e.tell(t, "kill") }

func (e *Engine) tell(t testing.TB, what string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := io.WriteString(e.input, what+"\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := e.output.ReadString('\n'); line != "ready\n" {
		t.Fatalf("%s the engine: got %q, %v", what, line, err)
	}
}

// Dial connects to an address as the engine's own machine sees it, where ports are published.
func (e *Engine) Dial(address string) (net.Conn, error) {
	pid, err := os.ReadFile(filepath.Join(e.Dir, "init.pid"))
	if err != nil {
		return nil, err
	}
	theirs, err := os.Open(filepath.Join("/proc", strings.TrimSpace(string(pid)), "ns/net"))
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	ours, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	runtime.LockOSThread()
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	c, err := net.Dial("tcp", address)
	if back := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread is lost: it stays locked, and ends with the goroutine.
		return nil, errors.Join(err, back)
	}
	runtime.UnlockOSThread()
	return c, err
}

// Run runs Docker's command line against the engine and returns its output.
func (e *Engine) Run(t testing.TB, stdin io.Reader, args ...string) string {
	t.Helper()
	testenv.Need(t, "docker")
	program := "/usr/bin/docker" // the one that belongs to the engine, if there are several
	if _, err := os.Stat(program); err != nil {
		program = "docker"
	}
	cmd := exec.Command(program, args...)
	cmd.Stdin = stdin
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+e.Socket, "DOCKER_BUILDKIT=1", "DOCKER_CONFIG="+e.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
