package bash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
)

// ExecIn is a command to run.
type ExecIn struct {
	SessionID       *string            `json:"session_id" doc:"Session whose directory and environment it gets; one that does not exist is made, and a new one when missing"`
	Command         string             `json:"command" doc:"Command line for bash"`
	ExecDir         *string            `json:"exec_dir" doc:"Directory to run in, from now on the session's directory"`
	Env             map[string]*string `json:"env" nullable:"true" doc:"Environment variables for this command only; null takes one away"`
	AsyncMode       bool               `json:"async_mode" default:"false" doc:"Answer at once, while the command runs"`
	Timeout         *float64           `json:"timeout" doc:"Seconds after which the answer comes even if the command still runs; it goes on. Without it the answer comes when the command has ended"`
	HardTimeout     *float64           `json:"hard_timeout" doc:"Seconds after which the command and its process group are ended; 0 or none for never"`
	MaxOutputLength int                `json:"max_output_length" default:"50000" doc:"Most characters of each stream in the answer: the middle of longer output is left out, and bash_output has it. 0 for no limit"`
}

// ExecResult is how far the command has got.
type ExecResult struct {
	SessionID    string  `json:"session_id" doc:"Session it runs in"`
	CommandID    string  `json:"command_id" doc:"Name of the command"`
	Command      string  `json:"command" doc:"What was run"`
	Status       string  `json:"status" enum:"pending,running,completed,timed_out,killed" doc:"How far it is"`
	Stdout       *string `json:"stdout" doc:"What it wrote to stdout so far"`
	Stderr       *string `json:"stderr" doc:"What it wrote to stderr so far"`
	ExitCode     *int    `json:"exit_code" doc:"Its exit code once it has ended; 128 plus the number of the signal that ended it"`
	Offset       int64   `json:"offset" default:"0" doc:"Where bash_output goes on reading stdout"`
	StderrOffset int64   `json:"stderr_offset" default:"0" doc:"Where bash_output goes on reading stderr"`
}

// Exec runs a command and waits for its end as long as it was told to.
func (s *Service) Exec(ctx context.Context, in ExecIn) (ExecResult, error) {
	// Nobody learns the name of this command before it has ended, so nobody can
	// write to it: it finds the end of its input instead of waiting for ever.
	alone := value(in.SessionID) == "" && !in.AsyncMode && in.Timeout == nil
	c, err := s.launch(in, !alone)
	if err != nil {
		return ExecResult{}, err
	}
	defer s.release(c)
	if in.AsyncMode {
		s.watch(c)
		op.Hint(ctx, "The command runs; read its output with bash_output and command_id %s", c.id)
		i := c.info()
		return ExecResult{SessionID: c.session.id, CommandID: c.id, Command: c.text, Status: i.Status, ExitCode: i.ExitCode, Stdout: new(""), Stderr: new("")}, nil
	}
	if err := s.await(ctx, c, in.Timeout); err != nil {
		return ExecResult{}, err
	}
	return c.result(ctx, in.MaxOutputLength), nil
}

// await waits for the end of a command: at most for the soft timeout, and no
// longer than the caller does. The command goes on in either case.
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
		return op.Errorf(op.Canceled, "nobody waits for command %s of session %s any more; it goes on, and bash_output reads what it writes", c.id, c.session.id)
	}
	return nil
}

// seconds is a duration that cannot overflow.
func seconds(n float64) time.Duration {
	return time.Duration(math.Min(math.Max(n, 0), 1e9) * float64(time.Second))
}

// result is the answer to a caller who has waited.
func (c *command) result(ctx context.Context, limit int) ExecResult {
	i := c.info() // before the output is read: all of it is there once it has ended
	final := i.ExitCode != nil
	out, next, cut := c.out.excerpt(limit, final)
	errs, nextErr, cutErr := c.err.excerpt(limit, final)
	switch {
	case cut || cutErr:
		op.Hint(ctx, "Some output is left out; bash_output with command_id %s and offset 0 has what is kept", c.id)
	case !final:
		op.Hint(ctx, "The command still runs; bash_output with command_id %s, offset %d and stderr_offset %d reads on", c.id, next, nextErr)
	}
	return ExecResult{
		SessionID: c.session.id, CommandID: c.id, Command: c.text, Status: i.Status, ExitCode: i.ExitCode,
		Stdout: &out, Stderr: &errs, Offset: next, StderrOffset: nextErr,
	}
}

