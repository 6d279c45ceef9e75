package isolate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Start makes the sandbox and returns when its program has been started. If it
// fails, or ctx ends before, nothing of it is left but the files that cfg names.
// The sandbox outlives ctx, the returned Handle and the calling process.
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

// starter is one Start under way.
type starter struct {
	cfg    Config
	began  time.Time
	stages []sandbox.Stage
	conn   *net.UnixConn
	trees  []int // detached mounts, to be sent and closed
	thread int   // spawned init and ends; see left
	spare  bool  // init is to wait
	late   bool  // init has waited
}

func (s *starter) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	for _, fd := range s.trees {
		unix.Close(fd)
	}
}

func (s *starter) stage(name string, took time.Duration) {
	s.stages = append(s.stages, sandbox.Stage{Name: name, Took: took})
}

func (s *starter) run(ctx context.Context) (*Handle, error) {
	h, entered, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Handle, error) {
		h.Kill()
		<-h.Done()
		h.Close()
		return nil, err
	}
	// A deadline in the past is what wakes us when ctx ends while we wait for init.
	stop := context.AfterFunc(ctx, func() { s.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	set, err := s.setup(h.rec.PID)
	if err != nil {
		return fail(err)
	}
	fds := s.trees
	if set.Late = s.late; set.Late {
		fds = slices.Clone(fds)
		for _, f := range s.cfg.lateFiles() {
			fds = append(fds, int(f.Fd()))
		}
	}
	if err := sendSetup(s.conn, set, fds); err != nil {
		return fail(s.explain(err))
	}
	s.stage("spawn", time.Since(s.began))
	// Init builds the filesystem meanwhile.
	began := time.Now()
	if s.cfg.Group != nil {
		if err := s.cfg.Group.add(h.rec.PID, entered); err != nil {
			return fail(fmt.Errorf("isolate: %w", err))
		}
	}
	if s.cfg.Gate != nil {
		if err := s.cfg.Gate(h.rec); err != nil {
			return fail(err)
		}
	}
	s.stage("limit", time.Since(began))
	if _, err := s.await(stageMount); err != nil {
		return fail(err)
	}
	if err := s.left(ctx); err != nil {
		return fail(err)
	}
	if _, err := s.conn.Write([]byte{1}); err != nil {
		return fail(fmt.Errorf("isolate: open the gate: %w", err))
	}
	last, err := s.await(stageRun)
	if err != nil {
		return fail(err)
	}
	if !stop() && ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	h.rec.Inner = last.PID
	return h, nil
}

var errSilent = errors.New("init ended without a word: Argv must start a program that calls isolate.Main")

// await reads one report of init.
func (s *starter) await(stage string) (report, error) {
	var r report
	if err := receive(s.conn, &r, maxReport); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) {
			err = errSilent
		}
		return r, fmt.Errorf("isolate: %s: %w", stage, err)
	}
	if r.Error != "" {
		return r, fmt.Errorf("isolate: %s", r.Error)
	}
	if r.Stage != stage {
		return r, fmt.Errorf("isolate: init reports %q instead of %q", r.Stage, stage)
	}
	s.stage(stage, r.Took)
	return r, nil
}

// explain prefers init's own words over the broken pipe that its end caused.
func (s *starter) explain(err error) error {
	var r report
	if receive(s.conn, &r, maxReport) == nil && r.Error != "" {
		return fmt.Errorf("isolate: %s", r.Error)
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		err = errSilent
	}
	return fmt.Errorf("isolate: send setup: %w", err)
}

