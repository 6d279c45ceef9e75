package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/cove-sandbox/cove/internal/kernel"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
)

// ExecuteIn is a cell to run.
type ExecuteIn struct {
	Code       string  `json:"code" doc:"What to run"`
	Timeout    int     `json:"timeout" default:"30" minimum:"1" maximum:"300" nullable:"true" doc:"Seconds after which the cell is interrupted"`
	KernelName *string `json:"kernel_name" doc:"Kernel to run it in; Python when missing"`
	SessionID  *string `json:"session_id" doc:"Session to run it in, made if there is none of this name; without one it has a kernel of its own"`
	Cwd        *string `json:"cwd" doc:"Working directory, which a session keeps; the workspace when missing"`
}

// ExecuteOut is what became of the cell.
type ExecuteOut struct {
	KernelName     string   `json:"kernel_name" doc:"Kernel it ran in"`
	SessionID      *string  `json:"session_id" doc:"Session it ran in"`
	Status         string   `json:"status" enum:"ok,error,timeout" doc:"How it ended"`
	ExecutionCount *int     `json:"execution_count" doc:"Its number in the kernel"`
	Outputs        []Output `json:"outputs" doc:"Its outputs, as a notebook keeps them"`
	Code           string   `json:"code" doc:"What was run"`
	MsgID          *string  `json:"msg_id" doc:"The protocol's name for the request"`
}

// ExecuteEvent is what the events of a streamed cell hold.
type ExecuteEvent struct {
	Output *Output     `json:"output,omitempty" doc:"In output: the next one. Beside the kinds of a notebook there are clear_output and update_display_data, which change outputs sent before"`
	Result *ExecuteOut `json:"result,omitempty" doc:"In result: the reply as it is without stream, all outputs included"`
}

// Execute runs a cell.
func (s *Service) Execute(ctx context.Context, in ExecuteIn) (ExecuteOut, error) {
	o, err := s.execute(ctx, in, false, nil)
	return o.wire(in.Code), err
}

// ExecuteStream runs a cell and sends its outputs as they come. A reader who goes
// away interrupts it.
func (s *Service) ExecuteStream(ctx context.Context, in ExecuteIn, send func(op.Event) error) error {
	o, err := s.execute(ctx, in, false, func(o kernel.Output) error {
		return send(op.Event{Name: "output", Data: ExecuteEvent{Output: new(wire(o))}})
	})
	if err != nil {
		return err
	}
	return send(op.Event{Name: "result", Data: ExecuteEvent{Result: new(o.wire(in.Code))}})
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

// Run runs a cell of Python. Outputs are handed to emit, which may be nil, as they come.
func (s *Service) Run(ctx context.Context, c Cell, emit func(kernel.Output) error) (Result, error) {
	in := ExecuteIn{Code: c.Code, SessionID: &c.Session, Cwd: &c.Dir, Timeout: int(c.Timeout / time.Second)}
	o, err := s.execute(ctx, in, c.Stateful, emit)
	exit := map[string]int{okay: 0, failed: 1, timedOut: timeoutCode}[o.status]
	return Result{Status: o.status, Session: o.session, ExitCode: exit, Outputs: o.outputs}, err
}

const (
	okay     = "ok"
	failed   = "error"
	timedOut = "timeout"

	timeoutCode = 124 // what the program timeout answers
)

// errTimeout is why a cell is interrupted whose time is up.
var errTimeout = errors.New("the time is up")

// outcome is what became of a cell.
type outcome struct {
	status  string
	kernel  string
	session string
	fate    string // what became of the kernel, if it did not survive the cell
	reply   kernel.Reply
	outputs []kernel.Output
}

func (s *Service) execute(ctx context.Context, in ExecuteIn, stateful bool, emit func(kernel.Output) error) (outcome, error) {
	limit := time.Duration(in.Timeout) * time.Second
	if limit <= 0 {
		limit = defaultTimeout
	}
	dir, err := s.directory(in.Cwd)
	if err != nil {
		return outcome{}, err
	}
	if stateful || value(in.SessionID) != "" {
		return s.inSession(ctx, in, dir, limit, emit)
	}
	return s.once(ctx, in, dir, limit, emit)
}

// once runs a cell in a kernel that nobody has used and nobody will.
func (s *Service) once(ctx context.Context, in ExecuteIn, dir string, limit time.Duration, emit func(kernel.Output) error) (outcome, error) {
	spec, err := s.kernelSpec(ctx, value(in.KernelName))
	if err != nil {
		return outcome{}, err
	}
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case s.turns <- struct{}{}:
	case <-wait.Done():
		return outcome{}, op.Errorf(op.Exhausted, "%d other cells run in kernels of their own and none ended in time; try again later, or use a session", cap(s.turns))
	}
	if dir == "" {
		dir = s.Workspace
	}
	k, err := s.take(ctx, spec, dir)
	if err == nil && !s.claim(k) {
		k.Close()
		err = errStopping()
	}
	if err != nil {
		<-s.turns
		return outcome{}, err
	}
	o, err := s.cell(ctx, k, in.Code, limit, emit)
	o.kernel = spec.Name
	if k.Err() == nil && err == nil && o.status != timedOut {
		s.settle(k)
	}
	s.disclaim(k)
	switch {
	case errors.Is(err, kernel.ErrClosed):
		err = errStopping()
	case err == nil && o.status == timedOut:
		op.Say(ctx, "The cell ran longer than %s and was interrupted", seconds(limit))
	case err == nil && o.fate != "":
		op.Say(ctx, "%s", o.fate)
	}
	return o, err
}

// claim makes the kernel of a call without a session the service's to end.
func (s *Service) claim(k *kernel.Kernel) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.used = s.now()
	s.schedule()
	s.alone[k] = struct{}{}
	return true
}