// launch starts a command in its session. Its output is held for the caller, who
// releases it, and who settles or watches it.
func (s *Service) launch(in ExecIn, input bool) (*command, error) {
	if strings.IndexByte(in.Command, 0) >= 0 {
		return nil, op.Errorf(op.Invalid, "the command holds a zero byte, which no command line can; write it as \\0 or \\x00 where a program understands that")
	}
	if err := checkEnv(in.Env); err != nil {
		return nil, err
	}
	dir, err := s.directory(in.ExecDir)
	if err != nil {
		return nil, err
	}
	c, start, shot, err := s.register(value(in.SessionID), dir, in.Command)
	if err != nil {
		return nil, err
	}
	if start.Env, start.ExtraFiles, err = shot.environ(s.Runner, in.Env); err == nil {
		err = s.start(c, start, input)
	}
	if err != nil {
		s.withdraw(c)
		return nil, refusal(start, err)
	}
	if in.HardTimeout != nil && *in.HardTimeout > 0 {
		s.expireAfter(c, seconds(*in.HardTimeout))
	}
	return c, nil
}

// register makes a place for a command in its session, which it makes if need be,
// and says how to start it.
func (s *Service) register(id, dir, text string) (*command, proc.Command, *snapshot, error) {
	var none proc.Command
	s.mu.Lock()
	defer s.mu.Unlock()
	shell, err := s.bash()
	if err != nil {
		return nil, none, nil, err
	}
	ss := s.sessions[id]
	if ss == nil {
		if ss, err = s.open(id, dir); err != nil {
			return nil, none, nil, err
		}
	}
	if err := s.makeRoom(ss); err != nil {
		return nil, none, nil, err
	}
	ss.dir = cmp.Or(dir, ss.dir)
	c := s.newCommand(ss, text)
	ss.order = append(ss.order, c)
	ss.used = s.now()
	ss.count++
	ss.running++
	s.tasks.Add(1)
	return c, proc.Command{Path: shell, Argv0: "bash", Dir: ss.dir, Grace: grace, Stdout: c.out, Stderr: c.err}, ss.shot, nil
}

// bash finds the program. The lock is held.
func (s *Service) bash() (string, error) {
	if s.shell == "" {
		path, ok := s.Runner.Look("bash")
		if !ok {
			return "", op.Errorf(op.Unavailable, "bash is not installed; install the package bash")
		}
		s.shell = path
	}
	return s.shell, nil
}

// makeRoom forgets the oldest command that has ended when a session is full.
func (s *Service) makeRoom(ss *session) error {
	if len(ss.order) < maxRecords {
		return nil
	}
	for _, c := range ss.order {
		if c.place != nil {
			s.forget(c)
			ss.drop(c)
			return nil
		}
	}
	return op.Errorf(op.Exhausted, "%d commands run in session %q, which is the most; wait for some, kill them, or use another session", ss.running, ss.id)
}

// withdraw takes back a command that could not be started, and the session that
// was made only for it.
func (s *Service) withdraw(c *command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss := c.session
	ss.running--
	ss.drop(c)
	if c.holders = 0; !c.forgotten {
		s.forget(c)
	}
	if ss.auto && len(ss.order) == 0 && s.sessions[ss.id] == ss {
		s.remove(ss)
	}
	close(c.ended)
	s.tasks.Done()
}

// maxArgument is the kernel's limit for one argument of a program, its end included.
const maxArgument = 128 << 10

// A command that is too long for an argument is read from a descriptor, which is
// closed before the command runs. The first of the extra files is descriptor 3.
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
		f, err := hidden(c.text)
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

// hidden is a file in memory that holds a text.
func hidden(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("bash", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "bash")
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return nil, fmt.Errorf("write file in memory: %w", err)
	}
	return f, nil
}

// refusal says why a command could not be started and what to do. What is nobody
// else's fault stays an error of ours.
func refusal(start proc.Command, err error) error {
	switch {
	case errors.Is(err, proc.ErrClosed):
		return op.Errorf(op.Unavailable, "the sandbox is stopping; no command can be started")
	case errors.Is(err, proc.ErrNotFound):
		return op.Errorf(op.Unavailable, "bash is no longer at %s: %w", start.Path, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return op.Errorf(op.NotFound, "the directory %s is gone; send an exec_dir that exists", start.Dir)
	case errors.Is(err, fs.ErrPermission):
		return op.Errorf(op.Denied, "the directory %s cannot be entered, or bash not be run: %w", start.Dir, err)
	case errors.Is(err, syscall.E2BIG):
		return op.Errorf(op.TooLarge, "the environment is too large for the kernel; write large values to a file and pass its name")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return op.Errorf(op.Exhausted, "no more processes can be started now (%w); end some first", err)
	}
	return err
}
