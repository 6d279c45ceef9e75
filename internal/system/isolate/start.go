package isolate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate/cgroup"
	"github.com/cove-sandbox/cove/internal/system/isolate/internal/poll"
)

// Start creates a sandbox and returns when its program has been started. If it fails,
// or ctx ends before, nothing is left but the files that cfg names. The sandbox
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
	trees  []int // detached mounts, to be sent and closed
	thread int   // spawned init and ends; see waitThread
	// spare: init shall wait for its setup. fromSpare: it has.
	spare, fromSpare bool
	// owners is what host files are mounted by; see openOwners.
	owners *os.File
}

func (s *starter) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	if s.owners != nil {
		s.owners.Close()
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
	// A deadline in the past wakes us if ctx ends while we wait for init.
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
	if err := sendSetup(s.conn, set, fds); err != nil {
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
	if _, err := s.receiveReport(stageMount); err != nil {
		return fail(err)
	}
	if err := s.waitThread(ctx); err != nil {
		return fail(err)
	}
	if _, err := s.conn.Write([]byte{1}); err != nil {
		return fail(fmt.Errorf("isolate: let init continue: %w", err))
	}
	last, err := s.receiveReport(stageRun)
	if err != nil {
		return fail(err)
	}
	if !stop() && ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	h.rec.Inner = last.PID
	return h, nil
}

var errSilent = errors.New("init ended without a report; Argv must start a program that calls isolate.Main")

// receiveReport reads one report of init.
func (s *starter) receiveReport(stage string) (report, error) {
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
	s.addStage(stage, r.Took)
	return r, nil
}

// explainEnd prefers init's own report over the broken pipe that its end caused.
func (s *starter) explainEnd(err error) error {
	var r report
	if receive(s.conn, &r, maxReport) == nil && r.Error != "" {
		return fmt.Errorf("isolate: %s", r.Error)
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		err = errSilent
	}
	return fmt.Errorf("isolate: send setup: %w", err)
}

// spawn starts init in new namespaces. Entered lists the control groups that it is
// in already.
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
	// Descriptors that our own parent left open must reach neither init nor the
	// sandbox.
	if err := unix.CloseRange(fdConn, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("isolate: set close-on-exec: %w", err)
	}
	pidfd := -1
	attr := &os.ProcAttr{
		Dir: "/",
		// There are hundreds of inits, which need next to nothing: no garbage collection
		// while they start, and none later unless something goes wrong. Nothing of our
		// own environment is visible inside.
		Env:   []string{"GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=16MiB"},
		Files: []*os.File{null, s.cfg.Exit, s.cfg.Exit, theirs, s.cfg.Log[0], s.cfg.Log[1], s.cfg.Exit, s.cfg.Control, s.cfg.Listen, exe},
		Sys:   s.attributes(),
	}
	for i, f := range attr.Files {
		if f == nil {
			attr.Files[i] = null // a spare gets its files later
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
		err = errors.New("isolate: the kernel gives no pidfd; Linux 5.12 or later is needed")
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

// dumping is held while this process is dumpable for a moment.
var dumping sync.Mutex

// whileDumpable runs f. If it maps IDs without root, this process is dumpable meanwhile: until the
// child executes its program it is as we are, and the files of /proc in which its IDs are
// mapped would belong to root.
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

// argv is the command line of init, which the sandbox can see: nothing of the host.
func (s *starter) argv() []string { return append([]string{initName}, s.cfg.Argv[1:]...) }

// initName is the name of the init process, inside and outside.
const initName = "init"

// exePath is the path of the program that the child executes. As a descriptor it can
// be executed even if the sandbox's user has no access to its folder.
var exePath = fmt.Sprintf("/proc/self/fd/%d", fdExe)

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
	s.thread = onThread(func() {
		entered = g.Enter()
		if s.cfg.IDs.Count > 0 {
			if err = becomeUser(s.cfg.IDs.Base); err != nil {
				return
			}
		}
		if p, err = os.StartProcess(exePath, s.argv(), attr); err != nil && unified != nil {
			// Many containers refuse clone3; init is then moved later.
			attr.Sys.UseCgroupFD, unified = false, nil
			p, err = os.StartProcess(exePath, s.argv(), attr)
		}
	})
	if unified != nil {
		entered = append(entered, unified.Name())
	}
	return p, entered, err
}

// onThread runs f on a thread that ends soon after it, and returns the thread's ID. It
// is never the main thread, which cannot end and would keep what f changed.
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

// waitThread waits for the end of the thread that spawned init. Until then we are in
// the sandbox's control group, and could be killed when it runs out of memory.
func (s *starter) waitThread(ctx context.Context) error {
	return poll.Until(ctx, func() (bool, error) {
		return s.thread == 0 || !exists(fmt.Sprintf("/proc/self/task/%d", s.thread)), nil
	})
}

func (s *starter) attributes() *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true, // a Ctrl-C for us must not reach the sandbox
	}
	// Without an ID that is root inside, exec would drop the capabilities of init.
	sys.AmbientCaps = allCapabilities()
	if s.cfg.IDs.Count > 0 {
		// It shares our memory until it executes its program: copying that of a hub
		// with hundreds of sandboxes would cost more than everything else here. So it
		// cannot wait for its IDs; sendIDs sets them.
		sys.Cloneflags |= unix.CLONE_VM | unix.CLONE_VFORK
		return sys
	}
	sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.cfg.Process.UID), HostID: os.Geteuid(), Size: 1}}
	sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(s.cfg.Process.GID), HostID: os.Getegid(), Size: 1}}
	return sys
}

