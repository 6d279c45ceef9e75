package isolate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
	"github.com/cove-sandbox/cove/internal/system/isolate/internal/protocol"
	"github.com/cove-sandbox/cove/internal/system/isolate/internal/thread"
)

// Start creates a sandbox and returns when its program has been started. If it fails,
// or ctx ends before, it leaves only the files that cfg names. The sandbox
// outlives ctx, the returned Handle and the calling process.
func Start(ctx context.Context, cfg Config) (*Handle, []sandbox.Stage, error) {
	if err := cfg.check(); err != nil {
		if cfg.Spare != nil {
			cfg.Spare.Close()
		}
		return nil, nil, err
	}
	s := &starter{cfg: cfg, began: time.Now()}
	defer s.close()
	h, err := s.run(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, err
	}
	return h, s.stages, nil
}

// starter is the state of one Start.
type starter struct {
	cfg    Config
	began  time.Time
	stages []sandbox.Stage
	conn   *net.UnixConn
	trees  []int    // detached mounts, to be sent and closed
	thread *os.File // a file of the thread that spawns init; see waitThread
	// spare: init must wait for its setup. fromSpare: init was a spare.
	spare, fromSpare bool
	// owners is the user namespace that host files are mounted with; see openOwners.
	owners *os.File
}

func (s *starter) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	if s.owners != nil {
		s.owners.Close()
	}
	if s.thread != nil {
		s.thread.Close()
	}
	for _, fd := range s.trees {
		unix.Close(fd)
	}
}

func (s *starter) addStage(name string, took time.Duration) {
	s.stages = append(s.stages, sandbox.Stage{Name: name, Took: took})
}

func (s *starter) run(ctx context.Context) (*Handle, error) {
	h, entered, err := s.takeInit(ctx)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Handle, error) {
		h.Kill()
		<-h.Done()
		h.Close()
		return nil, err
	}
	// A deadline in the past ends the wait for init when ctx ends.
	stop := context.AfterFunc(ctx, func() { s.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	set, err := s.setup(h.rec.PID)
	if err != nil {
		return fail(err)
	}
	fds := s.trees
	if set.Late = s.fromSpare; set.Late {
		fds = slices.Clone(fds)
		for _, f := range s.cfg.filesForSpare() {
			fds = append(fds, int(f.Fd()))
		}
	}
	if err := protocol.SendSetup(s.conn, set, fds); err != nil {
		return fail(s.explainEnd(err))
	}
	s.addStage("spawn", time.Since(s.began))
	// Init builds the filesystem meanwhile.
	began := time.Now()
	if s.cfg.Group != nil {
		if err := s.cfg.Group.Add(h.rec.PID, entered); err != nil {
			return fail(fmt.Errorf("isolate: %w", err))
		}
	}
	if s.cfg.Gate != nil {
		if err := s.cfg.Gate(h.rec); err != nil {
			return fail(err)
		}
	}
	s.addStage("limit", time.Since(began))
	if _, err := s.receiveReport(protocol.StageMount); err != nil {
		return fail(err)
	}
	if err := s.waitThread(ctx); err != nil {
		return fail(err)
	}
	if _, err := s.conn.Write([]byte{1}); err != nil {
		return fail(fmt.Errorf("isolate: let init continue: %w", err))
	}
	last, err := s.receiveReport(protocol.StageRun)
	if err != nil {
		return fail(err)
	}
	if !stop() && ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	h.rec.Inner = last.PID
	return h, nil
}

var errSilent = errors.New("init ended without a report; Argv must start a program that calls initprocess.Main")

// receiveReport reads one report of init.
func (s *starter) receiveReport(stage string) (protocol.Report, error) {
	r, err := protocol.ReceiveReport(s.conn)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) {
			err = errSilent
		}
		return r, fmt.Errorf("isolate: %s: %w", stage, err)
	}
	if r.Error != "" {
		return r, fmt.Errorf("isolate: %s", r.Error)
	}
	if r.Stage != stage {
		return r, fmt.Errorf("isolate: init reported %q instead of %q", r.Stage, stage)
	}
	s.addStage(stage, r.Took)
	return r, nil
}

