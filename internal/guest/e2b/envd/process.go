package envd

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
	"github.com/cove-sandbox/cove/internal/guest/internal/pty"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// maxProcesses is the maximum number of concurrent processes.
	maxProcesses = 2000
	// keepEnd is how long the exit status of a process is available.
	keepEnd = 30 * time.Second
	// lastOutput is how long a terminal is read after its program has ended, if another process still uses it.
	lastOutput = 200 * time.Millisecond
)

// config is a command to start.
type config struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  *string           `json:"cwd,omitempty"`
}

// terminal is the size of a terminal.
type terminal struct {
	Size struct {
		Cols int `json:"cols"`
		Rows int `json:"rows"`
	} `json:"size"`
}

// startIn is the input of start.
type startIn struct {
	Process config    `json:"process"`
	Pty     *terminal `json:"pty"`
	Tag     *string   `json:"tag"`
	Stdin   *bool     `json:"stdin"`
}

// process is a program that runs or has ended recently.
type process struct {
	config config
	tag    *string
	p      *proc.Process
	tty    *pty.PTY // nil without a terminal
	stdin  *stdin   // nil with a terminal or without input
	topic  topic
}

// processes are the processes of the service.
type processes struct {
	mu     sync.Mutex
	byPID  map[int]*process
	closed bool
	quit   chan struct{}
	once   sync.Once
	work   sync.WaitGroup
}

func (t *processes) count() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.byPID {
		if !p.topic.hasEnded() {
			n++
		}
	}
	return n
}

// reserve registers a process before it is started, or returns why none may be started.
func (t *processes) reserve() error {
	if n := t.count(); n >= maxProcesses {
		return connect.Errorf(connect.ResourceExhausted, "process limit reached (%d); end processes first", maxProcesses)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return connect.Errorf(connect.Unavailable, "the sandbox is stopping")
	}
	t.work.Add(1)
	return nil
}

func (t *processes) add(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byPID[p.p.PID()] = p
}

// forget drops a process after keepEnd, unless its ID belongs to another process by then.
func (t *processes) forget(p *process) {
	timer := time.NewTimer(keepEnd)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.quit:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byPID[p.p.PID()] == p {
		delete(t.byPID, p.p.PID())
	}
}

func (t *processes) close() {
	t.mu.Lock()
	t.closed = true
	all := make([]*process, 0, len(t.byPID))
	for _, p := range t.byPID {
		all = append(all, p)
	}
	t.mu.Unlock()
	t.once.Do(func() { close(t.quit) })
	var stop sync.WaitGroup
	for _, p := range all {
		stop.Go(func() { p.p.Stop() })
	}
	stop.Wait()
	t.work.Wait()
}

// selector identifies a process.
type selector struct {
	PID *int    `json:"pid"`
	Tag *string `json:"tag"`
}

func (t *processes) find(by selector) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case by.PID != nil:
		if p := t.byPID[*by.PID]; p != nil {
			return p, nil
		}
		return nil, connect.Errorf(connect.NotFound, "process with pid %d not found", *by.PID)
	case by.Tag != nil:
		for _, p := range t.byPID {
			if p.tag != nil && *p.tag == *by.Tag {
				return p, nil
			}
		}
		return nil, connect.Errorf(connect.NotFound, "process with tag %q not found", *by.Tag)
	}
	return nil, connect.Errorf(connect.InvalidArgument, "set pid or tag of a process")
}

// running finds a process that has not ended.
func (t *processes) running(by selector) (*process, error) {
	p, err := t.find(by)
	if err == nil && p.topic.hasEnded() {
		err = connect.Errorf(connect.NotFound, "process with pid %d has ended", p.p.PID())
	}
	return p, err
}

// start starts a process and sends its events until it ends. The process outlives the request, unless the timeout of the request
// expires.
func (s *Service) start(ctx context.Context, c connect.Caller, in startIn, out *connect.Stream) error {
	p, sub, err := s.launch(c, in)
	if err != nil {
		return err
	}
	if c.Timeout > 0 {
		timer := time.AfterFunc(c.Timeout, func() {
			sub.expired.Store(true)
			p.p.Kill()
		})
		// The timeout still applies after the client has disconnected.
		defer func() {
			if p.topic.hasEnded() || ctx.Err() == nil {
				timer.Stop()
			}
		}()
	}
	return s.follow(ctx, c, p, sub, out)
}

func (s *Service) launch(c connect.Caller, in startIn) (*process, *subscriber, error) {
	u, err := s.users.fromHeader(c.Header)
	if err != nil {
		return nil, nil, err
	}
	dir := u.home
	if in.Process.Cwd != nil {
		if dir, err = u.resolve(*in.Process.Cwd); err != nil {
			return nil, nil, err
		}
	}
	if err := cmp.Or(checkVariables(in.Process.Envs), checkDir(u, dir)); err != nil {
		return nil, nil, err
	}
	if err := s.procs.reserve(); err != nil {
		return nil, nil, err
	}
	if s.Prepare != nil {
		s.Prepare()
	}
	p := &process{config: in.Process, tag: in.Tag}
	sub := p.topic.subscribe()
	command := s.command(u, c, in.Process, dir)
	if in.Pty != nil {
		err = p.startTerminal(s, command, *in.Pty)
	} else {
		err = p.startPiped(s, command, in.Stdin == nil || *in.Stdin)
	}
	if err != nil {
		s.procs.work.Done()
		return nil, nil, startError(in.Process.Cmd, err)
	}
	return p, sub, nil
}

