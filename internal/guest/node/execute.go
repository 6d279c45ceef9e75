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

	"github.com/cove-sandbox/cove/internal/kernel"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
)

// ExecuteIn is code to run.
type ExecuteIn struct {
	Code      string             `json:"code" doc:"JavaScript to run"`
	Timeout   int                `json:"timeout" default:"30" minimum:"1" maximum:"300" nullable:"true" doc:"Seconds after which the code is interrupted"`
	Stdin     *string            `json:"stdin" doc:"What the code finds on its standard input"`
	Files     *map[string]string `json:"files" doc:"Files laid beside the code, by relative name: in a folder of their own that is removed afterwards, where the code runs unless cwd says otherwise; for a session, in its working directory"`
	Stateful  bool               `json:"stateful" default:"false" nullable:"true" doc:"Keep variables: run in a session, a new one unless session_id names one"`
	SessionID *string            `json:"session_id" doc:"Session to run in; made if there is none of this name"`
	Cwd       *string            `json:"cwd" doc:"Working directory, which a session keeps; the workspace when missing"`
	Version   *string            `json:"version" doc:"Version of Node.js, such as 20 or 20.11.1; the default one when missing"`
}

// Output is one output of the code.
type Output struct {
	Type      string          `json:"output_type" doc:"stream, execute_result or error"`
	Name      *string         `json:"name" doc:"Of a stream: stdout or stderr"`
	Text      *string         `json:"text" doc:"Of a stream"`
	EName     *string         `json:"ename" doc:"Of an error: its kind"`
	EValue    *string         `json:"evalue" doc:"Of an error: its message"`
	Traceback *[]string       `json:"traceback" doc:"Of an error: its stack"`
	Data      *map[string]any `json:"data" doc:"Of a result: its forms by media type"`
	Metadata  *map[string]any `json:"metadata" doc:"Of a result"`
}

// ExecuteOut is what became of the code.
type ExecuteOut struct {
	Language       string   `json:"language" const:"javascript"`
	Status         string   `json:"status" enum:"ok,error,timeout" doc:"How it ended"`
	ExecutionCount *int     `json:"execution_count" doc:"In a session: how many cells have run in its process"`
	Outputs        []Output `json:"outputs" default:"[]" doc:"What it printed, the value of its last expression, and errors, in order"`
	Code           string   `json:"code" doc:"What was run"`
	Stdout         string   `json:"stdout" default:"" doc:"All it wrote to stdout"`
	Stderr         string   `json:"stderr" default:"" doc:"All it wrote to stderr, with the stacks of errors"`
	ExitCode       int      `json:"exit_code" doc:"Of its process; in a session 0 if it ran well, 1 after an error. 124 after a timeout"`
	SessionID      *string  `json:"session_id" doc:"Session it ran in"`
}

// ExecuteEvent is what the events of streamed code hold.
type ExecuteEvent struct {
	Output *Output     `json:"output,omitempty" doc:"In output: the next one"`
	Result *ExecuteOut `json:"result,omitempty" doc:"In result: the reply as it is without stream, all outputs included"`
}

// Execute runs code.
func (s *Service) Execute(ctx context.Context, in ExecuteIn) (ExecuteOut, error) {
	o, err := s.execute(ctx, in, nil)
	return o.reply(in.Code), err
}

// ExecuteStream runs code and sends its outputs as they come. A reader who goes
// away interrupts it.
func (s *Service) ExecuteStream(ctx context.Context, in ExecuteIn, send func(op.Event) error) error {
	o, err := s.execute(ctx, in, func(o output) error {
		return send(op.Event{Name: "output", Data: ExecuteEvent{Output: new(wire(o))}})
	})
	if err != nil {
		return err
	}
	return send(op.Event{Name: "result", Data: ExecuteEvent{Result: new(o.reply(in.Code))}})
}

// Cell is code to run, in words that any language understands.
type Cell = struct {
	Code     string
	Session  string // empty: none, unless Stateful
	Stateful bool
	Dir      string // empty: the usual one
	Timeout  time.Duration
}

// Result is what became of a Cell.
type Result = struct {
	Status   string // ok, error, timeout
	Session  string // empty: none
	ExitCode int
	Outputs  []kernel.Output
}

