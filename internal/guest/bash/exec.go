package bash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// ExecIn is a command to run.
type ExecIn struct {
	SessionID *string `json:"session_id" doc:"Session to run in; created if it does not exist. Default: a new session"`
	Command   string  `json:"command" doc:"Command line for bash"`
	ExecDir   *string `json:"exec_dir" doc:"Directory to run in; it becomes the session's working directory"`

	Env map[string]*string `json:"env" nullable:"true" doc:"Environment variables for this command only; null unsets one"`

	AsyncMode   bool     `json:"async_mode" default:"false" doc:"Return immediately while the command runs"`
	Timeout     *float64 `json:"timeout" doc:"Maximum seconds to wait; the command then continues. Default: no limit"`
	HardTimeout *float64 `json:"hard_timeout" doc:"Seconds until the command and its process group are killed. Default: 0, never"`

	MaxOutputLength int `json:"max_output_length" default:"50000" doc:"Maximum characters per stream; bash_output reads the rest. 0: no limit"`
}

// ExecResult is the state of a command and its output.
type ExecResult struct {
	SessionID    string  `json:"session_id" doc:"Session of the command"`
	CommandID    string  `json:"command_id" doc:"ID of the command"`
	Command      string  `json:"command" doc:"The command line"`
	Status       string  `json:"status" enum:"pending,running,completed,timed_out,killed" doc:"State of the command"`
	Stdout       *string `json:"stdout" doc:"Standard output so far"`
	Stderr       *string `json:"stderr" doc:"Standard error so far; null if it is empty"`
	ExitCode     *int    `json:"exit_code" doc:"Exit code; null while the command runs, 128 + n if signal n killed it"`
	Offset       int64   `json:"offset" default:"0" doc:"Offset at which bash_output continues to read stdout"`
	StderrOffset int64   `json:"stderr_offset" default:"0" doc:"Offset at which bash_output continues to read stderr"`
}

// Exec runs a command and waits for its end, at most for the timeout.
func (s *Service) Exec(ctx context.Context, in ExecIn) (ExecResult, error) {
	// No caller learns the ID of this command before it has ended, so none can write to it.
	// Its input is empty, so that it does not wait for input forever.
	alone := op.Value(in.SessionID) == "" && !in.AsyncMode && in.Timeout == nil
	c, err := s.launch(in, !alone)
	if err != nil {
		return ExecResult{}, err
	}
	defer s.release(c)
	if in.AsyncMode {
		s.watch(c)
		op.Hint(ctx, "The command is running; read its output with bash_output and command_id %s", c.id)
		i := c.info()
		return ExecResult{SessionID: c.session.ID, CommandID: c.id, Command: c.text, Status: i.Status, ExitCode: i.ExitCode, Stdout: new("")}, nil
	}
	if err := s.await(ctx, c, in.Timeout); err != nil {
		return ExecResult{}, err
	}
	return c.result(ctx, in.MaxOutputLength), nil
}

// await waits until a command ends, the soft timeout expires or the request is canceled.
// In the latter two cases the command continues, unless the call owns it.
func (s *Service) await(ctx context.Context, c *command, timeout *float64) error {
	var soft <-chan time.Time
	if timeout != nil {
		timer := time.NewTimer(seconds(*timeout))
		defer timer.Stop()
		soft = timer.C
	}
	select {
	case <-c.p.Done():
		s.settle(c)
	case <-s.quit:
		s.settle(c)
	case <-soft:
		s.watch(c)
	case <-ctx.Done():
		s.watch(c)
		if op.CallOf(ctx).Owned {
			c.stop()
			return op.Errorf(op.Canceled, "the call was canceled, and its command was terminated")
		}
		return op.Errorf(op.Canceled, "the request was canceled; command %s of session %s is still running, and "+
			"bash_output reads its output", c.id, c.session.ID)
	}
	return nil
}

// seconds converts seconds to a duration without overflow.
func seconds(n float64) time.Duration {
	return op.Seconds(min(max(n, 0), 1e9))
}

// result describes a command after the wait.
func (c *command) result(ctx context.Context, limit int) ExecResult {
	i := c.info() // before reading: if the command has ended, its output is complete
	final := i.ExitCode != nil
	out, next, cut := c.out.excerpt(limit, final)
	errs, nextErr, cutErr := c.err.excerpt(limit, final)
	switch {
	case cut || cutErr:
		op.Hint(ctx, "Some output was omitted; bash_output with command_id %s and offset 0 returns all that is kept", c.id)
	case !final:
		op.Hint(ctx, "The command is still running; continue with bash_output, command_id %s, offset %d and "+
			"stderr_offset %d", c.id, next, nextErr)
	}
	r := ExecResult{
		SessionID: c.session.ID, CommandID: c.id, Command: c.text, Status: i.Status, ExitCode: i.ExitCode,
		Stdout: &out, Offset: next, StderrOffset: nextErr,
	}
	if errs != "" {
		r.Stderr = &errs
	}
	return r
}

