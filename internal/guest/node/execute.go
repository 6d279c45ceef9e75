package node

import (
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
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// ExecuteIn is code to run.
type ExecuteIn struct {
	Code    string  `json:"code" doc:"JavaScript to run"`
	Timeout int     `json:"timeout" default:"30" minimum:"1" maximum:"300" nullable:"true" doc:"Seconds until the code is interrupted"`
	Stdin   *string `json:"stdin" doc:"Standard input of the code"`

	Files *map[string]string `json:"files" doc:"Files to create by relative path, in the cwd of the session or else in a temporary folder"`

	Stateful  bool    `json:"stateful" default:"false" nullable:"true" doc:"Keep variables: run in session_id, or in a new session"`
	SessionID *string `json:"session_id" doc:"Session to run in; created if it does not exist"`
	Cwd       *string `json:"cwd" doc:"Working directory; a session keeps it. Default: the workspace, or the folder of files"`
	Version   *string `json:"version" doc:"Version of Node.js, such as 20 or 20.11.1. Default: the default version"`
}

// Output is one output of the code.
type Output struct {
	kernel.StreamFields
	kernel.ErrorFields
	kernel.DataFields
}

// ExecuteOut is the result of the code.
type ExecuteOut struct {
	Language       string   `json:"language" const:"javascript"`
	Status         string   `json:"status" enum:"ok,error,timeout" doc:"How the code ended"`
	ExecutionCount *int     `json:"execution_count" doc:"In a session: number of the cell in its process"`
	Outputs        []Output `json:"outputs" default:"[]" doc:"Printed text, the value of the last expression, and errors, in order"`
	Code           string   `json:"code" doc:"The code"`
	Stdout         string   `json:"stdout" default:"" doc:"Standard output"`
	Stderr         string   `json:"stderr" default:"" doc:"Standard error, with the stack traces of errors"`
	ExitCode       int      `json:"exit_code" doc:"Exit code of the process; in a session 0 on success, 1 after an error. 124 after a timeout"`
	SessionID      *string  `json:"session_id" doc:"Session that ran the code"`
}

// ExecuteEvent is the data of an event of streamed code.
type ExecuteEvent struct {
	Output *Output     `json:"output,omitempty" doc:"In output events: the next output"`
	Result *ExecuteOut `json:"result,omitempty" doc:"In result events: the reply as without stream, with all outputs"`
}

// Execute runs code.
func (s *Service) Execute(ctx context.Context, in ExecuteIn) (ExecuteOut, error) {
	o, err := s.execute(ctx, in, nil)
	return o.reply(in.Code), err
}

// ExecuteStream runs code and sends its outputs as they are produced. The code is
// interrupted if the client disconnects.
func (s *Service) ExecuteStream(ctx context.Context, in ExecuteIn, send func(op.Event) error) error {
	o, err := s.execute(ctx, in, func(o output) error {
		return send(op.Event{Name: "output", Data: ExecuteEvent{Output: new(newOutput(o))}})
	})
	if err != nil {
		return err
	}
	return send(op.Event{Name: "result", Data: ExecuteEvent{Result: new(o.reply(in.Code))}})
}

// Run runs a cell and calls emit, which may be nil, for each output.
func (s *Service) Run(ctx context.Context, c kernel.Cell, emit func(kernel.Output) error) (kernel.Result, error) {
	in := ExecuteIn{Code: c.Code, SessionID: &c.Session, Stateful: c.Stateful, Cwd: &c.Dir, Timeout: int(c.Timeout / time.Second)}
	o, err := s.execute(ctx, in, emit)
	return kernel.Result{Status: o.status, Session: o.session, ExitCode: o.exit, Outputs: o.outputs}, err
}

// outcome is the result of code.
type outcome struct {
	status  string
	exit    int
	count   int
	session string
	outputs []output
}

func (s *Service) execute(ctx context.Context, in ExecuteIn, emit func(output) error) (outcome, error) {
	limit := kernel.TimeoutOf(in.Timeout)
	dir, err := session.Directory(s.base, "cwd", in.Cwd)
	if err != nil {
		return outcome{}, err
	}
	files := map[string]string{}
	if in.Files != nil {
		files = *in.Files
	}
	if err := checkFiles(files); err != nil {
		return outcome{}, err
	}
	if in.Stateful || op.Value(in.SessionID) != "" {
		return s.runInSession(ctx, in, dir, files, limit, emit)
	}
	return s.runOnce(ctx, in, dir, files, limit, emit)
}

// runOnce runs code in a new process.
func (s *Service) runOnce(ctx context.Context, in ExecuteIn, dir string, files map[string]string, limit time.Duration,
	emit func(output) error) (outcome, error) {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-wait.Done():
		return outcome{}, op.Errorf(op.Exhausted,
			"call limit reached (%d without a session), and none ended in time; try again later", cap(s.turns))
	}
	base := ""
	if len(files) > 0 {
		folder, err := s.createFolder()
		if err != nil {
			return outcome{}, err
		}
		defer os.RemoveAll(folder)
		if err := writeFiles(folder, files); err != nil {
			return outcome{}, err
		}
		base = folder
		if dir == "" {
			dir = folder
		}
	}
	if dir == "" {
		dir = s.Workspace
	}
	c := start{dir: dir, once: true}
	if in.Stdin != nil {
		c.stdin = strings.NewReader(*in.Stdin)
	}
	p, err := s.startProcess(ctx, op.Value(in.Version), c)
	if err != nil {
		return outcome{}, err
	}
	if !s.adoptProcess(p) {
		p.kill()
		return outcome{}, session.ErrStopping()
	}
	defer s.releaseProcess(p)
	if _, err := p.waitReady(ctx); err != nil {
		p.kill()
		if s.stopping() {
			err = session.ErrStopping()
		}
		return outcome{}, err
	}
	p.send(message{ID: 1, Code: &in.Code, Base: base})
	return s.await(ctx, p, limit, emit)
}

