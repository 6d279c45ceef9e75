// Package initprocess is the init of a sandbox, PID 1 inside. It builds the sandbox around
// itself, runs the program, serves the control socket and writes the log of the output.
package initprocess

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/disposition"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
	"github.com/cove-sandbox/cove/internal/system/isolate/internal/protocol"
	"github.com/cove-sandbox/cove/internal/system/isolate/internal/rootfs"
	"github.com/cove-sandbox/cove/internal/system/isolate/outputlog"
	"github.com/cove-sandbox/cove/internal/system/referee"
	"github.com/cove-sandbox/cove/internal/system/seccomp"
)

// Main builds the sandbox, waits at the gate, drops its privileges, runs the program, reaps
// orphans, and ends with the program. It does not return.
func Main() {
	// Namespaces, capabilities and keyrings belong to threads: all setup must happen on the thread that forks the program.
	runtime.LockOSThread()
	unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&[]byte(protocol.InitName + "\x00")[0])), 0, 0, 0)
	i := &initProcess{conn: os.NewFile(protocol.FDConn, "isolate"), began: time.Now()}
	pid, err := i.start()
	if err != nil {
		i.report(protocol.Report{Error: err.Error()})
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
	set   protocol.Setup
	log   *outputlog.Writer
	// referee decides on the calls that the filter passes to it.
	referee *referee.Referee
	// rootless: the only user inside is that of the hub.
	rootless bool
	pid      int // of the program
	// onlyThisThread: other threads are not root yet.
	onlyThisThread bool
	// runtime: the program isolates what it runs; see isolate.Config.Runtime.
	runtime bool
	control control.Server
	helpers helpers
	freezer freezer
}

// report sends a report. If that fails, the hub sees the end of the connection.
func (i *initProcess) report(r protocol.Report) {
	r.Took = time.Since(i.began)
	i.began = time.Now()
	protocol.SendReport(i.conn, r)
}

// start builds the sandbox and runs the program, whose PID it returns.
func (i *initProcess) start() (int, error) {
	if err := i.takeIDs(); err != nil {
		return 0, err
	}
	unix.Umask(0o022)
	// There are no other descriptors (see isolate.Start), and the program must get none of these.
	if err := unix.CloseRange(protocol.FDConn, protocol.FDExe, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 0, fmt.Errorf("set close-on-exec: %w", err)
	}
	unix.Close(protocol.FDExe)
	b := rootfs.New(i.rootless, i.runtime)
	if err := b.Prepare(); err != nil {
		return 0, err
	}
	i.waitReadable()
	set, fds, err := protocol.ReceiveSetup(i.conn)
	if err != nil {
		return 0, fmt.Errorf("receive setup: %w", err)
	}
	if set.Version != protocol.Version {
		return 0, errors.New("init and the program that started it are of different versions; install both from the same build")
	}
	if set.Late {
		if fds, err = placeFiles(fds, set.Listens); err != nil {
			return 0, fmt.Errorf("receive files: %w", err)
		}
	}
	i.set = set
	i.began = time.Now()
	if err := b.Build(set, fds); err != nil {
		return 0, err
	}
	if err := b.Enter(); err != nil {
		return 0, fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.Sethostname([]byte(set.Hostname)); err != nil {
		return 0, fmt.Errorf("set hostname: %w", err)
	}
	i.report(protocol.Report{Stage: protocol.StageMount})

	// The gate: the parent sends one byte when the limits are set and the sandbox is recorded.
	// If the parent dies before, the read fails, and init ends.
	i.waitReadable()
	if n, err := i.conn.Read(make([]byte, 1)); n != 1 {
		return 0, fmt.Errorf("wait at the gate: %w", err)
	}
	i.began = time.Now()
	pid, err := i.launch()
	if err == nil && pid == 0 {
		err = i.dropPrivileges() // a trial covers everything
	}
	if err != nil {
		return 0, err
	}
	i.report(protocol.Report{Stage: protocol.StageRun, PID: pid})
	return pid, nil
}

// placeFiles moves the files that a spare receives with the setup to their descriptors, and
// returns the other descriptors.
func placeFiles(fds []int, listens bool) ([]int, error) {
	files := [][]int{{1, 2, protocol.FDExit}, {protocol.FDLog0}, {protocol.FDLog1}, {protocol.FDControl}}
	if listens {
		files = append(files, []int{protocol.FDListen})
	}
	n := len(fds) - len(files)
	if n < 0 {
		return nil, errors.New("files are missing")
	}
	for i, to := range files {
		for _, fd := range to {
			if err := unix.Dup3(fds[n+i], fd, unix.O_CLOEXEC); err != nil {
				return nil, err
			}
		}
		unix.Close(fds[n+i])
	}
	return fds[:n], nil
}

// takeIDs waits until the hub has mapped the IDs. If root is among them, it makes at least
// this thread root: until then the thread has the IDs of the hub, which are not mapped inside.
func (i *initProcess) takeIDs() error {
	// A raw call: otherwise the scheduler would start another thread.
	word := make([]byte, 1)
	if n, _, errno := syscall.RawSyscall(unix.SYS_READ, protocol.FDConn, uintptr(unsafe.Pointer(&word[0])), 1); errno != 0 {
		return fmt.Errorf("receive IDs: %w", errno)
	} else if n != 1 {
		return errors.New("receive IDs: the parent process has ended")
	}
	call := syscall.RawSyscall
	switch word[0] {
	case protocol.StaysUser:
		i.rootless = true
		return nil
	case protocol.BecomesRoot:
		i.onlyThisThread = true
	case protocol.BecomesRuntime:
		i.onlyThisThread, i.runtime = true, true
	case protocol.WaitsAsRoot:
		call = syscall.AllThreadsSyscall // a spare has time for it
	}
	if err := becomeRoot(call); err != nil {
		return err
	}
	// The change of IDs revokes the access to the process's own /proc entries.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become root: %w", err)
	}
	return nil
}

