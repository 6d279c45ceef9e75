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

// Main is the sandbox's init, PID 1 inside. It builds the sandbox around itself,
// waits at the gate, gives up its powers, runs the program, reaps whatever is
// orphaned, and ends with the program. It does not return.
func Main() {
	// Namespaces, capabilities and keyrings belong to threads: all that is set up
	// here must be on the thread that forks the program.
	runtime.LockOSThread()
	unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&[]byte(initName + "\x00")[0])), 0, 0, 0)
	i := &initer{conn: os.NewFile(fdConn, "isolate"), began: time.Now()}
	pid, err := i.start()
	if err != nil {
		i.report(report{Error: err.Error()})
		os.Exit(1)
	}
	i.conn.Close()
	if pid == 0 {
		os.Exit(0) // a trial
	}
	i.mind(pid)
}

// initer is the state of init.
type initer struct {
	conn  *os.File
	began time.Time
	set   setup
	pump  *pump
	// rootless: there is one user inside, who is the hub's.
	rootless bool
	// behind: only this thread is root so far.
	behind bool
}

func (i *initer) report(r report) {
	r.Took = time.Since(i.began)
	i.began = time.Now()
	i.conn.Write(pack(&r))
}

// start builds the sandbox and runs the program, whose PID it returns.
func (i *initer) start() (int, error) {
	if err := i.become(); err != nil {
		return 0, err
	}
	unix.Umask(0o022)
	// Nothing but what we are started with got here (see spawn), and of that nothing
	// goes on to the program.
	if err := unix.CloseRange(fdConn, fdExe, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 0, fmt.Errorf("keep files to ourselves: %w", err)
	}
	unix.Close(fdExe)
	b := &builder{root: -1}
	b.Rootless = i.rootless
	if err := b.ahead(); err != nil {
		return 0, err
	}
	i.await()
	set, fds, err := receiveSetup(i.conn)
	if err != nil {
		return 0, fmt.Errorf("receive setup: %w", err)
	}
	if set.Version != wireVersion {
		return 0, errors.New("init is of another version than the program that started it; install both of one build")
	}
	if set.Late {
		if fds, err = takeLate(fds, set.Listens); err != nil {
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

	// The gate: one byte says that limits are set and that we are on record. If
	// who started us dies before, there is none, and we end.
	i.await()
	if n, err := i.conn.Read(make([]byte, 1)); n != 1 {
		return 0, fmt.Errorf("wait at the gate: %w", err)
	}
	i.began = time.Now()
	pid, err := i.launch()
	if err == nil && pid == 0 {
		err = i.settle() // a trial is of everything
	}
	if err != nil {
		return 0, err
	}
	i.report(report{Stage: stageRun, PID: pid})
	return pid, nil
}

// become waits until there are IDs for us and, if root is among them, makes at
// least this thread root: so far it had the hub's, which mean nothing inside.
func (i *initer) become() error {
	// The scheduler is not told that we wait: it would start another thread.
	word := make([]byte, 1)
	if n, _, errno := syscall.RawSyscall(unix.SYS_READ, fdConn, uintptr(unsafe.Pointer(&word[0])), 1); errno != 0 {
		return fmt.Errorf("receive IDs: %w", errno)
	} else if n != 1 {
		return errors.New("receive IDs: who started us has ended")
	}
	call := syscall.RawSyscall
	switch word[0] {
	case staysUser:
		i.rootless = true
		return nil
	case becomesRoot:
		i.behind = true
	case waitsAsRoot:
		call = syscall.AllThreadsSyscall // a spare has the time
	}
	if err := rootIDs(call); err != nil {
		return err
	}
	// With the IDs went the right to look at ourselves in /proc.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become root: %w", err)
	}
	return nil
}

// await returns when there is something to read, or without waiting in a spare. The
// scheduler is not told that we wait: for a wait of less than a millisecond it would
// start another thread, which settle would then have to wake.
func (i *initer) await() {
	for p := (unix.PollFd{Fd: fdConn, Events: unix.POLLIN}); i.behind; {
		if _, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, 0, 0, 0, 0); errno != unix.EINTR {
			return
		}
	}
}