// disclaim ends such a kernel and, once it is gone, lets another call have its turn.
func (s *Service) disclaim(k *kernel.Kernel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.alone, k)
	if s.closed { // nobody waits for tasks any more
		k.Close()
		<-s.turns
		return
	}
	s.tasks.Go(func() {
		k.Shutdown(s.life)
		<-s.turns
	})
}

const (
	// settleTime bounds the farewell of a kernel that is used once.
	settleTime = time.Second
	// moveTime bounds a change of directory.
	moveTime = 10 * time.Second
)

// letGo forgets all results and variables. IPython's own reset also looks for
// garbage, which takes a tenth of a second.
const letGo = `
_s = get_ipython()
_s.user_ns.get("_oh", {}).clear()
_s.displayhook._ = _s.displayhook.__ = _s.displayhook.___ = None
for _n in [n for n in _s.user_ns if n not in _s.user_ns_hidden]:
    if _n != "_s": _s.user_ns.pop(_n, None)
`

// settle lets go of what a cell has left, so that its files are written and closed
// when its caller has the answer. The kernel ends later.
func (s *Service) settle(k *kernel.Kernel) {
	if k.Info().Implementation != "ipython" {
		return
	}
	ctx, cancel := context.WithTimeout(s.life, settleTime)
	defer cancel()
	_, _ = k.Execute(ctx, kernel.Request{Code: letGo, Silent: true, Grace: time.Millisecond}, nil)
}

// take returns a kernel that nobody has used.
func (s *Service) take(ctx context.Context, spec kernel.Spec, dir string) (*kernel.Kernel, error) {
	ctx, cancel := context.WithTimeout(ctx, queueTime)
	defer cancel()
	first, err := s.kernelSpec(ctx, "")
	var k *kernel.Kernel
	if err == nil && first.Name == spec.Name {
		k, err = s.pool.take(ctx, spec)
		if err == nil && dir != s.Workspace {
			if err = move(ctx, k, dir); err != nil {
				k.Close()
				return nil, err
			}
		}
	} else {
		k, err = s.startKernel(ctx, spec, dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.fault = ""
		return k, nil
	case s.closed, errors.Is(err, proc.ErrClosed):
		return nil, errStopping()
	case ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded):
		return nil, op.Errorf(op.Canceled, "nobody waits for the cell any more")
	}
	s.fault = err.Error()
	return nil, op.Errorf(op.Unavailable, "the kernel %s did not start: %w", spec.Name, err)
}

// startKernel starts a kernel in a directory.
func (s *Service) startKernel(ctx context.Context, spec kernel.Spec, dir string) (*kernel.Kernel, error) {
	folder := s.folder()
	if folder != "" {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, fmt.Errorf("make the folder for sockets: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	return kernel.Start(ctx, kernel.Config{Runner: s.Runner, Spec: spec, Dir: dir, RuntimeDir: folder, OutputLimit: s.limit, Log: s.Log})
}

// move changes the working directory of a kernel.
func move(ctx context.Context, k *kernel.Kernel, dir string) error {
	if k.Info().Language != "python" {
		return op.Errorf(op.Invalid, "the working directory of a %s kernel can only be chosen when its session is made; use another session_id", k.Info().Language)
	}
	text, err := json.Marshal(dir) // which is a string literal in Python too
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	reply, err := k.Execute(ctx, kernel.Request{Code: `__import__("os").chdir(` + string(text) + `)`, Silent: true}, nil)
	if err != nil {
		return op.Errorf(op.Unavailable, "the kernel did not enter the directory %s: %w; try again, or use another session", dir, err)
	}
	if reply.Status != okay {
		return op.Errorf(op.NotFound, "the directory %s cannot be entered: %s", dir, reply.EValue)
	}
	return nil
}

// cell runs code in a kernel. Only what ends its caller's interest is an error.
func (s *Service) cell(ctx context.Context, k *kernel.Kernel, code string, limit time.Duration, emit func(kernel.Output) error) (outcome, error) {
	var all []kernel.Output
	o := outcome{status: okay}
	run, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	defer cancel()
	reply, err := k.Execute(run, kernel.Request{Code: code, Grace: s.grace}, func(out kernel.Output) error {
		all = append(all, out)
		if emit == nil {
			return nil
		}
		return emit(out)
	})
	o.reply = reply
	if errors.Is(err, kernel.ErrUnresponsive) {
		k.Close()
	}
	_, died := errors.AsType[*kernel.DeathError](err)
	timeout, stuck := errors.Is(err, errTimeout), errors.Is(err, kernel.ErrUnresponsive)
	switch {
	case err == nil && reply.Status != okay:
		o.status = failed
	case err == nil && reply.Exit:
		o.fate = "The cell told the kernel to end"
	case err == nil:
	case errors.Is(err, kernel.ErrClosed):
		return o, err
	case timeout && stuck:
		o.status, o.fate = timedOut, "The cell ran longer than "+seconds(limit)+" and did not let itself be interrupted, so the kernel was ended"
	case timeout:
		o.status = timedOut
	case died || stuck && ctx.Err() == nil:
		o.status, o.fate = failed, "The kernel died while the cell ran"
		if stuck {
			o.fate = "The kernel stopped answering, so it was ended"
		}
		all = append(all, kernel.Output{Type: kernel.Error, EName: "DeadKernelError", EValue: err.Error(), Traceback: []string{"DeadKernelError: " + err.Error()}})
	default:
		return o, op.Errorf(op.Canceled, "nobody waits for the cell any more, so it was interrupted")
	}
	o.outputs = kernel.Fold(all)
	return o, nil
}

func (s *Service) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func errStopping() error {
	return op.Errorf(op.Unavailable, "the sandbox is stopping; no code can be run")
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