// Run runs a cell. Outputs are handed to emit, which may be nil, as they come.
func (s *Service) Run(ctx context.Context, c Cell, emit func(kernel.Output) error) (Result, error) {
	in := ExecuteIn{Code: c.Code, SessionID: &c.Session, Stateful: c.Stateful, Cwd: &c.Dir, Timeout: int(c.Timeout / time.Second)}
	o, err := s.execute(ctx, in, emit)
	return Result{Status: o.status, Session: o.session, ExitCode: o.exit, Outputs: o.outputs}, err
}

// outcome is what became of code.
type outcome struct {
	status  string
	exit    int
	count   int
	session string
	outputs []output
}

const (
	okay     = "ok"
	failed   = "error"
	timedOut = "timeout"

	timeoutCode = 124 // what the program timeout answers
)

// errTimeout is why code is interrupted whose time is up.
var errTimeout = errors.New("the time is up")

func (s *Service) execute(ctx context.Context, in ExecuteIn, emit func(output) error) (outcome, error) {
	limit := time.Duration(in.Timeout) * time.Second
	if limit <= 0 {
		limit = defaultTimeout
	}
	dir, err := s.directory(in.Cwd)
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
	if in.Stateful || value(in.SessionID) != "" {
		return s.inSession(ctx, in, dir, files, limit, emit)
	}
	return s.alone(ctx, in, dir, files, limit, emit)
}

// alone runs code in a process of its own.
func (s *Service) alone(ctx context.Context, in ExecuteIn, dir string, files map[string]string, limit time.Duration, emit func(output) error) (outcome, error) {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-wait.Done():
		return outcome{}, op.Errorf(op.Exhausted, "%d other calls run and none ended in time; try again later", cap(s.turns))
	}
	base := ""
	if len(files) > 0 {
		folder, err := s.folder()
		if err != nil {
			return outcome{}, err
		}
		defer os.RemoveAll(folder)
		if err := lay(folder, files); err != nil {
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
	p, err := s.begin(ctx, value(in.Version), c)
	if err != nil {
		return outcome{}, err
	}
	if !s.claim(p) {
		p.kill()
		return outcome{}, errStopping()
	}
	defer s.disclaim(p)
	if _, err := p.ready(ctx); err != nil {
		p.kill()
		if s.stopping() {
			err = errStopping()
		}
		return outcome{}, err
	}
	p.tell(message{ID: 1, Code: &in.Code, Base: base})
	return s.await(ctx, p, limit, emit)
}

// await hands out the outputs of a process until it ends or its time does.
func (s *Service) await(ctx context.Context, p *process, limit time.Duration, emit func(output) error) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	r := recorder{emit: emit}
	out := p.transcript()
	for ended := false; !ended && r.err == nil; {
		select {
		case <-out.ready:
			r.record(out.take())
		case <-p.gone:
			ended = true
		case <-ctx.Done():
			r.err = context.Cause(ctx)
		}
	}
	if r.err != nil {
		p.stop()
	} else {
		p.kill() // what it left in its group
	}
	exit := p.Exit()
	err := r.err
	r.record(out.finish())
	o := outcome{status: okay, exit: exit.Code}
	switch {
	case errors.Is(err, errTimeout):
		o.status, o.exit = timedOut, timeoutCode
		op.Say(ctx, "The code ran longer than %s, so its process was ended", seconds(limit))
	case err != nil:
		return outcome{}, op.Errorf(op.Canceled, "nobody waits for the code any more, so its process was ended")
	case exit.Signal != 0 && s.stopping():
		return outcome{}, errStopping()
	case exit.Code != 0:
		o.status = failed
		if exit.Signal != 0 {
			r.record([]output{failure("ProcessDied", death(exit))})
		}
	}
	o.outputs = fold(r.all)
	return o, nil
}

// recorder keeps outputs and passes them on. Once that fails it only keeps them.
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