// sendIDs sets the IDs of init, if it has a range, and tells it so.
func (s *starter) sendIDs(pid int) error {
	word := []byte{staysUser}
	if ids := s.cfg.IDs; ids.Count > 0 {
		word[0] = becomesRoot
		switch {
		case s.spare:
			word[0] = waitsAsRoot
		case s.cfg.Runtime:
			word[0] = becomesRuntime
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
	ours, theirs := os.NewFile(uintptr(fds[0]), "isolate"), os.NewFile(uintptr(fds[1]), "isolate-init")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("isolate: make socket pair: %w", err)
	}
	return c.(*net.UnixConn), theirs, nil
}

// setup turns the config into the message to init, and its folders into detached
// mounts, which init can attach although it has no access to their paths.
func (s *starter) setup(pid int) (setup, error) {
	set := setup{Version: protocolVersion, Hostname: s.cfg.Hostname, Tmpfs: s.cfg.Tmpfs, ShmSize: s.cfg.ShmSize, Process: s.cfg.Process,
		Limits: s.cfg.Limits, LogSize: s.cfg.LogSize, Rootless: s.cfg.IDs.Count == 0, Listens: s.cfg.Listen != nil,
		Setuid: s.cfg.Setuid && s.cfg.IDs.Count > 0}
	var err error
	if set.Filter, err = filterProgram(); err != nil {
		return set, fmt.Errorf("isolate: %w", err)
	}
	m := mapper{starter: s}
	if !set.Rootless {
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		if errors.Is(err, os.ErrNotExist) {
			return set, s.explainEnd(unix.EPIPE) // it has ended
		}
		if err != nil {
			return set, fmt.Errorf("isolate: open the user namespace: %w", err)
		}
		defer ns.Close()
		m.userns = ns
	}
	uppers := map[Dir]source{} // overlays with the same one share its mount
	for _, o := range s.cfg.Root {
		upper, ok := uppers[o.Upper]
		if !ok {
			upper = m.source(o.Upper, unix.MOUNT_ATTR_NOSUID)
			uppers[o.Upper] = upper
		}
		to := overlay{Target: o.Target, Data: o.Data, Work: o.Work, Upper: upper}
		for _, l := range o.Lower {
			to.Lower = append(to.Lower, m.source(l, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID))
		}
		set.Root = append(set.Root, to)
	}
	for _, b := range s.cfg.Binds {
		var attr uint64
		if b.ReadOnly {
			attr = unix.MOUNT_ATTR_RDONLY
		}
		setuid := b.Setuid && set.Setuid
		if !setuid {
			attr |= unix.MOUNT_ATTR_NOSUID
		}
		to := bind{Target: b.Target, ReadOnly: b.ReadOnly, Setuid: setuid, Hidden: b.Hidden && !s.cfg.Runtime}
		if to.Hidden {
			b.Source.Path, to.File = splitFile(b.Source.Path)
		}
		to.Source = m.source(b.Source, attr)
		set.Binds = append(set.Binds, to)
	}
	if m.err == nil && len(s.trees) > maxFDs-len(s.cfg.filesForSpare()) {
		m.err = fmt.Errorf("isolate: %d folders exceed the limit of %d", len(s.trees), maxFDs)
	}
	return set, m.err
}

// splitFile returns the folder of a file and its name in it, or a folder and no name.
func splitFile(name string) (dir, file string) {
	if info, err := os.Stat(name); err != nil || info.IsDir() {
		return name, ""
	}
	return path.Dir(name), path.Base(name)
}

// mapper creates detached mounts until one fails.
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
	set := unix.MountAttr{Attr_set: attr | unix.MOUNT_ATTR_NODEV}
	set.Attr_clr = unix.MOUNT_ATTR_NOSUID &^ attr
	if d.Mapped {
		owners, err := m.ownersOf(d)
		if err != nil {
			m.err = err
			return source{}
		}
		set.Attr_set |= unix.MOUNT_ATTR_IDMAP
		set.Userns_fd = uint64(owners.Fd())
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &set); err != nil {
		m.err = fmt.Errorf("isolate: prepare mount of %s: %w", d.Path, err)
		if d.Mapped && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) {
			m.err = fmt.Errorf("%w: %w", ErrNoIDMap, m.err)
		}
	}
	return source{Path: d.Path, FD: len(m.trees) - 1}
}

// ownersOf returns the user namespace that the owners in a folder are translated by.
func (m *mapper) ownersOf(d Dir) (*os.File, error) {
	if !d.OfHost {
		return m.userns, nil
	}
	return m.hostOwners()
}

// hostOwners returns the namespace for files of the host, which a spare has already.
func (s *starter) hostOwners() (_ *os.File, err error) {
	if s.owners == nil {
		exe, err := openExe(s.cfg.Argv[0])
		if err != nil {
			return nil, err
		}
		defer exe.Close()
		if s.owners, err = openOwners(exe, s.cfg.IDs); err != nil {
			return nil, err
		}
	}
	return s.owners, nil
}

// ErrNoIDMap means that a filesystem cannot translate owners.
var ErrNoIDMap = errors.New("the filesystem does not support idmapped mounts")