// launch starts a command in its session. The caller must release it, and settle or watch
// it.
func (s *Service) launch(in ExecIn, input bool) (*command, error) {
	if strings.IndexByte(in.Command, 0) >= 0 {
		return nil, op.Errorf(op.Invalid, "the command contains a zero byte; use an escape such as \\0 or \\x00 instead")
	}
	if err := checkEnv(in.Env); err != nil {
		return nil, err
	}
	dir, err := session.Directory(s.base, "exec_dir", in.ExecDir)
	if err != nil {
		return nil, err
	}
	c, start, shot, err := s.register(op.Value(in.SessionID), dir, in.Command)
	if err != nil {
		return nil, err
	}
	if start.Env, start.ExtraFiles, err = shot.environ(s.Runner, in.Env); err == nil {
		err = s.start(c, start, input)
	}
	if err != nil {
		s.withdraw(c)
		return nil, startError(start, err)
	}
	if in.HardTimeout != nil && *in.HardTimeout > 0 {
		s.expireAfter(c, seconds(*in.HardTimeout))
	}
	return c, nil
}

// register adds a command to its session, which it creates if necessary, and returns how to
// start it.
func (s *Service) register(id, dir, text string) (*command, proc.Command, *snapshot, error) {
	var none proc.Command
	s.mu.Lock()
	defer s.mu.Unlock()
	shell, err := s.bash()
	if err != nil {
		return nil, none, nil, err
	}
	ss, _, err := s.open(id, dir)
	if err != nil {
		return nil, none, nil, err
	}
	if err := s.makeRoom(ss); err != nil {
		return nil, none, nil, err
	}
	ss.dir = cmp.Or(dir, ss.dir)
	c := s.newCommand(ss, text)
	ss.order = append(ss.order, c)
	ss.count++
	ss.Enter()
	s.tasks.Add(1)
	return c, proc.Command{Path: shell, Argv0: "bash", Dir: ss.dir, Grace: grace, Stdout: c.out, Stderr: c.err}, ss.shot, nil
}

// bash returns the path of bash. The lock is held.
func (s *Service) bash() (string, error) {
	if s.shell == "" {
		path, ok := s.Runner.Look("bash")
		if !ok {
			return "", op.Errorf(op.Unavailable, "bash is not installed; install the bash package")
		}
		s.shell = path
	}
	return s.shell, nil
}

// makeRoom discards the oldest ended command if a session is full.
func (s *Service) makeRoom(ss *Session) error {
	if len(ss.order) < maxRecords {
		return nil
	}
	for _, c := range ss.order {
		if c.place != nil {
			s.discard(c)
			ss.remove(c)
			return nil
		}
	}
	return op.Errorf(op.Exhausted,
		"command limit of session %q reached (%d running); wait for a command, kill one, or use another session", ss.ID, ss.Calls())
}

// withdraw removes a command that could not be started, and the session if it was created
// only for the command.
func (s *Service) withdraw(c *command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss := c.session
	ss.Leave()
	ss.remove(c)
	if c.holders = 0; !c.discarded {
		s.discard(c)
	}
	if ss.Auto && len(ss.order) == 0 {
		s.sessions.Remove(ss)
	}
	close(c.ended)
	s.tasks.Done()
}

// maxArgument is the kernel's limit for one argument of a program, including the zero byte.
const maxArgument = 128 << 10

// A command that exceeds maxArgument is read from a descriptor, which is closed before the
// command runs. The first extra file is descriptor 3.
const (
	readFrom3 = `eval "$(</proc/self/fd/3)" 3<&-`
	readFrom4 = `eval "$(</proc/self/fd/4)" 4<&-`
)

func (s *Service) start(c *command, start proc.Command, input bool) error {
	defer func() {
		for _, f := range start.ExtraFiles {
			f.Close()
		}
	}()
	start.Args = []string{"-c", "--", c.text}
	if len(c.text) >= maxArgument {
		f, err := memoryFile(c.text)
		if err != nil {
			return err
		}
		start.Args[2] = readFrom3
		if len(start.ExtraFiles) > 0 {
			start.Args[2] = readFrom4
		}
		start.ExtraFiles = append(start.ExtraFiles, f)
	}
	var w *os.File
	if input {
		var r *os.File
		var err error
		if r, w, err = os.Pipe(); err != nil {
			return err
		}
		defer r.Close()
		start.Stdin = r
	}
	p, err := s.Runner.Start(start)
	if err != nil {
		if w != nil {
			w.Close()
		}
		return err
	}
	c.begin(p, w)
	return nil
}

// memoryFile returns a file in memory with a text.
func memoryFile(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("bash", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create in-memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "bash")
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return nil, fmt.Errorf("write in-memory file: %w", err)
	}
	return f, nil
}

// startError describes why a command could not be started and what to do. It returns
// unexpected errors unchanged.
func startError(start proc.Command, err error) error {
	switch {
	case errors.Is(err, proc.ErrClosed):
		return session.ErrStopping()
	case errors.Is(err, proc.ErrNotFound):
		return op.Errorf(op.Unavailable, "bash is no longer installed at %q: %w", start.Path, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return op.Errorf(op.NotFound, "working directory %q no longer exists; send an exec_dir that does", start.Dir)
	case errors.Is(err, fs.ErrPermission):
		return op.Errorf(op.Denied, "cannot run bash in %q: %w", start.Dir, err)
	case errors.Is(err, syscall.E2BIG):
		return op.Errorf(op.TooLarge, "the environment is too large; write large values to a file and pass its path")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return op.Errorf(op.Exhausted, "cannot start more processes (%w); end some first", err)
	}
	return err
}