// begin starts a process with a version of Node.js.
func (s *Service) begin(ctx context.Context, version string, c start) (*process, error) {
	rt, err := s.pick(ctx, version)
	if err != nil {
		return nil, err
	}
	c.path, c.env, c.limit = rt, s.environ(rt), s.limit
	p, err := launch(s.Runner, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = true
	if err == nil {
		s.fault = ""
		return p, nil
	}
	switch {
	case errors.Is(err, proc.ErrClosed):
		return nil, errStopping()
	case errors.Is(err, proc.ErrNotFound):
		return nil, op.Errorf(op.Unavailable, "%s", absent)
	case gone(c.dir):
		return nil, op.Errorf(op.NotFound, "the directory %s is gone; send a cwd that exists", c.dir)
	case errors.Is(err, fs.ErrPermission):
		return nil, op.Errorf(op.Denied, "the directory %s cannot be entered, or Node.js not be run: %w", c.dir, err)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return nil, op.Errorf(op.Exhausted, "no more processes can be started now (%w); end some first", err)
	}
	s.fault = err.Error()
	return nil, op.Errorf(op.Unavailable, "Node.js at %s cannot be started (%w); install it anew", rt, err)
}

func gone(dir string) bool {
	info, err := os.Stat(dir)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && !info.IsDir()
}

// ready waits until the worker runs: the time of the code begins then. It tells the
// version of Node.js.
func (p *process) ready(ctx context.Context) (string, error) {
	limit := time.NewTimer(startTime)
	defer limit.Stop()
	select {
	case v := <-p.version:
		return v, nil
	case <-p.gone:
		_, stderr := streams(p.turnOver().finish())
		return "", op.Errorf(op.Unavailable, "Node.js did not start: %s\n%s", death(p.Exit()), strings.TrimSpace(stderr))
	case <-limit.C:
		return "", op.Errorf(op.Unavailable, "Node.js did not start within %s; try again when the machine is less busy", seconds(startTime))
	case <-ctx.Done():
		return "", op.Errorf(op.Canceled, "nobody waits for the code any more")
	}
}

// claim makes a process of no session the service's to end.
func (s *Service) claim(p *process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.calls[p] = struct{}{}
	return true
}

func (s *Service) disclaim(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, p)
}

func (s *Service) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func errStopping() error {
	return op.Errorf(op.Unavailable, "the sandbox is stopping; no code can be run")
}

// death tells how a process ended that nobody told to.
func death(e proc.Exit) string {
	switch {
	case e.Signal == syscall.SIGKILL:
		return "the process was killed by SIGKILL; if nobody sent it, the memory ran out"
	case e.Signal != 0:
		return "the process was killed by " + unix.SignalName(e.Signal)
	}
	return fmt.Sprintf("the process exited with code %d", e.Code)
}

func (o outcome) reply(code string) ExecuteOut {
	r := ExecuteOut{Language: "javascript", Status: o.status, Code: code, ExitCode: o.exit}
	r.Stdout, r.Stderr = streams(o.outputs)
	if o.session != "" {
		r.SessionID = &o.session
	}
	if o.count > 0 {
		r.ExecutionCount = &o.count
	}
	r.Outputs = make([]Output, 0, len(o.outputs))
	for _, out := range o.outputs {
		r.Outputs = append(r.Outputs, wire(out))
	}
	return r
}

func wire(o output) Output {
	w := Output{Type: o.Type}
	switch o.Type {
	case kernel.Stream:
		w.Name, w.Text = &o.Name, &o.Text
	case kernel.Error:
		w.EName, w.EValue, w.Traceback = &o.EName, &o.EValue, &o.Traceback
	default:
		w.Data, w.Metadata = &o.Data, &o.Metadata
	}
	return w
}

// directory checks the directory that a caller asks for; none is "".
func (s *Service) directory(path *string) (string, error) {
	if value(path) == "" {
		return "", nil
	}
	dir, err := s.base.Resolve(*path)
	if err != nil {
		return "", op.Errorf(op.Invalid, "cwd: %w", err)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", op.Errorf(op.NotFound, "cwd %s does not exist; create it first, or leave it out", dir)
	case err != nil:
		return "", op.Errorf(op.Denied, "cwd %s cannot be used: %w", dir, err)
	case !info.IsDir():
		return "", op.Errorf(op.Invalid, "cwd %s is not a directory", dir)
	}
	return dir, nil
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// seconds writes a duration for people.
func seconds(d time.Duration) string {
	if d == time.Second {
		return "1 second"
	}
	return fmt.Sprintf("%g seconds", d.Seconds())
}