// explainEnd prefers init's own report over the broken pipe that its end caused.
func (s *starter) explainEnd(err error) error {
	if r, err := protocol.ReceiveReport(s.conn); err == nil && r.Error != "" {
		return fmt.Errorf("isolate: %s", r.Error)
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		err = errSilent
	}
	return fmt.Errorf("isolate: send setup: %w", err)
}

// spawn starts init in new namespaces. Entered lists the control groups that init
// starts in.
func (s *starter) spawn() (h *Handle, entered []string, err error) {
	parent, child, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	defer child.Close()
	s.conn = parent
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()
	exe, err := openExe(s.cfg.Argv[0])
	if err != nil {
		return nil, nil, err
	}
	defer exe.Close()
	// Descriptors that the calling process inherited must reach neither init nor the sandbox.
	if err := unix.CloseRange(protocol.FDConn, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("isolate: set close-on-exec: %w", err)
	}
	pidfd := -1
	attr := &os.ProcAttr{
		Dir: "/",
		// Hundreds of inits must stay small: no garbage collection while they start, and none
		// later except after an error. The caller's environment is not visible inside.
		Env:   []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=16MiB"},
		Files: []*os.File{null, s.cfg.Exit, s.cfg.Exit, child, s.cfg.Log[0], s.cfg.Log[1], s.cfg.Exit, s.cfg.Control, s.cfg.Listen, exe},
		Sys:   s.attributes(),
	}
	for i, f := range attr.Files {
		if f == nil {
			attr.Files[i] = null // a spare receives its files with its setup
		}
	}
	attr.Sys.PidFD = &pidfd
	var p *os.Process
	whileDumpable(len(attr.Sys.UidMappings) > 0, func() {
		if s.cfg.Group == nil {
			p, err = os.StartProcess(exePath, s.argv(), attr)
		} else {
			p, entered, err = s.spawnIn(s.cfg.Group, attr)
		}
	})
	if err != nil {
		hint := ""
		if os.Geteuid() != 0 {
			hint = "; this machine may refuse user namespaces to ordinary users (sysctl kernel.apparmor_restrict_unprivileged_userns, " +
				"kernel.unprivileged_userns_clone, user.max_user_namespaces): allow them or run as root"
		}
		return nil, nil, fmt.Errorf("isolate: start init in new namespaces: %w%s", err, hint)
	}
	defer p.Release()
	if pidfd < 0 {
		err = errors.New("isolate: the kernel returns no pidfd; use Linux 5.12 or later")
	} else {
		h, err = newHandle(p.Pid, pidfd)
	}
	if err == nil {
		err = s.sendIDs(p.Pid)
	}
	if err != nil {
		p.Kill()
		p.Wait()
		if h != nil {
			h.Close()
		}
		if errors.Is(err, ErrGone) {
			err = fmt.Errorf("isolate: %w", errSilent)
		}
		return nil, nil, err
	}
	return h, entered, nil
}

// dumping is held while this process is temporarily dumpable.
var dumping sync.Mutex

// whileDumpable runs f. If f maps IDs without root, this process is dumpable meanwhile: until the
// child executes its program it has the same state, and the files of /proc that map its IDs
// would belong to root.
func whileDumpable(maps bool, f func()) {
	if !maps || os.Geteuid() == 0 {
		f()
		return
	}
	dumping.Lock()
	defer dumping.Unlock()
	if was, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err == nil && was == 0 {
		unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
		defer unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	}
	f()
}

// argv returns the command line of init. The sandbox can read it, so it contains nothing of the host.
func (s *starter) argv() []string { return append([]string{protocol.InitName}, s.cfg.Argv[1:]...) }