// rootIDs makes root of one thread or of all of them, by the kind of call.
func rootIDs(call func(nr, a, b, c uintptr) (uintptr, uintptr, syscall.Errno)) error {
	for _, nr := range []uintptr{unix.SYS_SETGROUPS, unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, errno := call(nr, 0, 0, 0); errno != 0 {
			return fmt.Errorf("become root: %w", withCgo(errno))
		}
	}
	return nil
}

// launch gives up powers and runs the program.
func (i *initer) launch() (int, error) {
	p := i.set.Process
	if err := i.limit(); err != nil {
		return 0, err
	}
	// Only now, in our control group, does a cgroup namespace hide what is above.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return 0, fmt.Errorf("make cgroup namespace: %w", err)
	}
	// Our session keyring is that of who started us. Where keyrings are switched
	// off there is none to leave.
	unix.KeyctlJoinSessionKeyring("")
	if len(p.Args) > 0 && p.Dir != "" {
		if err := makeHome(p); err != nil {
			return 0, err
		}
	}
	if err := bound(); err != nil {
		return 0, err
	}
	if err := seal(i.set.Filter); err != nil {
		return 0, err
	}
	pid := 0
	if len(p.Args) > 0 {
		var err error
		if pid, err = i.fork(p); err != nil {
			return 0, err
		}
	}
	// Nobody inside may look into us, not even with our own user ID.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become undumpable: %w", err)
	}
	return pid, nil
}

// settle makes the other threads what this one is, and leaves all with next to
// nothing. Those threads have done nothing so far. To wake each of them takes a
// while on a busy machine, so it is done once, and nobody waits for it: the program
// could neither reach us before.
func (i *initer) settle() error {
	if i.behind {
		if err := rootIDs(syscall.AllThreadsSyscall); err != nil {
			return err
		}
	}
	return capset([]uintptr{unix.CAP_KILL}, true)
}

// limit sets the limits that processes carry themselves.
func (i *initer) limit() error {
	// 1 is the value that also keeps the kernel from piping a core dump to a
	// program of the host; 0 does not.
	limits := map[int]int64{unix.RLIMIT_CORE: 1}
	if n := i.set.Limits.Files; n > 0 {
		limits[unix.RLIMIT_NOFILE] = n
	}
	if n := i.set.Limits.FileSize; n > 0 {
		// It is ours too, and the log must fit.
		limits[unix.RLIMIT_FSIZE] = max(n, i.set.LogSize+64<<10)
	}
	// Without root the count is per user namespace, so it bounds this sandbox
	// alone; with root the pids controller does it better.
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

// makeHome makes the program's folder if the disk does not have it.
func makeHome(p Process) error {
	if _, err := os.Stat(p.Dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return fmt.Errorf("make the working directory: %w", err)
	}
	return os.Lchown(p.Dir, int(p.UID), int(p.GID))
}

// fork starts the program with its output going to the log.
func (i *initer) fork(p Process) (int, error) {
	prog, err := lookup(p.Args[0], p.Env)
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
	defer unix.Close(fdListen) // if the program ends nobody listens
	if !i.set.Rootless {
		attr.Sys.Credential = &syscall.Credential{Uid: p.UID, Gid: p.GID}
	}
	// When memory is short the program goes, not init: that way it is reported.
	const score = "/proc/self/oom_score_adj"
	own, _ := os.ReadFile(score)
	os.WriteFile(score, []byte("500"), 0)
	pid, err := syscall.ForkExec(prog, p.Args, attr)
	os.WriteFile(score, own, 0)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", prog, err)
	}
	return pid, nil
}

// lookup finds a program in the PATH that it will have.
func lookup(name string, env []string) (string, error) {
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

// mind is what remains: reap, pass on the wish to end, answer Dial, keep the log.
func (i *initer) mind(pid int) {
	if err := i.settle(); err != nil {
		end(Exit{Error: err.Error()}) // and so does the program
	}
	go serveControl()
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
			continue
		}
		if ws.Signaled() {
			how.Signal = ws.Signal().String()
		} else {
			how.Code = ws.ExitStatus()
		}
		break
	}
	i.pump.drain()
	end(how)
}

// end leaves word of how it came, and ends the sandbox.
func end(how Exit) {
	json.NewEncoder(os.NewFile(fdExit, "exit")).Encode(how)
	os.Exit(0)
}