// spawn starts init in new namespaces. Entered lists the control groups it is
// already in.
func (s *starter) spawn() (h *Handle, entered []string, err error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	s.conn = ours
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
	// A descriptor that whoever started us left open for our children must not reach
	// the inside, nor be held by init.
	if err := unix.CloseRange(fdConn, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("isolate: keep files to ourselves: %w", err)
	}
	pidfd := -1
	attr := &os.ProcAttr{
		Dir: "/",
		// There are hundreds of inits, which need next to nothing: no collection while
		// they start, and none later unless something goes wrong. Nothing of our own
		// environment shows inside.
		Env:   []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=16MiB"},
		Files: []*os.File{null, s.cfg.Exit, s.cfg.Exit, theirs, s.cfg.Log[0], s.cfg.Log[1], s.cfg.Exit, s.cfg.Control, s.cfg.Listen, exe},
		Sys:   s.attributes(),
	}
	for i, f := range attr.Files {
		if f == nil {
			attr.Files[i] = null // a spare's come later, or there is none
		}
	}
	attr.Sys.PidFD = &pidfd
	var p *os.Process
	if s.cfg.Group == nil {
		p, err = os.StartProcess(exePath, s.argv(), attr)
	} else {
		p, entered, err = s.spawnIn(s.cfg.Group, attr)
	}
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
		err = errors.New("isolate: the kernel gives no pidfd; Linux 5.12 or later is needed")
	} else {
		h, err = newHandle(p.Pid, pidfd)
	}
	if err == nil {
		err = s.introduce(p.Pid)
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

// argv is what the sandbox sees of how init was started: nothing of the host.
func (s *starter) argv() []string { return append([]string{initName}, s.cfg.Argv[1:]...) }

// initName is the name of init, inside and in the host's list of processes.
const initName = "init"

// exePath is where the child finds the program that it becomes. As a descriptor
// it can be executed even if its folder is closed to the sandbox's user.
var exePath = fmt.Sprintf("/proc/self/fd/%d", fdExe)

func openExe(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("isolate: start init: open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// spawnIn starts init inside the group, as far as the kernel offers that.
func (s *starter) spawnIn(g *Group, attr *os.ProcAttr) (p *os.Process, entered []string, err error) {
	unified, err := g.open()
	if err != nil {
		return nil, nil, err
	}
	if unified != nil {
		defer unified.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(unified.Fd())
	}
	s.thread = onThread(func() {
		entered = g.enter()
		if p, err = os.StartProcess(exePath, s.argv(), attr); err != nil && unified != nil {
			// clone3 is refused in many containers; then it is moved later.
			attr.Sys.UseCgroupFD, unified = false, nil
			p, err = os.StartProcess(exePath, s.argv(), attr)
		}
	})
	if unified != nil {
		entered = append(entered, g.unified)
	}
	return p, entered, err
}

// onThread runs f on a thread that ends with it, soon, and returns its ID. It is
// never the main thread, which cannot end and would keep forever what f did to it.
func onThread(f func()) int {
	ran := make(chan int)
	go func() {
		runtime.LockOSThread()
		tid := unix.Gettid()
		if tid != unix.Getpid() {
			f()
			ran <- tid
			return // still locked: the thread ends
		}
		ran <- onThread(f) // while we hold the main thread it gets another
		runtime.UnlockOSThread()
	}()
	return <-ran
}

// left waits until the thread that spawned init has ended, and with it our own
// stay in the sandbox's control group, where the group's memory running out
// could hit us.
func (s *starter) left(ctx context.Context) error {
	return poll(ctx, func() (bool, error) {
		return s.thread == 0 || !exists(fmt.Sprintf("/proc/self/task/%d", s.thread)), nil
	})
}

func (s *starter) attributes() *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true, // a Ctrl-C meant for us must not reach the sandbox
	}
	// Without an ID that is root inside, exec would drop what init needs.
	sys.AmbientCaps = needed()
	if s.cfg.IDs.Count > 0 {
		// It shares our memory until it runs its program: a copy, of a hub with
		// hundreds of sandboxes, would cost more than all else here. It cannot
		// wait for its IDs then; introduce gives them.
		sys.Cloneflags |= unix.CLONE_VM | unix.CLONE_VFORK
		return sys
	}
	sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.cfg.Process.UID), HostID: os.Geteuid(), Size: 1}}
	sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.cfg.Process.GID), HostID: os.Getegid(), Size: 1}}
	return sys
}