// exePath is the path of the program that the child executes. A descriptor can be
// executed even if the sandbox's user has no access to its folder.
var exePath = fmt.Sprintf("/proc/self/fd/%d", protocol.FDExe)

func openExe(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("isolate: start init: open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// spawnIn starts init inside the group, as far as the kernel supports that.
func (s *starter) spawnIn(g *cgroup.Group, attr *os.ProcAttr) (p *os.Process, entered []string, err error) {
	unified, err := g.Open()
	if err != nil {
		return nil, nil, err
	}
	if unified != nil {
		defer unified.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(unified.Fd())
	}
	thread.Run(func() {
		if s.thread, err = os.Open("/proc/thread-self/comm"); err != nil {
			return
		}
		entered = g.Enter()
		if s.cfg.IDs.Count > 0 {
			if err = thread.BecomeUser(s.cfg.IDs.Base); err != nil {
				return
			}
		}
		if p, err = os.StartProcess(exePath, s.argv(), attr); err != nil && unified != nil {
			// Many containers refuse clone3; run moves init to the group later.
			attr.Sys.UseCgroupFD, unified = false, nil
			p, err = os.StartProcess(exePath, s.argv(), attr)
		}
	})
	if unified != nil {
		entered = append(entered, unified.Name())
	}
	return p, entered, err
}

// waitThread waits for the end of the thread that spawned init. Until then this process is in
// the sandbox's control group, and the kernel could kill it when the group runs out of memory.
func (s *starter) waitThread(ctx context.Context) error {
	return cgroup.Poll(ctx, func() (bool, error) {
		if s.thread == nil {
			return true, nil
		}
		// The file remains that of the thread, unlike its ID, which the next thread may get.
		_, err := s.thread.ReadAt(make([]byte, 1), 0)
		return err != nil, nil
	})
}

func (s *starter) attributes() *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true, // a Ctrl-C in the hub's terminal must not reach the sandbox
	}
	// All capabilities: without an ID that is root inside, exec would drop those of init.
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		sys.AmbientCaps = append(sys.AmbientCaps, c)
	}
	if s.cfg.IDs.Count > 0 {
		// Init shares the hub's memory until it executes its program: copying that of a hub
		// with hundreds of sandboxes would cost more than the rest of Start. So it
		// cannot wait for its IDs; sendIDs sets them.
		sys.Cloneflags |= unix.CLONE_VM | unix.CLONE_VFORK
		return sys
	}
	sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.cfg.Process.UID), HostID: os.Geteuid(), Size: 1}}
	sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.cfg.Process.GID), HostID: os.Getegid(), Size: 1}}
	return sys
}

// sendIDs maps the range of IDs of init, if it has one, and tells init which user to become.
func (s *starter) sendIDs(pid int) error {
	word := []byte{protocol.StaysUser}
	if ids := s.cfg.IDs; ids.Count > 0 {
		word[0] = protocol.BecomesRoot
		switch {
		case s.spare:
			word[0] = protocol.WaitsAsRoot
		case s.cfg.Runtime:
			word[0] = protocol.BecomesRuntime
		}
		text := fmt.Sprintf("0 %d %d\n", ids.Base, ids.Count)
		for _, name := range []string{"uid_map", "gid_map"} {
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", pid, name), []byte(text), 0); err != nil {
				return fmt.Errorf("isolate: map the IDs: %w", err)
			}
		}
	}
	if _, err := s.conn.Write(word); err != nil {
		return s.explainEnd(err)
	}
	return nil
}

func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("isolate: make socket pair: %w", err)
	}
	parent, child := os.NewFile(uintptr(fds[0]), "isolate"), os.NewFile(uintptr(fds[1]), "isolate-init")
	defer parent.Close()
	c, err := net.FileConn(parent)
	if err != nil {
		child.Close()
		return nil, nil, fmt.Errorf("isolate: make socket pair: %w", err)
	}
	return c.(*net.UnixConn), child, nil
}
