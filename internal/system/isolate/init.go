package isolate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Main is the sandbox's init, PID 1 inside. It builds the sandbox around itself, waits
// for permission to go on, drops its privileges, runs the program, reaps orphans, and ends with the program. It does not return.
func Main() {
	// Namespaces, capabilities and keyrings belong to threads: everything must be set up on the thread that forks the program.
	runtime.LockOSThread()
	unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&[]byte(initName + "\x00")[0])), 0, 0, 0)
	i := &initProcess{conn: os.NewFile(fdConn, "isolate"), began: time.Now()}
	pid, err := i.start()
	if err != nil {
		i.report(report{Error: err.Error()})
		os.Exit(1)
	}
	i.conn.Close()
	if pid == 0 {
		os.Exit(0) // a trial
	}
	i.supervise(pid)
}

// initProcess is the state of init.
type initProcess struct {
	conn  *os.File
	began time.Time
	set   setup
	pump  *pump
	// referee decides on the calls that the filter does not decide on.
	referee *referee
	// rootless: the only user inside is that of the hub.
	rootless bool
	pid      int // of the program
	// behind: only this thread is root yet.
	behind bool
	// runtime: the program has walls of its own; see Config.Runtime.
	runtime bool
	helpers helpers
}

func (i *initProcess) report(r report) {
	r.Took = time.Since(i.began)
	i.began = time.Now()
	i.conn.Write(marshal(&r))
}

// start builds the sandbox and runs the program, whose PID it returns.
func (i *initProcess) start() (int, error) {
	if err := i.takeIDs(); err != nil {
		return 0, err
	}
	unix.Umask(0o022)
	// There are no other descriptors (see spawn), and the program gets none of these.
	if err := unix.CloseRange(fdConn, fdExe, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 0, fmt.Errorf("set close-on-exec: %w", err)
	}
	unix.Close(fdExe)
	b := &builder{root: -1}
	b.Rootless, b.open = i.rootless, i.runtime
	if err := b.prepare(); err != nil {
		return 0, err
	}
	i.waitReadable()
	set, fds, err := receiveSetup(i.conn)
	if err != nil {
		return 0, fmt.Errorf("receive setup: %w", err)
	}
	if set.Version != protocolVersion {
		return 0, errors.New("init and the program that started it are of different versions; install both from the same build")
	}
	if set.Late {
		if fds, err = placeFiles(fds, set.Listens); err != nil {
			return 0, fmt.Errorf("receive files: %w", err)
		}
	}
	i.set = set
	i.began = time.Now()
	b.setup, b.fds = set, fds
	if err := b.build(); err != nil {
		return 0, err
	}
	if err := b.enter(); err != nil {
		return 0, fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.Sethostname([]byte(set.Hostname)); err != nil {
		return 0, fmt.Errorf("set hostname: %w", err)
	}
	i.report(report{Stage: stageMount})

	// The gate: one byte says that limits are set and that we are recorded. If our
	// parent dies before, it never comes, and we end.
	i.waitReadable()
	if n, err := i.conn.Read(make([]byte, 1)); n != 1 {
		return 0, fmt.Errorf("wait for permission to go on: %w", err)
	}
	i.began = time.Now()
	pid, err := i.launch()
	if err == nil && pid == 0 {
		err = i.dropPrivileges() // a trial covers everything
	}
	if err != nil {
		return 0, err
	}
	i.report(report{Stage: stageRun, PID: pid})
	return pid, nil
}

// takeIDs waits until our IDs are mapped and, if root is among them, makes at least
// this thread root: until then it has those of the hub, which mean nothing inside.
func (i *initProcess) takeIDs() error {
	// A raw call: otherwise the scheduler would start another thread.
	word := make([]byte, 1)
	if n, _, errno := syscall.RawSyscall(unix.SYS_READ, fdConn, uintptr(unsafe.Pointer(&word[0])), 1); errno != 0 {
		return fmt.Errorf("receive IDs: %w", errno)
	} else if n != 1 {
		return errors.New("receive IDs: the parent process has ended")
	}
	call := syscall.RawSyscall
	switch word[0] {
	case staysUser:
		i.rootless = true
		return nil
	case becomesRoot:
		i.behind = true
	case becomesRuntime:
		i.behind, i.runtime = true, true
	case waitsAsRoot:
		call = syscall.AllThreadsSyscall // a spare has time
	}
	if err := becomeRoot(call); err != nil {
		return err
	}
	// The change of IDs took away our access to our own /proc entries.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become root: %w", err)
	}
	return nil
}

// waitReadable returns when there is something to read; in a spare, at once. It uses a
// raw call: otherwise the scheduler would, for less than a millisecond, start another
// thread, which dropPrivileges would then have to wake.
func (i *initProcess) waitReadable() {
	for p := (unix.PollFd{Fd: fdConn, Events: unix.POLLIN}); i.behind; {
		if _, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, 0, 0, 0, 0); errno != unix.EINTR {
			return
		}
	}
}

// becomeRoot makes one thread or all of them root, depending on the kind of call.
func becomeRoot(call func(nr, a, b, c uintptr) (uintptr, uintptr, syscall.Errno)) error {
	for _, nr := range []uintptr{unix.SYS_SETGROUPS, unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, errno := call(nr, 0, 0, 0); errno != 0 {
			return fmt.Errorf("become root: %w", withCgo(errno))
		}
	}
	return nil
}