// introduce gives init its range of IDs, if it has one, and tells it so.
func (s *starter) introduce(pid int) error {
	word := []byte{staysUser}
	if ids := s.cfg.IDs; ids.Count > 0 {
		word[0] = becomesRoot
		if s.spare {
			word[0] = waitsAsRoot
		}
		text := fmt.Sprintf("0 %d %d\n", ids.Base, ids.Count)
		for _, name := range []string{"uid_map", "gid_map"} {
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", pid, name), []byte(text), 0); err != nil {
				return fmt.Errorf("isolate: map the IDs: %w", err)
			}
		}
	}
	if _, err := s.conn.Write(word); err != nil {
		return s.explain(err)
	}
	return nil
}

func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("isolate: make socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "isolate"), os.NewFile(uintptr(fds[1]), "isolate-init")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("isolate: make socket pair: %w", err)
	}
	return c.(*net.UnixConn), theirs, nil
}

// setup turns the config into what init is told, and its folders into detached
// mounts, which init can attach though it cannot reach their paths.
func (s *starter) setup(pid int) (setup, error) {
	set := setup{Version: wireVersion, Hostname: s.cfg.Hostname, Tmpfs: s.cfg.Tmpfs, ShmSize: s.cfg.ShmSize, Process: s.cfg.Process,
		Limits: s.cfg.Limits, LogSize: s.cfg.LogSize, Rootless: s.cfg.IDs.Count == 0, Listens: s.cfg.Listen != nil}
	var err error
	if set.Filter, err = sealing(); err != nil {
		return set, fmt.Errorf("isolate: %w", err)
	}
	m := mapper{starter: s}
	if !set.Rootless {
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		if errors.Is(err, os.ErrNotExist) {
			return set, s.explain(unix.EPIPE) // it has ended already
		}
		if err != nil {
			return set, fmt.Errorf("isolate: open the user namespace: %w", err)
		}
		defer ns.Close()
		m.userns = ns
	}
	for _, o := range s.cfg.Root {
		to := overlay{Target: o.Target, Data: o.Data, Work: o.Work, Upper: m.source(o.Upper, 0)}
		for _, l := range o.Lower {
			to.Lower = append(to.Lower, m.source(l, unix.MOUNT_ATTR_RDONLY))
		}
		set.Root = append(set.Root, to)
	}
	for _, b := range s.cfg.Binds {
		var attr uint64
		if b.ReadOnly {
			attr = unix.MOUNT_ATTR_RDONLY
		}
		set.Binds = append(set.Binds, bind{Source: m.source(b.Source, attr), Target: b.Target, ReadOnly: b.ReadOnly})
	}
	if m.err == nil && len(s.trees) > maxFDs-len(s.cfg.lateFiles()) {
		m.err = fmt.Errorf("isolate: %d folders are more than %d", len(s.trees), maxFDs)
	}
	return set, m.err
}

// mapper makes detached mounts until one fails.
type mapper struct {
	*starter
	userns *os.File // nil without root: init then opens the paths itself
	err    error
}

func (m *mapper) source(d Dir, attr uint64) source {
	if m.err != nil || m.userns == nil {
		return source{Path: d.Path, FD: -1}
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, d.Path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		m.err = fmt.Errorf("isolate: open %s: %w", d.Path, err)
		return source{}
	}
	m.trees = append(m.trees, fd)
	set := unix.MountAttr{Attr_set: attr | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if d.Mapped {
		set.Attr_set |= unix.MOUNT_ATTR_IDMAP
		set.Userns_fd = uint64(m.userns.Fd())
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &set); err != nil {
		m.err = fmt.Errorf("isolate: prepare mount of %s: %w", d.Path, err)
		if d.Mapped && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) {
			m.err = fmt.Errorf("%w: %w", ErrNoIDMap, m.err)
		}
	}
	return source{Path: d.Path, FD: len(m.trees) - 1}
}

// ErrNoIDMap tells that a filesystem cannot translate owners.
var ErrNoIDMap = errors.New("the filesystem does not support idmapped mounts")