// waitReadable returns when data can be read; in a spare, immediately. It uses a
// raw call: otherwise the scheduler would, for less than a millisecond, start another
// thread, which dropPrivileges would then have to wake.
func (i *initProcess) waitReadable() {
	for p := (unix.PollFd{Fd: protocol.FDConn, Events: unix.POLLIN}); i.onlyThisThread; {
		if _, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, 0, 0, 0, 0); errno != unix.EINTR {
			return
		}
	}
}

// becomeRoot makes one thread or all of them root, depending on the kind of call.
func becomeRoot(call func(nr, a, b, c uintptr) (uintptr, uintptr, syscall.Errno)) error {
	for _, nr := range []uintptr{unix.SYS_SETGROUPS, unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, errno := call(nr, 0, 0, 0); errno != 0 {
			return fmt.Errorf("become root: %w", explainCgo(errno))
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
	// Init is in its control group by this point, so a cgroup namespace hides the groups above.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return 0, fmt.Errorf("create cgroup namespace: %w", err)
	}
	// Leave the session keyring of the parent. It fails only if keyrings are disabled.
	unix.KeyctlJoinSessionKeyring("")
	if len(p.Args) > 0 && p.Dir != "" {
		if err := makeWorkdir(p); err != nil {
			return 0, err
		}
	}
	if err := i.confine(); err != nil {
		return 0, err
	}
	if len(p.Args) == 0 {
		return 0, seal()
	}
	return i.startProgram(p)
}

// seal prevents processes inside from inspecting init, even those with its user ID.
func seal() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become undumpable: %w", err)
	}
	return nil
}

