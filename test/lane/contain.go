package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A run of tests is contained, so that it leaves nothing on the machine even if it is killed:
//
//   - Root's runs have their own process, mount and cgroup namespaces. The kernel ends their
//     processes and mounts with the first process of the namespace, which ends with the lane.
//   - Their /tmp is a folder in the user's cache. If the run needs files of the machine's /tmp, that
//     folder is mounted elsewhere and TMPDIR points to it: paths of sockets must be short. Without
//     root, TMPDIR is a folder in /tmp.
//   - A sweeper, in another session, waits for the end of the lane. It then kills the remaining
//     processes and removes that folder and the control groups.
const (
	sweepArg = "-sweep"   // sweeper: lane -sweep FOLDER TMPDIR
	initArg  = "-contain" // first process of the namespace: lane -contain FOLDER ARGS...
	runEnv   = "TEST_RUN" // the folder of the run; processes with it belong to the run
	mountEnv = "TEST_TMP" // where a run of root mounts its temporary folder
)

// contain runs the lane again, contained, and returns its exit status.
func contain(args []string) (int, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return 0, err
	}
	runs := filepath.Join(cache, "cove", "runs")
	if err := os.MkdirAll(runs, 0o755); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(runs, "")
	if err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	tmp, env := filepath.Join(dir, "tmp"), []string(nil)
	if at := mountPoint(); os.Geteuid() == 0 && at != "" {
		err = os.Mkdir(tmp, 0o700)
		env = []string{mountEnv + "=" + at, "TMPDIR=" + at}
	} else {
		tmp, err = os.MkdirTemp("", "c")
		env = []string{"TMPDIR=" + tmp}
	}
	if err != nil {
		return 0, err
	}
	swept, err := startSweeper(self, dir, tmp)
	if err != nil {
		return 0, err
	}
	defer swept()
	if err := os.Chmod(tmp, 0o777|os.ModeSticky); err != nil {
		return 0, err
	}
	start := func(args []string, flags uintptr) (*exec.Cmd, error) {
		cmd := exec.Command(self, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = append(append(os.Environ(), runEnv+"="+dir), env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: flags}
		return cmd, cmd.Start()
	}
	runtime.LockOSThread() // Pdeathsig applies to the thread
	cmd, err := start(append([]string{initArg, dir}, args...), syscall.CLONE_NEWPID|syscall.CLONE_NEWNS)
	if err != nil {
		env = []string{"TMPDIR=" + tmp}
		cmd, err = start(args, 0)
	}
	if err != nil {
		return 0, err
	}
	return wait(cmd)
}

// mountPoint returns a folder that the run can cover with its temporary folder: the run needs no
// file in it. It is empty if there is none.
func mountPoint() string {
	dirs := []string{os.Getenv("HOME")}
	if wd, err := os.Getwd(); err == nil {
		dirs = append(dirs, wd)
	}
	if out, err := exec.Command("go", "env", "GOROOT", "GOCACHE", "GOMODCACHE").Output(); err == nil {
		dirs = append(dirs, strings.Split(string(out), "\n")...)
	}
	for _, at := range []string{"/tmp", "/srv", "/media", "/mnt"} {
		info, err := os.Lstat(at)
		needed := slices.ContainsFunc(dirs, func(d string) bool { return d == at || strings.HasPrefix(d, at+"/") })
		if err == nil && info.IsDir() && !needed {
			return at
		}
	}
	return ""
}

// wait forwards signals to a process until it ends.
func wait(cmd *exec.Cmd) (int, error) {
	signals := notifyEnd()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			cmd.Process.Signal(s) //nolint:errcheck // it may have ended
		case err := <-ended:
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				return max(exit.ExitCode(), 1), nil
			}
			return 0, err
		}
	}
}

// startSweeper starts the sweeper. The result signals the end of the run and waits for the sweeper.
func startSweeper(self, dir, tmp string) (func(), error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command(self, sweepArg, dir, tmp)
	cmd.Stdin, cmd.Stderr = r, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		w.Close()
		cmd.Wait() //nolint:errcheck // it printed what failed
	}, nil
}

// sweep waits for the end of a run and removes what the run left.
func sweep(dir, tmp string) error {
	io.Copy(io.Discard, os.Stdin) //nolint:errcheck // only the end of the input matters
	groups := groupsOf(dir)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		killRun(dir)
		left := removeGroups(groups)
		if left == nil {
			left = errors.Join(os.RemoveAll(tmp), os.RemoveAll(dir))
		}
		if left == nil || time.Now().After(deadline) {
			return left
		}
	}
}

// killRun kills the processes that inherited the variable of the run.
func killRun(dir string) {
	mark := runEnv + "=" + dir
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		env, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), mark) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
		}
	}
}

// runContained is the first process of the namespaces: it prepares them, runs the lane, and reaps
// orphans. When it ends, the kernel ends all others.
func runContained(dir string, args []string) (int, error) {
	runtime.LockOSThread() // the control group namespace of prepare applies to the thread that starts the lane
	if err := prepare(dir); err != nil {
		return 0, fmt.Errorf("contain the tests: %w", err)
	}
	worker, err := syscall.ForkExec("/proc/self/exe", append([]string{"lane"}, args...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return 0, err
	}
	signals := notifyEnd()
	go func() {
		for s := range signals {
			syscall.Kill(worker, s.(syscall.Signal)) //nolint:errcheck // it may have ended
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case pid == worker && status.Exited():
			return status.ExitStatus(), nil
		case pid == worker:
			return 1, nil
		}
	}
}

// prepare gives the run its own /proc, /tmp and control groups. Later mounts of the machine are visible
// here; mounts of the run are not visible there.
func prepare(dir string) error {
	for _, flag := range []uintptr{unix.MS_SLAVE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|flag, ""); err != nil {
			return err
		}
	}
	for _, g := range groupsOf(dir) {
		if err := g.enter(); err != nil {
			return err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return err
	}
	for _, g := range groupsOf(dir) {
		if err := g.bind(); err != nil {
			return err
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	at := os.Getenv(mountEnv)
	if at == "" {
		return nil
	}
	return unix.Mount(filepath.Join(dir, "tmp"), at, "", unix.MS_BIND, "")
}
