package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// ExecuteIn is a cell to run.
type ExecuteIn struct {
	Code       string  `json:"code" doc:"Code to run"`
	Timeout    int     `json:"timeout" default:"30" minimum:"1" maximum:"300" nullable:"true" doc:"Seconds until the cell is interrupted"`
	KernelName *string `json:"kernel_name" doc:"Kernel to run in, such as ir (R) or java. Default: Python"`
	SessionID  *string `json:"session_id" doc:"Session to run in; created if it does not exist. Default: a kernel used only for this call"`
	Cwd        *string `json:"cwd" doc:"Working directory; a session keeps it. Default: the workspace"`
}

// ExecuteOut is the result of a cell.
type ExecuteOut struct {
	KernelName     string   `json:"kernel_name" doc:"Kernel that ran the code"`
	SessionID      *string  `json:"session_id" doc:"Session that ran the code"`
	Status         string   `json:"status" enum:"ok,error,timeout" doc:"How the code ended"`
	ExecutionCount *int     `json:"execution_count" doc:"Number of the cell in its kernel"`
	Outputs        []Output `json:"outputs" doc:"Outputs in notebook format"`
	Code           string   `json:"code" doc:"The code"`
	MsgID          *string  `json:"msg_id" doc:"ID of the request in the Jupyter protocol"`
}

// ExecuteEvent is the data of an event of a streamed cell.
type ExecuteEvent struct {
	Output *Output     `json:"output,omitempty" doc:"In output events: the next output"`
	Result *ExecuteOut `json:"result,omitempty" doc:"In result events: the reply as without stream, with all outputs"`
}

// Execute runs a cell.
func (s *Service) Execute(ctx context.Context, in ExecuteIn) (ExecuteOut, error) {
	o, err := s.execute(ctx, in, false, nil)
	return o.render(in.Code), err
}

// ExecuteStream runs a cell and sends its outputs as they are produced. The cell is
// interrupted if the client disconnects.
func (s *Service) ExecuteStream(ctx context.Context, in ExecuteIn, send func(op.Event) error) error {
	o, err := s.execute(ctx, in, false, func(o kernel.Output) error {
		return send(op.Event{Name: "output", Data: ExecuteEvent{Output: new(newOutput(o))}})
	})
	if err != nil {
		return err
	}
	return send(op.Event{Name: "result", Data: ExecuteEvent{Result: new(o.render(in.Code))}})
}

// Run runs a cell in the kernel that it names, by default Python, and calls emit, which may
// be nil, for each output.
func (s *Service) Run(ctx context.Context, c kernel.Cell, emit func(kernel.Output) error) (kernel.Result, error) {
	in := ExecuteIn{Code: c.Code, SessionID: &c.Session, Cwd: &c.Dir, Timeout: int(c.Timeout / time.Second)}
	if c.Kernel != "" {
		in.KernelName = &c.Kernel
	}
	o, err := s.execute(ctx, in, c.Stateful, emit)
	exit := map[string]int{kernel.OK: 0, kernel.Failed: 1, kernel.TimedOut: kernel.TimeoutCode}[o.status]
	return kernel.Result{Status: o.status, Session: o.session, ExitCode: exit, Outputs: o.outputs}, err
}

// outcome is the result of a cell.
type outcome struct {
	status  string
	kernel  string
	session string
	ended   string // why the kernel ended with the cell; empty: it did not
	reply   kernel.Reply
	outputs []kernel.Output
}

func (s *Service) execute(ctx context.Context, in ExecuteIn, stateful bool, emit func(kernel.Output) error) (outcome, error) {
	limit := kernel.TimeoutOf(in.Timeout)
	dir, err := session.Directory(s.base, "cwd", in.Cwd)
	if err != nil {
		return outcome{}, err
	}
	if err := s.provideKernel(ctx, op.Value(in.KernelName), emit); err != nil {
		return outcome{}, err
	}
	if stateful || op.Value(in.SessionID) != "" {
		return s.runInSession(ctx, in, dir, limit, emit)
	}
	return s.runOnce(ctx, in, dir, limit, emit)
}

// runOnce runs a cell in a kernel that is used only for this call.
func (s *Service) runOnce(ctx context.Context, in ExecuteIn, dir string, limit time.Duration,
	emit func(kernel.Output) error) (outcome, error) {
	spec, err := s.kernelSpec(ctx, op.Value(in.KernelName))
	if err != nil {
		return outcome{}, err
	}
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case s.turns <- struct{}{}:
	case <-wait.Done():
		return outcome{}, op.Errorf(op.Exhausted,
			"cell limit reached (%d without a session), and none ended in time; try again later, or use a session", cap(s.turns))
	}
	if dir == "" {
		dir = s.Workspace
	}
	k, err := s.takeKernel(ctx, spec, dir)
	if err == nil && !s.adoptKernel(k) {
		k.Close()
		err = session.ErrStopping()
	}
	if err != nil {
		<-s.turns
		return outcome{}, err
	}
	o, err := s.runCell(ctx, k, in.Code, limit, emit)
	o.kernel = spec.Name
	if k.Err() == nil && err == nil && o.status != kernel.TimedOut {
		s.clearNamespace(k)
	}
	s.releaseKernel(k)
	switch {
	case errors.Is(err, kernel.ErrClosed):
		err = session.ErrStopping()
	case err == nil && o.status == kernel.TimedOut:
		op.Say(ctx, "The cell ran longer than %s and was interrupted", kernel.FormatDuration(limit))
	case err == nil && o.ended != "":
		op.Say(ctx, "%s", o.ended)
	}
	return o, err
}