// await emits the outputs of a process until it exits or times out.
func (s *Service) await(ctx context.Context, p *process, limit time.Duration, emit func(output) error) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, kernel.ErrTimeout)
	defer cancel()
	r := recorder{emit: emit}
	out := p.transcript()
	for ended := false; !ended && r.err == nil; {
		select {
		case <-out.ready:
			r.record(out.take())
		case <-p.finished:
			ended = true
		case <-ctx.Done():
			r.err = context.Cause(ctx)
		}
	}
	if r.err != nil {
		p.stop()
	} else {
		p.kill() // its background processes
	}
	exit := p.Exit()
	err := r.err
	r.record(out.finish())
	o := outcome{status: kernel.OK, exit: exit.Code}
	switch {
	case errors.Is(err, kernel.ErrTimeout):
		o.status, o.exit = kernel.TimedOut, kernel.TimeoutCode
		op.Say(ctx, "The code ran longer than %s, so its process was killed", kernel.FormatDuration(limit))
	case err != nil:
		return outcome{}, op.Errorf(op.Canceled, "the request was canceled, so the process was killed")
	case exit.Signal != 0 && s.stopping():
		return outcome{}, session.ErrStopping()
	case exit.Code != 0:
		o.status = kernel.Failed
		if exit.Signal != 0 {
			r.record([]output{failure("ProcessDied", describeExit(exit))})
		}
	}
	o.outputs = fold(r.all)
	return o, nil
}

// recorder keeps outputs and emits them. After an error it only keeps them.
type recorder struct {
	emit func(output) error
	all  []output
	err  error
}

func (r *recorder) record(outputs []output) {
	r.all = append(r.all, outputs...)
	for _, o := range fold(outputs) {
		if r.emit != nil && r.err == nil {
			r.err = r.emit(o)
		}
	}
}

// startProcess starts a process with a version of Node.js.
func (s *Service) startProcess(ctx context.Context, version string, c start) (*process, error) {
	path, err := s.installed.findVersion(ctx, version)
	if err != nil {
		return nil, err
	}
	c.path, c.env, c.limit = path, s.installed.environ(path), s.limit
	p, err := launch(s.Runner, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runtime.Used = true
	if err == nil {
		s.runtime.Fault = ""
		return p, nil
	}
	switch {
	case errors.Is(err, proc.ErrClosed):
		return nil, session.ErrStopping()
	case errors.Is(err, proc.ErrNotFound):
		return nil, op.Errorf(op.Unavailable, "%s", notInstalled)
	case isMissingDir(c.dir):
		return nil, op.Errorf(op.NotFound, "working directory %q no longer exists; send a cwd that does", c.dir)
	case errors.Is(err, fs.ErrPermission):
		return nil, op.Errorf(op.Denied, "cannot run Node.js in %q: %w", c.dir, err)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return nil, op.Errorf(op.Exhausted, "cannot start more processes (%w); end some first", err)
	}
	s.runtime.Fault = err.Error()
	return nil, op.Errorf(op.Unavailable, "cannot start Node.js at %q (%w); reinstall it", path, err)
}

func isMissingDir(dir string) bool {
	info, err := os.Stat(dir)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && !info.IsDir()
}

// waitReady waits until the worker runs and returns the version of Node.js. The timeout of
// the code starts afterwards.
func (p *process) waitReady(ctx context.Context) (string, error) {
	limit := time.NewTimer(startTime)
	defer limit.Stop()
	select {
	case v := <-p.version:
		return v, nil
	case <-p.finished:
		_, stderr := kernel.Streams(p.nextTranscript().finish(), true)
		return "", op.Errorf(op.Unavailable, "Node.js did not start: %s\n%s", describeExit(p.Exit()), strings.TrimSpace(stderr))
	case <-limit.C:
		return "", op.Errorf(op.Unavailable, "Node.js did not start within %s; try again when the machine is less busy",
			kernel.FormatDuration(startTime))
	case <-ctx.Done():
		return "", op.Errorf(op.Canceled, "start Node.js: canceled")
	}
}

// adoptProcess registers the process of a call without a session, so that Close ends it.
func (s *Service) adoptProcess(p *process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions.Closed() {
		return false
	}
	s.oneShot[p] = struct{}{}
	return true
}

func (s *Service) releaseProcess(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.oneShot, p)
}

func (s *Service) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions.Closed()
}

// describeExit describes an unexpected exit.
func describeExit(e proc.Exit) string {
	switch {
	case e.Signal == syscall.SIGKILL:
		return "the process was killed by SIGKILL; unless it was sent deliberately, the process ran out of memory"
	case e.Signal != 0:
		return "the process was killed by " + unix.SignalName(e.Signal)
	}
	return fmt.Sprintf("the process exited with code %d", e.Code)
}

func (o outcome) reply(code string) ExecuteOut {
	r := ExecuteOut{Language: "javascript", Status: o.status, Code: code, ExitCode: o.exit}
	r.Stdout, r.Stderr = kernel.Streams(o.outputs, true)
	if o.session != "" {
		r.SessionID = &o.session
	}
	if o.count > 0 {
		r.ExecutionCount = &o.count
	}
	r.Outputs = make([]Output, 0, len(o.outputs))
	for _, out := range o.outputs {
		r.Outputs = append(r.Outputs, newOutput(out))
	}
	return r
}

func newOutput(o output) Output {
	var w Output
	w.StreamFields, w.DataFields, w.ErrorFields = kernel.OutputFields(o)
	return w
}