// checkDir checks the working directory of a process of the sandbox's own user. For other users, sudo checks it.
func checkDir(u account, dir string) error {
	if !u.own {
		return nil
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return connect.Errorf(connect.InvalidArgument, "cwd %q does not exist", dir)
	case !info.IsDir():
		return connect.Errorf(connect.InvalidArgument, "cwd %q is not a folder", dir)
	}
	return nil
}

func (s *Service) command(u account, c connect.Caller, cfg config, dir string) proc.Command {
	env := s.environ(u, c.Header, dir, cfg.Envs)
	if u.own {
		return proc.Command{Path: cfg.Cmd, Args: cfg.Args, Dir: dir, Env: env}
	}
	args := append([]string{"-n", "-E", "-H", "-u", u.name, "-D", dir, "--", cfg.Cmd}, cfg.Args...)
	return proc.Command{Path: "sudo", Args: args, Dir: "/", Env: env}
}

func startError(name string, err error) error {
	if e, ok := errors.AsType[*connect.Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, proc.ErrNotFound), errors.Is(err, os.ErrPermission):
		return connect.Errorf(connect.InvalidArgument, "start %q: %v", name, err)
	case errors.Is(err, proc.ErrClosed):
		return connect.Errorf(connect.Unavailable, "the sandbox is stopping")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return connect.Errorf(connect.ResourceExhausted, "start %q: %v; end processes first", name, err)
	}
	return connect.Errorf(connect.Internal, "start %q: %v", name, err)
}

func (p *process) startPiped(s *Service, c proc.Command, withInput bool) error {
	c.Stdout, c.Stderr = &writer{&p.topic, stdoutKind}, &writer{&p.topic, stderrKind}
	var read *os.File
	if withInput {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		read, p.stdin = r, &stdin{f: w}
		c.Stdin = r
	}
	started, err := s.Runner.Start(c)
	if read != nil {
		read.Close()
	}
	if err != nil {
		if p.stdin != nil {
			p.stdin.close()
		}
		return err
	}
	p.p = started
	p.settle(s, func() {
		if p.stdin != nil {
			p.stdin.close()
		}
	})
	return nil
}

func (p *process) startTerminal(s *Service, c proc.Command, size terminal) error {
	tty, err := pty.Open(cmp.Or(size.Size.Cols, 80), cmp.Or(size.Size.Rows, 24))
	if err != nil {
		return connect.Errorf(connect.InvalidArgument, "%v", err)
	}
	c.TTY = tty.Slave()
	p.tty = tty
	started, err := s.Runner.Start(c)
	tty.CloseSlave()
	if err != nil {
		tty.Close()
		return err
	}
	p.p = started
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(&writer{&p.topic, ptyKind}, tty)
	}()
	p.settle(s, func() {
		timer := time.NewTimer(lastOutput)
		defer timer.Stop()
		select {
		case <-copied:
		case <-timer.C:
		}
		tty.Close()
		<-copied
	})
	return nil
}

// settle adds a started process to the list, and publishes its end.
func (p *process) settle(s *Service, release func()) {
	s.procs.add(p)
	go func() {
		defer s.procs.work.Done()
		<-p.p.Done()
		release()
		s.watchers.flushAll(context.Background())
		p.topic.finish(event{End: endOf(p.p.Exit())})
		s.procs.forget(p)
	}()
}

// endOf describes the end of a process in the format of clients.
func endOf(e proc.Exit) *ended {
	if e.Signal != 0 {
		text := "signal: " + e.Signal.String()
		return &ended{ExitCode: -1, Status: text, Error: &text}
	}
	end := &ended{ExitCode: e.Code, Exited: true, Status: "exit status " + itoa(e.Code)}
	if e.Code != 0 {
		end.Error = &end.Status
	}
	return end
}

// listed is a process in a list.
type listed struct {
	Config config  `json:"config"`
	PID    int     `json:"pid"`
	Tag    *string `json:"tag,omitempty"`
}

// listOut is the list of running processes.
type listOut struct {
	Processes []listed `json:"processes,omitempty"`
}

func (s *Service) list(_ context.Context, _ connect.Caller, _ struct{}) (out listOut, err error) {
	s.procs.mu.Lock()
	defer s.procs.mu.Unlock()
	for pid, p := range s.procs.byPID {
		if !p.topic.hasEnded() {
			out.Processes = append(out.Processes, listed{p.config, pid, p.tag})
		}
	}
	slices.SortFunc(out.Processes, func(a, b listed) int { return cmp.Compare(a.PID, b.PID) })
	return out, nil
}