// confine installs the filter and drops capabilities. A runtime does both itself, so it gets only notifications.
func (i *initProcess) confine() error {
	if i.runtime {
		return i.watchRuntime()
	}
	// Before the capabilities are dropped: without no_new_privs it requires one.
	listener, err := seccomp.Install(i.set.Filter, i.set.Notify, i.set.Setuid)
	if err != nil {
		return err
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	i.referee, err = referee.New(referee.Config{Listener: listener, Egress: i.set.Egress})
	return err
}

// watchRuntime lets the referee decide on the connections of a runtime.
func (i *initProcess) watchRuntime() error {
	if i.set.Notify == "" {
		return nil
	}
	listener, err := seccomp.Notify(i.set.Notify)
	if err != nil {
		return err
	}
	i.referee, err = referee.New(referee.Config{Listener: listener, Egress: i.set.Egress})
	return err
}

// dropPrivileges gives the other threads the IDs of this one, and leaves all with almost
// no capabilities. Waking each thread takes time on a busy machine, so it happens once,
// after the start. Until then the other threads do nothing, and the program cannot reach init.
func (i *initProcess) dropPrivileges() error {
	if i.onlyThisThread {
		if err := becomeRoot(syscall.AllThreadsSyscall); err != nil {
			return err
		}
	}
	return setCapabilities(initKept, true)
}

// setRlimits sets the limits of processes.
func (i *initProcess) setRlimits() error {
	// 1 also keeps the kernel from piping a core dump to a program of the host; 0 does not.
	limits := map[int]int64{unix.RLIMIT_CORE: 1}
	if n := i.set.Limits.Files; n > 0 {
		limits[unix.RLIMIT_NOFILE] = n
	}
	if n := i.set.Limits.FileSize; n > 0 {
		// It applies to init, too, which writes the log.
		limits[unix.RLIMIT_FSIZE] = max(n, i.set.LogSize+64<<10)
	}
	// Without root the count is per user namespace, so it limits only this sandbox. With root the pids controller does.
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
func makeWorkdir(p protocol.Process) error {
	if _, err := os.Stat(p.Dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return fmt.Errorf("create the working directory: %w", err)
	}
	return os.Lchown(p.Dir, int(p.UID), int(p.GID))
}

// startProgram starts the program and connects its output to the log.
func (i *initProcess) startProgram(p protocol.Process) (int, error) {
	if err := disposition.Reset(); err != nil {
		return 0, err
	}
	prog, err := lookPath(p.Args[0], p.Env)
	if err != nil {
		return 0, err
	}
	var w *os.File
	files := [2]*os.File{os.NewFile(protocol.FDLog0, "log"), os.NewFile(protocol.FDLog1, "log")}
	if i.log, w, err = outputlog.New(files, i.set.LogSize); err != nil {
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
		attr.Files = append(attr.Files, protocol.FDListen) // as isolate.ListenFD
	}
	defer unix.Close(protocol.FDListen) // only the program may listen
	if !i.set.Rootless {
		attr.Sys.Credential = &syscall.Credential{Uid: p.UID, Gid: p.GID}
	}
	// When memory runs out, the kernel must kill the program, not init, which reports the end. The
	// file is opened first because a sealed process cannot open it.
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
		exit(protocol.Exit{Error: err.Error()}) // which ends the program, too
	}
	if i.referee != nil {
		go i.referee.Run()
	}
	i.control.Door = i.runtime
	if i.runtime {
		i.control.Save = i.save
	}
	i.control.Freeze = i.freezer.set
	go i.serveControl()
	go i.log.Run()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	signal.Ignore(unix.SIGPIPE)
	go func() {
		for range signals {
			syscall.Kill(pid, unix.SIGTERM)
		}
	}()
	var end protocol.Exit
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			end.Error = fmt.Sprintf("wait for the program: %v", err)
			break
		}
		if got != pid {
			i.helpers.markEnded(got, status)
			continue
		}
		if status.Signaled() {
			end.Signal = status.Signal().String()
		} else {
			end.Code = status.ExitStatus()
		}
		break
	}
	i.helpers.wait()
	i.control.Wait()
	end.Saved = i.helpers.wasSaved()
	i.log.Drain()
	exit(end)
}

// serveControl serves the control socket, to which no process inside has access.
func (i *initProcess) serveControl() {
	l, err := net.FileListener(os.NewFile(protocol.FDControl, "control"))
	if err != nil {
		return
	}
	i.control.Serve(l)
}

// exit records how the program ended, and ends the sandbox.
func exit(end protocol.Exit) {
	json.NewEncoder(os.NewFile(protocol.FDExit, "exit")).Encode(end)
	os.Exit(0)
}
