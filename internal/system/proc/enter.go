package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Enter starts a server through a program that prepares its process.
type Enter struct {
	// Root runs the program as root of a new user namespace with the same IDs. There it has the capabilities that the preparation
	// requires, and programs that change the user still work.
	Root bool
	// Argv is the program, which must replace itself by the server whose path and arguments follow.
	Argv []string
	// Supervise is called with a socket whose other end is descriptor EnterFD of the program. If it fails, the program is killed
	// and the server is started without it.
	Supervise func(conn int) error
	// Without is called before the server is started without the program.
	Without func()
}

// EnterFD is the descriptor that a program of Enter inherits.
const EnterFD = 3

// enter starts the server of a config with Enter.
func (in *initLoop) enter(cfg InitConfig) (pid int, err error) {
	sys := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if cfg.Enter.Root {
		if sys.UidMappings, err = readIDs("/proc/self/uid_map"); err != nil {
			return 0, err
		}
		if sys.GidMappings, err = readIDs("/proc/self/gid_map"); err != nil {
			return 0, err
		}
		sys.Cloneflags, sys.GidMappingsEnableSetgroups = unix.CLONE_NEWUSER, true
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("create socket pair: %w", err)
	}
	defer unix.Close(pair[0])
	argv := append(append([]string{}, cfg.Enter.Argv...), cfg.Argv...)
	pid, err = syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: cfg.Dir, Env: cfg.Env, Files: []uintptr{0, 1, 2, uintptr(pair[1])}, Sys: sys,
	})
	unix.Close(pair[1])
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", cfg.Enter.Argv[0], err)
	}
	if err := cfg.Enter.Supervise(pair[0]); err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL) // reaped with all other children
		return 0, err
	}
	return pid, nil
}

// readIDs reads the ranges of IDs that exist in a user namespace.
func readIDs(path string) (ids []syscall.SysProcIDMap, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line)) // the first ID, the same one outside, and the number of IDs
		if len(fields) != 3 {
			return nil, fmt.Errorf("read %s: got %q, want three numbers", path, line)
		}
		first, err := strconv.Atoi(fields[0])
		size, wrong := strconv.Atoi(fields[2])
		if err := errors.Join(err, wrong); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		ids = append(ids, syscall.SysProcIDMap{ContainerID: first, HostID: first, Size: size})
	}
	return ids, nil
}

// Entered replaces this program, which Enter started, by the server. The calling thread must be locked. The server has no
// capabilities except those in a set.
func Entered(u *User, capabilities uint64, argv []string, env []string) error {
	for c := uintptr(0); c < 64; c++ {
		if capabilities&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL { // unknown to this kernel
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if u != nil {
		groups := []int{}
		for _, g := range u.Groups {
			groups = append(groups, int(g))
		}
		if err := syscall.Setgroups(groups); err != nil {
			return fmt.Errorf("set groups: %w", err)
		}
		if err := syscall.Setresgid(int(u.GID), int(u.GID), int(u.GID)); err != nil {
			return fmt.Errorf("set group: %w", err)
		}
		if err := syscall.Setresuid(int(u.UID), int(u.UID), int(u.UID)); err != nil {
			return fmt.Errorf("set user: %w", err)
		}
	}
	// The kernel has cleared it.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the first process: %w", err)
	}
	return Replace(argv[0], argv, env)
}

// Capabilities returns the set that bounds the capabilities of this thread.
func Capabilities() (set uint64) {
	for c := uintptr(0); c < 64; c++ {
		if in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err == nil && in == 1 {
			set |= 1 << c
		}
	}
	return set
}