// adoptKernel registers the kernel of a call without a session, so that Close ends it.
func (s *Service) adoptKernel(k *kernel.Kernel) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions.Closed() {
		return false
	}
	s.runtime.Used = true
	s.pool.touch()
	s.oneShot[k] = struct{}{}
	return true
}

// releaseKernel ends such a kernel and then releases its turn.
func (s *Service) releaseKernel(k *kernel.Kernel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.oneShot, k)
	if s.sessions.Closed() { // Close may not wait for new tasks
		k.Close()
		<-s.turns
		return
	}
	s.tasks.Go(func() {
		_ = k.Shutdown(s.life)
		<-s.turns
	})
}

const (
	// clearTime limits how long clearNamespace may take.
	clearTime = time.Second
	// changeDirTime limits a change of directory.
	changeDirTime = 10 * time.Second
)

// clearScript drops all results and variables. IPython's own reset also collects
// garbage, which takes a tenth of a second.
const clearScript = `
_s = get_ipython()
_s.user_ns.get("_oh", {}).clear()
_s.displayhook._ = _s.displayhook.__ = _s.displayhook.___ = None
for _n in [n for n in _s.user_ns if n not in _s.user_ns_hidden]:
    if _n != "_s": _s.user_ns.pop(_n, None)
`

// clearNamespace drops the variables of a cell, so that its files are flushed and closed
// before the reply is sent. The kernel ends later.
func (s *Service) clearNamespace(k *kernel.Kernel) {
	if k.Info().Implementation != "ipython" {
		return
	}
	ctx, cancel := context.WithTimeout(s.life, clearTime)
	defer cancel()
	_, _ = k.Execute(ctx, kernel.Request{Code: clearScript, Silent: true, Grace: time.Millisecond}, nil)
}

// takeKernel returns an unused kernel.
func (s *Service) takeKernel(ctx context.Context, spec kernel.Spec, dir string) (*kernel.Kernel, error) {
	ctx, cancel := context.WithTimeout(ctx, queueTime)
	defer cancel()
	first, err := s.kernelSpec(ctx, "")
	var k *kernel.Kernel
	if err == nil && first.Name == spec.Name {
		k, err = s.pool.take(ctx, spec)
		if err == nil && dir != s.Workspace {
			if err = changeDir(ctx, k, dir); err != nil {
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
		s.runtime.Fault = ""
		return k, nil
	case s.sessions.Closed(), errors.Is(err, proc.ErrClosed):
		return nil, session.ErrStopping()
	case ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded):
		return nil, op.Errorf(op.Canceled, "wait for a kernel: canceled")
	}
	s.runtime.Fault = err.Error()
	return nil, op.Errorf(op.Unavailable, "kernel %q did not start: %w", spec.Name, err)
}

// startKernel starts a kernel in a directory.
func (s *Service) startKernel(ctx context.Context, spec kernel.Spec, dir string) (*kernel.Kernel, error) {
	folder := s.folder()
	if folder != "" {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return nil, fmt.Errorf("create the folder for sockets: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	return kernel.Start(ctx, kernel.Config{Runner: s.Runner, Spec: spec, Dir: dir, RuntimeDir: folder, OutputLimit: s.limit, Log: s.Log})
}

// changeDir changes the working directory of a kernel.
func changeDir(ctx context.Context, k *kernel.Kernel, dir string) error {
	if k.Info().Language != "python" {
		return op.Errorf(op.Invalid, "the working directory of a %s kernel can only be chosen when its session is "+
			"created; use another session_id", k.Info().Language)
	}
	text, err := json.Marshal(dir) // also a string literal in Python
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, changeDirTime)
	defer cancel()
	reply, err := k.Execute(ctx, kernel.Request{Code: `__import__("os").chdir(` + string(text) + `)`, Silent: true}, nil)
	if err != nil {
		return op.Errorf(op.Unavailable, "change the kernel's directory to %q: %w; try again, or use another session", dir, err)
	}
	if reply.Status != kernel.OK {
		return op.Errorf(op.NotFound, "cannot change to directory %q: %s", dir, reply.EValue)
	}
	return nil
}

// runCell runs code in a kernel. It returns an error only if the request was canceled or the
// kernel was closed.
func (s *Service) runCell(ctx context.Context, k *kernel.Kernel, code string, limit time.Duration,
	emit func(kernel.Output) error) (outcome, error) {
	var all []kernel.Output
	o := outcome{status: kernel.OK}
	run, cancel := context.WithTimeoutCause(ctx, limit, kernel.ErrTimeout)
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
	_, died := errors.AsType[*kernel.ExitError](err)
	timeout, hung := errors.Is(err, kernel.ErrTimeout), errors.Is(err, kernel.ErrUnresponsive)
	switch {
	case err == nil && reply.Status != kernel.OK:
		o.status = kernel.Failed
	case err == nil && reply.Exit:
		o.ended = "The cell made the kernel exit"
	case err == nil:
	case errors.Is(err, kernel.ErrClosed):
		return o, err
	case timeout && hung:
		o.status = kernel.TimedOut
		o.ended = fmt.Sprintf("The cell ran longer than %s and ignored the interrupt, so the kernel was killed", kernel.FormatDuration(limit))
	case timeout:
		o.status = kernel.TimedOut
	case died || hung && ctx.Err() == nil:
		o.status, o.ended = kernel.Failed, "The kernel died while the cell ran"
		if hung {
			o.ended = "The kernel stopped responding and was killed"
		}
		all = append(all, kernel.Output{Type: kernel.Error, EName: "DeadKernelError", EValue: err.Error(),
			Traceback: []string{"DeadKernelError: " + err.Error()}})
	default:
		return o, op.Errorf(op.Canceled, "the request was canceled, so the cell was interrupted")
	}
	o.outputs = kernel.Fold(all)
	return o, nil
}

func (s *Service) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions.Closed()
}