// launch drops privileges and runs the program.
func (i *initProcess) launch() (int, error) {
	p := i.set.Process
	if err := i.setRlimits(); err != nil {
		return 0, err
	}
	// Only now, in our control group, does a cgroup namespace hide the groups above.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return 0, fmt.Errorf("create cgroup namespace: %w", err)
	}
	// Leave the session keyring of our parent. Where keyrings are disabled there is none.
	unix.KeyctlJoinSessionKeyring("")
	if len(p.Args) > 0 && p.Dir != "" {
		if err := makeWorkdir(p); err != nil {
			return 0, err
		}
	}
	if !i.runtime {
		if err := i.confine(); err != nil {
			return 0, err
		}
	}
	if len(p.Args) == 0 {
		return 0, seal()
	}
	return i.startProgram(p)
}

// seal keeps everybody inside from inspecting us, even with our own user ID.
func seal() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become undumpable: %w", err)
	}
	return nil
}

// confine installs the filter and drops capabilities.
func (i *initProcess) confine() error {
	// Before the capabilities go: without no_new_privs it takes one.
	listener, err := installFilter(i.set.Filter, i.set.Setuid)
	if err != nil {
		return err
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	i.referee, err = newReferee(listener)
	return err
}

// dropPrivileges gives the other threads the IDs of this one, and leaves all with next
// to no capabilities. Those threads have done nothing yet. Waking each of them takes a
// while on a busy machine, so it is done once, after the start: the program could not reach us before either.
func (i *initProcess) dropPrivileges() error {
	if i.behind {
		if err := becomeRoot(syscall.AllThreadsSyscall); err != nil {
			return err
		}
	}
	return capset(initKept, true)
}

// setRlimits sets the limits of processes.
func (i *initProcess) setRlimits() error {
	// 1 also keeps the kernel from piping a core dump to a program of the host; 0 does not.
	limits := map[int]int64{unix.RLIMIT_CORE: 1}
	if n := i.set.Limits.Files; n > 0 {
		limits[unix.RLIMIT_NOFILE] = n
	}
	if n := i.set.Limits.FileSize; n > 0 {
		// It applies to us, too, and the log must fit.
		limits[unix.RLIMIT_FSIZE] = max(n, i.set.LogSize+64<<10)
	}
	// Without root the count is per user namespace, so it limits this sandbox only; with root the pids controller is better.
	if n := i.set.Limits.Pids; n > 0 && i.set.Rootless {
		limits[unix.RLIMIT_NPROC] = n
	}
	for which, n := range limits {
		var old unix.Rlimit
		if err := unix.Getrlimit(which, &old); err != nil {
			return fmt.Errorf("read limit %d: %w", which, err)
		}
		v := min(uint64(n), old.Max)
		if err := unix.Setrlimit(which, &unix.Rlimit{Cur: v, Max: v}); err != nil {
			return fmt.Errorf("set limit %d: %w", which, err)
		}
	}
	return nil
}

// makeWorkdir creates the program's working directory if it does not exist.
func makeWorkdir(p Process) error {
	if _, err := os.Stat(p.Dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return fmt.Errorf("create the working directory: %w", err)
	}
	return os.Lchown(p.Dir, int(p.UID), int(p.GID))
}

// startProgram starts the program, with its output going to the log.
func (i *initProcess) startProgram(p Process) (int, error) {
	prog, err := lookPath(p.Args[0], p.Env)
	if err != nil {
		return 0, err
	}
	var w *os.File
	if i.pump, w, err = newPump(i.set.LogSize); err != nil {
		return 0, err
	}
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{Dir: p.Dir, Env: p.Env, Files: []uintptr{null.Fd(), w.Fd(), w.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}}
	if i.set.Listens {
		attr.Files = append(attr.Files, fdListen) // as ListenFD
	}
	defer unix.Close(fdListen) // only the program may listen
	if !i.set.Rootless {
		attr.Sys.Credential = &syscall.Credential{Uid: p.UID, Gid: p.GID}
	}
	// When memory runs out the program is killed, not init, which can report it. Once sealed, we
	// cannot open the file any more.
	score, _ := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	defer score.Close()
	own := make([]byte, 16)
	n, _ := score.ReadAt(own, 0)
	score.WriteAt([]byte("500"), 0)
	if err := seal(); err != nil {
		return 0, err
	}
	pid, err := syscall.ForkExec(prog, p.Args, attr)
	score.WriteAt(own[:n], 0)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", prog, err)
	}
	return pid, nil
}

// lookPath finds a program in the PATH that it will have.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			p := filepath.Join(dir, name)
			if st, err := os.Stat(p); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("start %s: not found in the sandbox's PATH", name)
}

// supervise reaps children, forwards signals, serves Dial and writes the log, until
// the program ends.
func (i *initProcess) supervise(pid int) {
	i.pid = pid
	if err := i.dropPrivileges(); err != nil {
		exit(Exit{Error: err.Error()}) // which ends the program, too
	}
	if i.referee != nil {
		go i.referee.run()
	}
	go i.serveControl()
	go i.pump.run()
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	signal.Ignore(unix.SIGPIPE)
	go func() {
		for range asked {
			syscall.Kill(pid, unix.SIGTERM)
		}
	}()
	var how Exit
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			how.Error = fmt.Sprintf("wait for the program: %v", err)
			break
		}
		if got != pid {
			i.helpers.end(got, ws)
			continue
		}
		if ws.Signaled() {
			how.Signal = ws.Signal().String()
		} else {
			how.Code = ws.ExitStatus()
		}
		break
	}
	how.Saved = i.helpers.finish()
	i.pump.drain()
	exit(how)
}

// exit records how the program ended, and ends the sandbox.
func exit(how Exit) {
	json.NewEncoder(os.NewFile(fdExit, "exit")).Encode(how)
	os.Exit(0)
}
